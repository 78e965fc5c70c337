// Products of gates and of ups become what goes into the products of downs: silu(gate) * up, with the roundings of the element type of x.
//
// params[0]: elements, whether they are rounded to BF16.
// Floor: 12 bytes an element.

#include common
#include sigmoid
@group(0) @binding(1) var<storage, read> gates: array<u32>;
@group(0) @binding(2) var<storage, read> ups: array<u32>;
@group(0) @binding(3) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = (group.y * FOLD + group.x) * 64u + lane;
    if (index >= params[0].x) {
        return;
    }
    var gate = bitcast<f32>(gates[index]);
    var up = bitcast<f32>(ups[index]);
    if (params[0].y == 1u) {
        gate = bf16_round(gate);
        up = bf16_round(up);
    }
    if (is_nan(bitcast<u32>(gate)) || is_nan(bitcast<u32>(up))) {
        result[index] = 0x7fc00000u;
        return;
    }
    var value = gate * sigmoid(gate) * up;
    if (params[0].y == 1u) {
        value = bf16_round(value);
    }
    result[index] = bitcast<u32>(value);
}
