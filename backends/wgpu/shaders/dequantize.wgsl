// What codes of E4M3 are worth under the scales of their blocks, rounded to BF16.
//
// Units are elements. params[0]: elements, columns, blocks side by side; params[1]: rows and columns of a block.
// Floor: the bytes of the codes and of an F32 output.

#include common
#include exact
#base codes 1
@group(0) @binding(1) var<storage, read> codes: array<u32>;
#words scales 2
#result result 3

const NAN_BITS: u32 = 0x7fc00000u;

// The product in F32.
fn product(code: u32, scale: u32) -> u32 {
    let of_code = code & 0x7fu;
    let of_scale = scale & 0x7fffffffu;
    let sign = ((code << 24u) ^ scale) & 0x80000000u;
    if (of_code == 0x7fu || of_scale > INFINITY_BITS || (of_code == 0u && of_scale == INFINITY_BITS)) {
        return NAN_BITS;
    }
    if (of_code == 0u || of_scale == 0u) {
        return sign;
    }
    if (of_scale == INFINITY_BITS) {
        return sign | INFINITY_BITS;
    }
    // Subnormal codes are of 2^-9; others have a digit more than their three, and a bias of 7.
    let is_normal = of_code >= 8u;
    let mantissa = select(of_code, 8u | (of_code & 7u), is_normal);
    let exponent = select(-9, i32(of_code >> 3u) - 10, is_normal);
    let number = number_of(of_scale);
    return sign | rounded(mantissa * number.mantissa, exponent + number.exponent);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = element_of(group, lane);
    if (index >= end_unit()) {
        return;
    }
    let row = index / params[0].y;
    let column = index % params[0].y;
    let block = row / params[1].x * params[0].z + column / params[1].y;
    let place = index + codes_base();
    let code = (codes[place >> 2u] >> (8u * (place & 3u))) & 0xffu;
    result_put(index, bf16_bits(product(code, scales_word(block))) << 16u);
}
