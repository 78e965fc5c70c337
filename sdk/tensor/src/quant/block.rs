//! Block-scaled FP8: a matrix of codes, and a smaller matrix with one scale for each block of it.
//!
//! A value is `bf16(f32(code) * scale)`: the product rounded to `f32` once, and that rounded to BF16 once. Anything else is
//! another model, if by a little.
//!
//! How it is made fast: a code moved into the exponent and mantissa of an `f32` is the code's value but for one power of two,
//! which goes into the block's scale beforehand. So an element costs shifts, a mask, a multiplication and the rounding, on
//! four lanes at a time in plain SSE2, with no table and no scale for each element. Three things are kept out of that loop:
//!
//! * codes that are no number, which a look at the bytes finds before; no real weight has one;
//! * scales that with the power of two in them are no number any more;
//! * ties. Half of what a rounding to even costs is finding out what is even. But a mantissa of a code has 3 bits or 2, so a
//!   scale meets 8 mantissas at most, and whether one of them gives a tie is known before the block is begun. The scale of
//!   an amax never does, a power of two neither; those that were BF16 once do.
//!
//! Subnormal codes pass through subnormal `f32`s. Some processors are slow at those, but few weights are so small.

use crate::format::{bf16, e4m3, e5m2};
use crate::{Dtype, Error, Shape, TensorView};

/// The scale grid of a tensor: how many blocks there are along each of the last two axes, the axes before as they are.
///
/// The last block of a row or column may be cut: `[576, 6144]` in blocks of 128 by 128 has a grid of `[5, 48]`.
///
/// Errors: [`Error::BlockRank`] for fewer than two axes, [`Error::BlockSize`] if a block has no extent.
///
/// ```
/// use rialto_tensor::{Shape, quant::block};
///
/// assert_eq!(block::grid(&Shape::new([576, 6144]), [128, 128]), Ok(Shape::new([5, 48])));
/// ```
pub fn grid(shape: &Shape, block: [u64; 2]) -> Result<Shape, Error> {
    if block.contains(&0) {
        return Err(Error::BlockSize { block });
    }
    let mut extents = shape.extents().to_vec();
    let Some(matrix) = extents.last_chunk_mut::<2>() else {
        return Err(Error::BlockRank {
            shape: shape.clone(),
        });
    };
    for (extent, size) in matrix.iter_mut().zip(block) {
        *extent = extent.div_ceil(size);
    }
    Ok(Shape::new(extents))
}

/// Dequantizes block-scaled FP8 to BF16: `out = bf16(f32(q) * scale)`, product in `f32`, each of the two roundings to nearest
/// even.
///
/// Shapes: `q` `[.., n, k]`, F8_E4M3 or F8_E5M2; `scale` F32, the [`grid`] of `q`; `out` the elements of `q` in BF16,
/// little-endian and row-major. Blocks at the edges may be cut, and any extent may be zero.
///
/// Infinity is what becomes too large; subnormals and the sign of zero are kept. A NaN, and infinity times zero, becomes
/// [`bf16::NAN_OF_F32`], so that all bits are those of `(q.to(float32) * scale).to(bfloat16)` in PyTorch on a CPU.
///
/// Errors: [`Error::BlockDtype`], [`Error::BlockRank`], [`Error::BlockSize`]; [`Error::ScaleShape`] if `scale` has another
/// shape than the grid; [`Error::ViewLength`] if `out` has another length. `out` is then as it was.
/// Source: `weight_block_size` and the `_scale_inv` tensors of DeepSeek-style FP8 checkpoints.
///
/// ```
/// use rialto_tensor::{Dtype, Shape, TensorView, quant::block};
///
/// let (matrix, grid) = (Shape::new([1, 3]), Shape::new([1, 2]));
/// // 1, -2 and 448, in blocks of two columns.
/// let q = TensorView::new(Dtype::F8E4m3, &matrix, &[0x38, 0xc0, 0x7e])?;
/// let scales = [0.5f32, 0.25].map(f32::to_le_bytes);
/// let scale = TensorView::new(Dtype::F32, &grid, scales.as_flattened())?;
/// let mut out = [0; 6];
/// block::dequantize(&q, &scale, [1, 2], &mut out)?;
/// // 0.5, -1 and 112.
/// assert_eq!(out, [0x00, 0x3f, 0x80, 0xbf, 0xe0, 0x42]);
/// # Ok::<(), rialto_tensor::Error>(())
/// ```
pub fn dequantize(
    q: &TensorView<'_>,
    scale: &TensorView<'_>,
    block: [u64; 2],
    out: &mut [u8],
) -> Result<(), Error> {
    let grid = grid(q.shape(), block)?;
    if scale.dtype() != Dtype::F32 {
        return Err(Error::BlockDtype {
            role: "block scales",
            expected: "F32",
            found: scale.dtype(),
        });
    }
    if *scale.shape() != grid {
        return Err(Error::ScaleShape {
            shape: q.shape().clone(),
            block,
            expected: grid,
            found: scale.shape().clone(),
        });
    }
    // Checks the length as a view does, and leaves the bytes to be written.
    TensorView::new(Dtype::Bf16, q.shape(), out)?;
    match q.dtype() {
        Dtype::F8E4m3 => dequantize_as::<E4m3>(q, scale, block, out),
        Dtype::F8E5m2 => dequantize_as::<E5m2>(q, scale, block, out),
        found => {
            return Err(Error::BlockDtype {
                role: "block-scaled codes",
                expected: "F8_E4M3 or F8_E5M2",
                found,
            });
        }
    }
    Ok(())
}

