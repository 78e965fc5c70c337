// Scores of positions: sum_h head_scale * w[t, h] * relu(scale * q[t, h] . k[s]).
//
// A workgroup has 64 positions of a token, an invocation one of them. Of the query it holds a tile, 16 heads of 64 elements: a key is read
// once for 16 heads. Heads are added in ascending order, and a product goes along its elements, whatever else the step has.
//
// params[0]: heads, elements of a key, positions of a row, workgroups of a token; params[1]: the shape of pages; params[2]: scale and scale
// of heads, as the bits of an F32. Units are workgroups, and across the rows of the cache that are bound.
// Floor: the bytes of the keys of each token, and those of the scores.

#include common
#include pages
#floats q 1
#words weights 2
#floats keys 3
#words row_seq 4
#words row_pos 5
#words page_table 6
#result scores 7

const HEADS: u32 = 16u;
const COLUMNS: u32 = 64u;
const NO_SCORE: u32 = 0xff800000u;

// By column, four heads in each.
var<workgroup> tile: array<array<vec4<f32>, 4>, 64>;

fn page_shape() -> vec4<u32> {
    return params[1];
}

fn page_rows() -> vec2<u32> {
    return params[11].zw;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let number = unit_of(group);
    let heads = params[0].x;
    let width = params[0].y;
    let context = params[0].z;
    if (number >= end_unit()) {
        return;
    }
    let token = number / params[0].w;
    let begin = (number % params[0].w) * 64u;
    let position = begin + lane;
    let own = row_pos_word(token);
    // Where nothing is scored is written once.
    let is_first = page_rows().x == 0u;
    if (begin > own || own > 0x7fffffffu || row_seq_word(token) >= params[1].z) {
        // Nothing of it is the token's.
        if (position < context && is_first) {
            scores_put(token * context + position, NO_SCORE);
        }
        return;
    }
    var row = NOWHERE;
    if (position <= own) {
        row = row_of(row_seq_word(token), position);
    }
    let is_other = row != NOWHERE && !is_bound(row);
    if (is_other) {
        row = NOWHERE;
    }
    let scale = bitcast<f32>(params[2].x);
    let head_scale = bitcast<f32>(params[2].y);
    var score = 0.0;
    for (var first = 0u; first < heads; first += HEADS) {
        var sums = array<vec4<f32>, 4>();
        for (var column = 0u; column < width; column += COLUMNS) {
            let end = min(COLUMNS, width - column);
            workgroupBarrier();
            // An invocation has a column of the tile.
            if (lane < end) {
                for (var four = 0u; four < 4u; four++) {
                    var values = vec4<f32>();
                    for (var at = 0u; at < 4u; at++) {
                        let head = first + 4u * four + at;
                        if (head < heads) {
                            values[at] = q_at((token * heads + head) * width + column + lane);
                        }
                    }
                    tile[lane][four] = values;
                }
            }
            workgroupBarrier();
            if (row != NOWHERE) {
                for (var at = 0u; at < end; at++) {
                    let key = keys_at(row * width + column + at);
                    for (var four = 0u; four < 4u; four++) {
                        sums[four] += key * tile[at][four];
                    }
                }
            }
        }
        if (row != NOWHERE) {
            for (var at = 0u; at < min(HEADS, heads - first); at++) {
                let logit = scale * sums[at >> 2u][at & 3u];
                let factor = head_scale * bitcast<f32>(weights_word(token * heads + first + at));
                score += factor * select(logit, 0.0, logit <= 0.0);
            }
        }
    }
    if (position < context && (row != NOWHERE || (is_first && !is_other))) {
        scores_put(token * context + position, select(bitcast<u32>(score), NO_SCORE, row == NOWHERE));
    }
}
