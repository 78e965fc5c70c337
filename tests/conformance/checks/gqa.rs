//! `gqa`.

use rialto_backend::Backend;
use rialto_program::op::Gqa;
use rialto_tensor::Dtype;
use rialto_tests::shapes;

use super::{ACTIVATIONS, both, f32s};
use crate::harness::{Case, Verdict};
use crate::input::{Input, Step};
use crate::numbers::{Span, ULP};
use crate::oracle::Expected;

checks![
    every_step_and_shape,
    a_long_sequence_is_read_to_its_end,
    a_cache_may_have_fewer_bits_than_activations,
    neighboring_heads_share_a_group,
    fc_65_a_token_reads_itself_and_nothing_later,
    large_logits_do_not_overflow,
];

fn case(
    shape: &shapes::StepShape,
    [heads, groups, d]: [u64; 3],
    activation: Dtype,
    cache: Dtype,
) -> Case {
    let op = Gqa {
        groups,
        scale: (d as f64).powf(-0.5),
    };
    Case::new(op, activation, |maker, set| {
        let step = Step::new(maker, shape, set == 1);
        let q = maker.activations(&[shape.tokens(), heads, d]);
        let [keys, values] = [0, 1].map(|_| step.cache(maker, cache, groups * d));
        [vec![q, keys, values], step.places().to_vec()].concat()
    })
}

fn every_step_and_shape(backend: &dyn Backend) -> Verdict {
    for shape in shapes::STEPS {
        for widths in shapes::GQA {
            for activation in ACTIVATIONS {
                both(&case(&shape, widths, activation, activation), backend)?;
            }
        }
    }
    Ok(())
}

fn a_long_sequence_is_read_to_its_end(backend: &dyn Backend) -> Verdict {
    for activation in ACTIVATIONS {
        let case = case(&shapes::LONG, [2, 1, 4], activation, activation);
        both(&case, backend)?;
    }
    Ok(())
}

fn a_cache_may_have_fewer_bits_than_activations(backend: &dyn Backend) -> Verdict {
    let case = case(&shapes::STEPS[3], [4, 2, 8], Dtype::F32, Dtype::Bf16);
    both(&case, backend)
}

/// One token at the end of a sequence of as many positions as there are keys.
fn by_hand(
    backend: &dyn Backend,
    groups: u64,
    [q, keys, values]: [&[f64]; 3],
    position: i32,
    expected: &[f64],
) -> Verdict {
    let heads = q.len() as u64;
    let cache = |rows: &[f64]| f32s(&[1, rows.len() as u64 / groups, groups], rows);
    let inputs = vec![
        f32s(&[1, heads, 1], q),
        cache(keys),
        cache(values),
        Input::ints(&[1], &[0]),
        Input::ints(&[1], &[position]),
        Input::ints(&[1, 1], &[0]),
    ];
    let op = Gqa { groups, scale: 1.0 };
    let case = Case::of(op, Dtype::F32, vec![inputs]);
    // Two exponentials, products, sums and a quotient.
    let span = |&value: &f64| Span::around(value, value.abs() * 16.0 * ULP);
    let expected = Expected::Spans(expected.iter().map(span).collect());
    case.expect(backend, &[expected])
}

fn neighboring_heads_share_a_group(backend: &dyn Backend) -> Verdict {
    let zeros = [0.0; 4];
    let parts: [&[f64]; 3] = [&zeros, &[0.0, 0.0], &[10.0, 20.0]];
    by_hand(backend, 2, parts, 0, &[10.0, 10.0, 20.0, 20.0])
}

fn fc_65_a_token_reads_itself_and_nothing_later(backend: &dyn Backend) -> Verdict {
    let parts: [&[f64]; 3] = [&[0.0], &[0.0; 3], &[1.0, 3.0, 100.0]];
    by_hand(backend, 1, parts, 1, &[2.0])?;
    by_hand(backend, 1, parts, 0, &[1.0])
}

fn large_logits_do_not_overflow(backend: &dyn Backend) -> Verdict {
    let parts: [&[f64]; 3] = [&[1.0], &[-300.0, 300.0, 300.0], &[1.0, 3.0, 5.0]];
    by_hand(backend, 1, parts, 2, &[4.0])
}
