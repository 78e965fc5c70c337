//! Changes of element type: exact where the target is wider, rounded to nearest even where it is narrower.
//!
//! | from | exact to | rounded to |
//! |---|---|---|
//! | BF16 | F32, F64 | |
//! | F16 | F32, F64 | BF16 |
//! | F32 | F64 | F16, BF16 |
//! | F64 | | F32, BF16 |
//! | F8_E4M3, F8_E5M2 | BF16, F32 | |
//!
//! Every other pair is [`Error::NoCast`], never an approximation. A cast takes elements for what they are: codes of a
//! quantized tensor mean something only together with their scales, and that is [`quant`](crate::quant).
//!
//! All bits are those of `torch.Tensor.to` on a CPU (x86-64), in these points too:
//!
//! * F64 becomes BF16 by way of F32, so it is rounded twice, and 1 + 2^-8 + 2^-40 becomes 1.
//! * A NaN that becomes BF16 loses its bits: from F32 and F64 it is [`bf16::NAN_OF_F32`], from all others [`bf16::NAN`]. (PyTorch
//!   narrows F64 in vectors and gives the rest of a tensor, fewer elements than one holds, the other NaN. We do not.) A NaN
//!   that becomes something else becomes quiet and keeps its sign and as much of its payload as there is room for; only
//!   BF16 to F32 leaves a signalling one as it is.

use half::f16;

use crate::format::{bf16, e4m3, e5m2};
use crate::{Dtype, Error, Shape};

/// Whether [`cast`] is defined for this pair. A dtype always casts to itself.
#[must_use]
pub fn is_defined(from: Dtype, to: Dtype) -> bool {
    use Dtype::{Bf16, F8E4m3, F8E5m2, F16, F32, F64};
    from == to
        || matches!(
            (from, to),
            (Bf16, F32 | F64)
                | (F16, F32 | F64 | Bf16)
                | (F32, F64 | F16 | Bf16)
                | (F64, F32 | Bf16)
                | (F8E4m3 | F8E5m2, Bf16 | F32)
        )
}

/// Casts dense little-endian elements and appends them to `target`.
///
/// Rounding is to nearest, ties to even; subnormals and the sign of zero are kept; too large becomes infinity.
///
/// Errors: [`Error::NoCast`] for a pair that is not defined. `source` must hold whole elements; a caller that cuts
/// inside one is wrong, and the remainder is refused as [`Error::ViewLength`]. `target` is then as it was.
pub fn cast(from: Dtype, to: Dtype, source: &[u8], target: &mut Vec<u8>) -> Result<(), Error> {
    use Dtype::{Bf16, F8E4m3, F8E5m2, F16, F32, F64};
    whole_elements(from, source)?;
    match (from, to) {
        _ if from == to => target.extend_from_slice(source),
        (Bf16, F32) => append(source, target, |code| {
            bf16::decode(u16::from_le_bytes(code)).to_le_bytes()
        }),
        (Bf16, F64) => append(source, target, |code| {
            f32_to_f64(bf16::decode(u16::from_le_bytes(code))).to_le_bytes()
        }),
        (F16, F32) => append(source, target, |code| {
            f16::from_le_bytes(code).to_f32().to_le_bytes()
        }),
        (F16, F64) => append(source, target, |code| {
            f32_to_f64(f16::from_le_bytes(code).to_f32()).to_le_bytes()
        }),
        (F16, Bf16) => append(source, target, |code| {
            round_to_bf16(f16::from_le_bytes(code).to_f32()).to_le_bytes()
        }),
        (F32, F64) => append(source, target, |value| {
            f32_to_f64(f32::from_le_bytes(value)).to_le_bytes()
        }),
        (F32, F16) => append(source, target, |value| {
            f16::from_f32(f32::from_le_bytes(value)).to_le_bytes()
        }),
        (F32, Bf16) => append(source, target, |value| {
            bf16::round(f32::from_le_bytes(value)).to_le_bytes()
        }),
        (F64, F32) => append(source, target, |value| {
            f64_to_f32(f64::from_le_bytes(value)).to_le_bytes()
        }),
        (F64, Bf16) => append(source, target, |value| {
            bf16::round(f64_to_f32(f64::from_le_bytes(value))).to_le_bytes()
        }),
        (F8E4m3, F32) => append(source, target, |[code]| {
            e4m3::VALUES[usize::from(code)].to_le_bytes()
        }),
        (F8E4m3, Bf16) => append(source, target, |[code]| {
            round_to_bf16(e4m3::VALUES[usize::from(code)]).to_le_bytes()
        }),
        (F8E5m2, F32) => append(source, target, |[code]| {
            e5m2::VALUES[usize::from(code)].to_le_bytes()
        }),
        (F8E5m2, Bf16) => append(source, target, |[code]| {
            round_to_bf16(e5m2::VALUES[usize::from(code)]).to_le_bytes()
        }),
        _ => return Err(Error::NoCast { from, to }),
    }
    Ok(())
}

