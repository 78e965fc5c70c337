//! Matrices in any encoding, and products with them.
//!
//! A row of a matrix becomes F32 once, and is multiplied with all vectors while it is in the caches: what that costs is one pass over
//! the matrix as it is stored, and a product for each vector. Eight rows at a time, so that a vector is read from memory once
//! for eight products.

use rayon::prelude::*;
use rialto_tensor::format::{bf16, e4m3};

use crate::operand::{Floats, FloatsMut, Tensor};
use crate::rows;

/// Rows of a matrix that are one piece of work.
pub(crate) const BLOCK_ROWS: usize = 8;

/// Codes under one scale from which on a table of what all codes are under it costs less than a product for each.
const TABLE_CODES: usize = 512;

/// Vectors whose results are put in order together.
const TILE: usize = 16;

/// A matrix `[n, k]`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: Values<'a>,
    /// Elements of a row.
    k: usize,
}

#[derive(Clone, Copy)]
enum Values<'a> {
    Plain(Floats<'a>),
    /// Codes, scales, and rows and columns of a block.
    Blocks(&'a [u8], &'a [f32], [usize; 2]),
}

impl<'a> Matrix<'a> {
    /// The matrix of an operand: its last two axes, at a place of those before.
    pub(crate) fn of(tensor: Tensor<'a>, place: usize) -> Matrix<'a> {
        let [.., n, k] = tensor.shape else {
            unreachable!("the call has a matrix here");
        };
        let (n, k) = (*n, *k);
        let begin = place * n * k;
        let values = match tensor.blocks {
            None => Values::Plain(tensor.floats().part(begin, n * k)),
            Some((scales, block)) => {
                let grid = n.div_ceil(block[0]) * k.div_ceil(block[1]);
                let codes = &tensor.codes()[begin..begin + n * k];
                Values::Blocks(codes, &scales[place * grid..][..grid], block)
            }
        };
        Matrix { values, k }
    }

    /// Rows in F32, dense, which lie in the scratch if they are stored otherwise.
    pub(crate) fn rows<'s>(
        &'s self,
        first: usize,
        count: usize,
        scratch: &'s mut Vec<f32>,
    ) -> &'s [f32] {
        let (begin, length) = (first * self.k, count * self.k);
        if let Values::Plain(Floats::F32(found)) = self.values {
            return &found[begin..begin + length];
        }
        scratch.resize(length, 0.0);
        match self.values {
            Values::Plain(found) => found.widen(begin, scratch),
            Values::Blocks(codes, scales, block) if self.k > 0 => {
                let columns = self.k.div_ceil(block[1]);
                let mut row = first;
                while row < first + count {
                    // Rows of one block share their scales.
                    let end = (row / block[0] + 1) * block[0];
                    let end = end.min(first + count);
                    let scales = &scales[row / block[0] * columns..][..columns];
                    let codes = &codes[row * self.k..end * self.k];
                    let out = &mut scratch[(row - first) * self.k..(end - first) * self.k];
                    decode(codes, scales, block[1], self.k, out);
                    row = end;
                }
            }
            Values::Blocks(..) => {}
        }
        scratch
    }

    /// Products of rows from one on with vectors: `out[row][vector]`, dense.
    pub(crate) fn products(
        &self,
        first: usize,
        vectors: &[&[f32]],
        scratch: &mut Vec<f32>,
        out: &mut [f32],
    ) {
        if self.k == 0 || vectors.is_empty() {
            out.fill(0.0);
            return;
        }
        let count = out.len() / vectors.len();
        for begin in (0..count).step_by(BLOCK_ROWS) {
            let now = BLOCK_ROWS.min(count - begin);
            let rows = self.rows(first + begin, now, scratch);
            let out = &mut out[begin * vectors.len()..];
            for (at, vector) in vectors.iter().enumerate() {
                for (row, numbers) in rows.chunks_exact(self.k).enumerate() {
                    out[row * vectors.len() + at] = rows::dot(numbers, vector);
                }
            }
        }
    }
}

