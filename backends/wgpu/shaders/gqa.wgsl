// Attention of each token to all positions of its sequence up to its own; several query heads share a key head.
//
// params[0]: heads, elements of a head, groups; params[1]: the shape of pages; params[2]: the scale, as the bits of an F32, workgroups of a
// head. Units are workgroups, and across the rows of the cache that are bound.
// Floor: the bytes of the keys and values of each token.

#include common
#include pages
#include attend
#floats q 1
#floats keys 2
#floats values 3
#words row_seq 4
#words row_pos 5
#words page_table 6
#result result 7

fn page_shape() -> vec4<u32> {
    return params[1];
}

fn page_rows() -> vec2<u32> {
    return params[11].zw;
}

fn place_of(token: u32, at: u32) -> u32 {
    return bound_row_of(row_seq_word(token), at);
}

fn query_at(row: u32, column: u32) -> f32 {
    return q_at(row * params[0].y + column);
}

// Where the head of keys or values that a query head reads has an element.
fn element(row: u32, head: u32, column: u32) -> u32 {
    let groups = params[0].z;
    return (row * groups + head / (params[0].x / groups)) * params[0].y + column;
}

fn key_at(row: u32, head: u32, column: u32) -> f32 {
    return keys_at(element(row, head, column));
}

fn value_at(row: u32, head: u32, column: u32) -> f32 {
    return values_at(element(row, head, column));
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
    let own = row_pos_word(part.token);
    // What the table covers; nothing of padding.
    var positions = 0u;
    if (own <= 0x7fffffffu && row_seq_word(part.token) < params[1].z) {
        positions = min(own + 1u, params[1].y * params[1].w);
    }
    attend(part, number, positions, params[0].y, params[0].y, bitcast<f32>(params[2].x), lane);
}
