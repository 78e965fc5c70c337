//! E5M2: exponent bias 15, subnormals, infinities and NaNs as IEEE has them. The largest number is 57344.

use super::choose;

/// Bits of the mantissa.
pub(crate) const MANTISSA_BITS: u32 = 2;

/// The magnitude of infinity; those above it are NaN.
pub(crate) const INFINITY: u8 = 0x7c;

/// 2 to the power of what the exponent bias of `f32` is larger: 127 - 15.
pub(crate) const REBIAS: f32 = f32::from_bits((127 + 112) << 23);

/// What every code stands for.
pub static VALUES: [f32; 256] = super::values!(decode);

/// The value of a code. Exact; a NaN keeps sign and payload and becomes quiet, as PyTorch decodes it.
#[inline(always)]
#[must_use]
pub const fn decode(code: u8) -> f32 {
    let sign = (code as u32 & 0x80) << 24;
    let magnitude = code as u32 & 0x7f;
    let placed = magnitude << (23 - MANTISSA_BITS);
    // As for E4M3: one power of two for every code.
    let number = (f32::from_bits(placed) * REBIAS).to_bits();
    let quiet = ((magnitude > INFINITY as u32) as u32) << 22;
    let special = placed | 0x7f80_0000 | quiet;
    f32::from_bits(sign | choose(magnitude >= INFINITY as u32, special, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_what_the_definition_of_the_format_says() {
        for code in 0..=u8::MAX {
            let (exponent, mantissa) = (i32::from(code >> 2 & 31), f64::from(code & 3));
            let value = decode(code);
            assert_eq!(value.is_sign_negative(), code >= 0x80, "{code:02x}");
            match (exponent, code & 3) {
                (31, 0) => assert_eq!(value.abs(), f32::INFINITY),
                (31, _) => assert!(value.is_nan() && value.to_bits() & 0x0040_0000 != 0),
                (0, _) => assert_eq!(f64::from(value.abs()), mantissa * 2f64.powi(-16)),
                _ => assert_eq!(
                    f64::from(value.abs()),
                    (1.0 + mantissa / 4.0) * 2f64.powi(exponent - 15),
                    "{code:02x}"
                ),
            }
            assert_eq!(VALUES[usize::from(code)].to_bits(), value.to_bits());
        }
        assert_eq!(decode(0x7b), 57344.0);
    }

    #[test]
    fn a_code_is_the_upper_half_of_an_ieee_half() {
        for code in 0..=u8::MAX {
            let half = half::f16::from_bits(u16::from(code) << 8);
            assert_eq!(
                decode(code).to_bits(),
                half.to_f32().to_bits(),
                "{code:02x}"
            );
        }
    }
}
