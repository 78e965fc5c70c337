// What every shader may use: sizes, folded workgroup numbers, and number formats by their bits.
//
// Traps: WGSL lets implementations assume that NaN and infinity do not occur, so both are told by their bits; `x != x` is false for NaN
// on some drivers. Subnormals of F32 may be flushed, so E4M3's own are made by an exact product of integers.

const F32: u32 = 0u;
const BF16: u32 = 1u;
const E4M3: u32 = 2u;

// Workgroups along the first axis before the second begins: 65,535 is the most that an axis may have.
const FOLD: u32 = 65535u;

@group(0) @binding(0) var<uniform> params: array<vec4<u32>, 12>;

// The units of this dispatch: rows, elements, or whatever a shader says.
fn first_unit() -> u32 {
    return params[11].x;
}

fn end_unit() -> u32 {
    return params[11].y;
}

// The unit of a workgroup.
fn unit_of(group: vec3<u32>) -> u32 {
    return params[11].x + group.y * FOLD + group.x;
}

// The unit of an invocation of 64.
fn element_of(group: vec3<u32>, lane: u32) -> u32 {
    return params[11].x + (group.y * FOLD + group.x) * 64u + lane;
}

fn is_nan(bits: u32) -> bool {
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

// The element of a word, 0 for the lower one, as the bits of an F32.
fn bf16_of(word: u32, upper: u32) -> u32 {
    return select(word << 16u, word & 0xffff0000u, upper == 1u);
}

// To nearest, ties to even. A NaN that is one of BF16 stays as it is, another becomes ffff, as everywhere in this house.
fn bf16_bits(bits: u32) -> u32 {
    if (is_nan(bits)) {
        return select(0xffffu, bits >> 16u, (bits & 0xffffu) == 0u);
    }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

fn bf16_round(value: f32) -> f32 {
    return bitcast<f32>(bf16_bits(bitcast<u32>(value)) << 16u);
}

// OCP E4M3: bias 7, subnormals, no infinity, one NaN of each sign.
fn e4m3(code: u32) -> f32 {
    let sign = (code & 0x80u) << 24u;
    let magnitude = code & 0x7fu;
    if (magnitude == 0x7fu) {
        return bitcast<f32>(sign | 0x7ff00000u);
    }
    if (magnitude < 8u) {
        return bitcast<f32>(sign | bitcast<u32>(f32(magnitude) * 0.001953125));
    }
    return bitcast<f32>(sign | ((magnitude << 20u) + (120u << 23u)));
}
