//! IEEE half precision: exponent bias 15, subnormals, infinities and NaNs. The largest number is 65504.
//!
//! Both ways without a branch, so that a loop of either is vectorized on any processor.

use super::choose;

/// Bits that the mantissa of an `f32` has more.
const SHIFT: u32 = 23 - 10;

/// 2 to the power of what the exponent bias of `f32` is larger: 127 - 15.
const REBIAS: f32 = f32::from_bits((127 + 112) << 23);

/// The magnitude of infinity; those above it are NaN.
const INFINITY: u32 = 0x7c00;

/// The value of a code. Exact; a NaN keeps sign and payload and becomes quiet.
#[inline(always)]
#[must_use]
pub const fn decode(code: u16) -> f32 {
    let sign = (code as u32 & 0x8000) << 16;
    let magnitude = code as u32 & 0x7fff;
    let placed = magnitude << SHIFT;
    // Too small by the same power of two for every number, the subnormal ones included.
    let number = (f32::from_bits(placed) * REBIAS).to_bits();
    let quiet = ((magnitude > INFINITY) as u32) << 22;
    let special = placed | 0x7f80_0000 | quiet;
    f32::from_bits(
        sign | if magnitude < INFINITY {
            number
        } else {
            special
        },
    )
}

/// The nearest code, of two equally near the even one; too large becomes infinity. A NaN keeps sign and the upper part of its
/// payload and becomes quiet.
#[inline(always)]
#[must_use]
pub const fn round(value: f32) -> u16 {
    /// The bits of 2^-14, below which a code is subnormal.
    const SUBNORMAL: u32 = (127 - 14) << 23;
    /// The bits of 2^16, past the largest number.
    const TOO_LARGE: u32 = (127 + 16) << 23;
    /// A number whose last place is that of the subnormal codes: what is added to it is rounded to that.
    const PLACE: f32 = 0.5;

    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let subnormal = (f32::from_bits(magnitude) + PLACE)
        .to_bits()
        .wrapping_sub(PLACE.to_bits());
    // The carry may run into the exponent: that is the next power of two, or infinity.
    let rebiased = magnitude.wrapping_sub(112 << 23);
    let half = (1 << (SHIFT - 1)) - 1 + (magnitude >> SHIFT & 1);
    let normal = rebiased.wrapping_add(half) >> SHIFT;
    let number = choose(magnitude < SUBNORMAL, subnormal, normal);
    let number = choose(magnitude < TOO_LARGE, number, INFINITY);
    let nan = INFINITY | 0x200 | (magnitude >> SHIFT & 0x3ff);
    (sign | choose(magnitude > 0x7f80_0000, nan, number)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_what_the_half_crate_says_and_its_own_nearest() {
        for code in 0..=u16::MAX {
            let value = decode(code);
            let expected = half::f16::from_bits(code).to_f32();
            assert_eq!(value.to_bits(), expected.to_bits(), "{code:04x}");
            let quiet = if value.is_nan() { code | 0x200 } else { code };
            assert_eq!(round(value), quiet, "{code:04x}");
        }
    }

    #[test]
    fn rounding_is_that_of_the_half_crate_around_every_code_and_every_tie() {
        for upper in 0..=u16::MAX {
            for lower in [
                0u32, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0xffff,
            ] {
                let value = f32::from_bits(u32::from(upper) << 16 | lower);
                let expected = half::f16::from_f32(value).to_bits();
                assert_eq!(round(value), expected, "{:08x}", value.to_bits());
            }
        }
    }
}
