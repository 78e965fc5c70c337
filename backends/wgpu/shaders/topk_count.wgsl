// Counts of the scores of wide rows, a workgroup for each chunk of a row.
//
// A row that one workgroup would be long at, or that cannot be bound at once, is gone through in chunks. Between passes `topk_pick.wgsl`
// says what is known: in `state`, for each row, the least selected rank as far as it is known, how many of it are selected, how many are
// above it; then 256 counts; then for each chunk how many are above, and how many equal. Counts are of integers: no order is felt.
//
// Units are rows, and across are chunks. params[0]: scores of a row, scores of a chunk, k, chunks of a row; params[1]: phase, 0 to 3 for a
// byte and 4 for the chunks, the first row that is in `state`.
// Floor: the bytes of the scores, for each of five passes.

#include common
#include rank
override LANES: u32;
#include scan
#words scores 1
@group(0) @binding(2) var<storage, read_write> state: array<atomic<u32>>;

const HEAD: u32 = 4u;
const CHUNKS: u32 = 260u;

var<workgroup> counts: array<atomic<u32>, 256>;

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
    let begin = chunk * params[0].y;
    let end = min(n, begin + params[0].y);
    let of_row = (row - params[1].y) * (CHUNKS + 2u * params[0].w);
    let least = atomicLoad(&state[of_row]);
    let phase = params[1].x;
    if (phase == 4u) {
        var above = 0u;
        var equal = 0u;
        for (var at = begin + lane; at < end; at += LANES) {
            let rank = rank(scores_word(row * n + at));
            above += select(0u, 1u, rank > least);
            equal += select(0u, 1u, rank == least && rank != 0u);
        }
        let all_above = scan(lane, above);
        let all_equal = scan(lane, equal);
        if (lane == LANES - 1u) {
            atomicStore(&state[of_row + CHUNKS + 2u * chunk], all_above);
            atomicStore(&state[of_row + CHUNKS + 2u * chunk + 1u], all_equal);
        }
        return;
    }
    for (var bin = lane; bin < 256u; bin += LANES) {
        atomicStore(&counts[bin], 0u);
    }
    workgroupBarrier();
    let shift = 24u - 8u * phase;
    for (var at = begin + lane; at < end; at += LANES) {
        let rank = rank(scores_word(row * n + at));
        // Of the ranks that begin as the least one does. Two shifts, since one by 32 is none.
        let begins = (((rank ^ least) >> shift) >> 8u) == 0u;
        if (rank != 0u && begins) {
            atomicAdd(&counts[(rank >> shift) & 0xffu], 1u);
        }
    }
    workgroupBarrier();
    for (var bin = lane; bin < 256u; bin += LANES) {
        let count = atomicLoad(&counts[bin]);
        if (count > 0u) {
            atomicAdd(&state[of_row + HEAD + bin], count);
        }
    }
}
