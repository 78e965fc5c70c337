//! E4M3 as OCP's `e4m3fn`: exponent bias 7, subnormals, no infinity, one NaN of each sign. The largest number is 448.

use super::choose;

/// Bits of the mantissa.
pub(crate) const MANTISSA_BITS: u32 = 3;

/// The one magnitude that is no number.
pub(crate) const NAN: u8 = 0x7f;

/// 2 to the power of what the exponent bias of `f32` is larger: 127 - 7.
pub(crate) const REBIAS: f32 = f32::from_bits((127 + 120) << 23);

/// What every code stands for.
pub static VALUES: [f32; 256] = super::values!(decode);

/// The value of a code. Exact; a NaN keeps its sign and has the bits that PyTorch gives it, `7ff00000`.
#[inline(always)]
#[must_use]
pub const fn decode(code: u8) -> f32 {
    let sign = (code as u32 & 0x80) << 24;
    let magnitude = code as u32 & 0x7f;
    // In the place of an f32's exponent and mantissa the magnitude is too small by the same power of two for every code,
    // the subnormal ones included.
    let number = f32::from_bits(magnitude << (23 - MANTISSA_BITS)) * REBIAS;
    f32::from_bits(sign | choose(magnitude == NAN as u32, 0x7ff0_0000, number.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_what_the_definition_of_the_format_says() {
        for code in 0..=u8::MAX {
            let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
            let magnitude = match exponent {
                0 => mantissa * 2f64.powi(-9),
                _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
            };
            let value = decode(code);
            assert_eq!(value.is_sign_negative(), code >= 0x80, "{code:02x}");
            if code & 0x7f == 0x7f {
                assert_eq!(value.to_bits() & 0x7fff_ffff, 0x7ff0_0000);
            } else {
                assert_eq!(f64::from(value.abs()), magnitude, "{code:02x}");
            }
            assert_eq!(VALUES[usize::from(code)].to_bits(), value.to_bits());
        }
        assert_eq!(decode(0x7e), 448.0);
    }
}
