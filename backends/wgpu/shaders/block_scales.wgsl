// The scales of blocks, a workgroup for each.
//
// Units are blocks. params[0]: blocks, columns of x, rows of x, blocks side by side; params[1]: rows and columns of a block, whether scales are powers of two.
// Floor: the bytes of x.

#include common
#include exact
#include tree
#floats x 1
#result scales 2

// 448, the largest number of E4M3.
const LARGEST: u32 = 0x43e00000u;

fn scale_of(most: u32) -> u32 {
    if (most == 0u) {
        return 0x3f800000u;
    }
    let scale = max(quotient(most, LARGEST), 0x00800000u);
    // A carry out of the mantissa is the next exponent.
    return select(scale, (scale + 0x7fffffu) & INFINITY_BITS, params[1].z == 1u);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let block = unit_of(group);
    if (block >= end_unit()) {
        return;
    }
    let columns = params[0].y;
    let across = params[0].w;
    let top = block / across * params[1].x;
    let left = block % across * params[1].y;
    let height = min(params[1].x, params[0].z - top);
    let width = min(params[1].y, columns - left);
    var most = 0u;
    for (var at = lane; at < height * width; at += 64u) {
        let magnitude = x_bits((top + at / width) * columns + left + at % width) & 0x7fffffffu;
        if (magnitude < INFINITY_BITS) {
            // Bits of numbers of one sign are in their order.
            most = max(most, magnitude);
        }
    }
    let of_all = largest_of_all(lane, most);
    if (lane == 0u) {
        scales_put(block, scale_of(of_all));
    }
}
