// Products of few rows and a matrix whose rows are summed over, the matrix of a batch or of an expert that is looked up.
//
// A workgroup makes four neighbours of a row. Of each, 16 lanes add up chunks that lie side by side, and one of them adds the chunks' sums.
//
// Floor: the bytes of the matrices, for each row.

#include common
#include product
override routed: u32;
#words ids 4
#result result 5

var<workgroup> parts: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group.y * FOLD + group.x;
    let k = end_term();
    let across = (end_column() - first_column() + 3u) / 4u;
    let row = first_unit() + index / across / batches();
    if (row >= end_unit()) {
        return;
    }
    let column = first_column() + 4u * (index % across) + lane / CHUNK;
    let batch = params[4].x + index / across % batches();
    var expert = 0u;
    var is_wanted = column < end_column();
    if (routed == 1u) {
        // -1, as an unsigned number, is beyond every expert.
        expert = ids_word(row);
        is_wanted = is_wanted && expert >= params[4].z && expert < params[4].w;
    }
    let of_x = x_begin(row, batch);
    let of_weight = weight_begin(batch) + column;
    let mine = lane % CHUNK;
    var total = 0.0;
    if (first_term() > 0u && mine == 0u && is_wanted) {
        total = bitcast<f32>(result_word(result_begin(row, batch) + column));
    }
    for (var begin = first_term(); begin < k; begin += CHUNK * CHUNK) {
        let first = begin + CHUNK * mine;
        var part = 0.0;
        if (is_wanted && first < k) {
            let end = min(first + CHUNK, k);
            if (params[0].y == 1u) {
                for (var i = first; i < end; i += 4u) {
                    let four = weight_four(expert, of_weight, i);
                    part = fma(x_at(of_x + i), four.x, part);
                    part = fma(x_at(of_x + i + 1u), four.y, part);
                    part = fma(x_at(of_x + i + 2u), four.z, part);
                    part = fma(x_at(of_x + i + 3u), four.w, part);
                }
            } else {
                for (var i = first; i < end; i += 1u) {
                    part = fma(x_at(of_x + i), weight_at(expert, of_weight, i), part);
                }
            }
        }
        parts[lane] = part;
        workgroupBarrier();
        if (mine == 0u) {
            for (var i = 0u; i < CHUNK; i += 1u) {
                total += parts[lane + i];
            }
        }
        workgroupBarrier();
    }
    if (mine == 0u && is_wanted) {
        result_put(result_begin(row, batch) + column, bitcast<u32>(total));
    }
}
