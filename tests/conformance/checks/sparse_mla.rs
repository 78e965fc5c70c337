//! `sparse_mla`.

use rialto_backend::Backend;
use rialto_program::op::SparseMla;
use rialto_tensor::Dtype;
use rialto_tests::shapes::{self, StepShape};

use super::{ACTIVATIONS, both, f32s};
use crate::harness::{Case, Verdict};
use crate::input::{Input, Maker, Step};
use crate::numbers::{Span, ULP};
use crate::oracle::Expected;

checks![
    every_step_and_shape,
    fc_65_lengths_around_k,
    a_long_sequence_is_read_where_it_is_selected,
    a_cache_may_have_fewer_bits_than_activations,
    leading_indices_of_nothing_do_not_spoil_what_follows,
    fc_65_a_token_without_any_position_gets_zeros,
    fc_65_positions_after_its_own_do_not_count,
    a_position_that_is_given_twice_counts_twice,
    indices_may_be_in_any_order,
    large_logits_do_not_overflow,
    the_latent_is_the_value_and_the_rotated_part_is_not,
];

/// For each token up to `k` positions that it may read, ascending, and -1 behind them.
fn selection(maker: &mut Maker, step: &Step, k: u64) -> Input {
    let (seqs, positions) = (step.row_seq.integers(), step.row_pos.integers());
    let mut indices = Vec::new();
    for (seq, position) in seqs.into_iter().zip(positions) {
        let mut of: Vec<i32> = match seq {
            -1 => Vec::new(),
            _ => (0..=position).collect(),
        };
        while of.len() as u64 > k {
            let place = maker.below(of.len() as u64) as usize;
            of.remove(place);
        }
        of.resize(k as usize, -1);
        indices.extend(of);
    }
    Input::ints(&[step.row_seq.shape()[0], k], &indices)
}

/// The inputs of a step; indices are edited before they are given.
fn inputs(
    maker: &mut Maker,
    step: &Step,
    [heads, latent, rope, k]: [u64; 4],
    edit: impl Fn(&mut [i32], i32),
) -> Vec<Input> {
    let t = step.row_seq.shape()[0];
    let (q, q_rope) = (
        maker.activations(&[t, heads, latent]),
        maker.activations(&[t, heads, rope]),
    );
    let mut indices = selection(maker, step, k).integers();
    let positions = step.row_pos.integers();
    for (row, position) in indices.chunks_exact_mut(k as usize).zip(positions) {
        edit(row, position);
    }
    let cache = step.cache(maker, maker.activation, latent + rope);
    let first = [q, q_rope, Input::ints(&[t, k], &indices), cache];
    [first.as_slice(), &step.places()].concat()
}

fn case(
    shape: &StepShape,
    widths: [u64; 4],
    activation: Dtype,
    edit: impl Fn(&mut [i32], i32),
) -> Case {
    let op = SparseMla {
        scale: (widths[1] as f64).powf(-0.5),
    };
    Case::new(op, activation, |maker, set| {
        let step = Step::new(maker, shape, set == 1);
        inputs(maker, &step, widths, &edit)
    })
}

fn every_step_and_shape(backend: &dyn Backend) -> Verdict {
    for shape in shapes::STEPS {
        for [heads, _, rope, _, latent] in shapes::MLA {
            for activation in ACTIVATIONS {
                let widths = [heads, latent, rope, shapes::SPARSE_K];
                both(&case(&shape, widths, activation, |_, _| {}), backend)?;
            }
        }
    }
    Ok(())
}

fn fc_65_lengths_around_k(backend: &dyn Backend) -> Verdict {
    for shape in shapes::AROUND_K {
        for activation in ACTIVATIONS {
            for k in [1, shapes::SPARSE_K] {
                let widths = [3, 16, 4, k];
                both(&case(&shape, widths, activation, |_, _| {}), backend)?;
            }
        }
    }
    Ok(())
}

fn a_long_sequence_is_read_where_it_is_selected(backend: &dyn Backend) -> Verdict {
    for activation in ACTIVATIONS {
        for k in [64, 2048] {
            let case = case(&shapes::LONG, [2, 6, 2, k], activation, |_, _| {});
            both(&case, backend)?;
        }
    }
    Ok(())
}

fn a_cache_may_have_fewer_bits_than_activations(backend: &dyn Backend) -> Verdict {
    let op = SparseMla { scale: 0.25 };
    let case = Case::new(op, Dtype::F32, |maker, set| {
        let step = Step::new(maker, &shapes::STEPS[3], set == 1);
        let mut inputs = inputs(maker, &step, [2, 16, 4, 8], |_, _| {});
        inputs[3] = step.cache(maker, Dtype::Bf16, 20);
        inputs
    });
    both(&case, backend)
}

