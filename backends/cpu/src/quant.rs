//! Block-scaled E4M3.

use rayon::prelude::*;
use rialto_program::op::{DequantizeBlock, QuantizeBlock};

use crate::operand::{Tensor, TensorMut};
use crate::weight;

/// The largest number of E4M3.
const LARGEST: f32 = 448.0;

/// `rialto.quantize_block/1`.
pub(crate) fn quantize_block(
    op: &QuantizeBlock,
    inputs: &[Tensor<'_>],
    outputs: &mut [TensorMut<'_>],
) {
    let ([x], [codes, scales]) = (inputs, outputs) else {
        unreachable!("the signature has one input and two outputs");
    };
    let [n, k] = x.axes();
    // A block that is larger than the matrix is the matrix.
    let [rows, columns] = [(op.block[0], n), (op.block[1], k)].map(|(size, extent)| {
        usize::try_from(size)
            .unwrap_or(usize::MAX)
            .min(extent)
            .max(1)
    });
    let x = x.floats();
    if k == 0 {
        return;
    }
    let bands = codes.codes().par_chunks_mut(rows * k);
    let bands = bands.zip(scales.f32s().par_chunks_mut(k.div_ceil(columns)));
    bands
        .enumerate()
        .for_each_init(Vec::new, |band, (at, (codes, scales))| {
            band.resize(codes.len(), 0.0);
            x.widen(at * rows * k, band);
            for (block, scale) in scales.iter_mut().enumerate() {
                let columns = block * columns..k.min((block + 1) * columns);
                let in_rows = band.chunks_exact(k).map(|row| &row[columns.clone()]);
                *scale = scale_of(in_rows.flatten().copied(), op.power_of_two);
                let rows = codes.chunks_exact_mut(k).zip(band.chunks_exact(k));
                for (codes, row) in rows {
                    let numbers = row[columns.clone()].iter();
                    for (code, number) in codes[columns.clone()].iter_mut().zip(numbers) {
                        *code = encode(number / *scale);
                    }
                }
            }
        });
}

/// The scale of a block.
fn scale_of(numbers: impl Iterator<Item = f32>, power_of_two: bool) -> f32 {
    let magnitudes = numbers
        .map(f32::abs)
        .filter(|magnitude| magnitude.is_finite());
    let most = magnitudes.fold(0.0, f32::max);
    if most == 0.0 {
        return 1.0;
    }
    let scale = (most / LARGEST).max(f32::MIN_POSITIVE);
    match power_of_two {
        true => power_above(scale),
        false => scale,
    }
}

/// The least power of two that is no smaller than a number which is no subnormal.
fn power_above(number: f32) -> f32 {
    const MANTISSA: u32 = (1 << 23) - 1;
    // A carry out of the mantissa is the next exponent.
    f32::from_bits((number.to_bits() + MANTISSA) & !MANTISSA)
}

/// The nearest code of E4M3, of two equally near the even one; the largest for what is too large.
fn encode(number: f32) -> u8 {
    /// What makes 2^-9, the distance of subnormal codes, the last place when it is added.
    const PLACE: f32 = 16_384.0;
    /// The least number that is none of them.
    const NORMAL: f32 = 1.0 / 64.0;

    let sign = (number.to_bits() >> 24) as u8 & 0x80;
    let magnitude = number.abs();
    let code = if magnitude.is_nan() {
        0x7f
    } else if magnitude >= LARGEST {
        0x7e
    } else if magnitude < NORMAL {
        // May be 8, which is the code of the least normal number.
        (magnitude + PLACE).to_bits() - PLACE.to_bits()
    } else {
        let bits = magnitude.to_bits();
        let rounded = bits + (1 << 19) - 1 + (bits >> 20 & 1);
        // The exponent's bias is 127 there and 7 here.
        (rounded >> 20) - (120 << 3)
    };
    sign | code as u8
}

/// `rialto.dequantize_block/1`.
pub(crate) fn dequantize_block(
    op: &DequantizeBlock,
    inputs: &[Tensor<'_>],
    outputs: &mut [TensorMut<'_>],
) {
    let ([codes, scales], [out]) = (inputs, outputs) else {
        unreachable!("the signature has two inputs and one output");
    };
    let ([_, k], in_row) = (codes.axes(), scales.last());
    let (codes, scales) = (codes.codes(), scales.f32s());
    let [rows, columns] = op
        .block
        .map(|size| usize::try_from(size).unwrap_or(usize::MAX));
    out.floats().compute_rows(k, |at, out| {
        let scales = &scales[at / rows * in_row..][..in_row];
        weight::decode(&codes[at * k..][..k], scales, columns, k, out);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use rialto_tensor::format::e4m3;

    #[test]
    fn every_number_between_two_codes_is_the_nearer_one() {
        for code in 0..0x7eu8 {
            let (below, above) = (e4m3::decode(code), e4m3::decode(code + 1));
            let middle = (below + above) / 2.0;
            let even = if code % 2 == 0 { code } else { code + 1 };
            assert_eq!(encode(below), code);
            assert_eq!(encode(middle), even);
            assert_eq!(encode(middle.next_down()), code);
            assert_eq!(encode(middle.next_up()), code + 1);
            assert_eq!(encode(-middle), 0x80 | even);
        }
        for (number, code) in [
            (448.0, 0x7e),
            (1e9, 0x7e),
            (f32::NEG_INFINITY, 0xfe),
            (f32::NAN, 0x7f),
            (-0.0, 0x80),
        ] {
            assert_eq!(encode(number), code, "{number}");
        }
    }

    #[test]
    fn a_scale_is_of_the_finite_numbers_and_no_subnormal() {
        let scale = |numbers: &[f32], power| scale_of(numbers.iter().copied(), power);
        assert_eq!(scale(&[448.0, f32::INFINITY, f32::NAN], false), 1.0);
        assert_eq!(scale(&[0.0, -0.0], false), 1.0);
        assert_eq!(scale(&[f32::NAN], true), 1.0);
        assert_eq!(scale(&[1e-38], false), f32::MIN_POSITIVE);
        assert_eq!(scale(&[-449.0], true), 2.0);
        assert_eq!(scale(&[448.0], true), 1.0);
        assert_eq!(scale(&[3.0], false), 3.0 / 448.0);
    }
}
