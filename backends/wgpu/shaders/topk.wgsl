// The positions of the k largest scores of each row, ascending.
//
// A workgroup has a row. Scores become integers in the same order; the least that is selected is found byte by byte, highest first, by
// counts of 256 values each. Then every invocation counts what is selected of its part of the row, and writes it where the parts before it
// end. All of it is exact, and nothing depends on the order in which invocations run: atomics only count.
//
// params[0]: rows, scores of a row, k.
// Floor: the bytes of the scores, once; they are read six times.

#include common
@group(0) @binding(1) var<storage, read> scores: array<u32>;
@group(0) @binding(2) var<storage, read_write> indices: array<u32>;

const LANES: u32 = 256u;

var<workgroup> counts: array<atomic<u32>, 256>;
var<workgroup> sums: array<u32, 256>;
// The byte that the least selected rank has, and how many of those with it are selected.
var<workgroup> found: u32;
var<workgroup> wanted: u32;

// Larger for a larger score, one for both zeros, and 0 for what is never selected: negative infinity and NaN.
fn rank(bits: u32) -> u32 {
    if (is_nan(bits) || bits == 0xff800000u) {
        return 0u;
    }
    if (bits == 0x80000000u || bits == 0u) {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

// The sum of the values of all invocations up to this one. Afterwards `sums` has them all.
fn scan(lane: u32, value: u32) -> u32 {
    workgroupBarrier();
    sums[lane] = value;
    workgroupBarrier();
    for (var distance = 1u; distance < LANES; distance <<= 1u) {
        var before = 0u;
        if (lane >= distance) {
            before = sums[lane - distance];
        }
        workgroupBarrier();
        sums[lane] += before;
        workgroupBarrier();
    }
    return sums[lane];
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = group.y * FOLD + group.x;
    let n = params[0].y;
    let k = params[0].z;
    if (row >= params[0].x) {
        return;
    }
    let start = row * n;

    var least = 0u;
    var of_least = k;
    for (var byte = 0u; byte < 4u; byte++) {
        let shift = 24u - 8u * byte;
        atomicStore(&counts[lane], 0u);
        if (lane == 0u) {
            found = 0u;
            wanted = 0u;
        }
        workgroupBarrier();
        for (var at = lane; at < n; at += LANES) {
            let rank = rank(scores[start + at]);
            // Of the ranks that begin as the least one does. Two shifts, since one by 32 is none.
            let begins = (((rank ^ least) >> shift) >> 8u) == 0u;
            if (rank != 0u && begins) {
                atomicAdd(&counts[(rank >> shift) & 0xffu], 1u);
            }
        }
        workgroupBarrier();
        // From the highest byte down: where as many are reached as are wanted.
        let own = atomicLoad(&counts[255u - lane]);
        let reached = scan(lane, own);
        // Where fewer can be selected than k, all of them are.
        let want = min(of_least, sums[LANES - 1u]);
        if (reached >= want && reached - own < want) {
            found = 255u - lane;
            wanted = want - (reached - own);
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
        let rank = rank(scores[start + at]);
        above += select(0u, 1u, rank > least);
        equal += select(0u, 1u, rank == least && rank != 0u);
    }
    let above_before = scan(lane, above) - above;
    let all_above = sums[LANES - 1u];
    var equal_before = scan(lane, equal) - equal;
    var place = above_before + min(equal_before, of_least);
    for (var at = begin; at < end; at++) {
        let rank = rank(scores[start + at]);
        let is_equal = rank == least && rank != 0u;
        if (rank > least || (is_equal && equal_before < of_least)) {
            indices[row * k + place] = at;
            place++;
        }
        equal_before += select(0u, 1u, is_equal);
    }
    for (var at = all_above + of_least + lane; at < k; at += LANES) {
        indices[row * k + at] = 0xffffffffu;
    }
}
