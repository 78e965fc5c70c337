// Rows sorted by their experts, so that those of an expert go through its matrices together, in tiles. One workgroup does it.
//
// In `order`: word 0, tiles; then for each its expert and where its rows are, the first and the end; then the rows; then a counter for each
// expert. In `sizes`: workgroups of a dispatch that has each tile for so many columns, for two numbers of columns. In which order the rows
// of an expert come depends on the device; nothing else does, and no result.
//
// Units are rows. params[0]: experts, rows of a tile, workgroups of a tile in either dispatch; params[1]: where rows begin, and counters.
// Floor: the bytes of the ids, twice.

#include common
#words ids 1
@group(0) @binding(2) var<storage, read_write> order: array<atomic<u32>>;
#result sizes 3
override LANES: u32;

@compute @workgroup_size(LANES)
fn main(@builtin(local_invocation_index) lane: u32) {
    let experts = params[0].x;
    let rows = params[1].x;
    let counters = params[1].y;
    for (var expert = lane; expert < experts; expert += LANES) {
        atomicStore(&order[counters + expert], 0u);
    }
    storageBarrier();
    for (var row = first_unit() + lane; row < end_unit(); row += LANES) {
        let expert = ids_word(row);
        // -1, as an unsigned number, is beyond every expert.
        if (expert < experts) {
            atomicAdd(&order[counters + expert], 1u);
        }
    }
    storageBarrier();
    if (lane == 0u) {
        var begin = 0u;
        var tiles = 0u;
        for (var expert = 0u; expert < experts; expert++) {
            let end = begin + atomicLoad(&order[counters + expert]);
            for (var first = begin; first < end; first += params[0].y) {
                atomicStore(&order[3u * tiles + 1u], expert);
                atomicStore(&order[3u * tiles + 2u], first);
                atomicStore(&order[3u * tiles + 3u], min(first + params[0].y, end));
                tiles++;
            }
            atomicStore(&order[counters + expert], begin);
            begin = end;
        }
        atomicStore(&order[0], tiles);
        for (var which = 0u; which < 2u; which++) {
            let all = tiles * select(params[0].z, params[0].w, which == 1u);
            sizes_put(3u * which, min(all, FOLD));
            sizes_put(3u * which + 1u, (all + FOLD - 1u) / FOLD);
            sizes_put(3u * which + 2u, 1u);
        }
    }
    storageBarrier();
    for (var row = first_unit() + lane; row < end_unit(); row += LANES) {
        let expert = ids_word(row);
        if (expert < experts) {
            let place = atomicAdd(&order[counters + expert], 1u);
            atomicStore(&order[rows + place], row);
        }
    }
}
