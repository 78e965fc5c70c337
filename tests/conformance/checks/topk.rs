//! `topk`: one answer, so everything here is exact.

use rialto_backend::Backend;
use rialto_program::op::TopK;
use rialto_tensor::Dtype;
use rialto_tests::shapes;

use super::{both, f32s};
use crate::harness::{Case, Verdict};
use crate::input::{Input, Maker};
use crate::oracle::Expected;

checks![
    every_shape,
    few_different_scores_make_many_ties,
    equal_scores_give_the_lowest_positions,
    both_zeros_are_equal,
    five_thousand_ties_at_the_boundary,
    negative_infinity_and_nan_are_never_selected,
    fewer_scores_than_k_leave_minus_one_behind,
    positive_infinity_is_the_largest,
    a_million_scores_in_one_bucket,
    scores_that_only_their_last_bits_tell_apart,
];

fn case(shape: [u64; 3], score: impl Fn(&mut Maker, u64) -> f64) -> Case {
    let [t, n, k] = shape;
    Case::new(TopK { k }, Dtype::F32, |maker, _| {
        let scores: Vec<f64> = (0..t * n).map(|at| score(maker, at)).collect();
        vec![f32s(&[t, n], &scores)]
    })
}

fn every_shape(backend: &dyn Backend) -> Verdict {
    for shape in shapes::TOPK {
        both(
            &case(shape, |maker, _| maker.random.normal().into()),
            backend,
        )?;
    }
    Ok(())
}

fn few_different_scores_make_many_ties(backend: &dyn Backend) -> Verdict {
    for shape in shapes::TOPK {
        // Of seven, one is negative infinity and one NaN.
        let score = |maker: &mut Maker, _| match maker.below(7) {
            5 => f64::NEG_INFINITY,
            6 => f64::NAN,
            number => number as f64 - 2.0,
        };
        both(&case(shape, score), backend)?;
    }
    Ok(())
}

fn by_hand(backend: &dyn Backend, scores: &[f64], k: u64, expected: &[i32]) -> Verdict {
    let scores = f32s(&[1, scores.len() as u64], scores);
    let case = Case::of(TopK { k }, Dtype::F32, vec![vec![scores]]);
    case.expect(backend, &[Expected::Ints(expected.to_vec())])
}

fn equal_scores_give_the_lowest_positions(backend: &dyn Backend) -> Verdict {
    let lowest: Vec<i32> = (0..64).collect();
    for score in [0.0, -1.5, 7.0, -0.0, f64::from(f32::MAX)] {
        by_hand(backend, &[score; 1000], 64, &lowest)?;
    }
    by_hand(backend, &[1.0, 2.0, 1.0, 1.0, 3.0], 3, &[0, 1, 4])
}

fn both_zeros_are_equal(backend: &dyn Backend) -> Verdict {
    by_hand(backend, &[-0.0, 0.0, -0.0, 0.0], 2, &[0, 1])?;
    by_hand(backend, &[-1.0, 0.0, -0.0, 0.0], 2, &[1, 2])?;
    by_hand(backend, &[-0.0, 1e-30, 0.0, -1e-30], 2, &[0, 1])
}

fn five_thousand_ties_at_the_boundary(backend: &dyn Backend) -> Verdict {
    let mut scores = vec![0.0; 6000];
    // A thousand at the end are larger, so that of 5,000 ties the first 1,048 win.
    scores[5000..].fill(1.0);
    let expected: Vec<i32> = (0..1048).chain(5000..6000).collect();
    by_hand(backend, &scores, 2048, &expected)
}

fn negative_infinity_and_nan_are_never_selected(backend: &dyn Backend) -> Verdict {
    let (low, nan) = (f64::NEG_INFINITY, f64::NAN);
    by_hand(backend, &[nan, 1.0, low, -5.0, nan], 3, &[1, 3, -1])?;
    by_hand(backend, &[low; 5], 2, &[-1, -1])?;
    by_hand(backend, &[nan; 5], 2, &[-1, -1])?;
    // A NaN with its sign set is no less one.
    let negative = Input {
        bytes: [0xffc0_0000u32, 0x3f80_0000, 0xff80_0000]
            .iter()
            .flat_map(|bits| bits.to_le_bytes())
            .collect(),
        ..f32s(&[1, 3], &[0.0; 3])
    };
    let case = Case::of(TopK { k: 2 }, Dtype::F32, vec![vec![negative]]);
    case.expect(backend, &[Expected::Ints(vec![1, -1])])
}

fn fewer_scores_than_k_leave_minus_one_behind(backend: &dyn Backend) -> Verdict {
    by_hand(backend, &[3.0, 1.0], 4, &[0, 1, -1, -1])?;
    by_hand(backend, &[], 2, &[-1, -1])
}

fn positive_infinity_is_the_largest(backend: &dyn Backend) -> Verdict {
    let most = f64::INFINITY;
    by_hand(backend, &[1.0, most, 2.0, most], 2, &[1, 3])?;
    by_hand(backend, &[1.0, most, 2.0, most], 3, &[1, 2, 3])
}

/// All scores begin with the same 12 bits, those that a coarse pass would look at.
fn a_million_scores_in_one_bucket(backend: &dyn Backend) -> Verdict {
    let score = |maker: &mut Maker, _| 1.0 + maker.below(1 << 14) as f64 * 2f64.powi(-20);
    both(&case([1, 1_000_000, 2048], score), backend)
}

fn scores_that_only_their_last_bits_tell_apart(backend: &dyn Backend) -> Verdict {
    let score = |_: &mut Maker, at: u64| -1.0 - (at * 7919 % 5000) as f64 * 2f64.powi(-23);
    both(&case([1, 5000, 100], score), backend)
}
