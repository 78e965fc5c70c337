// What a token's experts say, by their weights: result[t, h] = sum over j of weight[t, j] * products[t, j, h], in the order of ids.
//
// params[0]: tokens, width, experts of a token, experts; params[1].x: the first token.
// Floor: the bytes of the products.

#include common
@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read> weights: array<u32>;
@group(0) @binding(3) var<storage, read> products: array<u32>;
@group(0) @binding(4) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = (group.y * FOLD + group.x) * 64u + lane;
    let width = params[0].y;
    if (index >= params[0].x * width) {
        return;
    }
    let token = index / width;
    var total = 0.0;
    for (var j = 0u; j < params[0].z; j += 1u) {
        let choice = (params[1].x + token) * params[0].z + j;
        if (ids[choice] < params[0].w) {
            let product = bitcast<f32>(products[(token * params[0].z + j) * width + index % width]);
            total = fma(bitcast<f32>(weights[choice]), product, total);
        }
    }
    result[params[1].x * width + index] = bitcast<u32>(total);
}
