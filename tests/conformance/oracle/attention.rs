//! What reads caches.

use rialto_program::op::{Gqa, IndexerScores, SparseMla};
use rialto_tensor::Dtype;

use crate::input::Input;
use crate::numbers::{DIVISION, Span, TINY, U, exp_error, gamma};

/// A cache with the positions of its sequences.
struct Paged {
    rows: Vec<f64>,
    page: usize,
    width: usize,
    table: Vec<i32>,
    columns: usize,
}

impl Paged {
    fn new(cache: &Input, table: &Input) -> Paged {
        Paged {
            rows: cache.values(),
            page: cache.extent(1),
            width: cache.extent(2),
            table: table.integers(),
            columns: table.extent(1),
        }
    }

    /// The row of a position. It has one: the caller stays below a token's own.
    fn row(&self, seq: usize, position: usize) -> &[f64] {
        let page = self.table[seq * self.columns + position / self.page];
        let page = usize::try_from(page).expect("a position that is attended to has a page");
        let begin = (page * self.page + position % self.page) * self.width;
        &self.rows[begin..begin + self.width]
    }
}

/// A number in F32 and what it may be off by.
#[derive(Clone, Copy)]
struct Near {
    value: f64,
    off: f64,
}

/// `scale * (a . b)`, the scale rounded to F32: so many products and sums, the scale and its product.
fn scaled_dot<'a>(scale: f64, pairs: impl Iterator<Item = (&'a f64, &'a f64)>) -> Near {
    let (mut sum, mut magnitude, mut count) = (0.0, 0.0, 0);
    for (a, b) in pairs {
        sum += a * b;
        magnitude += (a * b).abs();
        count += 1;
    }
    Near {
        value: scale * sum,
        off: scale.abs() * (gamma(count + 2) * magnitude + count as f64 * TINY) + TINY,
    }
}

pub(crate) fn indexer_scores(op: &IndexerScores, inputs: &[Input]) -> Vec<Span> {
    let (q, weights) = (inputs[0].values(), inputs[1].values());
    let [t, heads, d] = [0, 1, 2].map(|axis| inputs[0].extent(axis));
    let keys = Paged::new(&inputs[2], &inputs[5]);
    let (seqs, positions) = (inputs[3].integers(), inputs[4].integers());
    let context = keys.columns * keys.page;
    let nothing = Span::exact(f64::NEG_INFINITY);
    let mut spans = vec![nothing; t * context];
    for token in 0..t {
        let Ok(seq) = usize::try_from(seqs[token]) else {
            continue;
        };
        for position in 0..=positions[token] as usize {
            let key = keys.row(seq, position);
            let (mut sum, mut magnitude, mut off) = (0.0, 0.0, 0.0);
            for head in 0..heads {
                let begin = (token * heads + head) * d;
                let fires = scaled_dot(op.scale, q[begin..begin + d].iter().zip(key));
                if fires.value + fires.off <= 0.0 {
                    // Exactly 0, whatever the roundings.
                    continue;
                }
                let weight = op.head_scale * weights[token * heads + head];
                sum += weight * fires.value.max(0.0);
                // relu brings no two numbers further apart.
                magnitude += weight.abs() * (fires.value.max(0.0) + fires.off);
                off += weight.abs() * fires.off;
            }
            // Per head the scale to F32, two products, and the sums over heads.
            let error = off + gamma(heads + 3) * magnitude;
            let error = match magnitude == 0.0 {
                true => 0.0,
                false => error + heads as f64 * TINY,
            };
            spans[token * context + position] = Span::around(sum, error);
        }
    }
    spans
}

