//! Norms.

use rialto_program::op::{LayerNorm, RmsNorm};
use rialto_tensor::Dtype;

use crate::input::Input;
use crate::numbers::{DIVISION, ROOT, Span, TINY, U, gamma};

/// What `1 / sqrt(y)` is off by, relative, if `y` is by `relative`: half of it, and that of root and division.
fn inverse_root(relative: f64) -> f64 {
    relative / 2.0 / (1.0 - relative) + ROOT + DIVISION
}

pub(crate) fn rms_norm(op: &RmsNorm, inputs: &[Input]) -> Vec<Span> {
    let (x, w) = (inputs[0].values(), inputs[1].values());
    let out = inputs[0].dtype();
    let n = w.len();
    let mut spans = Vec::with_capacity(x.len());
    for row in x.chunks_exact(n.max(1)) {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / n as f64;
        // Squares and sums are `n` roundings, the division, eps to F32, its addition; all terms are positive.
        let relative = gamma(n + 2) + DIVISION;
        let off = inverse_root(relative) + 2.0 * U;
        for (x, &w) in row.iter().zip(&w) {
            let normed = x / (mean + op.eps).sqrt();
            let normed = Span::around(normed, off * normed.abs() + TINY);
            let normed = match out {
                Dtype::Bf16 => normed.round(Dtype::Bf16),
                _ => normed,
            };
            let product = normed.times(Span::exact(w));
            // The product of two BF16 is a number of F32; any other is rounded.
            let exact = out == Dtype::Bf16 && inputs[1].dtype() == Dtype::Bf16;
            let product = match exact {
                true => product,
                false => product.widen(U, TINY),
            };
            spans.push(product.round(out));
        }
    }
    spans
}

pub(crate) fn layer_norm(op: &LayerNorm, inputs: &[Input]) -> Vec<Span> {
    let [x, w, b] = [0, 1, 2].map(|input| inputs[input].values());
    let n = w.len();
    let mut spans = Vec::with_capacity(x.len());
    for row in x.chunks_exact(n.max(1)) {
        let mean = row.iter().sum::<f64>() / n as f64;
        let size = row.iter().map(|x| x.abs()).sum::<f64>() / n as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        // The mean is off by the roundings of its sum and its division.
        let mean_off = gamma(n) * size + DIVISION * mean.abs();
        // About a mean that is off by d, squares average to the variance and d^2; each difference is rounded, and its square twice.
        let squares_off = gamma(n + 3) + DIVISION;
        let variance_off = variance * squares_off + mean_off.powi(2) * (1.0 + squares_off);
        let below = variance + op.eps;
        let off = inverse_root(variance_off / below + U);
        for (position, x) in row.iter().enumerate() {
            let (w, b) = (w[position], b[position]);
            let centered = x - mean;
            let centered_off = mean_off + U * (centered.abs() + mean_off);
            let inverse = 1.0 / below.sqrt();
            let normed = centered * inverse;
            let normed_off = (centered_off + (centered.abs() + centered_off) * (off + U)) * inverse;
            // Two products, or one that is fused, and a sum.
            let scaled = normed * w;
            let scaled_off = normed_off * w.abs() + U * (scaled.abs() + normed_off * w.abs());
            let sum = scaled + b;
            let all_off = scaled_off + U * (sum.abs() + scaled_off) + 3.0 * TINY;
            spans.push(Span::around(sum, all_off).round(inputs[0].dtype()));
        }
    }
    spans
}
