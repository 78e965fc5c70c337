//! Functions of elements and rows.

use rialto_backend::Backend;
use rialto_tensor::Dtype;
use rialto_tests::shapes;

use super::{ACTIVATIONS, both, f32s};
use crate::harness::{Case, Verdict};
use crate::input::{Input, Maker};
use crate::numbers::{Span, ULP};
use crate::oracle::Expected;

/// Normal numbers times a factor.
fn wide(maker: &mut Maker, shape: &[u64], factor: f64) -> Input {
    let values = maker.numbers(shape.iter().product());
    let values: Vec<f64> = values.iter().map(|x| x * factor).collect();
    Input::floats(maker.activation, shape, &values)
}

/// Numbers within some ulp of F32.
fn within(values: &[f64], ulps: f64) -> Expected {
    let span = |&value: &f64| Span::around(value, value.abs() * ulps * ULP);
    Expected::Spans(values.iter().map(span).collect())
}

pub(crate) mod swiglu {
    use rialto_program::op::SwiGlu;

    use super::*;

    checks![every_shape, the_gate_is_the_first];

    fn every_shape(backend: &dyn Backend) -> Verdict {
        for shape in shapes::ROWS {
            for activation in ACTIVATIONS {
                let case = Case::new(SwiGlu {}, activation, |maker, _| {
                    let gate = wide(maker, &shape, 4.0);
                    vec![gate, maker.activations(&shape)]
                });
                both(&case, backend)?;
            }
        }
        Ok(())
    }

    /// silu(ln 3) = 3/4 ln 3, and far out it is its argument or nothing.
    fn the_gate_is_the_first(backend: &dyn Backend) -> Verdict {
        let gate = f32s(&[4], &[3f64.ln(), 0.0, 60.0, -200.0]);
        let up = f32s(&[4], &[2.0, 5.0, 3.0, 1.0]);
        let case = Case::of(SwiGlu {}, Dtype::F32, vec![vec![gate, up]]);
        case.expect(
            backend,
            &[within(&[1.5 * 3f64.ln(), 0.0, 180.0, 0.0], 12.0)],
        )
    }
}

pub(crate) mod unary {
    use rialto_program::op::{Unary, UnaryFunction};

    use super::*;

    checks![every_shape_and_function, values_of_the_functions];

    const ALL: [UnaryFunction; 5] = [
        UnaryFunction::Silu,
        UnaryFunction::Sigmoid,
        UnaryFunction::Relu,
        UnaryFunction::Tanh,
        UnaryFunction::Exp,
    ];

    fn every_shape_and_function(backend: &dyn Backend) -> Verdict {
        for function in ALL {
            for shape in shapes::ROWS {
                for activation in ACTIVATIONS {
                    let case = Case::new(Unary { function }, activation, |maker, _| {
                        vec![wide(maker, &shape, 5.0)]
                    });
                    both(&case, backend)?;
                }
            }
            // A number alone, and an axis alone.
            for shape in [vec![], vec![7]] {
                let case = Case::new(Unary { function }, Dtype::F32, |maker, _| {
                    vec![wide(maker, &shape, 5.0)]
                });
                case.check(backend)?;
            }
        }
        Ok(())
    }

    fn values_of_the_functions(backend: &dyn Backend) -> Verdict {
        let third = 3f64.ln();
        let x = [0.0, third, -third, 50.0, -50.0];
        for (function, expected) in [
            (
                UnaryFunction::Silu,
                [
                    0.0,
                    0.75 * third,
                    -0.25 * third,
                    50.0,
                    -9.643_749_239_819_589e-21,
                ],
            ),
            (
                UnaryFunction::Sigmoid,
                [0.5, 0.75, 0.25, 1.0, 1.928_749_847_963_918e-22],
            ),
            (UnaryFunction::Relu, [0.0, third, 0.0, 50.0, 0.0]),
            (UnaryFunction::Tanh, [0.0, 0.8, -0.8, 1.0, -1.0]),
            (
                UnaryFunction::Exp,
                [
                    1.0,
                    3.0,
                    1.0 / 3.0,
                    5.184_705_528_587_072e21,
                    1.928_749_847_963_918e-22,
                ],
            ),
        ] {
            let case = Case::of(Unary { function }, Dtype::F32, vec![vec![f32s(&[5], &x)]]);
            // Of exp(50), 3 + 2 * 50 ulp are allowed, and the argument ln 3 is rounded to F32.
            case.expect(backend, &[within(&expected, 112.0)])?;
        }
        Ok(())
    }
}