/// `sum_j softmax(logits)_j values_j` in F32, for each of `width` columns, before the last rounding.
fn attend<'a>(logits: &[Near], value: impl Fn(usize) -> &'a [f64], width: usize) -> Vec<Span> {
    let largest = logits
        .iter()
        .fold(f64::NEG_INFINITY, |most, logit| most.max(logit.value));
    // A softmax that goes along the logits scales its sums at each new maximum: an exponential and a product each time. Of blocks
    // there are fewer maxima than of elements.
    let (mut maximum, mut rescaling) = (f64::NEG_INFINITY, 0.0);
    for logit in logits {
        if logit.value > maximum {
            if maximum.is_finite() {
                rescaling += exp_error(logit.value - maximum) + U;
            }
            maximum = logit.value;
        }
    }
    let weights: Vec<f64> = logits
        .iter()
        .map(|logit| (logit.value - largest).exp())
        .collect();
    let total: f64 = weights.iter().sum();
    // What each exponential is off by, relative: its logit, the difference that is rounded, the function.
    let off: Vec<f64> = logits
        .iter()
        .map(|logit| {
            let below = (logit.value - largest).abs();
            (logit.off + U * (below + logit.off)).exp_m1() + exp_error(below) + rescaling
        })
        .collect();
    let n = logits.len();
    let total_off = gamma(n)
        + weights
            .iter()
            .zip(&off)
            .map(|(weight, off)| weight / total * off)
            .sum::<f64>();
    let mut spans = Vec::with_capacity(width);
    for column in 0..width {
        let (mut sum, mut magnitude, mut error, mut flushed) = (0.0, 0.0, 0.0, 0.0);
        for (position, weight) in weights.iter().enumerate() {
            let part = weight / total;
            let value = value(position)[column];
            sum += part * value;
            magnitude += part * value.abs();
            error += part * value.abs() * off[position];
            flushed += (value.abs() + 1.0) * TINY;
        }
        // Products and sums, the total below them, and one division.
        let all = error + magnitude * (gamma(n + 1) + total_off + DIVISION);
        // Errors of errors: the bounds above are of first order.
        let all = all * (1.0 + 2.0 * total_off) + flushed;
        spans.push(Span::around(sum, all));
    }
    spans
}

fn rounded(spans: Vec<Span>, dtype: Dtype) -> impl Iterator<Item = Span> {
    spans.into_iter().map(move |span| span.round(dtype))
}

pub(crate) fn sparse_mla(op: &SparseMla, inputs: &[Input]) -> Vec<Span> {
    let (q, q_rope) = (inputs[0].values(), inputs[1].values());
    let [t, heads, latent] = [0, 1, 2].map(|axis| inputs[0].extent(axis));
    let rope = inputs[1].extent(2);
    let (indices, k) = (inputs[2].integers(), inputs[2].extent(1));
    let cache = Paged::new(&inputs[3], &inputs[6]);
    let (seqs, positions) = (inputs[4].integers(), inputs[5].integers());
    let mut spans = Vec::with_capacity(t * heads * latent);
    for token in 0..t {
        let Ok(seq) = usize::try_from(seqs[token]) else {
            spans.resize(spans.len() + heads * latent, Span::ANY);
            continue;
        };
        let selected: Vec<usize> = indices[token * k..(token + 1) * k]
            .iter()
            .filter(|&&index| index >= 0 && index <= positions[token])
            .map(|&index| index as usize)
            .collect();
        for head in 0..heads {
            let row = token * heads + head;
            if selected.is_empty() {
                spans.resize(spans.len() + latent, Span::exact(0.0));
                continue;
            }
            let query = q[row * latent..(row + 1) * latent]
                .iter()
                .chain(&q_rope[row * rope..(row + 1) * rope]);
            let logits: Vec<Near> = selected
                .iter()
                .map(|&position| scaled_dot(op.scale, query.clone().zip(cache.row(seq, position))))
                .collect();
            let out = attend(&logits, |j| cache.row(seq, selected[j]), latent);
            spans.extend(rounded(out, inputs[0].dtype()));
        }
    }
    spans
}

pub(crate) fn gqa(op: &Gqa, inputs: &[Input]) -> Vec<Span> {
    let q = inputs[0].values();
    let [t, heads, d] = [0, 1, 2].map(|axis| inputs[0].extent(axis));
    let (keys, values) = (
        Paged::new(&inputs[1], &inputs[5]),
        Paged::new(&inputs[2], &inputs[5]),
    );
    let (seqs, positions) = (inputs[3].integers(), inputs[4].integers());
    let mut spans = Vec::with_capacity(q.len());
    for token in 0..t {
        let Ok(seq) = usize::try_from(seqs[token]) else {
            spans.resize(spans.len() + heads * d, Span::ANY);
            continue;
        };
        for head in 0..heads {
            let group = head / (heads / op.groups as usize);
            let of_group = group * d..(group + 1) * d;
            let begin = (token * heads + head) * d;
            let query = &q[begin..begin + d];
            let logits: Vec<Near> = (0..=positions[token] as usize)
                .map(|position| {
                    let key = &keys.row(seq, position)[of_group.clone()];
                    scaled_dot(op.scale, query.iter().zip(key))
                })
                .collect();
            let value = |position: usize| &values.row(seq, position)[of_group.clone()];
            let out = attend(&logits, value, d);
            spans.extend(rounded(out, inputs[0].dtype()));
        }
    }
    spans
}
