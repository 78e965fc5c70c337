// Sums, means and maxima of rows, a workgroup for each.
//
// Units are rows. params[0]: rows, columns, function.
// Floor: the bytes of x.

#include common
#include order
#include tree
#floats x 1
#result result 2

const MEAN: u32 = 1u;
const MAX: u32 = 2u;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = unit_of(group);
    if (row >= end_unit()) {
        return;
    }
    let columns = params[0].y;
    let start = row * columns;
    var sum = 0.0;
    var key = 0u;
    for (var column = lane; column < columns; column += 64u) {
        let bits = x_bits(start + column);
        sum += bitcast<f32>(bits);
        key = max(key, key_of(bits));
    }
    let total = sum_of_all(lane, sum);
    let most = largest_of_all(lane, key);
    if (lane != 0u) {
        return;
    }
    var bits = bitcast<u32>(total);
    if (params[0].z == MAX) {
        bits = select(bits_of_key(most), LEAST_BITS, columns == 0u);
    } else if (most == NAN_KEY || (params[0].z == MEAN && columns == 0u)) {
        bits = NAN_BITS;
    } else if (params[0].z == MEAN) {
        bits = bitcast<u32>(total / f32(columns));
    }
    result_put(row, bits);
}
