//! Products with weights.

use rialto_program::op::{MlaAbsorb, MlaExpand};
use rialto_tensor::Dtype;

use crate::input::Input;
use crate::numbers::{Span, TINY, gamma};

/// A sum of products in F32. Each is rounded and so is each sum: `n` roundings in a row at most, in any order, and `n` flushes.
pub(super) fn dot(terms: impl Iterator<Item = (f64, f64)>) -> Span {
    let (mut sum, mut magnitude, mut count) = (0.0, 0.0, 0);
    for (a, b) in terms {
        sum += a * b;
        magnitude += (a * b).abs();
        count += 1;
    }
    match magnitude == 0.0 {
        // Nothing is rounded where there is nothing.
        true => Span::exact(sum),
        false => Span::around(sum, gamma(count) * magnitude + count as f64 * TINY),
    }
}

/// `out[t, n] = sum_k x[t, k] w[n, k]`.
pub(crate) fn linear(inputs: &[Input], out: Dtype) -> Vec<Span> {
    let (x, w) = (inputs[0].values(), inputs[1].weights());
    let (n, k) = (inputs[1].extent(0), inputs[1].extent(1));
    let shape = inputs[0].shape();
    let rows: u64 = shape[..shape.len() - 1].iter().product();
    let mut spans = Vec::with_capacity(rows as usize * n);
    for t in 0..rows as usize {
        let row = &x[t * k..(t + 1) * k];
        for j in 0..n {
            let of = &w[j * k..(j + 1) * k];
            let terms = row.iter().copied().zip(of.iter().copied());
            spans.push(dot(terms).round(out));
        }
    }
    spans
}

/// `out[t, h, l] = sum_j q[t, h, j] w[h (nope + value) + j, l]`.
pub(crate) fn absorb(op: &MlaAbsorb, inputs: &[Input]) -> Vec<Span> {
    let (q, w) = (inputs[0].values(), inputs[1].weights());
    let [t, heads, nope] = [0, 1, 2].map(|axis| inputs[0].extent(axis));
    let latent = inputs[1].extent(1);
    let each = nope + op.value as usize;
    let mut spans = Vec::with_capacity(t * heads * latent);
    for row in 0..t * heads {
        let head = row % heads;
        for l in 0..latent {
            let terms = (0..nope).map(|j| (q[row * nope + j], w[(head * each + j) * latent + l]));
            spans.push(dot(terms).round(inputs[0].dtype()));
        }
    }
    spans
}

/// `out[t, h, v] = sum_l w[h each + each - value + v, l] x[t, h, l]`, where each head has `each` rows.
pub(crate) fn expand(op: &MlaExpand, inputs: &[Input]) -> Vec<Span> {
    let (x, w) = (inputs[0].values(), inputs[1].weights());
    let [t, heads, latent] = [0, 1, 2].map(|axis| inputs[0].extent(axis));
    let (each, value) = (inputs[1].extent(0) / heads, op.value as usize);
    let mut spans = Vec::with_capacity(t * heads * value);
    for row in 0..t * heads {
        let first = row % heads * each + each - value;
        for v in 0..value {
            let terms = (0..latent).map(|l| (x[row * latent + l], w[(first + v) * latent + l]));
            spans.push(dot(terms).round(inputs[0].dtype()));
        }
    }
    spans
}
