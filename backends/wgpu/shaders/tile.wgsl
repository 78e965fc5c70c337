// Products of many rows and a matrix, in tiles of 32 rows and 64 columns: what is decoded is used by all rows of a tile.
//
// An invocation makes two rows' elements of four columns. A chunk of both sides is in workgroup memory at a time: 6 KiB.
//
// Floor: the products; the bytes of x for each 64 columns and of the weight for each 32 rows.

#include common
#include product
// Whether the weight's columns are summed over, not its rows.
override goes_down: u32;
@group(0) @binding(4) var<storage, read_write> result: array<u32>;

const ROWS: u32 = 32u;
const COLUMNS: u32 = 64u;
// A row of workgroup memory: one more than a tile has, so that neighbours of a chunk are in different banks.
const X_STRIDE: u32 = 33u;
const W_STRIDE: u32 = 65u;

var<workgroup> x_tile: array<f32, 528>;
var<workgroup> w_tile: array<f32, 1040>;

// What is multiplied with element i of a row of x for a column of the result.
fn factor(batch: u32, column: u32, i: u32) -> f32 {
    if (column >= params[0].y || i >= params[0].z) {
        return 0.0;
    }
    if (goes_down == 1u) {
        return weight_at(0u, weight_begin(batch) + i, column);
    }
    return weight_at(0u, weight_begin(batch) + column, i);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = group.y * FOLD + group.x;
    let rows = params[0].x;
    let columns = params[0].y;
    let k = params[0].z;
    let down = (rows + ROWS - 1u) / ROWS;
    let across = (columns + COLUMNS - 1u) / COLUMNS;
    if (index >= down * across * params[0].w) {
        return;
    }
    let first_row = ROWS * (index % down);
    let first_column = COLUMNS * (index / down % across);
    let batch = index / down / across;
    let my_row = lane / 16u;
    let my_column = lane % 16u;
    var total_0 = vec4<f32>();
    var total_1 = vec4<f32>();
    for (var begin = 0u; begin < k; begin += CHUNK) {
        for (var part = 0u; part < 2u; part += 1u) {
            let row = lane / CHUNK + 16u * part;
            let i = lane % CHUNK;
            var value = 0.0;
            if (first_row + row < rows && begin + i < k) {
                value = x_at(x_begin(first_row + row, batch) + begin + i);
            }
            x_tile[i * X_STRIDE + row] = value;
        }
        if (goes_down == 1u) {
            let i = lane / 16u;
            let column = 4u * (lane % 16u);
            let at = i * W_STRIDE + column;
            if (params[2].w == 1u) {
                var four = vec4<f32>();
                if (first_column + column < columns && begin + i < k) {
                    four = weight_four(0u, weight_begin(batch) + begin + i, first_column + column);
                }
                w_tile[at] = four.x;
                w_tile[at + 1u] = four.y;
                w_tile[at + 2u] = four.z;
                w_tile[at + 3u] = four.w;
            } else {
                for (var part = 0u; part < 4u; part += 1u) {
                    w_tile[at + part] = factor(batch, first_column + column + part, begin + i);
                }
            }
        } else {
            let i = 4u * (lane % 4u);
            let column = lane / 4u;
            let at = i * W_STRIDE + column;
            if (params[2].w == 1u) {
                var four = vec4<f32>();
                if (first_column + column < columns && begin + i < k) {
                    four = weight_four(0u, weight_begin(batch) + first_column + column, begin + i);
                }
                w_tile[at] = four.x;
                w_tile[at + W_STRIDE] = four.y;
                w_tile[at + 2u * W_STRIDE] = four.z;
                w_tile[at + 3u * W_STRIDE] = four.w;
            } else {
                for (var part = 0u; part < 4u; part += 1u) {
                    w_tile[at + part * W_STRIDE] = factor(batch, first_column + column, begin + i + part);
                }
            }
        }
        workgroupBarrier();
        var part_0 = vec4<f32>();
        var part_1 = vec4<f32>();
        for (var i = 0u; i < CHUNK; i += 1u) {
            let at = i * W_STRIDE + my_column;
            let four = vec4<f32>(w_tile[at], w_tile[at + 16u], w_tile[at + 32u], w_tile[at + 48u]);
            let x_0 = x_tile[i * X_STRIDE + my_row];
            let x_1 = x_tile[i * X_STRIDE + my_row + 16u];
            part_0 = fma(vec4<f32>(x_0), four, part_0);
            part_1 = fma(vec4<f32>(x_1), four, part_1);
        }
        total_0 += part_0;
        total_1 += part_1;
        workgroupBarrier();
    }
    for (var part = 0u; part < 4u; part += 1u) {
        let column = first_column + my_column + 16u * part;
        if (column >= columns) {
            break;
        }
        if (first_row + my_row < rows) {
            result[result_begin(first_row + my_row, batch) + column] = bitcast<u32>(total_0[part]);
        }
        if (first_row + my_row + 16u < rows) {
            result[result_begin(first_row + my_row + 16u, batch) + column] = bitcast<u32>(total_1[part]);
        }
    }
}
