// Rows of one value, or of two, put together anew: embeddings, gathered rows, rows behind each other, parts of rows.
//
// An element of the result is one of the inputs: result[r, c] = x[row(r), start + c] for c < width of x's part, else y[r, c - width].
//
// Units are elements; where rows are looked up, across are the rows of x that are bound. params[0]: rows, columns of the result, columns of x, columns that are x's; params[1]: start in x, rows of x, whether rows are looked up.
// Floor: the bytes of the result, read and written.

#include common
#floats x 1
#floats y 2
#words indices 3
#result result 4

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = element_of(group, lane);
    let columns = params[0].y;
    if (index >= end_unit()) {
        return;
    }
    let row = index / columns;
    let column = index % columns;
    let of_x = params[0].w;
    if (column >= of_x) {
        result_put(index, y_bits(row * (columns - of_x) + column - of_x));
        return;
    }
    var found = row;
    if (params[1].z == 1u) {
        found = indices_word(row);
        if (found >= params[1].y) {
            // -1, as an unsigned number, is beyond every row. It is written once.
            if (params[11].z == 0u) {
                result_put(index, 0u);
            }
            return;
        }
        if (found < params[11].z || found >= params[11].w) {
            return;
        }
    }
    result_put(index, x_bits(found * params[0].z + params[1].x + column));
}
