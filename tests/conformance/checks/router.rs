//! `router`.

use rialto_backend::Backend;
use rialto_program::op::{Router, Scoring};
use rialto_tensor::Dtype;
use rialto_tests::shapes;

use super::{both, f32s};
use crate::harness::{Case, Verdict};
use crate::input::Input;
use crate::numbers::{Span, ULP};
use crate::oracle::Expected;

checks![
    every_shape_and_way_of_weighing,
    the_bias_chooses_and_does_not_weigh,
    of_equal_choices_the_lower_expert_wins,
    of_equal_groups_the_lower_group_wins,
    a_group_is_scored_by_its_two_best,
    nan_is_not_chosen_while_there_is_a_number,
    weights_are_scaled_also_where_they_are_not_normalized,
    epsilon_is_added_to_the_sum,
    nothing_over_nothing_is_nothing,
];

const PLAIN: Router = Router {
    scoring: Scoring::Sigmoid,
    top_k: 2,
    groups: 1,
    top_groups: 1,
    normalize: true,
    epsilon: 0.0,
    scale: 1.0,
};

fn every_shape_and_way_of_weighing(backend: &dyn Backend) -> Verdict {
    for [e, top_k, groups, top_groups] in shapes::ROUTER {
        for t in shapes::TOKENS {
            for scoring in [Scoring::Sigmoid, Scoring::Softmax] {
                for (normalize, has_bias) in [(true, true), (false, true), (true, false)] {
                    let op = Router {
                        scoring,
                        top_k,
                        groups,
                        top_groups,
                        normalize,
                        epsilon: if has_bias { 1e-20 } else { 0.125 },
                        scale: 2.5,
                    };
                    let case = Case::new(op, Dtype::F32, |maker, _| {
                        let logits = maker.floats(Dtype::F32, &[t, e]);
                        let bias = has_bias.then(|| {
                            let bias: Vec<f64> =
                                maker.numbers(e).iter().map(|bias| bias * 0.1).collect();
                            f32s(&[e], &bias)
                        });
                        [logits].into_iter().chain(bias).collect()
                    });
                    both(&case, backend)?;
                }
            }
        }
    }
    Ok(())
}

/// Ids exactly, weights within some ulp: a sigmoid, a sum, a quotient and a product.
fn by_hand(
    backend: &dyn Backend,
    op: Router,
    [logits, bias]: [&[f64]; 2],
    (ids, weights): (&[i32], &[f64]),
) -> Verdict {
    let e = logits.len() as u64;
    let inputs = vec![f32s(&[1, e], logits), f32s(&[e], bias)];
    let span = |&value: &f64| Span::around(value, value.abs() * 24.0 * ULP);
    let expected = [
        Expected::Ints(ids.to_vec()),
        Expected::Spans(weights.iter().map(span).collect()),
    ];
    Case::of(op, Dtype::F32, vec![inputs]).expect(backend, &expected)
}

/// Sigmoids are 1/2, 1/2 and 3/4; with bias the last one is the least.
fn the_bias_chooses_and_does_not_weigh(backend: &dyn Backend) -> Verdict {
    let logits = [0.0, 0.0, 3f64.ln(), 3f64.ln()];
    by_hand(
        backend,
        PLAIN,
        [&logits, &[0.0, 1.0, 1.0, -1.0]],
        (&[1, 2], &[0.4, 0.6]),
    )?;
    let op = Router {
        top_k: 1,
        normalize: false,
        ..PLAIN
    };
    by_hand(
        backend,
        op,
        [&logits, &[9.0, 1.0, 1.0, -1.0]],
        (&[0], &[0.5]),
    )
}

fn of_equal_choices_the_lower_expert_wins(backend: &dyn Backend) -> Verdict {
    by_hand(
        backend,
        PLAIN,
        [&[0.5; 8], &[0.25; 8]],
        (&[0, 1], &[0.5, 0.5]),
    )?;
    by_hand(
        backend,
        PLAIN,
        [&[0.0, 1.0, 0.0, 1.0, 1.0], &[0.0; 5]],
        (&[1, 3], &[0.5, 0.5]),
    )
}

