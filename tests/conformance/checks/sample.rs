//! `argmax` and `sample`.

use rialto_backend::Backend;
use rialto_tensor::Dtype;
use rialto_tests::shapes;

use super::{both, f32s};
use crate::harness::{Case, Verdict};
use crate::input::Input;
use crate::oracle::Expected;

pub(crate) mod argmax {
    use rialto_program::op::Argmax;

    use super::*;

    checks![
        every_shape,
        of_equal_logits_the_lower_token_wins,
        nan_never_wins,
    ];

    fn every_shape(backend: &dyn Backend) -> Verdict {
        for shape in shapes::LOGITS {
            let case = Case::new(Argmax {}, Dtype::F32, |maker, _| {
                vec![maker.floats(Dtype::F32, &shape)]
            });
            both(&case, backend)?;
            // Few different ones, some of them no numbers.
            let case = Case::new(Argmax {}, Dtype::F32, |maker, _| {
                let logits: Vec<f64> = (0..shape[0] * shape[1])
                    .map(|_| match maker.below(5) {
                        4 => f64::NAN,
                        number => number as f64,
                    })
                    .collect();
                vec![f32s(&shape, &logits)]
            });
            both(&case, backend)?;
        }
        Ok(())
    }

    fn by_hand(backend: &dyn Backend, logits: &[f64], expected: i32) -> Verdict {
        let logits = f32s(&[1, logits.len() as u64], logits);
        let case = Case::of(Argmax {}, Dtype::F32, vec![vec![logits]]);
        case.expect(backend, &[Expected::Ints(vec![expected])])
    }

    fn of_equal_logits_the_lower_token_wins(backend: &dyn Backend) -> Verdict {
        by_hand(backend, &[1.0, 3.0, 3.0, 2.0], 1)?;
        by_hand(backend, &[-1.0, -0.0, 0.0], 1)?;
        by_hand(backend, &[f64::NEG_INFINITY; 3], 0)?;
        by_hand(backend, &[1.0, f64::INFINITY, f64::INFINITY], 1)?;
        // Wherever a device cuts the vocabulary, both halves have the same.
        let mut logits = vec![0.0; 154_880];
        for place in [4096, 77_440, 154_879] {
            logits[place] = 7.0;
        }
        by_hand(backend, &logits, 4096)
    }

    fn nan_never_wins(backend: &dyn Backend) -> Verdict {
        by_hand(backend, &[f64::NAN, -5.0, f64::NAN, -7.0], 1)?;
        by_hand(backend, &[f64::NAN, f64::NEG_INFINITY], 1)?;
        by_hand(backend, &[f64::NAN; 4], -1)
    }
}

pub(crate) mod draw {
    use rialto_program::op::Sample;

    use super::*;

    checks![
        every_shape_with_a_way_for_each_row,
        a_draw_falls_to_the_token_whose_share_it_is_in,
        a_token_that_is_hardly_likely_can_be_drawn,
        of_equally_likely_tokens_the_lower_is_first,
        top_k_keeps_the_first,
        top_p_keeps_the_first_that_come_to_it,
        min_p_is_relative_to_the_first,
        cuts_meet,
        the_edges_of_a_draw_are_the_first_and_the_last_that_is_kept,
        a_temperature_of_0_is_argmax,
        a_temperature_divides,
        nan_is_never_chosen,
    ];

    /// How a row is drawn: temperature, top_k, top_p, min_p, draw.
    #[derive(Clone, Copy)]
    struct How(f64, i32, f64, f64, f64);

    /// All of them, as they are.
    const ALL: How = How(1.0, 0, 1.0, 0.0, 0.0);

    /// A half, a quarter and two eighths, not in order.
    fn eighths() -> [f64; 4] {
        [0.125, 0.5, 0.125, 0.25].map(f64::ln)
    }

    fn inputs([r, v]: [u64; 2], logits: &[f64], how: &[How]) -> Vec<Input> {
        let column = |part: fn(&How) -> f64| {
            let values: Vec<f64> = how.iter().map(part).collect();
            f32s(&[r], &values)
        };
        let top_k: Vec<i32> = how.iter().map(|how| how.1).collect();
        vec![
            f32s(&[r, v], logits),
            column(|how| how.0),
            Input::ints(&[r], &top_k),
            column(|how| how.2),
            column(|how| how.3),
            column(|how| how.4),
        ]
    }

