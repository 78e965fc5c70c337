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

use crate::format::{bf16, choose, choose_long, e4m3, e5m2, f16};
use crate::simd::{self, Count, Map, STREAM_BYTES, Tier};
use crate::{Dtype, Error, Shape, TensorView};

/// Whether [`cast_into`] is defined for this pair. A dtype always casts to itself.
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

/// Casts dense little-endian elements; `target` has exactly the bytes that they become, and all of them are written.
///
/// Rounding is to nearest, ties to even; subnormals and the sign of zero are kept; too large becomes infinity.
///
/// Errors: [`Error::NoCast`] for a pair that is not defined. `source` must hold whole elements; a caller that cuts
/// inside one is wrong, and the remainder is refused as [`Error::ViewLength`], and so is a `target` of another length;
/// [`Error::NoTier`] is that of [`simd::check`]. `target` is then as it was.
///
/// ```
/// use rialto_tensor::{Dtype, cast};
///
/// let mut target = [0; 4];
/// cast::cast_into(Dtype::Bf16, Dtype::F32, &[0x80, 0x3f], &mut target)?;
/// assert_eq!(f32::from_le_bytes(target), 1.0);
/// # Ok::<(), rialto_tensor::Error>(())
/// ```
pub fn cast_into(from: Dtype, to: Dtype, source: &[u8], target: &mut [u8]) -> Result<(), Error> {
    let loops = Loops {
        tier: simd::check()?,
        stream_bytes: STREAM_BYTES,
    };
    loops.cast_into(from, to, source, target)
}

/// How many elements are another number after [`cast_into`]: 0 for an exact one. A NaN stays one, whatever its bits become.
///
/// Errors: those of [`cast_into`].
///
/// ```
/// use rialto_tensor::{Dtype, cast};
///
/// let values = [1.0f32, 0.1, f32::NAN].map(f32::to_le_bytes);
/// assert_eq!(cast::rounded(Dtype::F32, Dtype::Bf16, values.as_flattened()), Ok(1));
/// ```
pub fn rounded(from: Dtype, to: Dtype, source: &[u8]) -> Result<u64, Error> {
    let loops = Loops {
        tier: simd::check()?,
        stream_bytes: STREAM_BYTES,
    };
    loops.rounded(from, to, source)
}

/// Refuses bytes that end inside an element.
pub(crate) fn whole_elements(dtype: Dtype, bytes: &[u8]) -> Result<(), Error> {
    let (width, found) = (dtype.size_bytes(), bytes.len() as u64);
    has_elements(dtype, found / width, bytes)
}

/// Refuses bytes that are not exactly so many elements.
fn has_elements(dtype: Dtype, elements: u64, bytes: &[u8]) -> Result<(), Error> {
    let shape = Shape::new([elements]);
    TensorView::new(dtype, &shape, bytes).map(|_| ())
}

/// How the loops run.
#[derive(Clone, Copy)]
struct Loops {
    tier: Tier,
    /// Larger targets are stored past the caches.
    stream_bytes: usize,
}

impl Loops {
    fn cast_into(
        self,
        from: Dtype,
        to: Dtype,
        source: &[u8],
        target: &mut [u8],
    ) -> Result<(), Error> {
        use Dtype::{Bf16, F8E4m3, F8E5m2, F16, F32, F64};
        whole_elements(from, source)?;
        if !is_defined(from, to) {
            return Err(Error::NoCast { from, to });
        }
        has_elements(to, source.len() as u64 / from.size_bytes(), target)?;
        match (from, to) {
            (Bf16, F32) => self.map(source, target, bf16_to_f32),
            (Bf16, F64) => self.map(source, target, bf16_to_f64),
            (F16, F32) => self.map(source, target, f16_to_f32),
            (F16, F64) => self.map(source, target, f16_to_f64),
            (F16, Bf16) => self.map(source, target, f16_to_bf16),
            (F32, F64) => self.map(source, target, f32_to_f64),
            (F32, F16) => self.map(source, target, f32_to_f16),
            (F32, Bf16) => self.map(source, target, f32_to_bf16),
            (F64, F32) => self.map(source, target, f64_to_f32),
            (F64, Bf16) => self.map(source, target, f64_to_bf16),
            (F8E4m3, F32) => self.map(source, target, e4m3_to_f32),
            (F8E4m3, Bf16) => self.map(source, target, e4m3_to_bf16),
            (F8E5m2, F32) => self.map(source, target, e5m2_to_f32),
            (F8E5m2, Bf16) => self.map(source, target, e5m2_to_bf16),
            _ => target.copy_from_slice(source),
        }
        Ok(())
    }

