// Norms of rows, a workgroup for each.
//
// Units are rows. params[0]: rows, columns, whether it is a layer norm, eps as the bits of an F32.
// Floor: the bytes of x and of an F32 output; weight and bias are read by each row.

#include common
#include order
#include tree
#floats x 1
#floats weight 2
#floats bias 3
#result result 4

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = unit_of(group);
    if (row >= end_unit()) {
        return;
    }
    let columns = params[0].y;
    let centers = params[0].z == 1u;
    let eps = bitcast<f32>(params[0].w);
    let start = row * columns;
    var mean = 0.0;
    if (centers) {
        var sum = 0.0;
        for (var column = lane; column < columns; column += 64u) {
            sum += x_at(start + column);
        }
        mean = sum_of_all(lane, sum) / f32(columns);
    }
    var squares = 0.0;
    var with_nan = 0u;
    for (var column = lane; column < columns; column += 64u) {
        let bits = x_bits(start + column);
        with_nan |= select(0u, 1u, is_nan(bits));
        // In two passes: the mean of squares less the square of the mean would cancel.
        let centered = bitcast<f32>(bits) - mean;
        squares += centered * centered;
    }
    let root = sqrt(sum_of_all(lane, squares) / f32(columns) + eps);
    let is_none = largest_of_all(lane, with_nan) == 1u;
    for (var column = lane; column < columns; column += 64u) {
        var normed = (x_at(start + column) - mean) / root;
        if (!centers && x_kind == BF16) {
            normed = bf16_round(normed);
        }
        var value = normed * weight_at(column);
        if (centers) {
            value += bias_at(column);
        }
        result_put(start + column, select(bitcast<u32>(value), NAN_BITS, is_none));
    }
}
