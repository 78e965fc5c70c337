// Products of many rows and a matrix, in tiles of 64 columns: what is decoded is used by all rows of a tile.
//
// A workgroup of 256 makes 32 rows, one of 128 makes 16; an invocation two rows' elements of four columns. A chunk of both sides is in
// workgroup memory at a time: 6 KiB. Grouped, the rows of a tile are those of an expert, as `permute.wgsl` has sorted them.
//
// Floor: the products; the bytes of x for each 64 columns and of the weight for each tile of rows.

#include common
#include product
// Whether the weight's columns are summed over, not its rows.
override goes_down: u32;
override grouped: u32;
override LANES: u32;
#words order 4
#result result 5

const COLUMNS: u32 = 64u;
const W_STRIDE: u32 = 65u;
const NONE: u32 = 0xffffffffu;
override HALF: u32 = LANES / 16u;
// Of workgroup memory: one more than a tile has, so that neighbours of a chunk are in different banks.
override X_STRIDE: u32 = LANES / 8u + 1u;

var<workgroup> x_tile: array<f32, CHUNK * X_STRIDE>;
var<workgroup> w_tile: array<f32, 1040>;
// The expert of the tile, and where its rows are in the order: the first and the end.
var<workgroup> of_tile: vec3<u32>;

// What is multiplied with element i of a row of x for a column of the result.
fn factor(expert: u32, batch: u32, column: u32, i: u32) -> f32 {
    if (column >= end_column() || i >= end_term()) {
        return 0.0;
    }
    if (goes_down == 1u) {
        return weight_at(expert, weight_begin(batch) + i, column);
    }
    return weight_at(expert, weight_begin(batch) + column, i);
}

// A row of the tile, or NONE.
fn row_at(tile: vec3<u32>, number: u32) -> u32 {
    let at = tile.y + number;
    if (at >= tile.z) {
        return NONE;
    }
    if (grouped == 1u) {
        return order_word(params[5].x + at);
    }
    return at;
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group.y * FOLD + group.x;
    let k = end_term();
    let rows_of_tile = 2u * HALF;
    let across = (end_column() - first_column() + COLUMNS - 1u) / COLUMNS;
    var column_of_tile = index % across;
    var batch = params[4].x;
    if (lane == 0u) {
        of_tile = vec3<u32>(0u);
        if (grouped == 1u) {
            let tile = index / across;
            if (tile < order_word(0u)) {
                let expert = order_word(3u * tile + 1u);
                if (expert >= params[4].z && expert < params[4].w) {
                    of_tile = vec3<u32>(expert, order_word(3u * tile + 2u), order_word(3u * tile + 3u));
                }
            }
        } else {
            let down = (end_unit() - first_unit() + rows_of_tile - 1u) / rows_of_tile;
            of_tile = vec3<u32>(0u, first_unit() + rows_of_tile * (index % down), end_unit());
        }
    }
    let tile = workgroupUniformLoad(&of_tile);
    if (grouped == 0u) {
        let down = (end_unit() - first_unit() + rows_of_tile - 1u) / rows_of_tile;
        column_of_tile = index / down % across;
        batch += index / down / across;
        if (batch >= params[4].y) {
            return;
        }
    }
    if (tile.y >= tile.z) {
        return;
    }
    let left = first_column() + COLUMNS * column_of_tile;
    let my_row = lane / 16u;
    let my_column = lane % 16u;
    let row_0 = row_at(tile, my_row);
    let row_1 = row_at(tile, my_row + HALF);
    var total_0 = vec4<f32>();
    var total_1 = vec4<f32>();
    if (first_term() > 0u) {
        for (var part = 0u; part < 4u; part += 1u) {
            let column = left + my_column + 16u * part;
            if (column < end_column() && row_0 != NONE) {
                total_0[part] = bitcast<f32>(result_word(result_begin(row_0, batch) + column));
            }
            if (column < end_column() && row_1 != NONE) {
                total_1[part] = bitcast<f32>(result_word(result_begin(row_1, batch) + column));
            }
        }
    }
    for (var begin = first_term(); begin < k; begin += CHUNK) {
        let at_x = begin + my_column;
        var x_0 = 0.0;
        var x_1 = 0.0;
        if (at_x < k) {
            if (row_0 != NONE) {
                x_0 = x_at(x_begin(row_0, batch) + at_x);
            }
            if (row_1 != NONE) {
                x_1 = x_at(x_begin(row_1, batch) + at_x);
            }
        }
        x_tile[my_column * X_STRIDE + my_row] = x_0;
        x_tile[my_column * X_STRIDE + my_row + HALF] = x_1;
        for (var four = lane; four < 256u; four += LANES) {
            // Four neighbours in a row of the weight.
            let column = select(four / 4u, 4u * (four % 16u), goes_down == 1u);
            let i = select(4u * (four % 4u), four / 16u, goes_down == 1u);
            let at = i * W_STRIDE + column;
            let step = select(W_STRIDE, 1u, goes_down == 1u);
            var values = vec4<f32>();
            if (params[0].y == 1u) {
                if (left + column < end_column() && begin + i < k) {
                    if (goes_down == 1u) {
                        values = weight_four(tile.x, weight_begin(batch) + begin + i, left + column);
                    } else {
                        values = weight_four(tile.x, weight_begin(batch) + left + column, begin + i);
                    }
                }
            } else {
                for (var part = 0u; part < 4u; part += 1u) {
                    let over = select(0u, part, goes_down == 1u);
                    values[part] = factor(tile.x, batch, left + column + over, begin + i + part - over);
                }
            }
            w_tile[at] = values.x;
            w_tile[at + step] = values.y;
            w_tile[at + 2u * step] = values.z;
            w_tile[at + 3u * step] = values.w;
        }
        workgroupBarrier();
        var part_0 = vec4<f32>();
        var part_1 = vec4<f32>();
        for (var i = 0u; i < CHUNK; i += 1u) {
            let at = i * W_STRIDE + my_column;
            let four = vec4<f32>(w_tile[at], w_tile[at + 16u], w_tile[at + 32u], w_tile[at + 48u]);
            part_0 = fma(vec4<f32>(x_tile[i * X_STRIDE + my_row]), four, part_0);
            part_1 = fma(vec4<f32>(x_tile[i * X_STRIDE + my_row + HALF]), four, part_1);
        }
        total_0 += part_0;
        total_1 += part_1;
        workgroupBarrier();
    }
    for (var part = 0u; part < 4u; part += 1u) {
        let column = left + my_column + 16u * part;
        if (column >= end_column()) {
            break;
        }
        if (row_0 != NONE) {
            result_put(result_begin(row_0, batch) + column, bitcast<u32>(total_0[part]));
        }
        if (row_1 != NONE) {
            result_put(result_begin(row_1, batch) + column, bitcast<u32>(total_1[part]));
        }
    }
}
