//! Mixture of experts.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use rayon::prelude::*;
use rialto_program::op::{Router, Scoring};

use crate::function;
use crate::operand::{Floats, FloatsMut, Tensor, TensorMut, index};
use crate::rows;
use crate::weight::{self, BLOCK_ROWS, Matrix};

/// Tokens that go through the experts together: what lies between the products of so many fits into memory.
const TOKENS: usize = 1024;

/// `rialto.router/1`.
pub(crate) fn router(op: &Router, inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let (Some(logits), [ids, weights]) = (inputs.first(), outputs) else {
        unreachable!("the signature has an input and two outputs");
    };
    let bias = inputs.get(1).map(|bias| bias.f32s());
    let (experts, k) = (logits.last(), ids.last());
    let logits = logits.f32s();
    let ids = ids.ints().par_chunks_mut(k);
    let outputs = ids.zip(weights.f32s().par_chunks_mut(k)).enumerate();
    outputs.for_each(|(token, (ids, weights))| {
        let scores = score(op.scoring, &logits[token * experts..][..experts]);
        let choices: Vec<f32> = match bias {
            None => scores.clone(),
            Some(bias) => scores
                .iter()
                .zip(bias)
                .map(|(score, bias)| score + bias)
                .collect(),
        };
        let mut chosen = candidates(op, &choices);
        chosen.sort_by(|&a, &b| best_first(choices[a], choices[b]).then(a.cmp(&b)));
        chosen.truncate(k);
        chosen.sort_unstable();
        for ((id, weight), &expert) in ids.iter_mut().zip(weights.iter_mut()).zip(&chosen) {
            (*id, *weight) = (expert as i32, scores[expert]);
        }
        let total = weights.iter().fold(0.0, |sum, weight| sum + weight) + op.epsilon as f32;
        for weight in weights {
            if op.normalize {
                *weight /= total;
            }
            *weight *= op.scale as f32;
        }
    });
}

/// What a router makes of the logits of a token.
fn score(scoring: Scoring, logits: &[f32]) -> Vec<f32> {
    match scoring {
        Scoring::Sigmoid => logits
            .iter()
            .map(|&logit| function::sigmoid(logit))
            .collect(),
        Scoring::Softmax => {
            let mut scores = logits.to_vec();
            let most = rows::largest(logits);
            let mut total = 0.0;
            for score in &mut scores {
                *score = function::exp(*score - most);
                total += *score;
            }
            scores.iter_mut().for_each(|score| *score /= total);
            scores
        }
    }
}

/// The larger number first, NaN last.
fn best_first(a: f32, b: f32) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (false, false) => b.partial_cmp(&a).unwrap_or(Ordering::Equal),
        (a, b) => a.cmp(&b),
    }
}

/// The experts of the groups that stay.
fn candidates(op: &Router, choices: &[f32]) -> Vec<usize> {
    let (groups, stay) = (op.groups as usize, op.top_groups as usize);
    if groups <= 1 {
        return (0..choices.len()).collect();
    }
    let each = choices.len() / groups;
    // Of each group how many of its two best are no number, and their sum.
    let score = |group: usize| {
        let mut sorted = choices[group * each..][..each].to_vec();
        sorted.sort_by(|&a, &b| best_first(a, b));
        let best = &sorted[..sorted.len().min(2)];
        let nans = best.iter().filter(|choice| choice.is_nan()).count();
        (nans, best.iter().fold(0.0, |sum, choice| sum + choice))
    };
    let mut scored: Vec<_> = (0..groups).map(|group| (score(group), group)).collect();
    scored.sort_by(|((a_nans, a), _), ((b_nans, b), _)| {
        a_nans.cmp(b_nans).then_with(|| best_first(*a, *b))
    });
    let kept = scored.iter().take(stay);
    kept.flat_map(|&(_, group)| group * each..(group + 1) * each)
        .collect()
}

/// Tokens that chose one expert.
struct Group<'a> {
    expert: usize,
    /// Choices of the groups before.
    before: usize,
    /// The rows of its tokens, in their order.
    rows: Vec<&'a [f32]>,
}

/// A piece of work: rows of a matrix of a group's expert.
struct Piece<'g, 'a> {
    group: &'g Group<'a>,
    first: usize,
    /// `[rows, tokens]`.
    out: &'g mut [f32],
}

/// Results of `rows` rows for each choice, group by group, and in each `[rows, tokens]`, cut into pieces.
fn pieces<'g, 'a>(
    groups: &'g [Group<'a>],
    rows: usize,
    mut results: &'g mut [f32],
) -> Vec<Piece<'g, 'a>> {
    let mut pieces = Vec::new();
    for group in groups {
        let (of_group, rest) = results.split_at_mut(rows * group.rows.len());
        results = rest;
        let blocks = of_group.chunks_mut(BLOCK_ROWS * group.rows.len());
        pieces.extend(blocks.enumerate().map(|(block, out)| Piece {
            group,
            first: block * BLOCK_ROWS,
            out,
        }));
    }
    pieces
}

/// `rialto.experts/1`.
///
/// Choices are put in order by expert, so that each row of a chosen expert is decoded once for all of its tokens; a token's results
/// are summed in the order of its ids afterwards.
pub(crate) fn experts(inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([x, ids, weights, gate, up, down], [out]) = (inputs, outputs) else {
        unreachable!("the signature has six inputs and one output");
    };
    let ([tokens, width], k) = (x.axes(), ids.last());
    let mut out = out.floats();
    for begin in (0..tokens).step_by(TOKENS) {
        let count = TOKENS.min(tokens - begin);
        let chosen = Chosen {
            x: x.floats().part(begin * width, count * width),
            width,
            ids: &ids.ints()[begin * k..][..count * k],
            weights: &weights.f32s()[begin * k..][..count * k],
            matrices: [*gate, *up, *down],
        };
        chosen.run(out.part(begin * width, count * width));
    }
}

