//! `linear`.

use rialto_backend::Backend;
use rialto_program::op::{Linear, LinearOut};
use rialto_tensor::Dtype;
use rialto_tests::shapes;

use super::{ACTIVATIONS, both, f32s};
use crate::harness::{Case, Verdict};
use crate::input::{Input, STORED, Scales, Stored};
use crate::oracle::Expected;

checks![
    every_shape_and_every_way_of_storing_weights,
    activations_of_several_axes_have_rows_in_all_but_the_last,
    a_result_may_have_another_type_than_activations,
    a_ragged_last_block_uses_its_own_scale,
    a_code_is_rounded_to_bf16_before_it_is_multiplied,
    nan_in_one_row_stays_there,
];

fn every_shape_and_every_way_of_storing_weights(backend: &dyn Backend) -> Verdict {
    for [t, n, k] in shapes::LINEAR {
        for stored in STORED {
            for activation in ACTIVATIONS {
                let case = Case::new(Linear::default(), activation, |maker, _| {
                    vec![maker.activations(&[t, k]), maker.weight(stored, &[n, k])]
                });
                both(&case, backend)?;
            }
        }
    }
    Ok(())
}

fn activations_of_several_axes_have_rows_in_all_but_the_last(backend: &dyn Backend) -> Verdict {
    for shape in [vec![2, 3, 40], vec![1, 2, 2, 40], vec![40]] {
        let case = Case::new(Linear::default(), Dtype::Bf16, |maker, _| {
            let weight = maker.weight(Stored::Bf16, &[9, 40]);
            vec![maker.activations(&shape), weight]
        });
        case.check(backend)?;
    }
    Ok(())
}

fn a_result_may_have_another_type_than_activations(backend: &dyn Backend) -> Verdict {
    for x in ACTIVATIONS {
        for out in [LinearOut::F32, LinearOut::Activation] {
            for stored in STORED {
                let case = Case::new(Linear { out }, Dtype::Bf16, |maker, _| {
                    vec![
                        maker.floats(x, &[3, 130]),
                        maker.weight(stored, &[131, 130]),
                    ]
                });
                both(&case, backend)?;
            }
        }
    }
    Ok(())
}

/// 576 rows are four blocks and a half, as of `kv_a_proj_with_mqa`: whoever divides shape by grid gets blocks of 115.
fn a_ragged_last_block_uses_its_own_scale(backend: &dyn Backend) -> Verdict {
    let scales: Vec<f64> = (1..=10).map(f64::from).collect();
    let weight = Input {
        scales: Some(Scales {
            values: scales,
            shape: vec![5, 2],
            block: [128, 128],
        }),
        // 1 is 0x38.
        ..Input::codes(&[576, 130], vec![0x38; 576 * 130])
    };
    let mut x = vec![0.0; 130];
    (x[0], x[129]) = (100.0, 1.0);
    let case = Case::of(
        Linear::default(),
        Dtype::F32,
        vec![vec![f32s(&[1, 130], &x), weight]],
    );
    let expected: Vec<f64> = (0..576)
        .map(|row| f64::from(100 * (row / 128 * 2 + 1) + row / 128 * 2 + 2))
        .collect();
    case.expect(backend, &[Expected::exactly(&expected)])
}

/// 1.125 times 1.009765625 is 1.135986..., between the numbers 145 and 146 of 2^-7.
fn a_code_is_rounded_to_bf16_before_it_is_multiplied(backend: &dyn Backend) -> Verdict {
    let weight = Input {
        scales: Some(Scales {
            values: vec![1.009765625],
            shape: vec![1, 1],
            block: [128, 128],
        }),
        ..Input::codes(&[1, 1], vec![0x39])
    };
    let x = f32s(&[1, 1], &[1.0]);
    let case = Case::of(Linear::default(), Dtype::F32, vec![vec![x, weight]]);
    case.expect(backend, &[Expected::exactly(&[145.0 / 128.0])])
}

fn nan_in_one_row_stays_there(backend: &dyn Backend) -> Verdict {
    for activation in ACTIVATIONS {
        let case = Case::new(Linear::default(), activation, |maker, _| {
            let mut x = maker.numbers(5 * 40);
            x[2 * 40..3 * 40].fill(f64::NAN);
            let weight = maker.weight(Stored::Bf16, &[33, 40]);
            vec![Input::floats(activation, &[5, 40], &x), weight]
        });
        case.check(backend)?;
    }
    Ok(())
}
