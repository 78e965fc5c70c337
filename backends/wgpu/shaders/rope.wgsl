// Rotary position embedding, an invocation for each element.
//
// Angles are turns in fixed point: the frequency of a pair in 64 digits behind the point, times the position, of which whole turns fall out.
// An angle in F32 would be off by hundredths at a million positions. Sine and cosine are series, since those of WGSL may be off by 2^-11.
//
// Units are elements. params[0]: elements, elements of a token, of a head, whether pairs are neighbours; params[1]: first element that is rotated, pairs.
// Floor: the bytes of x and of an F32 output.

#include common
#floats x 1
#words positions 2
// Of each pair the upper and the lower word.
@group(0) @binding(3) var<storage, read> frequencies: array<vec2<u32>>;
#result result 4

// An eighth of 2 pi, in 32 digits behind the point.
const RADIANS: u32 = 3373259426u;

// The upper word of a product.
fn upper(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let left = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let right = (a & 0xffffu) * (b >> 16u) + (left & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (left >> 16u) + (right >> 16u);
}

// Sine and cosine of position * frequency turns.
fn turn(position: u32, frequency: vec2<u32>) -> vec2<f32> {
    var high = position * frequency.x + upper(position, frequency.y);
    var low = position * frequency.y;
    // The nearest quarter, and what is left of the turn: from -1/8 to 1/8.
    let quarter = (high + 0x20000000u) >> 30u;
    high -= quarter << 30u;
    let is_negative = (high & 0x80000000u) != 0u;
    if (is_negative) {
        high = ~high + select(0u, 1u, low == 0u);
        low = ~low + 1u;
    }
    // 32 digits from the first that is not 0, so that small angles are as exact as large ones.
    var zeros = 0u;
    if (high == 0u) {
        high = low;
        low = 0u;
        zeros = 32u;
    }
    var sine = 0.0;
    var cosine = 1.0;
    if (high != 0u) {
        let shift = countLeadingZeros(high);
        zeros += shift;
        if (shift > 0u) {
            high = (high << shift) | (low >> (32u - shift));
        }
        let angle = upper(high, RADIANS);
        let place = bitcast<f32>((98u - zeros) << 23u);
        // Two floats that are together the angle.
        let r = f32(angle & 0xffffff00u) * place;
        let rest = f32(angle & 0xffu) * place;
        let z = r * r;
        sine = r + (r * z * (-1.0 / 6.0 + z * (1.0 / 120.0 + z * (-1.0 / 5040.0 + z * (1.0 / 362880.0)))) + rest * (1.0 - 0.5 * z));
        let beyond = z * z * (1.0 / 24.0 + z * (-1.0 / 720.0 + z * (1.0 / 40320.0 - z * (1.0 / 3628800.0))));
        cosine = 1.0 - (0.5 * z - (beyond - rest * r));
    }
    if (is_negative) {
        sine = -sine;
    }
    switch (quarter & 3u) {
        case 0u: { return vec2<f32>(sine, cosine); }
        case 1u: { return vec2<f32>(cosine, -sine); }
        case 2u: { return vec2<f32>(-sine, -cosine); }
        default: { return vec2<f32>(-cosine, sine); }
    }
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = element_of(group, lane);
    if (index >= end_unit()) {
        return;
    }
    let first = params[1].x;
    let pairs = params[1].y;
    let element = index % params[0].z;
    let position = i32(positions_word(index / params[0].y));
    if (position < 0 || element < first || element >= first + 2u * pairs) {
        result_put(index, x_bits(index));
        return;
    }
    var pair = element - first;
    var is_second = false;
    var apart = pairs;
    if (params[0].w == 1u) {
        is_second = (pair & 1u) == 1u;
        pair >>= 1u;
        apart = 1u;
    } else if (pair >= pairs) {
        is_second = true;
        pair -= pairs;
    }
    let other = select(index + apart, index - apart, is_second);
    let sine_cosine = turn(u32(position), frequencies[pair]);
    let turned = x_at(other) * select(-sine_cosine.x, sine_cosine.x, is_second);
    let value = x_at(index) * sine_cosine.y + turned;
    let is_none = is_nan(x_bits(index)) || is_nan(x_bits(other));
    result_put(index, select(bitcast<u32>(value), 0x7fc00000u, is_none));
}
