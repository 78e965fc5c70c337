//! `indexer_scores`.

use rialto_backend::Backend;
use rialto_program::op::IndexerScores;
use rialto_tensor::Dtype;
use rialto_tests::shapes;

use super::{ACTIVATIONS, both, f32s};
use crate::harness::{Case, Verdict};
use crate::input::{Input, Step};
use crate::oracle::Expected;

checks![
    every_step_and_shape,
    a_long_sequence_is_scored_to_its_end,
    a_cache_may_have_fewer_bits_than_activations,
    a_head_that_does_not_fire_adds_nothing,
    weights_below_zero_make_scores_below_zero,
    padding_has_no_scores,
];

fn case(shape: &shapes::StepShape, [heads, d]: [u64; 2], activation: Dtype, cache: Dtype) -> Case {
    let op = IndexerScores {
        scale: (d as f64).powf(-0.5),
        head_scale: (heads as f64).powf(-0.5),
    };
    Case::new(op, activation, |maker, set| {
        let step = Step::new(maker, shape, set == 1);
        let q = maker.activations(&[shape.tokens(), heads, d]);
        let weights = maker.floats(Dtype::F32, &[shape.tokens(), heads]);
        let keys = step.cache(maker, cache, d);
        [vec![q, weights, keys], step.places().to_vec()].concat()
    })
}

fn every_step_and_shape(backend: &dyn Backend) -> Verdict {
    for shape in shapes::STEPS {
        for widths in shapes::INDEXER {
            for activation in ACTIVATIONS {
                both(&case(&shape, widths, activation, activation), backend)?;
            }
        }
    }
    Ok(())
}

fn a_long_sequence_is_scored_to_its_end(backend: &dyn Backend) -> Verdict {
    for activation in ACTIVATIONS {
        let case = case(&shapes::LONG, [2, 4], activation, activation);
        both(&case, backend)?;
    }
    Ok(())
}

fn a_cache_may_have_fewer_bits_than_activations(backend: &dyn Backend) -> Verdict {
    let case = case(&shapes::STEPS[3], [3, 7], Dtype::F32, Dtype::Bf16);
    both(&case, backend)
}

/// One token of two heads of one element; each number is small and whole, so that nothing is rounded.
fn by_hand(
    backend: &dyn Backend,
    [q, weights]: [[f64; 2]; 2],
    (seq, position): (i32, i32),
    expected: &[f64],
) -> Verdict {
    let inputs = vec![
        f32s(&[1, 2, 1], &q),
        f32s(&[1, 2], &weights),
        f32s(&[1, 4, 1], &[1.0, -2.0, 3.0, 4.0]),
        Input::ints(&[1], &[seq]),
        Input::ints(&[1], &[position]),
        Input::ints(&[1, 1], &[0]),
    ];
    let op = IndexerScores {
        scale: 2.0,
        head_scale: 0.5,
    };
    let case = Case::of(op, Dtype::F32, vec![inputs]);
    case.expect(backend, &[Expected::exactly(expected)])
}

fn a_head_that_does_not_fire_adds_nothing(backend: &dyn Backend) -> Verdict {
    let nothing = f64::NEG_INFINITY;
    // For keys 1 and 3 the first fires, for -2 the second.
    by_hand(
        backend,
        [[1.0, -1.0], [1.0, 10.0]],
        (0, 2),
        &[1.0, 20.0, 3.0, nothing],
    )?;
    // No head fires for the second key: 0, and not a weight times something below.
    by_hand(
        backend,
        [[1.0, 2.0], [1.0, 10.0]],
        (0, 1),
        &[21.0, 0.0, nothing, nothing],
    )
}

fn weights_below_zero_make_scores_below_zero(backend: &dyn Backend) -> Verdict {
    by_hand(
        backend,
        [[1.0, 1.0], [-3.0, 1.0]],
        (0, 3),
        &[-2.0, 0.0, -6.0, -8.0],
    )
}

fn padding_has_no_scores(backend: &dyn Backend) -> Verdict {
    by_hand(
        backend,
        [[1.0, 1.0], [1.0, 1.0]],
        (-1, 2),
        &[f64::NEG_INFINITY; 4],
    )
}