    fn rounded(self, from: Dtype, to: Dtype, source: &[u8]) -> Result<u64, Error> {
        use Dtype::{Bf16, F16, F32, F64};
        whole_elements(from, source)?;
        Ok(match (from, to) {
            (F16, Bf16) => self.count(source, f16_to_bf16_rounds),
            (F32, F16) => self.count(source, f32_to_f16_rounds),
            (F32, Bf16) => self.count(source, f32_to_bf16_rounds),
            (F64, F32) => self.count(source, f64_to_f32_rounds),
            (F64, Bf16) => self.count(source, f64_to_bf16_rounds),
            _ if is_defined(from, to) => 0,
            _ => return Err(Error::NoCast { from, to }),
        })
    }

    fn map<const N: usize, const M: usize>(
        self,
        source: &[u8],
        target: &mut [u8],
        cast: impl Fn([u8; N]) -> [u8; M],
    ) {
        self.tier.run(Map {
            source,
            target,
            cast,
            stream_bytes: self.stream_bytes,
        });
    }

    fn count<const N: usize>(self, source: &[u8], counts: impl Fn([u8; N]) -> bool) -> u64 {
        self.tier.run(Count { source, counts })
    }
}

/// The casts of one element. None has a branch, and all are inlined, so that a loop of one is vectorized.
macro_rules! elements {
    ($($name:ident($element:ident: $from:ty) -> $to:ty = $cast:expr;)*) => {$(
        #[inline(always)]
        fn $name(bytes: [u8; size_of::<$from>()]) -> [u8; size_of::<$to>()] {
            let $element = <$from>::from_le_bytes(bytes);
            let cast: $to = $cast;
            cast.to_le_bytes()
        }
    )*};
}

elements! {
    bf16_to_f32(code: u16) -> f32 = bf16::decode(code);
    bf16_to_f64(code: u16) -> f64 = widened(bf16::decode(code));
    f16_to_f32(code: u16) -> f32 = f16::decode(code);
    f16_to_f64(code: u16) -> f64 = widened(f16::decode(code));
    f16_to_bf16(code: u16) -> u16 = bf16_of_short(f16::decode(code));
    f32_to_f64(value: f32) -> f64 = widened(value);
    f32_to_f16(value: f32) -> u16 = f16::round(value);
    f32_to_bf16(value: f32) -> u16 = bf16::round(value);
    f64_to_f32(value: f64) -> f32 = narrowed(value);
    f64_to_bf16(value: f64) -> u16 = bf16::round(narrowed(value));
    e4m3_to_f32(code: u8) -> f32 = e4m3::decode(code);
    e4m3_to_bf16(code: u8) -> u16 = bf16_of_code(e4m3::decode(code));
    e5m2_to_f32(code: u8) -> f32 = e5m2::decode(code);
    e5m2_to_bf16(code: u8) -> u16 = bf16_of_code(e5m2::decode(code));
}

/// Whether an element is another number after it was narrowed and widened again. As the casts.
macro_rules! rounds {
    ($($name:ident($element:ident: $from:ty) -> $before:expr, $after:expr;)*) => {$(
        #[inline(always)]
        fn $name(bytes: [u8; size_of::<$from>()]) -> bool {
            let $element = <$from>::from_le_bytes(bytes);
            let (before, after) = ($before, $after);
            after != before && !before.is_nan()
        }
    )*};
}

rounds! {
    f16_to_bf16_rounds(code: u16) -> f16::decode(code), bf16::decode(bf16::round(f16::decode(code)));
    f32_to_f16_rounds(value: f32) -> value, f16::decode(f16::round(value));
    f32_to_bf16_rounds(value: f32) -> value, bf16::decode(bf16::round(value));
    f64_to_f32_rounds(value: f64) -> value, f64::from(value as f32);
    f64_to_bf16_rounds(value: f64) -> value, f64::from(bf16::decode(bf16::round(value as f32)));
}

/// The cast of the language leaves the bits of a NaN open; here they are what every processor makes of it.
#[inline(always)]
fn widened(value: f32) -> f64 {
    let bits = u64::from(value.to_bits());
    let nan = (bits >> 31) << 63 | 0x7ff8_0000_0000_0000 | (bits & 0x007f_ffff) << 29;
    f64::from_bits(choose_long(value.is_nan(), nan, f64::from(value).to_bits()))
}

/// As [`widened`].
#[inline(always)]
fn narrowed(value: f64) -> f32 {
    let bits = value.to_bits();
    let sign = (bits >> 32) as u32 & 0x8000_0000;
    let nan = sign | 0x7fc0_0000 | (bits >> 29) as u32 & 0x007f_ffff;
    f32::from_bits(choose(value.is_nan(), nan, (value as f32).to_bits()))
}

/// To BF16 from what was a shorter dtype before it was widened.
#[inline(always)]
fn bf16_of_short(value: f32) -> u16 {
    choose(value.is_nan(), bf16::NAN.into(), bf16::round(value).into()) as u16
}

/// The same of a number that is one of BF16.
#[inline(always)]
fn bf16_of_code(value: f32) -> u16 {
    choose(value.is_nan(), bf16::NAN.into(), value.to_bits() >> 16) as u16
}

#[cfg(test)]
mod tests;
