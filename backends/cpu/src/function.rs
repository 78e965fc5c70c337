//! Exponentials, and what is made of them.
//!
//! They are computed in F64 by plain products and sums, and rounded to F32 once: the nearest number but in one of millions of
//! cases, and the same bits on every processor, which those of the platform are not.

use std::f64::consts::{LN_2, LOG2_E};

/// What rounds a number to an integer when it is added: that of which 1 is the last place.
const TO_INTEGER: f64 = 6_755_399_441_055_744.0;

/// Beyond this the exponential of an F32 is infinity, or zero, by far.
const BOUND: f64 = 700.0;

/// `1 / n!` from the last that matters in F64 to the first: `(ln 2 / 2)^13 / 13!` is less than `2^-52`.
const TAYLOR: [f64; 13] = [
    1.0 / 479_001_600.0,
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
];

/// `e^x = 2^n e^r`, where `n` is the integer next to `x / ln 2`.
fn exp_long(x: f64) -> f64 {
    let bounded = x.clamp(-BOUND, BOUND);
    let shifted = bounded * LOG2_E + TO_INTEGER;
    let rest = bounded - (shifted - TO_INTEGER) * LN_2;
    let mut series = 0.0;
    for term in TAYLOR {
        series = series * rest + term;
    }
    let integer = shifted.to_bits().wrapping_sub(TO_INTEGER.to_bits());
    let power = f64::from_bits(integer.wrapping_add(1023) << 52);
    if x > BOUND {
        f64::INFINITY
    } else if x < -BOUND {
        0.0
    } else {
        series * power
    }
}

/// `e^x`.
pub(crate) fn exp(x: f32) -> f32 {
    exp_long(x.into()) as f32
}

/// `1 / (1 + exp(-x))`.
pub(crate) fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + exp_long(-f64::from(x)))) as f32
}

/// `x / (1 + exp(-x))`.
pub(crate) fn silu(x: f32) -> f32 {
    let x = f64::from(x);
    (x / (1.0 + exp_long(-x))) as f32
}

/// Hyperbolic tangent.
pub(crate) fn tanh(x: f32) -> f32 {
    let x = f64::from(x);
    let magnitude = x.abs();
    // Near zero the quotient's numerator would be a small difference of large numbers; far out it is infinity over infinity.
    let value = if magnitude < 0.01 {
        let square = x * x;
        return (x * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0)))) as f32;
    } else if magnitude > 20.0 {
        1.0
    } else {
        let power = exp_long(2.0 * magnitude);
        (power - 1.0) / (power + 1.0)
    };
    value.copysign(x) as f32
}

/// The larger of `x` and 0; NaN stays.
pub(crate) fn relu(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_those_of_f64_rounded_once() {
        let mut differ = 0;
        let mut count = 0;
        for step in -110_000..=110_000 {
            let x = step as f32 * 0.000_97;
            let long = f64::from(x);
            let pairs = [
                (exp(x), long.exp()),
                (sigmoid(x), 1.0 / (1.0 + (-long).exp())),
                (silu(x), long / (1.0 + (-long).exp())),
                (tanh(x), long.tanh()),
            ];
            for (found, expected) in pairs {
                let expected = expected as f32;
                let distance = i64::from(found.to_bits()) - i64::from(expected.to_bits());
                assert!(distance.abs() <= 1, "{x}: {found}, expected {expected}");
                differ += usize::from(distance != 0);
                count += 1;
            }
        }
        assert!(differ * 100_000 < count, "{differ} of {count} differ");
    }

    #[test]
    fn the_ends_are_those_of_ieee() {
        assert_eq!(
            [exp(f32::INFINITY), exp(89.0), exp(-104.5)],
            [f32::INFINITY, f32::INFINITY, 0.0]
        );
        assert_eq!([exp(0.0), exp(f32::NEG_INFINITY)], [1.0, 0.0]);
        assert!(exp(f32::NAN).is_nan() && tanh(f32::NAN).is_nan() && relu(f32::NAN).is_nan());
        assert_eq!([tanh(f32::INFINITY), tanh(-50.0)], [1.0, -1.0]);
        assert_eq!(tanh(-0.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!([sigmoid(200.0), sigmoid(-200.0)], [1.0, 0.0]);
        assert!(silu(f32::NEG_INFINITY).is_nan());
        assert_eq!(silu(f32::INFINITY), f32::INFINITY);
        assert_eq!(relu(-0.0).to_bits(), 0);
    }
}
