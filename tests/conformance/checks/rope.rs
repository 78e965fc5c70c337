//! `rope`.

use rialto_backend::Backend;
use rialto_program::op::{Pairing, Rope};
use rialto_tensor::Dtype;
use rialto_tests::shapes;

use super::{ACTIVATIONS, both, f32s};
use crate::harness::{Case, Verdict};
use crate::input::{Input, Maker};
use crate::numbers::{Span, ULP};
use crate::oracle::Expected;

checks![
    every_shape_and_pairing,
    the_two_pairings_rotate_other_elements,
    a_millionth_position_has_its_own_angle,
    a_negative_position_is_rotated_by_none,
    what_has_no_heads_is_one_head,
];

/// Positions near and far, 0 and padding among them.
fn positions(maker: &mut Maker, t: u64) -> Input {
    let mut positions: Vec<i32> = (0..t).map(|_| maker.below(5000) as i32).collect();
    let places = [(1, 0), (2, 1_048_575), (3, -1)];
    for (place, position) in places {
        if let Some(slot) = positions.get_mut(place) {
            *slot = position;
        }
    }
    Input::ints(&[t], &positions)
}

fn every_shape_and_pairing(backend: &dyn Backend) -> Verdict {
    for [t, heads, d, dims, first] in shapes::ROPE {
        for pairing in [Pairing::Interleaved, Pairing::HalfSplit] {
            for (activation, theta) in ACTIVATIONS.into_iter().zip([8e6, 1e4]) {
                let op = Rope {
                    theta,
                    dims,
                    first,
                    pairing,
                };
                let case = Case::new(op, activation, |maker, _| {
                    let x = maker.activations(&[t, heads, d]);
                    vec![x, positions(maker, t)]
                });
                both(&case, backend)?;
            }
        }
    }
    Ok(())
}

fn turned(
    backend: &dyn Backend,
    pairing: Pairing,
    (x, position): (&[f64], i32),
    expected: &[f64],
) -> Verdict {
    let dims = x.len() as u64;
    let op = Rope {
        theta: 1e4,
        dims,
        first: 0,
        pairing,
    };
    let inputs = vec![f32s(&[1, 1, dims], x), Input::ints(&[1], &[position])];
    // One is multiplied by a sine or cosine, which is rounded to F32.
    let span = |&value: &f64| Span::around(value, value.abs() * ULP);
    let expected = Expected::Spans(expected.iter().map(span).collect());
    Case::of(op, Dtype::F32, vec![inputs]).expect(backend, &[expected])
}

fn the_two_pairings_rotate_other_elements(backend: &dyn Backend) -> Verdict {
    let (cosine, sine) = (0.540_302_305_868_139_8, 0.841_470_984_807_896_5);
    let x = [1.0, 0.0, 0.0, 0.0];
    turned(
        backend,
        Pairing::Interleaved,
        (&x, 1),
        &[cosine, sine, 0.0, 0.0],
    )?;
    turned(
        backend,
        Pairing::HalfSplit,
        (&x, 1),
        &[cosine, 0.0, sine, 0.0],
    )?;
    // The second pair turns by 10000^(-2/4), a hundredth.
    let (cosine, sine) = (0.999_950_000_416_665_3, 0.009_999_833_334_166_664);
    let x = [0.0, 0.0, 0.0, 1.0];
    turned(
        backend,
        Pairing::Interleaved,
        (&x, 1),
        &[0.0, 0.0, -sine, cosine],
    )?;
    turned(
        backend,
        Pairing::HalfSplit,
        (&x, 1),
        &[0.0, -sine, 0.0, cosine],
    )
}

fn a_millionth_position_has_its_own_angle(backend: &dyn Backend) -> Verdict {
    turned(
        backend,
        Pairing::Interleaved,
        (&[1.0, 0.0], 1_000_000),
        &[0.936_752_127_533_144_7, -0.349_993_502_171_292_9],
    )
}

fn a_negative_position_is_rotated_by_none(backend: &dyn Backend) -> Verdict {
    turned(
        backend,
        Pairing::HalfSplit,
        (&[1.5, -2.5], -1),
        &[1.5, -2.5],
    )
}

fn what_has_no_heads_is_one_head(backend: &dyn Backend) -> Verdict {
    for shape in [vec![5, 8], vec![5, 2, 3, 8]] {
        let op = Rope {
            theta: 1e4,
            dims: 4,
            first: 2,
            pairing: Pairing::Interleaved,
        };
        let case = Case::new(op, Dtype::F32, |maker, _| {
            let x = maker.activations(&shape);
            vec![x, positions(maker, 5)]
        });
        both(&case, backend)?;
    }
    Ok(())
}