pub(crate) mod binary {
    use rialto_program::op::{Binary, BinaryFunction};

    use super::*;

    checks![
        every_shape_and_function,
        the_second_repeats_over_leading_axes,
        both_may_have_different_types,
        operands_keep_their_order,
        a_sum_is_rounded_to_f32_and_then_to_bf16,
    ];

    const ALL: [BinaryFunction; 4] = [
        BinaryFunction::Add,
        BinaryFunction::Subtract,
        BinaryFunction::Multiply,
        BinaryFunction::Divide,
    ];

    fn every_shape_and_function(backend: &dyn Backend) -> Verdict {
        for function in ALL {
            for shape in shapes::ROWS {
                for activation in ACTIVATIONS {
                    let case = Case::new(Binary { function }, activation, |maker, _| {
                        vec![maker.activations(&shape), maker.activations(&shape)]
                    });
                    both(&case, backend)?;
                }
            }
        }
        Ok(())
    }

    fn the_second_repeats_over_leading_axes(backend: &dyn Backend) -> Verdict {
        for function in ALL {
            for y in [vec![], vec![7], vec![3, 7], vec![5, 3, 7]] {
                for activation in ACTIVATIONS {
                    let case = Case::new(Binary { function }, activation, |maker, _| {
                        vec![maker.activations(&[5, 3, 7]), maker.activations(&y)]
                    });
                    both(&case, backend)?;
                }
            }
        }
        Ok(())
    }

    fn both_may_have_different_types(backend: &dyn Backend) -> Verdict {
        for function in ALL {
            for (x, y) in [(Dtype::F32, Dtype::Bf16), (Dtype::Bf16, Dtype::F32)] {
                let case = Case::new(Binary { function }, x, |maker, _| {
                    vec![maker.activations(&[5, 96]), maker.floats(y, &[5, 96])]
                });
                both(&case, backend)?;
            }
        }
        Ok(())
    }

    fn operands_keep_their_order(backend: &dyn Backend) -> Verdict {
        for (function, expected) in
            ALL.into_iter()
                .zip([[10.0, 2.0], [6.0, -6.0], [16.0, -8.0], [4.0, -0.5]])
        {
            let inputs = vec![f32s(&[2], &[8.0, -2.0]), f32s(&[2], &[2.0, 4.0])];
            let case = Case::of(Binary { function }, Dtype::F32, vec![inputs]);
            case.expect(backend, &[within(&expected, 2.5)])?;
        }
        Ok(())
    }

    /// 256 + 1 is halfway between numbers of BF16: a little more is lost in F32 if it is less than half of 2^-15.
    fn a_sum_is_rounded_to_f32_and_then_to_bf16(backend: &dyn Backend) -> Verdict {
        let function = BinaryFunction::Add;
        let inputs = vec![
            Input::floats(Dtype::Bf16, &[3], &[256.0; 3]),
            f32s(&[3], &[1.0, 1.0 + 2f64.powi(-14), 1.0 + 2f64.powi(-20)]),
        ];
        let case = Case::of(Binary { function }, Dtype::Bf16, vec![inputs]);
        case.expect(backend, &[Expected::exactly(&[256.0, 258.0, 256.0])])
    }
}

pub(crate) mod scale {
    use rialto_program::op::Scale;

    use super::*;

    checks![every_shape_and_factor, the_factor_is_rounded_to_f32];

    fn every_shape_and_factor(backend: &dyn Backend) -> Verdict {
        // The last is the scale of heads of 128: its products with BF16 lie anywhere between numbers of BF16.
        for factor in [0.0, 1.0, -2.5, 0.1, 12.0, 128f64.powf(-0.5)] {
            for shape in shapes::ROWS {
                for activation in ACTIVATIONS {
                    let case = Case::new(Scale { factor }, activation, |maker, _| {
                        vec![maker.activations(&shape)]
                    });
                    both(&case, backend)?;
                }
            }
        }
        Ok(())
    }

