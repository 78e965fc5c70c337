//! bfloat16: an `f32` without its lower 16 bits.

use super::choose;

/// The code that a NaN becomes when an `f32` or `f64` is narrowed: what PyTorch writes on a CPU, whatever the NaN was.
pub const NAN_OF_F32: u16 = 0xffff;

/// The code that a NaN of a shorter dtype becomes: PyTorch takes another way from there.
pub const NAN: u16 = 0x7fc0;

/// The value of a code. Exact; a NaN keeps its payload, and a signalling one stays so.
#[inline(always)]
#[must_use]
pub const fn decode(code: u16) -> f32 {
    f32::from_bits((code as u32) << 16)
}

/// The nearest code, of two equally near the even one; too large becomes infinity, a NaN becomes [`NAN_OF_F32`].
#[inline(always)]
#[must_use]
pub const fn round(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // The carry may run into the exponent: that is the next power of two, or infinity. It runs out of a NaN.
    let number = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    choose(magnitude > 0x7f80_0000, NAN_OF_F32 as u32, number) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tie_goes_to_the_even_code_and_what_is_past_the_largest_to_infinity() {
        let round_bits = |bits| round(f32::from_bits(bits));
        assert_eq!(round_bits(0x3f80_8000), 0x3f80);
        assert_eq!(round_bits(0x3f81_8000), 0x3f82);
        assert_eq!(round_bits(0x3f80_8001), 0x3f81);
        assert_eq!(round_bits(0x7f7f_8000), 0x7f80);
        assert_eq!(round_bits(0xff7f_7fff), 0xff7f);
        assert_eq!(round_bits(0x8000_0000), 0x8000);
        assert_eq!(round_bits(0x0000_8001), 0x0001);
        assert_eq!(round_bits(0xff80_0001), NAN_OF_F32);
    }

    #[test]
    fn every_number_is_its_own_nearest() {
        for code in 0..=u16::MAX {
            let value = decode(code);
            let expected = if value.is_nan() { NAN_OF_F32 } else { code };
            assert_eq!(round(value), expected, "{code:04x}");
        }
    }
}