fn of_equal_groups_the_lower_group_wins(backend: &dyn Backend) -> Verdict {
    let op = Router {
        groups: 4,
        top_groups: 1,
        ..PLAIN
    };
    let logits = [-1.0, -1.0, 2.0, 0.0, 0.0, 2.0, 2.0, 0.0];
    let op = Router { top_k: 1, ..op };
    by_hand(backend, op, [&logits, &[0.0; 8]], (&[2], &[1.0]))
}

/// The best single expert is in the second group, whose other is bad; the third has the best sum of two, of three.
fn a_group_is_scored_by_its_two_best(backend: &dyn Backend) -> Verdict {
    let op = Router {
        groups: 3,
        top_groups: 1,
        normalize: false,
        ..PLAIN
    };
    let logits = [0.0, 0.0, 0.0, 4.0, -9.0, -9.0, 1.0, -20.0, 1.0];
    let weight = 1.0 / (1.0 + (-1f64).exp());
    by_hand(
        backend,
        op,
        [&logits, &[0.0; 9]],
        (&[6, 8], &[weight, weight]),
    )?;
    // A third good one in a group does not count: two of 1/2 and more beat three of less.
    let logits = [-0.1, -0.1, -0.1, 0.0, 0.0, -9.0, -9.0, -9.0, -9.0];
    by_hand(backend, op, [&logits, &[0.0; 9]], (&[3, 4], &[0.5, 0.5]))
}

fn nan_is_not_chosen_while_there_is_a_number(backend: &dyn Backend) -> Verdict {
    let logits = [f64::NAN, -3.0, f64::NAN, f64::NEG_INFINITY, -3.0];
    by_hand(backend, PLAIN, [&logits, &[0.0; 5]], (&[1, 4], &[0.5, 0.5]))?;
    // Also if it is the bias that is none.
    let bias = [0.0, f64::NAN, 0.0];
    by_hand(
        backend,
        PLAIN,
        [&[0.0, 9.0, 0.0], &bias],
        (&[0, 2], &[0.5, 0.5]),
    )
}

fn weights_are_scaled_also_where_they_are_not_normalized(backend: &dyn Backend) -> Verdict {
    let op = Router {
        normalize: false,
        scale: 2.5,
        ..PLAIN
    };
    by_hand(
        backend,
        op,
        [&[0.0, 0.0], &[0.0; 2]],
        (&[0, 1], &[1.25, 1.25]),
    )?;
    let op = Router {
        scoring: Scoring::Softmax,
        ..op
    };
    let logits = [0.0, 3f64.ln(), 0.0, 3f64.ln()];
    let weight = 2.5 * 3.0 / 8.0;
    by_hand(
        backend,
        op,
        [&logits, &[0.0; 4]],
        (&[1, 3], &[weight, weight]),
    )
}

fn epsilon_is_added_to_the_sum(backend: &dyn Backend) -> Verdict {
    let op = Router {
        epsilon: 1.0,
        ..PLAIN
    };
    by_hand(
        backend,
        op,
        [&[0.0, 0.0], &[0.0; 2]],
        (&[0, 1], &[0.25, 0.25]),
    )
}

/// The sigmoid of negative infinity is 0; epsilon keeps 0 / 0 away.
fn nothing_over_nothing_is_nothing(backend: &dyn Backend) -> Verdict {
    let op = Router {
        epsilon: 1e-20,
        ..PLAIN
    };
    let logits: [f64; 3] = [f64::NEG_INFINITY; 3];
    by_hand(backend, op, [&logits, &[0.0; 3]], (&[0, 1], &[0.0, 0.0]))?;
    let case = Case::of(
        op,
        Dtype::F32,
        vec![vec![Input::floats(Dtype::F32, &[1, 3], &logits)]],
    );
    both(&case, backend)
}
