// What is known of the least selected score of a wide row, from one pass of `topk_count.wgsl` to the next. A workgroup has a row.
//
// Units are rows; params as there. Phase 0 begins; 1 to 4 find a byte each, the highest first; 5 adds up what chunks have.
// Floor: nothing beside the passes.

#include common
#result state 1

const HEAD: u32 = 4u;
const CHUNKS: u32 = 260u;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = unit_of(group);
    if (row >= end_unit()) {
        return;
    }
    let phase = params[1].x;
    let of_row = (row - params[1].y) * (CHUNKS + 2u * params[0].w);
    if (phase == 5u) {
        if (lane != 0u) {
            return;
        }
        var above = 0u;
        var equal = 0u;
        for (var chunk = 0u; chunk < params[0].w; chunk++) {
            let at = of_row + CHUNKS + 2u * chunk;
            let own = vec2<u32>(state_word(at), state_word(at + 1u));
            state_put(at, above);
            state_put(at + 1u, equal);
            above += own.x;
            equal += own.y;
        }
        state_put(of_row + 2u, above);
        return;
    }
    if (lane == 0u) {
        var least = 0u;
        var of_least = params[0].z;
        if (phase > 0u) {
            least = state_word(of_row);
            of_least = state_word(of_row + 1u);
            var all = 0u;
            for (var bin = 0u; bin < 256u; bin++) {
                all += state_word(of_row + HEAD + bin);
            }
            // Where fewer can be selected than k, all of them are.
            let want = min(of_least, all);
            var before = 0u;
            of_least = 0u;
            for (var bin = 256u; bin > 0u && want > 0u; bin--) {
                let count = state_word(of_row + HEAD + bin - 1u);
                if (before + count >= want) {
                    least |= (bin - 1u) << (32u - 8u * phase);
                    of_least = want - before;
                    break;
                }
                before += count;
            }
        }
        state_put(of_row, least);
        state_put(of_row + 1u, of_least);
    }
    workgroupBarrier();
    storageBarrier();
    for (var bin = lane; bin < 256u; bin += 64u) {
        state_put(of_row + HEAD + bin, 0u);
    }
}
