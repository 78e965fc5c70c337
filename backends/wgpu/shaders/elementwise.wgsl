// One element from one element, or two: unary and binary functions, scale, SwiGLU, casts, and copies into other axes.
//
// Units are elements. params[0]: elements, elements of y (which is repeated), function; params[1].x: a factor, as the bits of an F32.
// Floor: the bytes of the inputs and of an F32 output.

#include common
#include sigmoid
#floats x 1
#floats y 2
#result result 3

fn value(x: f32, y: f32, function: u32) -> f32 {
    switch (function) {
        case 0u: { return x; }
        case 1u: { return x * sigmoid(x); }
        case 2u: { return sigmoid(x); }
        case 3u: { return select(x, 0.0, x <= 0.0); }
        case 4u: { return 1.0 - 2.0 / (exp(2.0 * min(x, 40.0)) + 1.0); }
        case 5u: { return exp(x); }
        case 6u: { return x + y; }
        case 7u: { return x - y; }
        case 8u: { return x * y; }
        case 9u: { return x / y; }
        case 10u: { return x * bitcast<f32>(params[1].x); }
        // The gate of a gated MLP.
        default: { return x * sigmoid(x) * y; }
    }
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = element_of(group, lane);
    if (index >= end_unit()) {
        return;
    }
    let x = x_at(index);
    let other = y_at(index % params[0].y);
    var bits = bitcast<u32>(value(x, other, params[0].z));
    if (params[0].z == 0u) {
        bits = x_bits(index);
    } else if (is_nan(bitcast<u32>(x)) || (params[0].z >= 6u && params[0].z != 10u && is_nan(bitcast<u32>(other)))) {
        // A function may make anything of NaN.
        bits = 0x7fc00000u;
    }
    result_put(index, bits);
}
