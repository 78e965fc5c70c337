// Softmax of rows, a workgroup for each.
//
// Units are rows. params[0]: rows, columns.
// Floor: the bytes of x and of an F32 output.

#include common
#include order
#include tree
#floats x 1
#result result 2

fn weight_of(bits: u32, most: f32) -> f32 {
    // Halves, since the difference may overflow; the exponential of -120 is none in F32.
    let x = bitcast<f32>(bits);
    if (bits == LEAST_BITS || 0.5 * most - 0.5 * x > 60.0) {
        return 0.0;
    }
    return exp(x - most);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = unit_of(group);
    if (row >= end_unit()) {
        return;
    }
    let columns = params[0].y;
    let start = row * columns;
    var key = 0u;
    for (var column = lane; column < columns; column += 64u) {
        key = max(key, key_of(x_bits(start + column)));
    }
    let most_bits = bits_of_key(largest_of_all(lane, key));
    let has_most = (most_bits & INFINITY_BITS) != INFINITY_BITS;
    let most = bitcast<f32>(select(0u, most_bits, has_most));
    var sum = 0.0;
    for (var column = lane; column < columns; column += 64u) {
        sum += weight_of(x_bits(start + column), most);
    }
    let total = sum_of_all(lane, sum);
    for (var column = lane; column < columns; column += 64u) {
        var bits = NAN_BITS;
        if (has_most) {
            bits = bitcast<u32>(weight_of(x_bits(start + column), most) / total);
        } else if (most_bits == LEAST_BITS) {
            bits = 0u;
        }
        result_put(start + column, bits);
    }
}
