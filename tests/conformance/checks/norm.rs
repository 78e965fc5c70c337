//! Norms.

use rialto_backend::Backend;
use rialto_tests::shapes;

use super::{ACTIVATIONS, both, f32s};
use crate::harness::{Case, Verdict};
use crate::input::{Input, Maker};
use crate::numbers::{Span, ULP};
use crate::oracle::Expected;

/// Rows of which the second is so small that eps decides, and the third zeros.
fn rows(maker: &mut Maker, [t, n]: [u64; 2], mean: f64) -> Input {
    let mut x = maker.numbers(t * n);
    for (row, x) in x.chunks_exact_mut(n.max(1) as usize).enumerate() {
        for x in x {
            *x = match row {
                1 => *x * 1e-3,
                2 => 0.0,
                _ => *x + mean,
            };
        }
    }
    Input::floats(maker.activation, &[t, n], &x)
}

/// Numbers within some ulp of F32.
fn within(values: &[f64], ulps: f64) -> Expected {
    let span = |&value: &f64| Span::around(value, value.abs() * ulps * ULP);
    Expected::Spans(values.iter().map(span).collect())
}

pub(crate) mod rms {
    use rialto_program::op::RmsNorm;
    use rialto_tensor::Dtype;

    use super::*;

    checks![
        every_shape,
        weights_may_have_another_type_than_activations,
        heads_are_rows,
        three_and_four_are_normed_by_the_root_of_12_5,
        eps_is_added_to_the_mean,
    ];

    fn every_shape(backend: &dyn Backend) -> Verdict {
        for shape in shapes::ROWS {
            for activation in ACTIVATIONS {
                for eps in [1e-5, 1e-6] {
                    let case = Case::new(RmsNorm { eps }, activation, |maker, _| {
                        let weight = maker.activations(&shape[1..]);
                        vec![rows(maker, shape, 0.1), weight]
                    });
                    both(&case, backend)?;
                }
            }
        }
        Ok(())
    }

    fn weights_may_have_another_type_than_activations(backend: &dyn Backend) -> Verdict {
        for (activation, weight) in [(Dtype::F32, Dtype::Bf16), (Dtype::Bf16, Dtype::F32)] {
            let case = Case::new(RmsNorm { eps: 1e-5 }, activation, |maker, _| {
                let weight = maker.floats(weight, &[96]);
                vec![rows(maker, [5, 96], 0.0), weight]
            });
            both(&case, backend)?;
        }
        Ok(())
    }

    fn heads_are_rows(backend: &dyn Backend) -> Verdict {
        for activation in ACTIVATIONS {
            let case = Case::new(RmsNorm { eps: 1e-6 }, activation, |maker, _| {
                let x = maker.activations(&[3, 4, 32]);
                vec![x, maker.activations(&[32])]
            });
            both(&case, backend)?;
        }
        Ok(())
    }

    /// 3 / sqrt(12.5) and 2 * 4 / sqrt(12.5).
    fn three_and_four_are_normed_by_the_root_of_12_5(backend: &dyn Backend) -> Verdict {
        let inputs = vec![f32s(&[1, 2], &[3.0, 4.0]), f32s(&[2], &[1.0, 2.0])];
        let case = Case::of(RmsNorm { eps: 0.0 }, Dtype::F32, vec![inputs]);
        // Two products and a sum, eps, mean, root, quotient, product: no more than 8 ulp.
        let expected = within(&[0.848_528_137_423_857, 2.262_741_699_796_952], 8.0);
        case.expect(backend, &[expected])
    }

    /// A row of zeros stays zeros; with a mean square of 1 an eps of 3 halves.
    fn eps_is_added_to_the_mean(backend: &dyn Backend) -> Verdict {
        let x = f32s(&[2, 2], &[0.0, 0.0, 1.0, -1.0]);
        let inputs = vec![x, f32s(&[2], &[1.0, 1.0])];
        let case = Case::of(RmsNorm { eps: 3.0 }, Dtype::F32, vec![inputs]);
        case.expect(backend, &[within(&[0.0, 0.0, 0.5, -0.5], 8.0)])
    }
}

pub(crate) mod layer {
    use rialto_program::op::LayerNorm;
    use rialto_tensor::Dtype;

    use super::*;

    checks![
        every_shape,
        weights_may_have_another_type_than_activations,
        a_mean_far_from_zero_is_not_felt,
        one_and_three_become_minus_one_and_one,
        eps_is_added_to_the_variance,
    ];

    fn inputs(maker: &mut Maker, shape: [u64; 2], mean: f64) -> Vec<Input> {
        let [weight, bias] = [0, 1].map(|_| maker.activations(&shape[1..]));
        vec![rows(maker, shape, mean), weight, bias]
    }

    fn every_shape(backend: &dyn Backend) -> Verdict {
        for shape in shapes::ROWS {
            for activation in ACTIVATIONS {
                for eps in [1e-5, 1e-6] {
                    let make = |maker: &mut Maker, _| inputs(maker, shape, 0.5);
                    both(&Case::new(LayerNorm { eps }, activation, make), backend)?;
                }
            }
        }
        Ok(())
    }

    fn weights_may_have_another_type_than_activations(backend: &dyn Backend) -> Verdict {
        for (activation, weight) in [(Dtype::F32, Dtype::Bf16), (Dtype::Bf16, Dtype::F32)] {
            let case = Case::new(LayerNorm { eps: 1e-6 }, activation, |maker, _| {
                let [weight, bias] = [0, 1].map(|_| maker.floats(weight, &[96]));
                vec![rows(maker, [5, 96], 0.0), weight, bias]
            });
            both(&case, backend)?;
        }
        Ok(())
    }

    /// The variance is of differences to the mean; as a difference of squares it would be noise here.
    fn a_mean_far_from_zero_is_not_felt(backend: &dyn Backend) -> Verdict {
        let make = |maker: &mut Maker, _| inputs(maker, [5, 128], 300.0);
        let case = Case::new(LayerNorm { eps: 1e-6 }, Dtype::F32, make);
        both(&case, backend)
    }

    fn one_and_three_become_minus_one_and_one(backend: &dyn Backend) -> Verdict {
        let vector = |values| f32s(&[2], values);
        let x = f32s(&[1, 2], &[1.0, 3.0]);
        let inputs = vec![x, vector(&[2.0, 2.0]), vector(&[10.0, 20.0])];
        let case = Case::of(LayerNorm { eps: 0.0 }, Dtype::F32, vec![inputs]);
        case.expect(backend, &[within(&[8.0, 22.0], 8.0)])
    }

    fn eps_is_added_to_the_variance(backend: &dyn Backend) -> Verdict {
        let vector = |values| f32s(&[2], values);
        let x = f32s(&[2, 2], &[1.0, 3.0, 7.0, 7.0]);
        let inputs = vec![x, vector(&[2.0, 2.0]), vector(&[0.5, 0.5])];
        let case = Case::of(LayerNorm { eps: 3.0 }, Dtype::F32, vec![inputs]);
        case.expect(backend, &[within(&[-0.5, 1.5, 0.5, 0.5], 8.0)])
    }
}
