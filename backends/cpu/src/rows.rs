//! Sums, products and softmax of a row, in their one order.
//!
//! A sum has 16 lanes: lane `i` adds elements `i`, `i + 16`, .. one after the other, and then the upper half of the lanes is added to
//! the lower until one is left. That is four vectors of SSE2 or one of AVX-512 that do not wait for each other, it errs less than one
//! long chain, and it depends on the length of the row alone.

use crate::function;

/// Sums that run beside each other.
const LANES: usize = 16;

/// Rows that [`accumulate`] adds to each other before it adds them to what is there.
pub(crate) const FOLD: usize = 8;

/// The sum of the lanes.
#[inline(always)]
fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// `sum_i a[i] * b[i]` of rows of one length.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let mut lanes = [0.0; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane += a * b;
    }
    fold(lanes)
}

/// `sum_i term(row[i])`.
#[inline(always)]
pub(crate) fn sum(row: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] += term(chunk[lane]);
        }
    }
    for (lane, &number) in lanes.iter_mut().zip(rest) {
        *lane += term(number);
    }
    fold(lanes)
}

/// The largest number, negative infinity of none. NaN is passed over.
pub(crate) fn largest(row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = larger(lanes[lane], chunk[lane]);
        }
    }
    // Which comes first is no matter: a maximum has no rounding.
    let all = lanes.iter().chain(rest);
    all.fold(f32::NEG_INFINITY, |a, &b| larger(a, b))
}

/// `out[i] += sum_r factors[r] * rows[r][i]`, rows one behind the other in the order given: eight of them are added in pairs, and
/// then to what is there; those of a last, shorter group one after the other.
pub(crate) fn accumulate(out: &mut [f32], factors: &[f32], rows: &[f32]) {
    let width = out.len();
    if width == 0 {
        return;
    }
    let groups = factors.chunks(FOLD).zip(rows.chunks(FOLD * width));
    for (factors, rows) in groups {
        let Ok(f) = <&[f32; FOLD]>::try_from(factors) else {
            for (factor, row) in factors.iter().zip(rows.chunks_exact(width)) {
                for (out, number) in out.iter_mut().zip(row) {
                    *out += factor * number;
                }
            }
            continue;
        };
        let row = |index: usize| &rows[index * width..][..width];
        let r: [&[f32]; FOLD] = std::array::from_fn(row);
        let [a, b, c, d, e, g, h, i] = r;
        for at in 0..width {
            let lower = (f[0] * a[at] + f[1] * b[at]) + (f[2] * c[at] + f[3] * d[at]);
            let upper = (f[4] * e[at] + f[5] * g[at]) + (f[6] * h[at] + f[7] * i[at]);
            out[at] += lower + upper;
        }
    }
}

/// Replaces numbers by `exp(x - max)`, and returns what they are to be divided by. A row of negative infinity alone becomes zeros over
/// 1; one with a NaN, or with infinity, NaN.
pub(crate) fn exponentials(row: &mut [f32]) -> f32 {
    let most = largest(row);
    if most == f32::NEG_INFINITY {
        // What is no number was passed over, and infinity less infinity is none either.
        for number in row {
            *number = if number.is_nan() { f32::NAN } else { 0.0 };
        }
        return 1.0;
    }
    for number in row.iter_mut() {
        *number = function::exp(*number - most);
    }
    sum(row, |number| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_has_every_element_once_at_every_length() {
        for length in 0..100 {
            let ones = vec![1.0; length];
            let counted: Vec<f32> = (0..length).map(|index| index as f32).collect();
            let expected = (length * length.saturating_sub(1) / 2) as f32;
            assert_eq!(dot(&counted, &ones), expected);
            assert_eq!(sum(&counted, |number| 2.0 * number), 2.0 * expected);
            let last = counted.last().copied().unwrap_or(f32::NEG_INFINITY);
            assert_eq!(largest(&counted), last);
        }
    }

    #[test]
    fn rows_are_accumulated_at_every_number_of_them() {
        for count in 0..20usize {
            let factors: Vec<f32> = (0..count).map(|row| row as f32).collect();
            let rows: Vec<f32> = (0..count).flat_map(|row| [1.0, row as f32]).collect();
            let mut out = [0.5, 0.0];
            accumulate(&mut out, &factors, &rows);
            let squares: usize = (0..count).map(|row| row * row).sum();
            let ones: usize = (0..count).sum();
            assert_eq!(out, [0.5 + ones as f32, squares as f32]);
        }
    }

    #[test]
    fn exponentials_of_negative_infinity_alone_are_zeros_and_a_nan_stays() {
        let mut row = [f32::NEG_INFINITY; 3];
        assert_eq!((exponentials(&mut row), row), (1.0, [0.0; 3]));
        let mut row = [f32::NEG_INFINITY, f32::NAN];
        exponentials(&mut row);
        assert!(row[1].is_nan());
        let mut row = [f32::NEG_INFINITY, 1.0, 1.0];
        assert_eq!((exponentials(&mut row), row), (2.0, [0.0, 1.0, 1.0]));
        assert!(exponentials(&mut [f32::INFINITY, 0.0]).is_nan());
    }
}
