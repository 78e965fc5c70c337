// Products of rows and matrices, as all shaders that make them count.
//
// result[row, batch, j] = sum over i < k of x[row, batch, i] * W[batch][j, i]. The order is the same in each of them, so that an element has
// the same bits whichever made it: products of 16 neighbours are added up in turn, and those sums in turn. `fma` is written where a compiler
// might or might not fuse: it is to do the same in all of them.
//
// Units are rows, and across are columns of the result. params[0]: k, whether four neighbours of the weight may be read at once, the first
// row that x has, the first that the result has; params[1]: from a row of x to the next, from a batch, and both of the result; params[2]:
// first row of the matrix of a batch, rows of the weight in a batch, rows of the result for one of x; params[3]: shape of the weight;
// params[4]: the first batch and the end, the first expert and the end; params[5]: of `tile.wgsl`, then the first term of the sum and the end.
// A sum of many terms goes over several dispatches, each of which goes on with what the one before it left in the result.

const CHUNK: u32 = 16u;

#floats x 1
#weight weight 2

fn weight_shape() -> vec4<u32> {
    return params[3];
}

fn x_begin(row: u32, batch: u32) -> u32 {
    return (row / params[2].z - params[0].z) * params[1].x + batch * params[1].y;
}

fn result_begin(row: u32, batch: u32) -> u32 {
    return (row - params[0].w) * params[1].z + batch * params[1].w;
}

// The row of the weight that is the first of a batch.
fn weight_begin(batch: u32) -> u32 {
    return batch * params[2].y + params[2].x;
}

fn first_column() -> u32 {
    return params[11].z;
}

fn end_column() -> u32 {
    return params[11].w;
}

fn first_term() -> u32 {
    return params[5].y;
}

fn end_term() -> u32 {
    return params[5].z;
}

fn batches() -> u32 {
    return params[4].y - params[4].x;
}
