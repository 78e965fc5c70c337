//! Choosing of the next token.

use rayon::prelude::*;

use crate::function;
use crate::operand::{Tensor, TensorMut};

/// `rialto.argmax/1`.
pub(crate) fn argmax(inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([logits], [out]) = (inputs, outputs) else {
        unreachable!("the signature has one input and one output");
    };
    let (v, logits) = (logits.last(), logits.f32s());
    let rows = out.ints().par_iter_mut().enumerate();
    rows.for_each(|(row, token)| {
        *token = likeliest(&logits[row * v..][..v]).map_or(-1, |token| token as i32);
    });
}

/// The first of the largest logits. `None` if none is a number.
fn likeliest(logits: &[f32]) -> Option<usize> {
    let numbers = logits
        .iter()
        .enumerate()
        .filter(|(_, logit)| !logit.is_nan());
    let best = numbers.reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.map(|(token, _)| token)
}

/// `rialto.sample/1`.
pub(crate) fn sample(inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([logits, temperature, top_k, top_p, min_p, draw], [out]) = (inputs, outputs) else {
        unreachable!("the signature has six inputs and one output");
    };
    let (v, logits) = (logits.last(), logits.f32s());
    let [temperature, top_p, min_p, draw] = [temperature, top_p, min_p, draw].map(|x| x.f32s());
    let top_k = top_k.ints();
    let rows = out.ints().par_iter_mut().enumerate();
    rows.for_each(|(row, token)| {
        let cut = Cut {
            temperature: temperature[row],
            // Fewer than none are as 0: all.
            top_k: usize::try_from(top_k[row]).ok().filter(|&k| k > 0),
            top_p: top_p[row],
            min_p: min_p[row],
        };
        let drawn = cut.draw(&logits[row * v..][..v], draw[row]);
        *token = drawn.map_or(-1, |token| token as i32);
    });
}

/// Of which tokens one is drawn.
struct Cut {
    temperature: f32,
    top_k: Option<usize>,
    top_p: f32,
    min_p: f32,
}

impl Cut {
    /// The token that a number from 0 to less than 1 says. `None` if no logit is a number.
    ///
    /// A temperature that is less than 0, or no number, is as 0.
    fn draw(&self, logits: &[f32], draw: f32) -> Option<usize> {
        let best = likeliest(logits)?;
        if self.temperature.is_nan() || self.temperature <= 0.0 {
            return Some(best);
        }
        let most = logits[best];
        let numbers = logits
            .iter()
            .enumerate()
            .filter(|(_, logit)| !logit.is_nan());
        // The difference before the quotient: a small temperature would make infinities of both.
        let mut likely: Vec<(f32, usize)> = numbers
            .map(|(token, &logit)| {
                let likelihood = if logit == most {
                    1.0
                } else if logit == f32::NEG_INFINITY || most == f32::INFINITY {
                    // Also at an infinite temperature, where a quotient would be none.
                    0.0
                } else {
                    function::exp((logit - most) / self.temperature)
                };
                (likelihood, token)
            })
            .collect();
        likely.sort_unstable_by(|(a, at), (b, other)| b.total_cmp(a).then(at.cmp(other)));
        // What `top_p` means is a part of what `top_k` leaves.
        likely.truncate(self.top_k.unwrap_or(usize::MAX));
        let total = likely.iter().fold(0.0, |sum, (number, _)| sum + number);
        likely.iter_mut().for_each(|(number, _)| *number /= total);
        likely.truncate(self.kept(&likely));
        let kept = likely.iter().fold(0.0, |sum, (number, _)| sum + number);
        let (threshold, mut sum) = (draw * kept, 0.0);
        let drawn = likely.iter().find(|(probability, _)| {
            sum += probability;
            sum > threshold
        });
        // A number of 1 or more, or none, is beyond all sums.
        drawn.or(likely.last()).map(|&(_, token)| token)
    }

    /// How many are kept of the probabilities that `top_k` left, which are in order. The first always is.
    fn kept(&self, likely: &[(f32, usize)]) -> usize {
        let first = likely.first().map_or(0.0, |&(probability, _)| probability);
        let mut sum = 0.0;
        let mut kept = 0;
        for &(probability, _) in likely {
            if kept > 0 && probability < self.min_p * first {
                break;
            }
            kept += 1;
            sum += probability;
            // At 1 all are kept: by rounding the sum may be there before the last.
            if self.top_p < 1.0 && sum >= self.top_p {
                break;
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits of probabilities 1/2, 1/8, 1/4 and 1/8.
    fn logits() -> [f32; 4] {
        [0.5f32, 0.125, 0.25, 0.125].map(f32::ln)
    }

    const ALL: Cut = Cut {
        temperature: 1.0,
        top_k: None,
        top_p: 1.0,
        min_p: 0.0,
    };

    fn drawn(cut: &Cut) -> Vec<usize> {
        let draws = [0.0, 0.49, 0.51, 0.74, 0.76, 0.87, 0.88, 0.999];
        let draws = draws.iter();
        draws
            .map(|&draw| cut.draw(&logits(), draw).unwrap())
            .collect()
    }

    #[test]
    fn a_token_is_drawn_by_its_probability_in_order_of_likelihood() {
        assert_eq!(drawn(&ALL), [0, 0, 2, 2, 1, 1, 3, 3]);
    }

    #[test]
    fn what_is_cut_is_never_drawn_and_the_rest_is_scaled() {
        let cut = Cut {
            top_k: Some(2),
            ..ALL
        };
        assert_eq!(drawn(&cut), [0, 0, 0, 2, 2, 2, 2, 2]);
        let cut = Cut { top_p: 0.7, ..ALL };
        assert_eq!(drawn(&cut), [0, 0, 0, 2, 2, 2, 2, 2]);
        let cut = Cut { min_p: 0.3, ..ALL };
        assert_eq!(drawn(&cut), [0, 0, 0, 2, 2, 2, 2, 2]);
        // Two thirds and a third, of which 0.6 is in the first; of all tokens the first is a half.
        let cut = Cut {
            top_k: Some(2),
            top_p: 0.6,
            ..ALL
        };
        assert_eq!(drawn(&cut), [0; 8]);
        for cut in [
            Cut { top_p: 0.0, ..ALL },
            Cut { min_p: 2.0, ..ALL },
            Cut {
                top_k: Some(1),
                ..ALL
            },
            Cut {
                temperature: 0.0,
                ..ALL
            },
            Cut {
                temperature: 1e-40,
                ..ALL
            },
        ] {
            assert_eq!(drawn(&cut), [0; 8]);
        }
    }

    #[test]
    fn nan_is_never_drawn_and_infinity_always() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for draw in [0.0, 0.5, 0.999, 1.0, 7.0, nan] {
            assert_eq!(ALL.draw(&[nan, nan], draw), None);
            assert_eq!(ALL.draw(&[], draw), None);
            assert_eq!(ALL.draw(&[nan, 0.0, nan], draw), Some(1));
            assert_eq!(ALL.draw(&[0.0, inf, 1.0], draw.min(0.9)), Some(1));
        }
        assert_eq!(likeliest(&[nan, -inf, -0.0, 0.0]), Some(2));
    }
}
