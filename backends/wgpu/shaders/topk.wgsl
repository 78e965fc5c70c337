// The positions of the k largest scores of each row, ascending.
//
// A workgroup has a row. Scores become integers in the same order; the least that is selected is found byte by byte, highest first, by
// counts of 256 values each. Then every invocation counts what is selected of its part of the row, and writes it where the parts before it
// end. All of it is exact, and nothing depends on the order in which invocations run: atomics only count.
//
// Units are rows. params[0]: rows, scores of a row, k.
// Floor: the bytes of the scores, once; they are read six times.

#include common
#include rank
override LANES: u32;
#include scan
#words scores 1
#result indices 2

var<workgroup> counts: array<atomic<u32>, 256>;
// The byte that the least selected rank has, and how many of those with it are selected.
var<workgroup> found: u32;
var<workgroup> wanted: u32;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = unit_of(group);
    let n = params[0].y;
    let k = params[0].z;
    if (row >= end_unit()) {
        return;
    }
    let start = row * n;

    var least = 0u;
    var of_least = k;
    for (var byte = 0u; byte < 4u; byte++) {
        let shift = 24u - 8u * byte;
        for (var bin = lane; bin < 256u; bin += LANES) {
            atomicStore(&counts[bin], 0u);
        }
        if (lane == 0u) {
            found = 0u;
            wanted = 0u;
        }
        workgroupBarrier();
        for (var at = lane; at < n; at += LANES) {
            let rank = rank(scores_word(start + at));
            // Of the ranks that begin as the least one does. Two shifts, since one by 32 is none.
            let begins = (((rank ^ least) >> shift) >> 8u) == 0u;
            if (rank != 0u && begins) {
                atomicAdd(&counts[(rank >> shift) & 0xffu], 1u);
            }
        }
        workgroupBarrier();
        // From the highest byte down: where as many are reached as are wanted.
        let bins = 256u / LANES;
        let top = 255u - lane * bins;
        var own = 0u;
        for (var bin = 0u; bin < bins; bin++) {
            own += atomicLoad(&counts[top - bin]);
        }
        let reached = scan(lane, own);
        // Where fewer can be selected than k, all of them are.
        let want = min(of_least, sums[LANES - 1u]);
        var before = reached - own;
        if (reached >= want && before < want) {
            for (var bin = top; ; bin--) {
                let count = atomicLoad(&counts[bin]);
                if (before + count >= want) {
                    found = bin;
                    wanted = want - before;
                    break;
                }
                before += count;
            }
        }
        workgroupBarrier();
        least |= found << shift;
        of_least = wanted;
        workgroupBarrier();
    }

    // Parts of the row, one behind the other.
    let part = (n + LANES - 1u) / LANES;
    let begin = min(n, lane * part);
    let end = min(n, begin + part);
    var above = 0u;
    var equal = 0u;
    for (var at = begin; at < end; at++) {
        let rank = rank(scores_word(start + at));
        above += select(0u, 1u, rank > least);
        equal += select(0u, 1u, rank == least && rank != 0u);
    }
    let above_before = scan(lane, above) - above;
    let all_above = sums[LANES - 1u];
    var equal_before = scan(lane, equal) - equal;
    var place = above_before + min(equal_before, of_least);
    for (var at = begin; at < end; at++) {
        let rank = rank(scores_word(start + at));
        let is_equal = rank == least && rank != 0u;
        if (rank > least || (is_equal && equal_before < of_least)) {
            indices_put(row * k + place, at);
            place++;
        }
        equal_before += select(0u, 1u, is_equal);
    }
    for (var at = all_above + of_least + lane; at < k; at += LANES) {
        indices_put(row * k + at, 0xffffffffu);
    }
}
