// Scores of positions: sum_h head_scale * w[t, h] * relu(scale * q[t, h] . k[s]).
//
// A workgroup has 64 positions of a token, an invocation one of them. Of the query it holds a tile, 16 heads of 64 elements: a key is read
// once for 16 heads. Heads are added in ascending order, and a product goes along its elements, whatever else the step has.
//
// params[0]: heads, elements of a key, positions of a row, workgroups of a token; params[1]: the shape of pages; params[2]: scale and scale
// of heads, as the bits of an F32, workgroups in all.
// Floor: the bytes of the keys of each token, and those of the scores.

#include common
#include pages
#floats q 1
@group(0) @binding(2) var<storage, read> weights: array<f32>;
#floats keys 3
@group(0) @binding(4) var<storage, read> row_seq: array<u32>;
@group(0) @binding(5) var<storage, read> row_pos: array<u32>;
@group(0) @binding(6) var<storage, read> page_table: array<u32>;
@group(0) @binding(7) var<storage, read_write> scores: array<u32>;

const HEADS: u32 = 16u;
const COLUMNS: u32 = 64u;
const NO_SCORE: u32 = 0xff800000u;

// By column, four heads in each.
var<workgroup> tile: array<array<vec4<f32>, 4>, 64>;

fn page_shape() -> vec4<u32> {
    return params[1];
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let number = group.y * FOLD + group.x;
    let heads = params[0].x;
    let width = params[0].y;
    let context = params[0].z;
    if (number >= params[2].z) {
        return;
    }
    let token = number / params[0].w;
    let begin = (number % params[0].w) * 64u;
    let position = begin + lane;
    let own = row_pos[token];
    if (begin > own || own > 0x7fffffffu || row_seq[token] >= params[1].z) {
        // Nothing of it is the token's.
        if (position < context) {
            scores[token * context + position] = NO_SCORE;
        }
        return;
    }
    var row = NOWHERE;
    if (position <= own) {
        row = row_of(row_seq[token], position);
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
                let factor = head_scale * weights[token * heads + first + at];
                score += factor * select(logit, 0.0, logit <= 0.0);
            }
        }
    }
    if (position < context) {
        scores[token * context + position] = select(bitcast<u32>(score), NO_SCORE, row == NOWHERE);
    }
}
