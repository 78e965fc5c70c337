// The selected positions of wide rows, a workgroup for each chunk of a row: as the end of `topk.wgsl`, with what `topk_pick.wgsl` has found.
//
// Units and params as `topk_count.wgsl` has them.
// Floor: the bytes of the scores, twice.

#include common
#include rank
override LANES: u32;
#include scan
#words scores 1
#words state 2
#result indices 3

const CHUNKS: u32 = 260u;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group.y * FOLD + group.x;
    let of_span = params[11].w - params[11].z;
    let row = first_unit() + index / of_span;
    if (row >= end_unit()) {
        return;
    }
    let chunk = params[11].z + index % of_span;
    let n = params[0].x;
    let k = params[0].z;
    let of_row = (row - params[1].y) * (CHUNKS + 2u * params[0].w);
    let least = state_word(of_row);
    let of_least = state_word(of_row + 1u);
    let size = params[0].y;
    // Parts of the chunk, one behind the other.
    let part = (size + LANES - 1u) / LANES;
    let begin = min(n, chunk * size + min(size, lane * part));
    let end = min(n, chunk * size + min(size, (lane + 1u) * part));
    var above = 0u;
    var equal = 0u;
    for (var at = begin; at < end; at++) {
        let rank = rank(scores_word(row * n + at));
        above += select(0u, 1u, rank > least);
        equal += select(0u, 1u, rank == least && rank != 0u);
    }
    let above_before = state_word(of_row + CHUNKS + 2u * chunk) + scan(lane, above) - above;
    var equal_before = state_word(of_row + CHUNKS + 2u * chunk + 1u) + scan(lane, equal) - equal;
    var place = above_before + min(equal_before, of_least);
    for (var at = begin; at < end; at++) {
        let rank = rank(scores_word(row * n + at));
        let is_equal = rank == least && rank != 0u;
        if (rank > least || (is_equal && equal_before < of_least)) {
            indices_put(row * k + place, at);
            place++;
        }
        equal_before += select(0u, 1u, is_equal);
    }
    if (chunk == 0u) {
        for (var at = state_word(of_row + 2u) + of_least + lane; at < k; at += LANES) {
            indices_put(row * k + at, 0xffffffffu);
        }
    }
}
