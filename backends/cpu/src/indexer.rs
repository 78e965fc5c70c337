//! Which positions sparse attention reads.

use rayon::prelude::*;
use rialto_program::op::IndexerScores;

use crate::function;
use crate::operand::{Tensor, TensorMut};
use crate::pages::Pages;
use crate::rows;

/// Positions of a token that are one piece of work.
const POSITIONS: usize = 256;

/// `rialto.indexer_scores/1`.
pub(crate) fn indexer_scores(
    op: &IndexerScores,
    inputs: &[Tensor<'_>],
    outputs: &mut [TensorMut<'_>],
) {
    let ([q, weights, keys, row_seq, row_pos, page_table], [out]) = (inputs, outputs) else {
        unreachable!("the signature has six inputs and one output");
    };
    let [_, heads, width] = q.axes();
    let pages = Pages::new(keys.shape, *row_seq, *row_pos, *page_table);
    let (q, weights, keys) = (q.floats().widened(), weights.f32s(), keys.floats());
    let (scale, head_scale) = (op.scale as f32, op.head_scale as f32);
    let context = out.last();
    let scores = out.f32s().par_chunks_mut(context).enumerate();
    scores.for_each(|(token, scores)| {
        let Some(sequence) = pages.of(token) else {
            return scores.fill(f32::NEG_INFINITY);
        };
        let factors = &weights[token * heads..][..heads];
        let factors: Vec<f32> = factors.iter().map(|weight| head_scale * weight).collect();
        let queries = &q[token * heads * width..][..heads * width];
        let pieces = scores.par_chunks_mut(POSITIONS).enumerate();
        pieces.for_each_init(
            || vec![0.0; width],
            |key, (piece, scores)| {
                for (at, score) in scores.iter_mut().enumerate() {
                    let position = piece * POSITIONS + at;
                    let visible = position <= sequence.position;
                    let row = sequence.row(position).filter(|_| visible);
                    *score = match row {
                        None => f32::NEG_INFINITY,
                        Some(row) => {
                            keys.widen(row * width, key);
                            score_of(&factors, queries, key, scale)
                        }
                    };
                }
            },
        );
    });
}

/// The score of one key, heads in ascending order.
fn score_of(factors: &[f32], queries: &[f32], key: &[f32], scale: f32) -> f32 {
    let mut score = 0.0;
    for (head, factor) in factors.iter().enumerate() {
        let query = &queries[head * key.len()..][..key.len()];
        score += factor * function::relu(scale * rows::dot(query, key));
    }
    score
}

/// `rialto.topk/1`.
pub(crate) fn topk(inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([scores], [out]) = (inputs, outputs) else {
        unreachable!("the signature has one input and one output");
    };
    let (n, k) = (scores.last(), out.last());
    let scores = scores.f32s();
    let rows = out.ints().par_chunks_mut(k).enumerate();
    rows.for_each_init(Vec::new, |ranks, (row, out)| {
        select(&scores[row * n..][..n], ranks, out);
    });
}

/// An integer that is larger for a larger score, one for both zeros, and 0 for what is never selected.
fn rank(score: f32) -> u32 {
    if score.is_nan() || score == f32::NEG_INFINITY {
        return 0;
    }
    // Adding 0 makes -0 a 0. Then the bits of numbers of one sign are in order, of negative ones in reverse.
    let bits = (score + 0.0).to_bits();
    match bits >> 31 {
        0 => bits | 0x8000_0000,
        _ => !bits,
    }
}

/// The positions of the largest scores: those above the least that is selected, and the first of those that are equal to it.
fn select(scores: &[f32], ranks: &mut Vec<u32>, out: &mut [i32]) {
    ranks.clear();
    ranks.extend(
        scores
            .iter()
            .map(|&score| rank(score))
            .filter(|&rank| rank > 0),
    );
    let (least, mut of_least) = match ranks.len() > out.len() {
        false => (0, 0),
        true => {
            let last = out.len() - 1;
            let (above, &mut least, _) = ranks.select_nth_unstable_by(last, |a, b| b.cmp(a));
            let above = above.iter().filter(|&&rank| rank > least).count();
            (least, out.len() - above)
        }
    };
    let mut selected = out.iter_mut();
    for (position, &score) in scores.iter().enumerate() {
        let rank = rank(score);
        let is_first_of_least = rank == least && of_least > 0;
        if rank > least || is_first_of_least {
            of_least -= usize::from(is_first_of_least);
            let Some(out) = selected.next() else {
                break;
            };
            *out = position as i32;
        }
    }
    selected.for_each(|out| *out = -1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected<const K: usize>(scores: &[f32]) -> [i32; K] {
        let mut out = [7; K];
        select(scores, &mut Vec::new(), &mut out);
        out
    }

    #[test]
    fn of_equal_scores_the_lower_position_wins_and_zeros_are_equal() {
        assert_eq!(selected(&[0.0, 3.0, -0.0, 0.0, 1.0]), [0, 1, 2, 4]);
        assert_eq!(selected(&[-0.0, -1.0, 0.0, 5.0]), [0, 3]);
        assert_eq!(selected(&[-2.0, -1.0, -3.0]), [1]);
        assert_eq!(selected(&[2.0, 2.0, 2.0]), [0, 1]);
    }

    #[test]
    fn what_is_no_score_is_never_selected() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        assert_eq!(selected(&[nan, -inf, -1.0, inf]), [2, 3, -1]);
        assert_eq!(selected(&[nan, -inf, -1.0, inf, -nan]), [3]);
        assert_eq!(selected(&[nan, -inf]), [-1, -1]);
        assert_eq!(selected(&[]), [-1]);
        assert_eq!(selected(&[f32::MIN, f32::MIN_POSITIVE]), [0, 1]);
    }
}
