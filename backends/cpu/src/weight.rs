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
                let rows = scratch.chunks_exact_mut(self.k).enumerate();
                for (row, out) in rows {
                    let codes = &codes[begin + row * self.k..][..self.k];
                    let columns = self.k.div_ceil(block[1]);
                    let scales = &scales[(first + row) / block[0] * columns..][..columns];
                    decode(codes, scales, block[1], out);
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

/// Decodes a row of codes, whose blocks have so many columns: `bf16(f32(code) * scale)`.
///
/// In two loops, since the first, which looks numbers up, is none that the compiler makes vectors of, and the second is.
pub(crate) fn decode(codes: &[u8], scales: &[f32], columns: usize, out: &mut [f32]) {
    for (out, &code) in out.iter_mut().zip(codes) {
        *out = e4m3::VALUES[usize::from(code)];
    }
    for (out, &scale) in out.chunks_mut(columns).zip(scales) {
        for number in out {
            *number = bf16::decode(bf16::round(*number * scale));
        }
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
