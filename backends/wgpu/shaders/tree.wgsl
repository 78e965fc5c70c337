// What the 64 invocations of a workgroup have, put together in an order that depends on nothing. All of them call, and all get the result.

var<workgroup> sums: array<f32, 64>;
var<workgroup> keys: array<u32, 64>;

fn sum_of_all(lane: u32, value: f32) -> f32 {
    // Nobody reads the last result any more.
    workgroupBarrier();
    sums[lane] = value;
    workgroupBarrier();
    for (var step = 32u; step > 0u; step >>= 1u) {
        if (lane < step) {
            sums[lane] += sums[lane + step];
        }
        workgroupBarrier();
    }
    return sums[0];
}

fn largest_of_all(lane: u32, key: u32) -> u32 {
    workgroupBarrier();
    keys[lane] = key;
    workgroupBarrier();
    for (var step = 32u; step > 0u; step >>= 1u) {
        if (lane < step) {
            keys[lane] = max(keys[lane], keys[lane + step]);
        }
        workgroupBarrier();
    }
    return keys[0];
}
