// Products of gates and of ups become what goes into the products of downs: silu(gate) * up, with the roundings of the element type of x.
//
// Units are elements. params[0].y: whether they are rounded to BF16.
// Floor: 12 bytes an element.

#include common
#include sigmoid
#words gates 1
#words ups 2
#result result 3

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = element_of(group, lane);
    if (index >= end_unit()) {
        return;
    }
    var gate = bitcast<f32>(gates_word(index));
    var up = bitcast<f32>(ups_word(index));
    if (params[0].y == 1u) {
        gate = bf16_round(gate);
        up = bf16_round(up);
    }
    if (is_nan(bitcast<u32>(gate)) || is_nan(bitcast<u32>(up))) {
        result_put(index, 0x7fc00000u);
        return;
    }
    var value = gate * sigmoid(gate) * up;
    if (params[0].y == 1u) {
        value = bf16_round(value);
    }
    result_put(index, bitcast<u32>(value));
}