    /// 0.1 of F32 is 13421773 of 2^-27; times 3 that is 40265319, of which F32 has multiples of 4 at this size: 40265320.
    fn the_factor_is_rounded_to_f32(backend: &dyn Backend) -> Verdict {
        let x = f32s(&[2], &[1.0, 3.0]);
        let case = Case::of(Scale { factor: 0.1 }, Dtype::F32, vec![vec![x]]);
        let unit = 2f64.powi(-27);
        let expected = [13_421_773.0 * unit, 40_265_320.0 * unit];
        case.expect(backend, &[Expected::exactly(&expected)])
    }
}

pub(crate) mod softmax {
    use rialto_program::op::Softmax;

    use super::*;

    checks![
        every_shape,
        a_row_of_negative_infinity_gives_zeros,
        large_numbers_do_not_overflow,
    ];

    fn every_shape(backend: &dyn Backend) -> Verdict {
        for shape in shapes::ROWS {
            for activation in ACTIVATIONS {
                for factor in [1.0, 10.0] {
                    let case = Case::new(Softmax {}, activation, |maker, _| {
                        vec![wide(maker, &shape, factor)]
                    });
                    both(&case, backend)?;
                }
            }
        }
        for shape in [vec![7], vec![2, 3, 7], vec![3, 0]] {
            let case = Case::new(Softmax {}, Dtype::F32, |maker, _| {
                vec![maker.activations(&shape)]
            });
            case.check(backend)?;
        }
        Ok(())
    }

    fn a_row_of_negative_infinity_gives_zeros(backend: &dyn Backend) -> Verdict {
        let (low, third) = (f64::NEG_INFINITY, 3f64.ln());
        let x = f32s(&[3, 3], &[low, low, low, 0.0, low, third, low, 5.0, low]);
        let case = Case::of(Softmax {}, Dtype::F32, vec![vec![x]]);
        let expected = [0.0, 0.0, 0.0, 0.25, 0.0, 0.75, 0.0, 1.0, 0.0];
        case.expect(backend, &[within(&expected, 16.0)])
    }

    fn large_numbers_do_not_overflow(backend: &dyn Backend) -> Verdict {
        let x = f32s(&[2, 2], &[1e30, 1e30, -3e38, -3e38]);
        let case = Case::of(Softmax {}, Dtype::F32, vec![vec![x]]);
        case.expect(backend, &[within(&[0.5; 4], 16.0)])
    }
}

pub(crate) mod reduce {
    use rialto_program::op::{Reduce, ReduceFunction};

    use super::*;

    checks![
        every_shape_and_function,
        nothing_is_summed_to_0_has_no_mean_and_the_least_maximum,
        nan_is_the_largest,
    ];

    const ALL: [ReduceFunction; 3] = [
        ReduceFunction::Sum,
        ReduceFunction::Mean,
        ReduceFunction::Max,
    ];

    fn every_shape_and_function(backend: &dyn Backend) -> Verdict {
        for function in ALL {
            for shape in shapes::ROWS {
                for activation in ACTIVATIONS {
                    let case = Case::new(Reduce { function }, activation, |maker, _| {
                        vec![wide(maker, &shape, 3.0)]
                    });
                    both(&case, backend)?;
                }
            }
            for shape in [vec![7], vec![2, 3, 7]] {
                let case = Case::new(Reduce { function }, Dtype::F32, |maker, _| {
                    vec![maker.activations(&shape)]
                });
                case.check(backend)?;
            }
        }
        Ok(())
    }

    fn by_hand(
        backend: &dyn Backend,
        function: ReduceFunction,
        (shape, x): (&[u64], &[f64]),
        expected: &[f64],
    ) -> Verdict {
        let x = vec![f32s(shape, x)];
        let case = Case::of(Reduce { function }, Dtype::F32, vec![x]);
        case.expect(backend, &[Expected::exactly(expected)])
    }

    fn nothing_is_summed_to_0_has_no_mean_and_the_least_maximum(backend: &dyn Backend) -> Verdict {
        for (function, expected) in ALL.into_iter().zip([0.0, f64::NAN, f64::NEG_INFINITY]) {
            by_hand(backend, function, (&[2, 0], &[]), &[expected; 2])?;
        }
        Ok(())
    }

    fn nan_is_the_largest(backend: &dyn Backend) -> Verdict {
        let nan = f64::NAN;
        let x = [1.0, nan, 3.0, nan, 2.0, 1.0, -1.0, -2.0, f64::NEG_INFINITY];
        let expected = [nan, nan, -1.0];
        by_hand(backend, ReduceFunction::Max, (&[3, 3], &x), &expected)
    }
}