/// Tokens and what they chose.
struct Chosen<'a> {
    x: Floats<'a>,
    /// Elements of a token.
    width: usize,
    ids: &'a [i32],
    weights: &'a [f32],
    /// Gate, up and down of all experts.
    matrices: [Tensor<'a>; 3],
}

impl Chosen<'_> {
    fn run(&self, out: FloatsMut<'_>) {
        let [experts, inner, _] = self.matrices[0].axes();
        let choices = self.ids.len();
        let tokens = self.x.len() / self.width;
        let k = choices / tokens;
        let mut by_expert: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (choice, &id) in self.ids.iter().enumerate() {
            if let Some(expert) = index(id, experts) {
                by_expert.entry(expert).or_default().push(choice);
            }
        }
        let x = self.x.widened();
        let mut groups = Vec::with_capacity(by_expert.len());
        // For each choice its group, and its place there.
        let mut places = vec![None; choices];
        let mut before = 0;
        for (expert, of_expert) in by_expert {
            for (at, &choice) in of_expert.iter().enumerate() {
                places[choice] = Some((groups.len(), at));
            }
            let row = |choice: &usize| &x[choice / k * self.width..][..self.width];
            groups.push(Group {
                expert,
                before,
                rows: of_expert.iter().map(row).collect(),
            });
            before += of_expert.len();
        }
        let gated = self.gated(&groups, inner, before);
        let inner_groups: Vec<Group<'_>> = groups
            .iter()
            .map(|group| Group {
                rows: weight::vectors(&gated[group.before * inner..], inner, group.rows.len()),
                ..*group
            })
            .collect();
        let mut results = vec![0.0; before * self.width];
        let work = pieces(&inner_groups, self.width, &mut results);
        work.into_par_iter()
            .for_each_init(Vec::new, |scratch, piece| {
                let down = Matrix::of(self.matrices[2], piece.group.expert);
                down.products(piece.first, &piece.group.rows, scratch, piece.out);
            });
        out.compute_rows(self.width, |token, out| {
            out.fill(0.0);
            let of_token = token * k..(token + 1) * k;
            for (place, weight) in places[of_token.clone()].iter().zip(&self.weights[of_token]) {
                let &Some((group, at)) = place else {
                    continue;
                };
                let group = &groups[group];
                let count = group.rows.len();
                let results = results[group.before * self.width..][at..].iter();
                for (out, result) in out.iter_mut().zip(results.step_by(count)) {
                    *out += weight * result;
                }
            }
        });
    }

    /// `silu(gate x) * (up x)` of each choice, rounded to the type of `x`: rows of `inner` elements, group by group.
    fn gated(&self, groups: &[Group<'_>], inner: usize, choices: usize) -> Vec<f32> {
        let mut results = vec![0.0; choices * inner];
        let scratch = || (Vec::new(), Vec::new());
        let work = pieces(groups, inner, &mut results).into_par_iter();
        work.for_each_init(scratch, |(scratch, ups), piece| {
            let [gate, up] =
                [0, 1].map(|which| Matrix::of(self.matrices[which], piece.group.expert));
            ups.resize(piece.out.len(), 0.0);
            gate.products(piece.first, &piece.group.rows, scratch, piece.out);
            up.products(piece.first, &piece.group.rows, scratch, ups);
            self.x.round(piece.out);
            self.x.round(ups);
            for (out, up) in piece.out.iter_mut().zip(ups) {
                *out = function::silu(*out) * *up;
            }
            self.x.round(piece.out);
        });
        let mut rows = vec![0.0; choices * inner];
        let mut rest = rows.as_mut_slice();
        let mut pairs = Vec::with_capacity(groups.len());
        for group in groups {
            let length = group.rows.len() * inner;
            let (of_group, after) = rest.split_at_mut(length);
            rest = after;
            pairs.push((&results[group.before * inner..][..length], of_group));
        }
        pairs.into_par_iter().for_each(|(results, out)| {
            weight::transpose(results, inner, FloatsMut::F32(out));
        });
        rows
    }
}

/// `rialto.swiglu/1`.
pub(crate) fn swiglu(inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([gate, up], [out]) = (inputs, outputs) else {
        unreachable!("the signature has two inputs and one output");
    };
    crate::plain::combine(gate.floats(), up.floats(), out.floats(), |gate, up| {
        function::silu(gate) * up
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_before_what_is_none_in_groups_as_well() {
        let op = Router {
            scoring: Scoring::Sigmoid,
            top_k: 2,
            groups: 3,
            top_groups: 1,
            normalize: false,
            epsilon: 0.0,
            scale: 1.0,
        };
        let nan = f32::NAN;
        assert_eq!(candidates(&op, &[nan, nan, 0.1, nan, 0.0, 0.0]), [4, 5]);
        assert_eq!(candidates(&op, &[nan, nan, 0.1, nan, nan, nan]), [2, 3]);
        assert_eq!(candidates(&op, &[0.1, 0.2, 0.2, 0.1, -5.0, 0.0]), [0, 1]);
        assert_eq!(best_first(-0.0, 0.0), Ordering::Equal);
        assert_eq!(best_first(nan, f32::NEG_INFINITY), Ordering::Greater);
    }
}
