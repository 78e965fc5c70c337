//! Number formats and error bounds, from their definitions: nothing here uses what rialto itself rounds or decodes with.
//!
//! **How a result is judged.** The oracle gives a [`Span`] for each element: all that F32 arithmetic in any order may come to, each
//! end rounded as the contract says. Rounding is monotone, so a right backend lies within, and one that truncates, rounds twice
//! or forgets a rounding falls out wherever the span is narrower than its error; it mostly is.

use rialto_tensor::Dtype;

/// Unit roundoff of F32: what one operation is off by, relative to its result.
pub(crate) const U: f64 = 1.0 / 16_777_216.0;

/// A unit in the last place of F32, relative: of results in `[1, 2)` exactly, of others at most.
pub(crate) const ULP: f64 = 2.0 * U;

/// The least normal F32. A device may flush what is less to zero: WGSL allows it, no contract speaks of it but that of codes.
pub(crate) const TINY: f64 = f32::MIN_POSITIVE as f64;

/// What a division may be off by, relative: 2.5 ulp, as WGSL allows (CUDA and a CPU round correctly).
pub(crate) const DIVISION: f64 = 2.5 * ULP;

/// What a square root may be off by, relative: WGSL allows that of `1 / inverseSqrt(x)`, with 2 ulp for the inverse root.
pub(crate) const ROOT: f64 = 2.0 * ULP + DIVISION;

/// What `exp(x)` in F32 may be off by, relative: `3 + 2 |x|` ulp, as WGSL allows. An argument is rounded elsewhere.
#[must_use]
pub(crate) fn exp_error(x: f64) -> f64 {
    (3.0 + 2.0 * x.abs()) * ULP
}

/// Higham's bound for `n` roundings in a row: `n u / (1 - n u)`. A sum of `n` products in any order, fused or not, is off by at
/// most this times the sum of magnitudes.
#[must_use]
pub(crate) fn gamma(n: usize) -> f64 {
    let n = n as f64 * U;
    n / (1.0 - n)
}

/// The nearest number with `digits` binary digits and exponents from `least`, ties to even; infinity from `beyond` on.
fn nearest(x: f64, digits: i32, least: i32, beyond: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    // All numbers here are normal in F64, whose biased exponent lies in 11 bits.
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let quantum = 2f64.powi(exponent.max(least) - (digits - 1));
    let rounded = (x / quantum).round_ties_even() * quantum;
    match rounded.abs() >= beyond {
        true => f64::INFINITY.copysign(x),
        false => rounded,
    }
}

/// The nearest F32.
#[must_use]
pub(crate) fn f32(x: f64) -> f64 {
    nearest(x, 24, -126, 2f64.powi(128))
}

/// The nearest BF16: 8 digits, the exponents of F32.
#[must_use]
pub(crate) fn bf16(x: f64) -> f64 {
    nearest(x, 8, -126, 2f64.powi(128))
}

/// The nearest number of an element type.
#[must_use]
pub(crate) fn round(dtype: Dtype, x: f64) -> f64 {
    match dtype {
        Dtype::F32 => f32(x),
        Dtype::Bf16 => bf16(x),
        other => panic!("{other} is no type to compute with"),
    }
}

/// What an E4M3 code stands for: bias 7, three bits behind the point, subnormals of `2^-9`, no infinity.
#[must_use]
pub(crate) fn e4m3(code: u8) -> f64 {
    let sign = if code >= 0x80 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    sign * match (exponent, code & 0x7f) {
        (_, 0x7f) => f64::NAN,
        (0, _) => fraction * 2f64.powi(-9),
        _ => (1.0 + fraction / 8.0) * 2f64.powi(exponent - 7),
    }
}

/// The code of the nearest E4M3 number, ties to even codes, saturated. It looks at all of them.
#[must_use]
pub(crate) fn e4m3_code(x: f64) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let size = x.abs().min(448.0);
    let distance = |code: &u8| (e4m3(*code) - size).abs();
    let mut best = 0;
    for code in 0..0x7f {
        let nearer = distance(&code) < distance(&best);
        let tie = distance(&code) == distance(&best) && code % 2 == 0;
        if nearer || tie {
            best = code;
        }
    }
    best | if x.is_sign_negative() { 0x80 } else { 0 }
}

/// What an element may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Span {
    /// The least.
    pub(crate) low: f64,
    /// The largest.
    pub(crate) high: f64,
}

