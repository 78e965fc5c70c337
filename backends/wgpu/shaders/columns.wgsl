// Products of few rows and a matrix whose columns are summed over: the sum goes down, and neighbours of a result lie side by side.
//
// An invocation makes an element.
//
// Floor: the bytes of the matrices, for each row.

#include common
#include product
@group(0) @binding(4) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group.y * FOLD + group.x;
    let columns = params[0].y;
    let k = params[0].z;
    let batches = params[0].w;
    let across = (columns + 63u) / 64u;
    let column = 64u * (index % across) + lane;
    if (index >= params[0].x * batches * across || column >= columns) {
        return;
    }
    let batch = index / across % batches;
    let row = index / across / batches;
    let of_x = x_begin(row, batch);
    let of_weight = weight_begin(batch);
    var total = 0.0;
    for (var begin = 0u; begin < k; begin += CHUNK) {
        let end = min(begin + CHUNK, k);
        var part = 0.0;
        for (var i = begin; i < end; i += 1u) {
            part = fma(x_at(of_x + i), weight_at(0u, of_weight + i, column), part);
        }
        total += part;
    }
    result[result_begin(row, batch) + column] = bitcast<u32>(total);
}
