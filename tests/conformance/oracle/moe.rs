//! Mixture of experts.

use rialto_program::op::{Router, Scoring};

use super::plain::{shares, sigmoid_error, silu_of};
use super::{Answer, Expected};
use crate::input::Input;
use crate::numbers::{DIVISION, Span, TINY, U, gamma};

/// A number to choose by, and what it may be off by.
#[derive(Clone, Copy)]
struct Choice {
    value: f64,
    off: f64,
}

/// The `count` largest of some, ascending by position, and why the choice is in doubt. Equal ones came of equal numbers, which any
/// arithmetic leaves equal; of these the lower wins. NaN is behind everything.
fn best(candidates: &[(usize, Choice)], count: usize) -> (Vec<usize>, Option<String>) {
    let key = |choice: &Choice| match choice.value.is_nan() {
        true => f64::NEG_INFINITY,
        false => choice.value,
    };
    let mut sorted = candidates.to_vec();
    sorted.sort_by(|(i, a), (j, b)| {
        let nan = a.value.is_nan().cmp(&b.value.is_nan());
        nan.then(key(b).total_cmp(&key(a))).then(i.cmp(j))
    });
    let mut doubt = None;
    for (i, a) in &sorted[..count] {
        for (j, b) in &sorted[count..] {
            let gap = a.value - b.value;
            if gap != 0.0 && gap <= a.off + b.off {
                doubt = Some(format!("{i} and {j} are {gap:e} apart"));
            }
        }
    }
    let mut chosen: Vec<usize> = sorted[..count].iter().map(|(i, _)| *i).collect();
    chosen.sort_unstable();
    (chosen, doubt)
}

pub(crate) fn router(op: &Router, inputs: &[Input]) -> Answer {
    let logits = inputs[0].values();
    let (t, e) = (inputs[0].extent(0), inputs[0].extent(1));
    let bias = inputs.get(1).map_or(vec![0.0; e], Input::values);
    let (groups, k) = (op.groups as usize, op.top_k as usize);
    let each = e / groups;
    let (mut ids, mut weights, mut doubt) = (Vec::new(), Vec::new(), None);
    for row in logits.chunks_exact(e).take(t) {
        let scores: Vec<(f64, f64)> = match op.scoring {
            Scoring::Softmax => shares(row),
            Scoring::Sigmoid => row
                .iter()
                .map(|&x| match x == f64::NEG_INFINITY {
                    true => (0.0, 0.0),
                    false => {
                        let score = 1.0 / (1.0 + (-x).exp());
                        (score, score * sigmoid_error(x) + TINY)
                    }
                })
                .collect(),
        };
        let choices: Vec<(usize, Choice)> = scores
            .iter()
            .zip(&bias)
            .map(|(&(score, off), bias)| Choice {
                value: score + bias,
                off: off + U * (score + bias).abs(),
            })
            .enumerate()
            .collect();
        let stay = match groups {
            1 => vec![0],
            _ => {
                let of = |group: usize| {
                    let members = &choices[group * each..(group + 1) * each];
                    // The doubt of who is second is none of what both come to.
                    let (two, _) = best(members, 2);
                    let [a, b] = [two[0], two[1]].map(|expert| choices[expert].1);
                    let value = a.value + b.value;
                    let off = a.off + b.off + U * value.abs();
                    (group, Choice { value, off })
                };
                let scored: Vec<(usize, Choice)> = (0..groups).map(of).collect();
                let (stay, in_doubt) = best(&scored, op.top_groups as usize);
                doubt = doubt.or(in_doubt.map(|reason| format!("groups {reason}")));
                stay
            }
        };
        let members: Vec<(usize, Choice)> = stay
            .iter()
            .flat_map(|group| &choices[group * each..(group + 1) * each])
            .copied()
            .collect();
        let (chosen, in_doubt) = best(&members, k);
        doubt = doubt.or(in_doubt.map(|reason| format!("experts {reason}")));
        let sum: f64 = chosen.iter().map(|&expert| scores[expert].0).sum();
        let sum_off: f64 = chosen.iter().map(|&expert| scores[expert].1).sum();
        let below = sum + op.epsilon;
        let below_off = sum_off + (gamma(k) + U) * below;
        for &expert in &chosen {
            let (score, off) = scores[expert];
            let (mut weight, mut off) = (score, off);
            if op.normalize {
                weight = score / below;
                off = (off + weight * below_off) / below * (1.0 + 2.0 * below_off / below)
                    + DIVISION * weight;
            }
            // The scale to F32, and its product.
            let scaled = weight * op.scale;
            let off = off * op.scale.abs() + 2.0 * U * scaled.abs();
            let off = if score == 0.0 { 0.0 } else { off + TINY };
            ids.push(expert as i32);
            weights.push(Span::around(scaled, off));
        }
    }
    Answer {
        outputs: vec![Expected::Ints(ids), Expected::Spans(weights)],
        written: None,
        doubt,
    }
}

pub(crate) fn experts(inputs: &[Input]) -> Vec<Span> {
    let (x, ids, parts) = (inputs[0].values(), inputs[1].integers(), inputs[2].values());
    let [gate, up, down] = [3, 4, 5].map(|input| inputs[input].weights());
    let (t, h, k) = (
        inputs[0].extent(0),
        inputs[0].extent(1),
        inputs[1].extent(1),
    );
    let f = inputs[3].extent(1);
    let out = inputs[0].dtype();
    let mut spans = Vec::with_capacity(t * h);
    for token in 0..t {
        let row = &x[token * h..(token + 1) * h];
        let mut sums = vec![Span::exact(0.0); h];
        let mut magnitudes = vec![0.0; h];
        for j in token * k..(token + 1) * k {
            let Ok(expert) = usize::try_from(ids[j]) else {
                continue;
            };
            let product = |weight: &[f64], i: usize| {
                let begin = (expert * f + i) * h;
                let of = weight[begin..begin + h].iter().copied();
                super::linear::dot(row.iter().copied().zip(of)).round(out)
            };
            let inner: Vec<Span> = (0..f)
                .map(|i| {
                    let gated = silu_of(product(&gate, i));
                    gated.times(product(&up, i)).widen(U, TINY).round(out)
                })
                .collect();
            let part = parts[j];
            for (column, (sum, magnitude)) in sums.iter_mut().zip(&mut magnitudes).enumerate() {
                let begin = (expert * h + column) * f;
                for (inner, w) in inner.iter().zip(&down[begin..begin + f]) {
                    let term = inner.times(Span::exact(w * part));
                    sum.low += term.low;
                    sum.high += term.high;
                    *magnitude += term.magnitude();
                }
            }
        }
        // Products and sums of one expert, its weight, and the sum over experts.
        let roundings = gamma(f + k + 1);
        let each = sums.iter().zip(&magnitudes);
        spans.extend(each.map(|(sum, &magnitude)| match magnitude == 0.0 {
            true => Span::exact(0.0),
            false => sum.widen(0.0, roundings * magnitude + TINY).round(out),
        }));
    }
    spans
}