/// The first of all blocks of indices has none: its largest logit is that of nothing.
fn leading_indices_of_nothing_do_not_spoil_what_follows(backend: &dyn Backend) -> Verdict {
    for activation in ACTIVATIONS {
        let lead = |row: &mut [i32], _| {
            row.rotate_right(64);
            row[..64].fill(-1);
        };
        let case = case(&shapes::STEPS[3], [2, 16, 4, 72], activation, lead);
        both(&case, backend)?;
    }
    Ok(())
}

fn fc_65_a_token_without_any_position_gets_zeros(backend: &dyn Backend) -> Verdict {
    for activation in ACTIVATIONS {
        let clear = |row: &mut [i32], position: i32| {
            if position % 2 == 0 {
                row.fill(-1);
            }
        };
        both(
            &case(&shapes::STEPS[6], [2, 16, 4, 8], activation, clear),
            backend,
        )?;
        // One of two tokens, in a sequence that is not read at once where little can be bound.
        both(
            &case(&shapes::LONG, [2, 6, 2, 64], activation, clear),
            backend,
        )?;
        // No index at all.
        let op = SparseMla { scale: 1.0 };
        let none = Case::new(op, activation, |maker, set| {
            let step = Step::new(maker, &shapes::STEPS[2], set == 1);
            let mut inputs = inputs(maker, &step, [2, 3, 2, 1], |_, _| {});
            inputs[2] = Input::ints(&[5, 0], &[]);
            inputs
        });
        none.expect(backend, &[Expected::exactly(&[0.0; 5 * 2 * 3])])?;
    }
    Ok(())
}

/// The cache has rows there, some of them NaN, and indices far beyond it have no row at all.
fn fc_65_positions_after_its_own_do_not_count(backend: &dyn Backend) -> Verdict {
    for activation in ACTIVATIONS {
        let stale = |row: &mut [i32], position: i32| {
            let beyond = [position + 1, position + 2, i32::MAX, -2, i32::MIN];
            row[1..6].copy_from_slice(&beyond);
        };
        let case = case(&shapes::STEPS[6], [2, 16, 4, 8], activation, stale);
        both(&case, backend)?;
    }
    Ok(())
}

/// One sequence, one token at its end, one head, one latent and one rotated element, whose query is 0 but for `q_rope`.
fn by_hand(
    backend: &dyn Backend,
    rows: &[[f64; 2]],
    indices: &[i32],
    q: [f64; 2],
    expected: f64,
) -> Verdict {
    let length = rows.len() as u64;
    let inputs = vec![
        f32s(&[1, 1, 1], &q[..1]),
        f32s(&[1, 1, 1], &q[1..]),
        Input::ints(&[1, indices.len() as u64], indices),
        f32s(&[1, length, 2], rows.as_flattened()),
        Input::ints(&[1], &[0]),
        Input::ints(&[1], &[length as i32 - 1]),
        Input::ints(&[1, 1], &[0]),
    ];
    let case = Case::of(SparseMla { scale: 1.0 }, Dtype::F32, vec![inputs]);
    // Three exponentials, three products, sums and a quotient.
    let span = Span::around(expected, expected.abs() * 16.0 * ULP);
    case.expect(backend, &[Expected::Spans(vec![span])])
}

fn a_position_that_is_given_twice_counts_twice(backend: &dyn Backend) -> Verdict {
    let rows = [[1.0, 5.0], [7.0, 9.0]];
    by_hand(backend, &rows, &[0, 0, 1], [0.0, 0.0], 3.0)?;
    by_hand(backend, &rows, &[0, 1, -1], [0.0, 0.0], 4.0)
}

fn indices_may_be_in_any_order(backend: &dyn Backend) -> Verdict {
    for activation in ACTIVATIONS {
        let reverse = |row: &mut [i32], _| row.reverse();
        let case = case(&shapes::STEPS[6], [2, 16, 4, 8], activation, reverse);
        both(&case, backend)?;
    }
    Ok(())
}

/// `exp(300)` is no F32, and in any order the largest logit comes to 1.
fn large_logits_do_not_overflow(backend: &dyn Backend) -> Verdict {
    let rows = [[1.0, 300.0], [7.0, -300.0], [5.0, 300.0]];
    by_hand(backend, &rows, &[0, 1, 2], [0.0, 1.0], 3.0)?;
    by_hand(backend, &rows, &[0, 1, 2], [0.0, -1.0], 7.0)
}

/// Logits 0 and ln 3 come of the rotated part alone: a quarter and three of them.
fn the_latent_is_the_value_and_the_rotated_part_is_not(backend: &dyn Backend) -> Verdict {
    let rows = [[4.0, 0.0], [8.0, 1.0]];
    by_hand(backend, &rows, &[0, 1], [0.0, 3f64.ln()], 7.0)?;
    // And both parts make logits: 4 a and 8 a + b for a = -0.25 b are as far apart as nothing.
    by_hand(backend, &rows, &[0, 1], [0.5, -2.0], 6.0)
}
