//! Block-scaled FP8: a matrix of codes, and a smaller matrix with one scale for each block of it.
//!
//! A value is `bf16(f32(code) * scale)`: the product rounded to `f32` once, and that rounded to BF16 once. Anything else is
//! another model, if by a little. How it is made fast is said at the head of `rows`.

use crate::simd::{self, STREAM_BYTES, Tier};
use crate::{Dtype, Error, Shape, TensorView};

mod rows;

use rows::{E4m3, E5m2, Layout, Matrices};

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
/// [`NAN_OF_F32`](crate::format::bf16::NAN_OF_F32), so that all bits are those of `(q.to(float32) * scale).to(bfloat16)` in
/// PyTorch on a CPU.
///
/// Errors: [`Error::BlockDtype`], [`Error::BlockRank`], [`Error::BlockSize`]; [`Error::ScaleShape`] if `scale` has another
/// shape than the grid; [`Error::ViewLength`] if `out` has another length; [`Error::NoTier`] as [`simd::check`]. `out` is
/// then as it was.
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
    dequantize_in(simd::check()?, q, scale, block, out)
}

/// [`dequantize`] in a tier of one's own choice, for those who compare them: the bits are the same in all.
///
/// Errors: those of [`dequantize`], but for [`Error::NoTier`]: a tier that is there is valid.
pub fn dequantize_in(
    tier: Tier,
    q: &TensorView<'_>,
    scale: &TensorView<'_>,
    block: [u64; 2],
    out: &mut [u8],
) -> Result<(), Error> {
    dequantize_by((tier, STREAM_BYTES), q, scale, block, out)
}

/// [`dequantize_in`], results of more than so many bytes stored past the caches.
fn dequantize_by(
    (tier, stream_bytes): (Tier, usize),
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
    let found = q.dtype();
    if !matches!(found, Dtype::F8E4m3 | Dtype::F8E5m2) {
        return Err(Error::BlockDtype {
            role: "block-scaled codes",
            expected: "F8_E4M3 or F8_E5M2",
            found,
        });
    }
    let Some(layout) = Layout::new(q, block) else {
        return Ok(());
    };
    let (codes, scales) = (q.bytes(), scale.bytes().as_chunks().0);
    let streams = out.len() > stream_bytes;
    let matrices = Matrices {
        layout,
        codes,
        scales,
        out,
        streams,
    };
    match found {
        Dtype::F8E5m2 => tier.run(matrices.of(E5m2)),
        _ => tier.run(matrices.of(E4m3)),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
