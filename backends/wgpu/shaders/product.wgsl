// Products of rows and matrices, as all shaders that make them count.
//
// result[row, batch, j] = sum over i < k of x[row, batch, i] * W[batch][j, i]. The order is the same in each of them, so that an element has
// the same bits whichever made it: products of 16 neighbours are added up in turn, and those sums in turn. `fma` is written where a compiler
// might or might not fuse: it is to do the same in all of them.
//
// params[0]: rows, columns of the result, k, batches; params[1]: from a row of x to the next, from a batch, and both of the result;
// params[2]: first row of the matrix of a batch, rows of the weight in a batch, rows of the result for one of x, whether four neighbours of
// the weight may be read at once; params[3]: shape of the weight; params[4]: first element of x, first id, experts.

const CHUNK: u32 = 16u;

#floats x 1
#weight weight 2

fn weight_shape() -> vec4<u32> {
    return params[3];
}

fn x_begin(row: u32, batch: u32) -> u32 {
    return params[4].x + row / params[2].z * params[1].x + batch * params[1].y;
}

fn result_begin(row: u32, batch: u32) -> u32 {
    return row * params[1].z + batch * params[1].w;
}

// The row of the weight that is the first of a batch.
fn weight_begin(batch: u32) -> u32 {
    return batch * params[2].y + params[2].x;
}
