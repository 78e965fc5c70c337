//! `experts`.

use rialto_backend::Backend;
use rialto_program::op::Experts;
use rialto_tensor::Dtype;
use rialto_tests::shapes;

use super::{ACTIVATIONS, both, f32s};
use crate::harness::{Case, Verdict};
use crate::input::{Input, Maker, STORED, Stored};
use crate::numbers::{Span, ULP};
use crate::oracle::Expected;

checks![
    every_shape_and_every_way_of_storing_weights,
    all_tokens_may_choose_one_expert,
    two_hundred_and_fifty_six_tokens_choose_as_many_experts,
    an_expert_that_nobody_chose_is_not_read,
    an_id_of_minus_one_is_nobody,
    ids_may_be_in_any_order,
    gates_and_products_are_rounded_to_the_type_of_x,
    one_expert_of_one_element_is_worked_out_by_hand,
];

/// Weights of such a size that products stay near 1.
fn matrices(maker: &mut Maker, stored: Stored, [e, f, h]: [u64; 3]) -> [Input; 3] {
    [
        maker.weight(stored, &[e, f, h]),
        maker.weight(stored, &[e, f, h]),
        maker.weight(stored, &[e, h, f]),
    ]
}

fn case(
    [t, e, k, h, f]: [u64; 5],
    (activation, stored): (Dtype, Stored),
    choose: impl Fn(&mut Maker) -> Vec<i32>,
) -> Case {
    Case::new(Experts {}, activation, |maker, _| {
        let x: Vec<f64> = maker
            .numbers(t * h)
            .iter()
            .map(|x| x * (h as f64).powf(-0.5))
            .collect();
        let ids = Input::ints(&[t, k], &choose(maker));
        let weights = maker.floats(Dtype::F32, &[t, k]);
        let x = Input::floats(activation, &[t, h], &x);
        let first = vec![x, ids, weights];
        [first, matrices(maker, stored, [e, f, h]).to_vec()].concat()
    })
}

/// Distinct experts for each token, ascending.
fn distinct(maker: &mut Maker, [t, e, k]: [u64; 3]) -> Vec<i32> {
    let mut ids = Vec::new();
    for _ in 0..t {
        let mut all: Vec<i32> = (0..e as i32).collect();
        while all.len() as u64 > k {
            let place = maker.below(all.len() as u64) as usize;
            all.remove(place);
        }
        ids.extend(all);
    }
    ids
}

fn every_shape_and_every_way_of_storing_weights(backend: &dyn Backend) -> Verdict {
    for shape in shapes::EXPERTS {
        let [t, e, k, _, _] = shape;
        for stored in STORED {
            for activation in ACTIVATIONS {
                let choose = |maker: &mut Maker| distinct(maker, [t, e, k]);
                both(&case(shape, (activation, stored), choose), backend)?;
            }
        }
    }
    Ok(())
}

fn all_tokens_may_choose_one_expert(backend: &dyn Backend) -> Verdict {
    for activation in ACTIVATIONS {
        let choose = |_: &mut Maker| vec![5; 33];
        let case = case([33, 8, 1, 32, 16], (activation, Stored::Bf16), choose);
        both(&case, backend)?;
    }
    Ok(())
}

fn two_hundred_and_fifty_six_tokens_choose_as_many_experts(backend: &dyn Backend) -> Verdict {
    let choose = |_: &mut Maker| (0..256).map(|token| token * 77 % 256).collect();
    let shape = [256, 256, 1, 8, 4];
    both(&case(shape, (Dtype::Bf16, Stored::F32), choose), backend)
}

/// Whose matrices are NaN: a product with a weight of 0 is felt, too.
fn an_expert_that_nobody_chose_is_not_read(backend: &dyn Backend) -> Verdict {
    for activation in ACTIVATIONS {
        let case = Case::new(Experts {}, activation, |maker, _| {
            let x = maker.activations(&[2, 8]);
            let ids = Input::ints(&[2, 2], &[0, 3, 3, -1]);
            let weights = maker.floats(Dtype::F32, &[2, 2]);
            let matrices = matrices(maker, Stored::F32, [5, 4, 8]).map(|matrix| {
                let mut values = matrix.values();
                for expert in [1, 2, 4] {
                    values[expert * 32..(expert + 1) * 32].fill(f64::NAN);
                }
                Input::floats(Dtype::F32, matrix.shape(), &values)
            });
            [vec![x, ids, weights], matrices.to_vec()].concat()
        });
        both(&case, backend)?;
    }
    Ok(())
}

fn an_id_of_minus_one_is_nobody(backend: &dyn Backend) -> Verdict {
    for activation in ACTIVATIONS {
        let choose = |_: &mut Maker| vec![-1, -1, 2, -1, -1, 0, 1, 3];
        let case = case([4, 4, 2, 7, 5], (activation, Stored::Bf16), choose);
        both(&case, backend)?;
    }
    Ok(())
}

fn ids_may_be_in_any_order(backend: &dyn Backend) -> Verdict {
    for activation in ACTIVATIONS {
        let choose = |_: &mut Maker| vec![3, 0, 2, 1, 0, 3];
        let case = case([2, 4, 3, 32, 16], (activation, Stored::Bf16), choose);
        both(&case, backend)?;
    }
    Ok(())
}

fn one(activation: Dtype, [x, weight, gate, up, down]: [f64; 5]) -> Case {
    let matrix = |value| f32s(&[1, 1, 1], &[value]);
    let inputs = vec![
        Input::floats(activation, &[1, 1], &[x]),
        Input::ints(&[1, 1], &[0]),
        f32s(&[1, 1], &[weight]),
        matrix(gate),
        matrix(up),
        matrix(down),
    ];
    Case::of(Experts {}, activation, vec![inputs])
}

/// The product of up is a bit less than halfway from 1 to the next number and becomes 1; silu(30) is 30 to all digits of F32.
/// Unrounded, 30.1167 would come to 30.125.
fn gates_and_products_are_rounded_to_the_type_of_x(backend: &dyn Backend) -> Verdict {
    let up = 1.0 + 2f64.powi(-8) - 2f64.powi(-16);
    let expected = [Expected::exactly(&[30.0])];
    one(Dtype::Bf16, [1.0, 1.0, 30.0, up, 1.0]).expect(backend, &expected)?;
    // 30 (1 + 2^-7) = 30.234375 becomes 30.25, and that times the weight is 192.55 of 2^-6; unrounded it would be 192.46.
    let up = 1.0 + 2f64.powi(-7);
    let expected = [Expected::exactly(&[193.0 / 64.0])];
    one(Dtype::Bf16, [1.0, 0.09946, 30.0, up, 1.0]).expect(backend, &expected)
}

/// silu(ln 3) = 3/4 ln 3.
fn one_expert_of_one_element_is_worked_out_by_hand(backend: &dyn Backend) -> Verdict {
    let expected = 0.75 * 3f64.ln() * 2.0 * 5.0 * -0.5;
    let span = Span::around(expected, expected.abs() * 24.0 * ULP);
    let case = one(Dtype::F32, [1.0, -0.5, 3f64.ln(), 2.0, 5.0]);
    case.expect(backend, &[Expected::Spans(vec![span])])
}