/// Decodes rows of `k` codes, whose blocks have so many columns and all of the rows: `bf16(f32(code) * scale)`.
///
/// Looking a number up is nothing that the compiler makes vectors of, products are; so they are two loops, and where a block has many
/// codes, the second is over a table of all that there are.
pub(crate) fn decode(codes: &[u8], scales: &[f32], columns: usize, k: usize, out: &mut [f32]) {
    for (block, &scale) in scales.iter().enumerate() {
        let begin = block * columns;
        let end = (begin + columns).min(k);
        let scaled = |number| bf16::decode(bf16::round(number * scale));
        let rows = codes.chunks_exact(k).zip(out.chunks_exact_mut(k));
        let rows = rows.map(|(codes, out)| (&codes[begin..end], &mut out[begin..end]));
        if rows.len() * (end - begin) < TABLE_CODES {
            for (codes, out) in rows {
                look_up(codes, &e4m3::VALUES, out);
                out.iter_mut().for_each(|number| *number = scaled(*number));
            }
        } else {
            let table = e4m3::VALUES.map(scaled);
            rows.for_each(|(codes, out)| look_up(codes, &table, out));
        }
    }
}

fn look_up(codes: &[u8], table: &[f32; 256], out: &mut [f32]) {
    for (out, &code) in out.iter_mut().zip(codes) {
        *out = table[usize::from(code)];
    }
}

/// Vectors of so many elements that lie one behind the other.
pub(crate) fn vectors(dense: &[f32], k: usize, count: usize) -> Vec<&[f32]> {
    (0..count).map(|index| &dense[index * k..][..k]).collect()
}

/// Results `[n, count]` as rows `[count, n]`.
pub(crate) fn transpose(results: &[f32], n: usize, out: FloatsMut<'_>) {
    let count = results.len().checked_div(n).unwrap_or_default();
    out.compute_rows(n * TILE, |tile, out| {
        let first = tile * TILE;
        let rows = out.len() / n;
        for (at, numbers) in results.chunks_exact(count).enumerate() {
            for (row, &number) in numbers[first..first + rows].iter().enumerate() {
                out[row * n + at] = number;
            }
        }
    });
}

/// Products of a matrix of `n` rows with vectors, rows of `out` `[vectors, n]`.
pub(crate) fn multiply(matrix: &Matrix<'_>, n: usize, vectors: &[&[f32]], out: FloatsMut<'_>) {
    if n == 0 || vectors.is_empty() {
        return;
    }
    let mut results = vec![0.0; n * vectors.len()];
    let blocks = results.par_chunks_mut(BLOCK_ROWS * vectors.len());
    blocks
        .enumerate()
        .for_each_init(Vec::new, |scratch, (block, out)| {
            matrix.products(block * BLOCK_ROWS, vectors, scratch, out);
        });
    transpose(&results, n, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_decoded_together_are_the_same_bits_as_one_by_one() {
        // Every code, in two blocks and a part of one; products that are rounded, too large, and no numbers.
        let (k, columns) = (300, 128);
        let codes: Vec<u8> = (0..8 * k).map(|at| (at % 256) as u8).collect();
        for scales in [[1.001, -3.7e-5, 0.0], [1e36, 1e-41, f32::NAN]] {
            let mut together = vec![7.0; codes.len()];
            decode(&codes, &scales, columns, k, &mut together);
            for (at, (&code, found)) in codes.iter().zip(&together).enumerate() {
                let number = e4m3::VALUES[usize::from(code)] * scales[at % k / columns];
                let expected = bf16::decode(bf16::round(number));
                assert_eq!(found.to_bits(), expected.to_bits(), "{at}");
            }
            let mut one_by_one = vec![7.0; codes.len()];
            let rows = codes.chunks_exact(k).zip(one_by_one.chunks_exact_mut(k));
            rows.for_each(|(codes, out)| decode(codes, &scales, columns, k, out));
            let [together, one_by_one] =
                [together, one_by_one].map(|rows| rows.into_iter().map(f32::to_bits));
            assert!(together.eq(one_by_one));
        }
    }
}
