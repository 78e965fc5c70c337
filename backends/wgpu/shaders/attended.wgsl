// Results of attention of what several dispatches of it have left.
//
// Units are workgroups of attention, 512 columns of a head of a token. params[0]: columns of a head's result, workgroups of a head.
// Floor: the bytes of what was left, and of the result.

#include common
#words state 1
#result result 2

const STATE: u32 = 516u;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let number = unit_of(group);
    if (number >= end_unit()) {
        return;
    }
    let begin = (number - first_unit()) * STATE;
    let row = number / params[0].y;
    let left = number % params[0].y * 512u;
    let total = bitcast<f32>(state_word(begin + 513u));
    let seen = state_word(begin + 514u);
    for (var column = lane; column < min(512u, params[0].x - left); column += 64u) {
        var bits = bitcast<u32>(bitcast<f32>(state_word(begin + column)) / total);
        if (seen == 2u || total == 0.0) {
            // Without any position 0.
            bits = select(0x7fc00000u, 0u, seen == 0u);
        }
        result_put(row * params[0].x + left + column, bits);
    }
}