/// What the loops know of a format.
trait Format {
    const MANTISSA_BITS: u32;
    /// The least magnitude that is no number.
    const SPECIAL: u8;
    /// What a code in the place of an `f32`'s exponent and mantissa is too small by.
    const REBIAS: f32;
    const VALUES: &'static [f32; 256];

    /// The bits of a BF16 that is the value of a code, but for [`Format::REBIAS`].
    fn aligned(code: u8) -> u16 {
        // The arithmetic shift leaves copies of the sign behind, which the mask takes away.
        let shifted = (u16::from(code) << 8).cast_signed() >> (1 + Self::MANTISSA_BITS);
        shifted.cast_unsigned() & (0x8000 | 0x7f << (7 - Self::MANTISSA_BITS))
    }
}

struct E4m3;

impl Format for E4m3 {
    const MANTISSA_BITS: u32 = e4m3::MANTISSA_BITS;
    const SPECIAL: u8 = e4m3::NAN;
    const REBIAS: f32 = e4m3::REBIAS;
    const VALUES: &'static [f32; 256] = &e4m3::VALUES;
}

struct E5m2;

impl Format for E5m2 {
    const MANTISSA_BITS: u32 = e5m2::MANTISSA_BITS;
    const SPECIAL: u8 = e5m2::INFINITY;
    const REBIAS: f32 = e5m2::REBIAS;
    const VALUES: &'static [f32; 256] = &e5m2::VALUES;
}

/// What is known of a block before its elements.
#[derive(Clone, Copy)]
struct Block {
    scale: f32,
    /// The scale times [`Format::REBIAS`].
    factor: f32,
    has_ties: bool,
}

impl Block {
    fn new<F: Format>(scale: f32) -> Block {
        // Below this a product may be subnormal in f32, where it has fewer bits and ties are elsewhere.
        const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);
        let mantissas = 1 << F::MANTISSA_BITS;
        let is_tie = |mantissa: u8| {
            let product = f32::from(mantissas + mantissa) * scale;
            product.to_bits() & 0xffff == 0x8000
        };
        Block {
            scale,
            factor: scale * F::REBIAS,
            has_ties: scale.abs() < SMALLEST || (0..mantissas).any(is_tie),
        }
    }

    /// One row of the block.
    fn row<F: Format>(self, codes: &[u8], out: &mut [u8]) {
        let out = out.as_chunks_mut().0;
        if !self.factor.is_finite() || has_special::<F>(codes) {
            self.row_by_table::<F>(codes, out);
        } else if self.has_ties {
            scale_row::<F>(codes, out, self.factor, bf16::round_number);
        } else {
            // Without ties, half of the last place added up is enough.
            scale_row::<F>(codes, out, self.factor, |bits| {
                ((bits + 0x8000) >> 16) as u16
            });
        }
    }

    /// The definition, for the rows that the fast loop does not take.
    #[cold]
    fn row_by_table<F: Format>(self, codes: &[u8], out: &mut [[u8; 2]]) {
        for (out, &code) in out.iter_mut().zip(codes) {
            *out = bf16::round(F::VALUES[usize::from(code)] * self.scale).to_le_bytes();
        }
    }
}

fn scale_row<F: Format>(
    codes: &[u8],
    out: &mut [[u8; 2]],
    factor: f32,
    round_number: impl Fn(u32) -> u16,
) {
    for (out, &code) in out.iter_mut().zip(codes) {
        let product = bf16::decode(F::aligned(code)) * factor;
        *out = round_number(product.to_bits()).to_le_bytes();
    }
}

/// Whether a code is no number. In lanes of bytes that do not depend on each other, so that it costs next to nothing.
fn has_special<F: Format>(codes: &[u8]) -> bool {
    let (chunks, rest) = codes.as_chunks::<32>();
    let mut largest = [0; 32];
    for chunk in chunks {
        for (largest, code) in largest.iter_mut().zip(chunk) {
            *largest = (*largest).max(code & 0x7f);
        }
    }
    let rest = rest.iter().map(|code| code & 0x7f);
    largest.into_iter().chain(rest).fold(0, u8::max) >= F::SPECIAL
}

/// The views and `out` have been checked against each other.
fn dequantize_as<F: Format>(
    q: &TensorView<'_>,
    scale: &TensorView<'_>,
    block: [u64; 2],
    out: &mut [u8],
) {
    if q.bytes().is_empty() {
        return;
    }
    let length = q.bytes().len();
    // No extent is zero, so each is at most the number of elements, and a block can be taken for no larger.
    let size = |extent: u64| usize::try_from(extent).map_or(length, |extent| extent.min(length));
    let [rows, columns] = *q
        .shape()
        .extents()
        .last_chunk()
        .expect("two axes have been checked");
    let (rows, columns) = (size(rows), size(columns));
    let (block_rows, block_columns) = (size(block[0]).min(rows), size(block[1]).min(columns));
    let grid_columns = columns.div_ceil(block_columns);
    let mut bands = scale.bytes().as_chunks::<4>().0.chunks(grid_columns);

    let matrices = q.bytes().chunks(rows * columns);
    for (q, out) in matrices.zip(out.chunks_mut(2 * rows * columns)) {
        let q = q.chunks(block_rows * columns);
        for ((q, out), scales) in q
            .zip(out.chunks_mut(2 * block_rows * columns))
            .zip(&mut bands)
        {
            let blocks = scales
                .iter()
                .map(|scale| Block::new::<F>(f32::from_le_bytes(*scale)));
            let blocks: Vec<Block> = blocks.collect();
            for (q, out) in q.chunks(columns).zip(out.chunks_mut(2 * columns)) {
                let parts = q
                    .chunks(block_columns)
                    .zip(out.chunks_mut(2 * block_columns));
                for ((codes, out), block) in parts.zip(&blocks) {
                    block.row::<F>(codes, out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