    fn every_shape_with_a_way_for_each_row(backend: &dyn Backend) -> Verdict {
        for [r, v] in shapes::LOGITS {
            for turn in 0..6 {
                let case = Case::new(Sample {}, Dtype::F32, |maker, _| {
                    // So steep that a few tokens have the most, as those of a model.
                    let logits: Vec<f64> = maker.numbers(r * v).iter().map(|x| x * 4.0).collect();
                    let how: Vec<How> = (0..r as usize)
                        .map(|row| {
                            let of = row + turn;
                            How(
                                [0.7, 1.0, 1.5, 0.0][of % 4],
                                [20, 5, 1, 50][of / 2 % 4],
                                [1.0, 0.9, 0.5][of % 3],
                                [0.0, 0.05, 0.3][of / 3 % 3],
                                maker.below(1 << 24) as f64 / f64::from(1 << 24),
                            )
                        })
                        .collect();
                    inputs([r, v], &logits, &how)
                });
                both(&case, backend)?;
            }
        }
        Ok(())
    }

    fn by_hand(backend: &dyn Backend, logits: &[f64], draws: &[(How, i32)]) -> Verdict {
        let (r, v) = (draws.len() as u64, logits.len() as u64);
        let how: Vec<How> = draws.iter().map(|(how, _)| *how).collect();
        let expected = draws.iter().map(|(_, token)| *token).collect();
        let inputs = inputs([r, v], &logits.repeat(draws.len()), &how);
        let case = Case::of(Sample {}, Dtype::F32, vec![inputs]);
        case.expect(backend, &[Expected::Ints(expected)])
    }

    fn with_draws(how: How, draws: &[(f64, i32)]) -> Vec<(How, i32)> {
        let with = |&(draw, token): &(f64, i32)| (How(how.0, how.1, how.2, how.3, draw), token);
        draws.iter().map(with).collect()
    }

    fn a_draw_falls_to_the_token_whose_share_it_is_in(backend: &dyn Backend) -> Verdict {
        let draws = [
            (0.0, 1),
            (0.49, 1),
            (0.51, 3),
            (0.74, 3),
            (0.76, 0),
            (0.87, 0),
            (0.88, 2),
            (0.99, 2),
        ];
        by_hand(backend, &eighths(), &with_draws(ALL, &draws))
    }

    /// Likelihoods of 1, e^-3 and e^-12: the first two have 0.999994 of all.
    fn a_token_that_is_hardly_likely_can_be_drawn(backend: &dyn Backend) -> Verdict {
        let draws = [(0.95, 0), (0.96, 2), (0.99999, 2), (0.999997, 1)];
        by_hand(backend, &[0.0, -12.0, -3.0], &with_draws(ALL, &draws))
    }

    fn of_equally_likely_tokens_the_lower_is_first(backend: &dyn Backend) -> Verdict {
        let draws = [(0.1, 0), (0.3, 1), (0.6, 2), (0.9, 3)];
        by_hand(backend, &[2.0; 4], &with_draws(ALL, &draws))?;
        let how = How(1.0, 2, 1.0, 0.0, 0.0);
        by_hand(backend, &[2.0; 4], &with_draws(how, &[(0.4, 0), (0.6, 1)]))
    }

    fn top_k_keeps_the_first(backend: &dyn Backend) -> Verdict {
        let top = |k| How(1.0, k, 1.0, 0.0, 0.0);
        by_hand(backend, &eighths(), &with_draws(top(1), &[(0.99, 1)]))?;
        // Two thirds and a third.
        let draws = [(0.66, 1), (0.67, 3), (0.99, 3)];
        by_hand(backend, &eighths(), &with_draws(top(2), &draws))?;
        // More than there are, and 0 for all.
        by_hand(backend, &eighths(), &with_draws(top(9), &[(0.99, 2)]))?;
        by_hand(backend, &eighths(), &with_draws(top(0), &[(0.99, 2)]))
    }

    fn top_p_keeps_the_first_that_come_to_it(backend: &dyn Backend) -> Verdict {
        let top = |p| How(1.0, 0, p, 0.0, 0.0);
        by_hand(backend, &eighths(), &with_draws(top(1e-3), &[(0.99, 1)]))?;
        by_hand(backend, &eighths(), &with_draws(top(0.49), &[(0.99, 1)]))?;
        let draws = [(0.66, 1), (0.67, 3), (0.99, 3)];
        by_hand(backend, &eighths(), &with_draws(top(0.51), &draws))?;
        by_hand(backend, &eighths(), &with_draws(top(0.74), &draws))?;
        by_hand(backend, &eighths(), &with_draws(top(0.76), &[(0.99, 0)]))?;
        by_hand(backend, &eighths(), &with_draws(top(1.0), &[(0.99, 2)]))
    }

