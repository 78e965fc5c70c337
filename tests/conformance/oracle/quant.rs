//! Codes in blocks.

use rialto_program::op::{DequantizeBlock, QuantizeBlock};

use super::{Answer, Expected};
use crate::input::Input;
use crate::numbers;

/// The least power of two that is no less.
fn power_up(x: f64) -> f64 {
    let mut power = 2f64.powi(-126);
    while power < x {
        power *= 2.0;
    }
    power
}

pub(crate) fn quantize(op: &QuantizeBlock, inputs: &[Input]) -> Answer {
    let x = inputs[0].values();
    let (n, k) = (inputs[0].extent(0), inputs[0].extent(1));
    let [rows, columns] = op.block.map(|size| size as usize);
    let (down, across) = (n.div_ceil(rows), k.div_ceil(columns));
    let mut codes = vec![0; n * k];
    let mut scales = Vec::with_capacity(down * across);
    for block in 0..down * across {
        let (top, left) = (block / across * rows, block % across * columns);
        let elements = (top..n.min(top + rows))
            .flat_map(|row| (left..k.min(left + columns)).map(move |column| row * k + column));
        let finite = elements.clone().map(|at| x[at].abs());
        let amax = finite.filter(|x| x.is_finite()).fold(0.0, f64::max);
        // Quotients of F32 that are rounded to F64 and then to F32 are as if rounded once: 53 digits are more than twice 24 and 2.
        let scale = match amax == 0.0 {
            true => 1.0,
            false => numbers::f32(amax / 448.0).max(2f64.powi(-126)),
        };
        let scale = match op.power_of_two && amax > 0.0 {
            true => power_up(scale),
            false => scale,
        };
        scales.push(scale);
        for at in elements {
            codes[at] = numbers::e4m3_code(numbers::f32(x[at] / scale));
        }
    }
    Answer {
        outputs: vec![Expected::Codes(codes), Expected::exactly(&scales)],
        written: None,
        doubt: None,
    }
}

pub(crate) fn dequantize(op: &DequantizeBlock, inputs: &[Input]) -> Expected {
    let scales = inputs[1].values();
    let (n, k) = (inputs[0].extent(0), inputs[0].extent(1));
    let [rows, columns] = op.block.map(|size| size as usize);
    let across = k.div_ceil(columns);
    let value = |at: usize| {
        let scale = scales[at / k / rows * across + at % k / columns];
        let product = numbers::e4m3(inputs[0].bytes[at]) * scale;
        numbers::bf16(numbers::f32(product))
    };
    let values: Vec<f64> = (0..n * k).map(value).collect();
    Expected::exactly(&values)
}
