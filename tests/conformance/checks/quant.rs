//! `quantize_block` and `dequantize_block`: both exact.

use rialto_backend::Backend;
use rialto_tensor::Dtype;
use rialto_tests::shapes;

use super::{ACTIVATIONS, both, f32s};
use crate::harness::{Case, Verdict};
use crate::input::{Input, Maker, Stored};
use crate::oracle::Expected;

pub(crate) mod quantize {
    use rialto_program::op::QuantizeBlock;

    use super::*;

    checks![
        every_shape_and_kind_of_scale,
        a_block_of_zeros_has_scale_1,
        a_scale_is_never_subnormal,
        infinity_is_saturated_and_does_not_scale,
        nan_stays_nan_and_does_not_scale,
        ties_go_to_even,
        powers_of_two_are_rounded_up,
        a_ragged_last_block_has_its_own_scale,
    ];

    /// Rows of very different sizes, so that scales differ.
    fn matrix(maker: &mut Maker, [n, k]: [u64; 2]) -> Input {
        let mut values = maker.numbers(n * k);
        for (row, values) in values.chunks_exact_mut(k.max(1) as usize).enumerate() {
            for value in values {
                *value *= 10f64.powi(row as i32 % 7 - 3);
            }
        }
        Input::floats(maker.activation, &[n, k], &values)
    }

    fn every_shape_and_kind_of_scale(backend: &dyn Backend) -> Verdict {
        for [n, k, rows, columns] in shapes::QUANT {
            for activation in ACTIVATIONS {
                for power_of_two in [false, true] {
                    let op = QuantizeBlock {
                        block: [rows, columns],
                        power_of_two,
                    };
                    let make = |maker: &mut Maker, _| vec![matrix(maker, [n, k])];
                    both(&Case::new(op, activation, make), backend)?;
                }
            }
        }
        Ok(())
    }

    fn by_hand(
        backend: &dyn Backend,
        power_of_two: bool,
        x: &[f64],
        (codes, scale): (&[u8], f64),
    ) -> Verdict {
        let op = QuantizeBlock {
            block: [1, 128],
            power_of_two,
        };
        let x = f32s(&[1, x.len() as u64], x);
        let expected = [Expected::Codes(codes.to_vec()), Expected::exactly(&[scale])];
        Case::of(op, Dtype::F32, vec![vec![x]]).expect(backend, &expected)
    }

    fn a_block_of_zeros_has_scale_1(backend: &dyn Backend) -> Verdict {
        for power_of_two in [false, true] {
            by_hand(backend, power_of_two, &[0.0, -0.0], (&[0, 0x80], 1.0))?;
            // Nothing finite but zeros is no more.
            let x = [0.0, f64::NEG_INFINITY, f64::NAN];
            by_hand(backend, power_of_two, &x, (&[0, 0xfe, 0x7f], 1.0))?;
        }
        Ok(())
    }

    /// 1e-38 is a subnormal F32, a 448th of it even more; 2^-126 is the least scale, of which 1e-38 is 0.851, in E4M3 0.875.
    fn a_scale_is_never_subnormal(backend: &dyn Backend) -> Verdict {
        let least = 2f64.powi(-126);
        for power_of_two in [false, true] {
            by_hand(
                backend,
                power_of_two,
                &[1e-38, -1e-38],
                (&[0x36, 0xb6], least),
            )?;
        }
        Ok(())
    }

    fn infinity_is_saturated_and_does_not_scale(backend: &dyn Backend) -> Verdict {
        let x = [f64::INFINITY, 448.0, f64::NEG_INFINITY, 1.0];
        by_hand(backend, false, &x, (&[0x7e, 0x7e, 0xfe, 0x38], 1.0))
    }

    fn nan_stays_nan_and_does_not_scale(backend: &dyn Backend) -> Verdict {
        by_hand(
            backend,
            false,
            &[f64::NAN, 896.0, -2.0],
            (&[0x7f, 0x7e, 0xb8], 2.0),
        )
    }

    /// With scale 1: 17 lies between 16 and 18, 19 between 18 and 20, 2^-10 between 0 and the least, 3 * 2^-10 between that and the next.
    fn ties_go_to_even(backend: &dyn Backend) -> Verdict {
        let least = 2f64.powi(-10);
        let x = [448.0, 17.0, 19.0, -17.0, least, 3.0 * least, 432.0, 431.9];
        let codes = [0x7e, 0x58, 0x5a, 0xd8, 0x00, 0x02, 0x7e, 0x7d];
        by_hand(backend, false, &x, (&codes, 1.0))
    }

    /// 448.0001 is a little more than 448 times 1: the next power is 2, and nothing clips.
    fn powers_of_two_are_rounded_up(backend: &dyn Backend) -> Verdict {
        by_hand(backend, true, &[448.0, 1.0], (&[0x7e, 0x38], 1.0))?;
        by_hand(backend, true, &[448.0001, 1.0], (&[0x76, 0x30], 2.0))?;
        by_hand(backend, true, &[449.0, -3.0], (&[0x76, 0xbc], 2.0))?;
        by_hand(backend, true, &[100.0, 1.0], (&[0x7c, 0x48], 0.25))?;
        // A plain scale is the quotient rounded: (448 + 2^-15 * 3) / 448 is 1 and a bit less than 2 of 2^-23.
        let x = 448.0 + 3.0 * 2f64.powi(-15);
        let scale = 1.0 + 2.0 * 2f64.powi(-23);
        by_hand(backend, false, &[x, 1.0], (&[0x7e, 0x38], scale))
    }

