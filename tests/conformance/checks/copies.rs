//! What moves elements.

use rialto_backend::Backend;
use rialto_tensor::Dtype;
use rialto_tests::shapes;

use super::{ACTIVATIONS, both, f32s};
use crate::harness::{Case, Verdict};
use crate::input::{Input, Maker};
use crate::oracle::Expected;

/// Numbers with both zeros, infinities and NaN among them: a copy keeps them all.
fn odd(maker: &mut Maker, dtype: Dtype, shape: &[u64]) -> Input {
    let mut values = maker.numbers(shape.iter().product());
    let odd = [-0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    for (value, odd) in values.iter_mut().step_by(3).zip(odd) {
        *value = odd;
    }
    Input::floats(dtype, shape, &values)
}

/// Row numbers below an end, -1 among them, and the last one.
fn numbers(maker: &mut Maker, count: u64, end: u64) -> Input {
    let mut numbers: Vec<i32> = (0..count).map(|_| maker.below(end) as i32).collect();
    for (place, number) in [(1, -1), (2, end as i32 - 1)] {
        if let Some(slot) = numbers.get_mut(place) {
            *slot = number;
        }
    }
    Input::ints(&[count], &numbers)
}

pub(crate) mod embed {
    use rialto_program::op::Embed;

    use super::*;

    checks![
        every_shape_and_type_of_the_table,
        rows_of_a_large_table_are_found,
        an_id_of_minus_one_gives_zeros,
    ];

    fn every_type(backend: &dyn Backend, [n, rows, h]: [u64; 3]) -> Verdict {
        for table in ACTIVATIONS {
            for activation in ACTIVATIONS {
                let case = Case::new(Embed {}, activation, |maker, _| {
                    let ids = numbers(maker, n, rows);
                    // An F32 NaN that is rounded may have other bits than one that is copied; weights have none.
                    vec![ids, maker.floats(table, &[rows, h])]
                });
                both(&case, backend)?;
            }
        }
        Ok(())
    }

    fn every_shape_and_type_of_the_table(backend: &dyn Backend) -> Verdict {
        let mut shapes = shapes::ROWS.iter();
        shapes.try_for_each(|&[n, h]| every_type(backend, [n, 50, h]))
    }

    fn rows_of_a_large_table_are_found(backend: &dyn Backend) -> Verdict {
        every_type(backend, [33, 19_360, 3])
    }

    fn an_id_of_minus_one_gives_zeros(backend: &dyn Backend) -> Verdict {
        let ids = Input::ints(&[3], &[1, -1, 0]);
        let table = f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
        let case = Case::of(Embed {}, Dtype::F32, vec![vec![ids, table]]);
        let expected = Expected::exactly(&[3.0, 4.0, 0.0, 0.0, 1.0, 2.0]);
        case.expect(backend, &[expected])
    }
}

pub(crate) mod gather {
    use rialto_program::op::Gather;

    use super::*;

    checks![
        every_shape_and_type,
        integers_are_gathered_too,
        rows_of_several_axes_stay_whole,
    ];

    fn every_shape_and_type(backend: &dyn Backend) -> Verdict {
        for [n, h] in shapes::ROWS {
            for activation in ACTIVATIONS {
                let case = Case::new(Gather {}, activation, |maker, _| {
                    let indices = numbers(maker, n, 9);
                    vec![odd(maker, activation, &[9, h]), indices]
                });
                both(&case, backend)?;
            }
        }
        Ok(())
    }

    fn integers_are_gathered_too(backend: &dyn Backend) -> Verdict {
        let case = Case::new(Gather {}, Dtype::F32, |maker, _| {
            let indices = numbers(maker, 5, 9);
            vec![maker.ints(&[9, 3], -100, 100), indices]
        });
        both(&case, backend)?;
        let x = Input::ints(&[3], &[7, 8, 9]);
        let indices = Input::ints(&[3], &[2, -1, 0]);
        let case = Case::of(Gather {}, Dtype::F32, vec![vec![x, indices]]);
        case.expect(backend, &[Expected::Ints(vec![9, 0, 7])])
    }

    fn rows_of_several_axes_stay_whole(backend: &dyn Backend) -> Verdict {
        let case = Case::new(Gather {}, Dtype::Bf16, |maker, _| {
            let indices = numbers(maker, 4, 6);
            vec![odd(maker, Dtype::Bf16, &[6, 2, 5]), indices]
        });
        both(&case, backend)
    }
}

pub(crate) mod concat {
    use rialto_program::op::Concat;

    use super::*;

    checks![every_shape, rows_stand_behind_each_other];

    fn every_shape(backend: &dyn Backend) -> Verdict {
        for [t, n] in shapes::ROWS {
            for m in [0, 1, 64] {
                for activation in ACTIVATIONS {
                    let case = Case::new(Concat {}, activation, |maker, _| {
                        let x = odd(maker, activation, &[t, n]);
                        vec![x, maker.activations(&[t, m])]
                    });
                    both(&case, backend)?;
                }
            }
        }
        Ok(())
    }

    fn rows_stand_behind_each_other(backend: &dyn Backend) -> Verdict {
        let inputs = vec![
            f32s(&[2, 1, 1], &[1.0, 2.0]),
            f32s(&[2, 1, 2], &[3.0, 4.0, 5.0, 6.0]),
        ];
        let case = Case::of(Concat {}, Dtype::F32, vec![inputs]);
        let expected = Expected::exactly(&[1.0, 3.0, 4.0, 2.0, 5.0, 6.0]);
        case.expect(backend, &[expected])
    }
}

pub(crate) mod slice {
    use rialto_program::op::Slice;

    use super::*;

    checks![every_shape, the_elements_from_start_on_are_taken];

    fn every_shape(backend: &dyn Backend) -> Verdict {
        for [t, n] in shapes::ROWS {
            for (start, length) in [(0, n), (n / 2, n - n / 2), (n / 3, 1), (n, 0)] {
                for activation in ACTIVATIONS {
                    let op = Slice { start, length };
                    let case = Case::new(op, activation, |maker, _| {
                        vec![odd(maker, activation, &[t, n])]
                    });
                    both(&case, backend)?;
                }
            }
        }
        Ok(())
    }

    fn the_elements_from_start_on_are_taken(backend: &dyn Backend) -> Verdict {
        let op = Slice {
            start: 1,
            length: 2,
        };
        let x = f32s(&[2, 4], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        let case = Case::of(op, Dtype::F32, vec![vec![x]]);
        case.expect(backend, &[Expected::exactly(&[1.0, 2.0, 5.0, 6.0])])
    }
}

pub(crate) mod reshape {
    use rialto_program::op::Reshape;

    use super::*;

    checks![every_shape];

    fn every_shape(backend: &dyn Backend) -> Verdict {
        for (before, after) in [
            (vec![5, 24], vec![4, 6]),
            (vec![2, 4, 6], vec![24]),
            (vec![0, 8], vec![2, 4]),
            (vec![3, 1], vec![]),
            (vec![3], vec![1, 1]),
        ] {
            for activation in ACTIVATIONS {
                let op = Reshape {
                    shape: after.clone(),
                };
                let case = Case::new(op, activation, |maker, _| {
                    vec![odd(maker, activation, &before)]
                });
                both(&case, backend)?;
            }
        }
        Ok(())
    }
}

pub(crate) mod cast {
    use rialto_program::op::{Cast, LinearOut};

    use super::*;

    checks![every_shape_and_type, ties_go_to_even];

    fn every_shape_and_type(backend: &dyn Backend) -> Verdict {
        for shape in shapes::ROWS {
            for from in ACTIVATIONS {
                for activation in ACTIVATIONS {
                    for to in [LinearOut::Activation, LinearOut::F32] {
                        let case = Case::new(Cast { to }, activation, |maker, _| {
                            vec![odd(maker, from, &shape)]
                        });
                        both(&case, backend)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Around 1 the numbers of BF16 are 2^-7 apart, the largest F32 is beyond them, and the least of F32 are none of theirs.
    fn ties_go_to_even(backend: &dyn Backend) -> Verdict {
        let step = 2f64.powi(-7);
        let x = [
            1.0 + step / 2.0,
            1.0 + step * 1.5,
            -1.0 - step / 2.0 - 2f64.powi(-20),
            f64::from(f32::MAX),
            f64::NAN,
            f64::NEG_INFINITY,
            3e-39,
        ];
        let op = Cast {
            to: LinearOut::Activation,
        };
        let case = Case::of(op, Dtype::Bf16, vec![vec![f32s(&[7], &x)]]);
        let expected = [
            1.0,
            1.0 + 2.0 * step,
            -1.0 - step,
            f64::INFINITY,
            f64::NAN,
            f64::NEG_INFINITY,
            // 32.67 of 2^-133, the step of subnormals.
            33.0 * 2f64.powi(-133),
        ];
        case.expect(backend, &[Expected::exactly(&expected)])
    }
}
