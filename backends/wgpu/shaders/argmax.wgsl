// The largest logit of rows, a workgroup for each.
//
// Units are rows. params[0]: rows, columns.
// Floor: the bytes of the logits.

#include common
#include order
#words logits 1
#result tokens 2

override LANES: u32;

// Of each invocation the largest key, and the first place where it has seen it.
var<workgroup> best: array<vec2<u32>, LANES>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = unit_of(group);
    if (row >= end_unit()) {
        return;
    }
    let columns = params[0].y;
    var found = vec2<u32>(0u, 0u);
    for (var column = lane; column < columns; column += LANES) {
        let key = key_of(logits_word(row * columns + column));
        if (key != NAN_KEY && key > found.x) {
            found = vec2<u32>(key, column);
        }
    }
    best[lane] = found;
    workgroupBarrier();
    for (var step = LANES / 2u; step > 0u; step >>= 1u) {
        if (lane < step) {
            let a = best[lane];
            let b = best[lane + step];
            if (b.x > a.x || (b.x == a.x && b.y < a.y)) {
                best[lane] = b;
            }
        }
        workgroupBarrier();
    }
    if (lane == 0u) {
        tokens_put(row, select(0xffffffffu, best[0].y, best[0].x != 0u));
    }
}
