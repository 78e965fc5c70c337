// What a token's experts say, by their weights: result[t, h] = sum over j of weight[t, j] * products[t, j, h], in the order of ids.
//
// Units are elements of whole tokens; products are those of the dispatch. params[0]: tokens, width, experts of a token, experts.
// Floor: the bytes of the products.

#include common
#words ids 1
#words weights 2
#words products 3
#result result 4

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = element_of(group, lane);
    let width = params[0].y;
    if (index >= end_unit()) {
        return;
    }
    let token = index / width;
    let of_dispatch = token - first_unit() / width;
    var total = 0.0;
    for (var j = 0u; j < params[0].z; j += 1u) {
        let choice = token * params[0].z + j;
        if (ids_word(choice) < params[0].w) {
            let product = bitcast<f32>(products_word((of_dispatch * params[0].z + j) * width + index % width));
            total = fma(bitcast<f32>(weights_word(choice)), product, total);
        }
    }
    result_put(index, bitcast<u32>(total));
}
