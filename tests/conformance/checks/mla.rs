//! `mla_absorb` and `mla_expand`.

use rialto_backend::Backend;
use rialto_tensor::Dtype;
use rialto_tests::shapes;

use super::{ACTIVATIONS, both, f32s};
use crate::harness::{Case, Verdict};
use crate::input::{Input, STORED, Scales};
use crate::oracle::Expected;

/// Two heads of two rows, one of a key and one of a value, with a latent of one.
fn small(x: &[f64]) -> Vec<Input> {
    let kv_b = f32s(&[4, 1], &[10.0, 20.0, 30.0, 40.0]);
    vec![f32s(&[1, 2, 1], x), kv_b]
}

/// Heads of three rows in blocks of two: the second begins inside of a block. All codes are 1.
fn cut(x: &[f64]) -> Vec<Input> {
    let kv_b = Input {
        scales: Some(Scales {
            values: vec![1.0, 2.0, 4.0],
            shape: vec![3, 1],
            block: [2, 128],
        }),
        ..Input::codes(&[6, 1], vec![0x38; 6])
    };
    vec![f32s(&[1, 2, x.len() as u64 / 2], x), kv_b]
}

pub(crate) mod absorb {
    use rialto_program::op::MlaAbsorb;

    use super::*;

    checks![
        every_shape_and_every_way_of_storing_weights,
        keys_are_the_first_rows_of_a_head,
        a_scale_is_that_of_the_absolute_row,
    ];

    fn every_shape_and_every_way_of_storing_weights(backend: &dyn Backend) -> Verdict {
        for [heads, nope, _, value, latent] in shapes::MLA {
            for t in [0, 1, 3, 9] {
                for stored in STORED {
                    for activation in ACTIVATIONS {
                        let case = Case::new(MlaAbsorb { value }, activation, |maker, _| {
                            let q = maker.activations(&[t, heads, nope]);
                            let rows = heads * (nope + value);
                            vec![q, maker.weight(stored, &[rows, latent])]
                        });
                        both(&case, backend)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn keys_are_the_first_rows_of_a_head(backend: &dyn Backend) -> Verdict {
        let case = Case::of(MlaAbsorb { value: 1 }, Dtype::F32, vec![small(&[1.0, 2.0])]);
        case.expect(backend, &[Expected::exactly(&[10.0, 60.0])])
    }

    /// Rows 0 and 1 of the first head have scale 1, row 3 of the second has 2 and row 4 has 4.
    fn a_scale_is_that_of_the_absolute_row(backend: &dyn Backend) -> Verdict {
        let inputs = cut(&[1.0, 10.0, 1.0, 10.0]);
        let case = Case::of(MlaAbsorb { value: 1 }, Dtype::F32, vec![inputs]);
        case.expect(backend, &[Expected::exactly(&[11.0, 42.0])])
    }
}

pub(crate) mod expand {
    use rialto_program::op::MlaExpand;

    use super::*;

    checks![
        every_shape_and_every_way_of_storing_weights,
        values_are_the_last_rows_of_a_head,
        a_scale_is_that_of_the_absolute_row,
    ];

    fn every_shape_and_every_way_of_storing_weights(backend: &dyn Backend) -> Verdict {
        for [heads, nope, _, value, latent] in shapes::MLA {
            for t in [0, 1, 3, 9] {
                for stored in STORED {
                    for activation in ACTIVATIONS {
                        let case = Case::new(MlaExpand { value }, activation, |maker, _| {
                            let x = maker.activations(&[t, heads, latent]);
                            let rows = heads * (nope + value);
                            vec![x, maker.weight(stored, &[rows, latent])]
                        });
                        both(&case, backend)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn values_are_the_last_rows_of_a_head(backend: &dyn Backend) -> Verdict {
        let case = Case::of(MlaExpand { value: 1 }, Dtype::F32, vec![small(&[1.0, 2.0])]);
        case.expect(backend, &[Expected::exactly(&[20.0, 80.0])])
    }

    /// Row 2 of the first head has scale 2, rows 4 and 5 of the second have 4.
    fn a_scale_is_that_of_the_absolute_row(backend: &dyn Backend) -> Verdict {
        let case = Case::of(MlaExpand { value: 2 }, Dtype::F32, vec![cut(&[1.0, 10.0])]);
        case.expect(backend, &[Expected::exactly(&[1.0, 2.0, 40.0, 40.0])])
    }
}
