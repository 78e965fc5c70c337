//! UE8M0 (safetensors `F8_E8M0`): the power of two `2^(code - 127)`, no sign, no zero, code 255 is NaN.

/// The value of a code. Exact; code 0 is an `f32` subnormal.
#[must_use]
pub const fn decode(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits((code as u32) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_but_the_last_is_a_power_of_two() {
        for code in 0..u8::MAX {
            assert_eq!(f64::from(decode(code)), 2f64.powi(i32::from(code) - 127));
        }
        assert!(decode(u8::MAX).is_nan());
    }
}