/// How many elements are another number after [`cast`]: 0 for an exact one. A NaN stays one, whatever its bits become.
///
/// Errors: those of [`cast`].
///
/// ```
/// use rialto_tensor::{Dtype, cast};
///
/// let values = [1.0f32, 0.1, f32::NAN].map(f32::to_le_bytes);
/// assert_eq!(cast::rounded(Dtype::F32, Dtype::Bf16, values.as_flattened()), Ok(1));
/// ```
pub fn rounded(from: Dtype, to: Dtype, source: &[u8]) -> Result<u64, Error> {
    use Dtype::{Bf16, F16, F32, F64};
    whole_elements(from, source)?;
    Ok(match (from, to) {
        (F16, Bf16) => count(source, |code| {
            let value = f16::from_le_bytes(code).to_f32();
            bf16::decode(bf16::round(value)) != value && !value.is_nan()
        }),
        (F32, F16) => count(source, |value| {
            let value = f32::from_le_bytes(value);
            f16::from_f32(value).to_f32() != value && !value.is_nan()
        }),
        (F32, Bf16) => count(source, |value| {
            let value = f32::from_le_bytes(value);
            bf16::decode(bf16::round(value)) != value && !value.is_nan()
        }),
        (F64, F32) => count(source, |value| {
            let value = f64::from_le_bytes(value);
            f64::from(value as f32) != value && !value.is_nan()
        }),
        (F64, Bf16) => count(source, |value| {
            let value = f64::from_le_bytes(value);
            f64::from(bf16::decode(bf16::round(value as f32))) != value && !value.is_nan()
        }),
        _ if is_defined(from, to) => 0,
        _ => return Err(Error::NoCast { from, to }),
    })
}

/// Refuses bytes that end inside an element.
pub(crate) fn whole_elements(dtype: Dtype, bytes: &[u8]) -> Result<(), Error> {
    let (width, found) = (dtype.size_bytes(), bytes.len() as u64);
    if found.is_multiple_of(width) {
        return Ok(());
    }
    let elements = found / width;
    Err(Error::ViewLength {
        dtype,
        shape: Shape::new([elements]),
        expected: elements * width,
        found,
    })
}

fn append<const N: usize, const M: usize>(
    source: &[u8],
    target: &mut Vec<u8>,
    cast: impl Fn([u8; N]) -> [u8; M],
) {
    let (elements, before) = (source.as_chunks::<N>().0, target.len());
    target.resize(before + elements.len() * M, 0);
    let targets = target[before..].as_chunks_mut::<M>().0;
    for (target, &element) in targets.iter_mut().zip(elements) {
        *target = cast(element);
    }
}

fn count<const N: usize>(source: &[u8], is_rounded: impl Fn([u8; N]) -> bool) -> u64 {
    let elements = source.as_chunks::<N>().0.iter();
    elements
        .map(|&element| u64::from(is_rounded(element)))
        .sum()
}

/// The cast of the language leaves the bits of a NaN open; here they are what every processor makes of it.
fn f32_to_f64(value: f32) -> f64 {
    if value.is_nan() {
        let bits = u64::from(value.to_bits());
        f64::from_bits((bits >> 31) << 63 | 0x7ff8_0000_0000_0000 | (bits & 0x007f_ffff) << 29)
    } else {
        f64::from(value)
    }
}

/// As [`f32_to_f64`].
fn f64_to_f32(value: f64) -> f32 {
    if value.is_nan() {
        let bits = value.to_bits();
        let sign = (bits >> 32) as u32 & 0x8000_0000;
        f32::from_bits(sign | 0x7fc0_0000 | (bits >> 29) as u32 & 0x007f_ffff)
    } else {
        value as f32
    }
}

/// To BF16 from what was a shorter dtype before it was widened.
fn round_to_bf16(value: f32) -> u16 {
    if value.is_nan() {
        bf16::NAN
    } else {
        bf16::round(value)
    }
}

#[cfg(test)]
mod tests;
