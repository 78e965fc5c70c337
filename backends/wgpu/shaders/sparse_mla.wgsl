// Attention to selected positions over latents: logits of [q | q_rope] and a row of the cache, values of the row's latent.
//
// params[0]: heads, elements of a latent, of a rotated part, indices of a token; params[1]: the shape of pages; params[2]: the scale, as the
// bits of an F32, workgroups of a head. Units are workgroups, and across the rows of the cache that are bound.
// Floor: the bytes of the selected rows of each token.

#include common
#include pages
#include attend
#floats q 1
#floats q_rope 2
#words indices 3
#floats cache 4
#words row_seq 5
#words row_pos 6
#words page_table 7
#result result 8

fn page_shape() -> vec4<u32> {
    return params[1];
}

fn page_rows() -> vec2<u32> {
    return params[11].zw;
}

fn place_of(token: u32, at: u32) -> u32 {
    let position = indices_word(token * params[0].w + at);
    let own = row_pos_word(token);
    // As unsigned numbers those below 0 are beyond every position; a token whose own is below 0 has none.
    if (position > own || own > 0x7fffffffu) {
        return NOWHERE;
    }
    return bound_row_of(row_seq_word(token), position);
}

fn query_at(row: u32, column: u32) -> f32 {
    let latent = params[0].y;
    if (column < latent) {
        return q_at(row * latent + column);
    }
    return q_rope_at(row * params[0].z + column - latent);
}

fn key_at(row: u32, head: u32, column: u32) -> f32 {
    return cache_at(row * (params[0].y + params[0].z) + column);
}

fn value_at(row: u32, head: u32, column: u32) -> f32 {
    return key_at(row, head, column);
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let number = unit_of(group);
    if (number >= end_unit()) {
        return;
    }
    let row = number / params[2].y;
    let heads = params[0].x;
    let part = Part(row / heads, row % heads, row, (number % params[2].y) * 512u);
    attend(part, number, params[0].w, params[0].y + params[0].z, params[0].y, bitcast<f32>(params[2].x), lane);
}
