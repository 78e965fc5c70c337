// Products of few rows and a matrix whose columns are summed over: the sum goes down, and neighbours of a result lie side by side.
//
// An invocation makes an element.
//
// Floor: the bytes of the matrices, for each row.

#include common
#include product
#result result 4

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group.y * FOLD + group.x;
    let k = end_term();
    let across = (end_column() - first_column() + 63u) / 64u;
    let column = first_column() + 64u * (index % across) + lane;
    let row = first_unit() + index / across / batches();
    if (row >= end_unit() || column >= end_column()) {
        return;
    }
    let batch = params[4].x + index / across % batches();
    let of_x = x_begin(row, batch);
    let of_weight = weight_begin(batch);
    var total = 0.0;
    if (first_term() > 0u) {
        total = bitcast<f32>(result_word(result_begin(row, batch) + column));
    }
    for (var begin = first_term(); begin < k; begin += CHUNK) {
        let end = min(begin + CHUNK, k);
        var part = 0.0;
        for (var i = begin; i < end; i += 1u) {
            part = fma(x_at(of_x + i), weight_at(0u, of_weight + i, column), part);
        }
        total += part;
    }
    result_put(result_begin(row, batch) + column, bitcast<u32>(total));
}
