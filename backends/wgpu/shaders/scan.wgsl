// Sums over the invocations of a workgroup, of integers. The shader has `override LANES`.

var<workgroup> sums: array<u32, LANES>;

// The sum of the values of all invocations up to this one. Afterwards `sums` has them all.
fn scan(lane: u32, value: u32) -> u32 {
    workgroupBarrier();
    sums[lane] = value;
    workgroupBarrier();
    for (var distance = 1u; distance < LANES; distance <<= 1u) {
        var before = 0u;
        if (lane >= distance) {
            before = sums[lane - distance];
        }
        workgroupBarrier();
        sums[lane] += before;
        workgroupBarrier();
    }
    return sums[lane];
}