    fn min_p_is_relative_to_the_first(backend: &dyn Backend) -> Verdict {
        let least = |p| How(1.0, 0, 1.0, p, 0.0);
        by_hand(backend, &eighths(), &with_draws(least(0.51), &[(0.99, 1)]))?;
        by_hand(backend, &eighths(), &with_draws(least(0.49), &[(0.99, 3)]))?;
        by_hand(backend, &eighths(), &with_draws(least(0.26), &[(0.99, 3)]))?;
        by_hand(backend, &eighths(), &with_draws(least(0.24), &[(0.99, 2)]))?;
        // The first is as likely as itself.
        by_hand(backend, &eighths(), &with_draws(least(1.0), &[(0.99, 1)]))
    }

    /// What `top_k` keeps is all that `top_p` is a part of: of two kept, a half of all is two thirds, which is more than 0.6.
    fn cuts_meet(backend: &dyn Backend) -> Verdict {
        let both = How(1.0, 2, 0.6, 0.0, 0.0);
        by_hand(
            backend,
            &eighths(),
            &with_draws(both, &[(0.6, 1), (0.99, 1)]),
        )?;
        // Of three, which are four, two and one sevenths, two are not 0.9.
        let both = How(1.0, 3, 0.9, 0.0, 0.0);
        let draws = [(0.57, 1), (0.58, 3), (0.85, 3), (0.86, 0), (0.99, 0)];
        by_hand(backend, &eighths(), &with_draws(both, &draws))?;
        // Of two it takes both to come to 0.9.
        let both = How(1.0, 2, 0.9, 0.0, 0.0);
        by_hand(
            backend,
            &eighths(),
            &with_draws(both, &[(0.6, 1), (0.7, 3)]),
        )?;
        // Six sevenths are enough for 0.8 before `min_p` is asked, and all three are needed for 0.9, of which it leaves two.
        for p in [0.8, 0.9] {
            let all = How(1.0, 3, p, 0.4, 0.0);
            by_hand(
                backend,
                &eighths(),
                &with_draws(all, &[(0.6, 1), (0.99, 3)]),
            )?;
        }
        // `min_p` is last: were its two thirds and a third what `top_p` is a part of, 0.6 would leave the first alone.
        let all = How(1.0, 0, 0.6, 0.4, 0.0);
        by_hand(
            backend,
            &eighths(),
            &with_draws(all, &[(0.6, 1), (0.99, 3)]),
        )
    }

    fn the_edges_of_a_draw_are_the_first_and_the_last_that_is_kept(
        backend: &dyn Backend,
    ) -> Verdict {
        let last = 1.0 - 2f64.powi(-24);
        by_hand(
            backend,
            &eighths(),
            &with_draws(ALL, &[(0.0, 1), (last, 2)]),
        )?;
        let how = How(1.0, 2, 1.0, 0.0, 0.0);
        by_hand(
            backend,
            &eighths(),
            &with_draws(how, &[(0.0, 1), (last, 3)]),
        )?;
        // What has no chance is never drawn, wherever it stands.
        let logits = [f64::NEG_INFINITY, 1.0, f64::NEG_INFINITY];
        by_hand(backend, &logits, &with_draws(ALL, &[(0.0, 1), (last, 1)]))
    }

    fn a_temperature_of_0_is_argmax(backend: &dyn Backend) -> Verdict {
        let greedy = How(0.0, 3, 0.5, 0.1, 0.0);
        let draws = with_draws(greedy, &[(0.0, 1), (0.99, 1)]);
        by_hand(backend, &[1.0, 4.0, 4.0, f64::NAN], &draws)?;
        by_hand(backend, &[f64::NEG_INFINITY; 2], &[(greedy, 0)])?;
        by_hand(backend, &[f64::NAN; 2], &[(greedy, -1)])
    }

    /// A temperature of a half squares: 16, 4, 1 and 1 of 22. One of 2 takes the root.
    fn a_temperature_divides(backend: &dyn Backend) -> Verdict {
        let cold = How(0.5, 0, 1.0, 0.0, 0.0);
        let draws = [(0.72, 1), (0.73, 3), (0.90, 3), (0.91, 0), (0.96, 2)];
        by_hand(backend, &eighths(), &with_draws(cold, &draws))?;
        let logits = [16f64.ln(), 0.0];
        let warm = How(2.0, 0, 1.0, 0.0, 0.0);
        by_hand(backend, &logits, &with_draws(warm, &[(0.79, 0), (0.81, 1)]))
    }

    fn nan_is_never_chosen(backend: &dyn Backend) -> Verdict {
        let logits = [f64::NAN, 0.0, f64::NAN, 0.0];
        let draws = [(0.0, 1), (0.49, 1), (0.51, 3), (0.99, 3)];
        by_hand(backend, &logits, &with_draws(ALL, &draws))?;
        by_hand(backend, &[f64::NAN; 3], &with_draws(ALL, &[(0.5, -1)]))
    }
}