impl Span {
    /// Any bits: the contract says that the element means nothing.
    pub(crate) const ANY: Span = Span {
        low: f64::INFINITY,
        high: f64::NEG_INFINITY,
    };

    /// One number; NaN for any NaN.
    #[must_use]
    pub(crate) fn exact(value: f64) -> Span {
        Span {
            low: value,
            high: value,
        }
    }

    /// A number and what it may be off by.
    #[must_use]
    pub(crate) fn around(value: f64, error: f64) -> Span {
        Span {
            low: value - error,
            high: value + error,
        }
    }

    /// Both ends rounded.
    #[must_use]
    pub(crate) fn round(self, dtype: Dtype) -> Span {
        Span {
            low: round(dtype, self.low),
            high: round(dtype, self.high),
        }
    }

    /// All products with a number of the other.
    #[must_use]
    pub(crate) fn times(self, other: Span) -> Span {
        let ends = [
            self.low * other.low,
            self.low * other.high,
            self.high * other.low,
            self.high * other.high,
        ];
        Span {
            low: ends.iter().copied().fold(f64::INFINITY, f64::min),
            high: ends.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    /// Wider by an error that is relative to the larger end, and by one that is not.
    #[must_use]
    pub(crate) fn widen(self, relative: f64, absolute: f64) -> Span {
        let by = self.magnitude() * relative + absolute;
        Span {
            low: self.low - by,
            high: self.high + by,
        }
    }

    /// The largest magnitude.
    #[must_use]
    pub(crate) fn magnitude(self) -> f64 {
        self.low.abs().max(self.high.abs())
    }

    /// Whether nothing is asked.
    #[must_use]
    pub(crate) fn is_any(self) -> bool {
        self == Span::ANY
    }

    /// Whether a number is one of those.
    #[must_use]
    pub(crate) fn holds(self, value: f64) -> bool {
        let is_nan = self.low.is_nan() && value.is_nan();
        self.is_any() || is_nan || value >= self.low && value <= self.high
    }

    /// A number in the middle.
    #[must_use]
    pub(crate) fn middle(self) -> f64 {
        match self.low == self.high {
            // Also where both ends are infinite.
            true => self.low,
            false => self.low + (self.high - self.low) / 2.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_rounded_to_nearest_and_ties_go_to_even() {
        // 1 + 2^-7 is the next number after 1; halfway lies 1 + 2^-8.
        let step = 2f64.powi(-7);
        for (x, expected) in [
            (1.0 + step / 2.0, 1.0),
            (1.0 + step * 1.5, 1.0 + 2.0 * step),
            (1.0 + step * 0.500001, 1.0 + step),
            (-1.0 - step * 0.4999, -1.0),
            (3.4e38, f64::INFINITY),
            (2f64.powi(-133), 2f64.powi(-133)),
            (2f64.powi(-134), 0.0),
        ] {
            assert_eq!(bf16(x), expected, "{x}");
        }
        assert!(bf16(f64::NAN).is_nan());
        assert!(bf16(-0.0).is_sign_negative());
    }

    #[test]
    fn f32_is_rounded_as_the_processor_does() {
        let mut random = rialto_tests::random::Random(1);
        for _ in 0..10_000 {
            let x = f64::from(random.normal()) * (1.0 + random.bits() as f64 * 2f64.powi(-70));
            assert_eq!(f32(x), f64::from(x as f32), "{x}");
        }
        for x in [1e-40, 3.5e38, 1e-46, f64::from(f32::MAX)] {
            assert_eq!(f32(x), f64::from(x as f32), "{x}");
        }
    }

    #[test]
    fn codes_are_those_of_the_format() {
        for (code, value) in [
            (0x00, 0.0),
            (0x01, 0.001953125),
            (0x08, 0.015625),
            (0x38, 1.0),
            (0x7e, 448.0),
            (0xb8, -1.0),
        ] {
            assert_eq!(e4m3(code), value, "{code:#x}");
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        for code in (0..=u8::MAX).filter(|code| code & 0x7f != 0x7f) {
            assert_eq!(e4m3_code(e4m3(code)), code);
        }
        // Halfway between 16 and 18 the even code wins, also in the middle of 0 and the least number.
        assert_eq!(e4m3(e4m3_code(17.0)), 16.0);
        assert_eq!(e4m3(e4m3_code(19.0)), 20.0);
        assert_eq!(e4m3_code(2f64.powi(-10)), 0);
        assert_eq!(e4m3_code(f64::NEG_INFINITY), 0xfe);
        assert_eq!(e4m3_code(1e9), 0x7e);
    }
}
