// Codes of E4M3 by the scales of their blocks, four in a word, which one invocation owns.
//
// Units are words of codes. params[0]: elements, columns of x, blocks side by side; params[1]: rows and columns of a block.
// Floor: the bytes of x and of the codes.

#include common
#include exact
#floats x 1
#words scales 2
#result codes 3

// The nearest code of a magnitude that is no NaN, of two equally near the even one; the largest for what is too large.
fn encode(magnitude: u32) -> u32 {
    if (magnitude >= 0x43e00000u) {
        return 0x7eu;
    }
    let biased = magnitude >> 23u;
    // From 2^-6 on the exponent's bias is 127 there and 7 here.
    if (biased >= 121u) {
        return ((magnitude + 0x7ffffu + ((magnitude >> 20u) & 1u)) >> 20u) - (120u << 3u);
    }
    // Less than a quarter of 2^-9, the distance of subnormal codes.
    if (biased < 116u) {
        return 0u;
    }
    // May be 8, which is the code of the least normal number.
    let places = 141u - biased;
    let mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    return (mantissa + (1u << (places - 1u)) - 1u + ((mantissa >> places) & 1u)) >> places;
}

fn code_of(index: u32) -> u32 {
    let bits = x_bits(index);
    let sign = (bits >> 24u) & 0x80u;
    let magnitude = bits & 0x7fffffffu;
    if (is_nan(bits)) {
        return sign | 0x7fu;
    }
    if (magnitude == 0u || magnitude == INFINITY_BITS) {
        return sign | select(0x7eu, 0u, magnitude == 0u);
    }
    let row = index / params[0].y;
    let column = index % params[0].y;
    let block = row / params[1].x * params[0].z + column / params[1].y;
    return sign | encode(quotient(magnitude, scales_word(block)));
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let word = element_of(group, lane);
    let elements = params[0].x;
    let first = 4u * word;
    if (word >= end_unit()) {
        return;
    }
    var packed = 0u;
    for (var place = 0u; place < min(4u, elements - first); place++) {
        packed |= code_of(first + place) << (8u * place);
    }
    codes_put(word, packed);
}