    fn a_ragged_last_block_has_its_own_scale(backend: &dyn Backend) -> Verdict {
        let op = QuantizeBlock {
            block: [128, 128],
            power_of_two: false,
        };
        let x: Vec<f64> = (0..576 * 130)
            .map(|at| 448.0 * f64::from(at / 130 / 128 * 2 + at % 130 / 128 + 1))
            .collect();
        let scales: Vec<f64> = (1..=10).map(f64::from).collect();
        let expected = [
            Expected::Codes(vec![0x7e; 576 * 130]),
            Expected::exactly(&scales),
        ];
        let x = vec![f32s(&[576, 130], &x)];
        Case::of(op, Dtype::F32, vec![x]).expect(backend, &expected)
    }
}

pub(crate) mod dequantize {
    use rialto_program::op::DequantizeBlock;

    use super::*;

    checks![
        every_shape,
        every_code_is_worth_what_the_format_says,
        a_value_is_rounded_to_bf16_also_in_f32,
        nan_and_negative_zero_stay,
        subnormals_are_kept_and_what_is_too_large_is_infinite,
    ];

    fn inputs(maker: &mut Maker, [n, k, rows, columns]: [u64; 4]) -> Vec<Input> {
        let weight = maker.weight(Stored::Blocks([rows, columns]), &[n, k]);
        let scales = weight.scales.clone().unwrap();
        let scales = f32s(&scales.shape, &scales.values);
        let codes = Input::codes(&[n, k], weight.bytes);
        vec![codes, scales]
    }

    fn every_shape(backend: &dyn Backend) -> Verdict {
        for shape in shapes::QUANT {
            for activation in ACTIVATIONS {
                let block = [shape[2], shape[3]];
                let make = |maker: &mut Maker, _| inputs(maker, shape);
                let case = Case::new(DequantizeBlock { block }, activation, make);
                both(&case, backend)?;
            }
        }
        Ok(())
    }

    fn by_hand(backend: &dyn Backend, (codes, scale): (&[u8], f64), expected: &[f64]) -> Verdict {
        for activation in ACTIVATIONS {
            let k = codes.len() as u64;
            let inputs = vec![
                Input::codes(&[1, k], codes.to_vec()),
                f32s(
                    &[1, k.div_ceil(128)],
                    &vec![scale; codes.len().div_ceil(128)],
                ),
            ];
            let op = DequantizeBlock { block: [1, 128] };
            let case = Case::of(op, activation, vec![inputs]);
            case.expect(backend, &[Expected::exactly(expected)])?;
        }
        Ok(())
    }

    /// Eight numbers for each exponent, negative ones behind positive ones, NaN at the end of each half.
    fn every_code_is_worth_what_the_format_says(backend: &dyn Backend) -> Verdict {
        let codes: Vec<u8> = (0..=255).collect();
        let mut values = Vec::new();
        for sign in [1.0, -1.0] {
            values.extend((0..8).map(|m| sign * f64::from(m) / 512.0));
            for exponent in 1..16 {
                let power = 2f64.powi(exponent - 7);
                values.extend((0..8).map(|m| sign * power * f64::from(8 + m) / 8.0));
            }
            *values.last_mut().unwrap() = f64::NAN;
        }
        by_hand(backend, (&codes, 1.0), &values)
    }

    /// 1.125 * 1.009765625 lies between the numbers 145 and 146 of 2^-7.
    fn a_value_is_rounded_to_bf16_also_in_f32(backend: &dyn Backend) -> Verdict {
        by_hand(backend, (&[0x39], 1.009765625), &[145.0 / 128.0])
    }

    fn nan_and_negative_zero_stay(backend: &dyn Backend) -> Verdict {
        by_hand(backend, (&[0x7f, 0xff], 0.0), &[f64::NAN; 2])?;
        let op = DequantizeBlock { block: [1, 128] };
        let inputs = vec![
            Input::codes(&[1, 2], vec![0x80, 0x00]),
            f32s(&[1, 1], &[3.0]),
        ];
        let case = Case::of(op, Dtype::F32, vec![inputs]);
        let bytes = vec![0, 0, 0, 0x80, 0, 0, 0, 0];
        case.expect(backend, &[Expected::Bytes(bytes)])
    }

    fn subnormals_are_kept_and_what_is_too_large_is_infinite(backend: &dyn Backend) -> Verdict {
        // 0x38 is 1, 0x01 is 2^-9, 0x30 is a half.
        let scale = 2f64.powi(-124);
        let expected = [scale, 2f64.powi(-133), scale / 2.0];
        by_hand(backend, (&[0x38, 0x01, 0x30], scale), &expected)?;
        by_hand(backend, (&[0x7e], 1e36), &[f64::INFINITY])
    }
}
