//! Norms over the last axis.

use rialto_program::op::{LayerNorm, RmsNorm};

use crate::operand::{Tensor, TensorMut};
use crate::rows;

/// `rialto.rms_norm/1`.
pub(crate) fn rms_norm(op: &RmsNorm, inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([x, weight], [out]) = (inputs, outputs) else {
        unreachable!("the signature has two inputs and one output");
    };
    let n = x.last();
    let (x, weight, eps) = (x.floats(), weight.floats().widened(), op.eps as f32);
    out.floats().compute_rows(n, |at, row| {
        x.widen(at * n, row);
        let mean = rows::dot(row, row) / n as f32;
        let root = (mean + eps).sqrt();
        for number in row.iter_mut() {
            *number /= root;
        }
        x.round(row);
        for (number, weight) in row.iter_mut().zip(weight.iter()) {
            *number *= weight;
        }
    });
}

/// `rialto.layer_norm/1`.
pub(crate) fn layer_norm(op: &LayerNorm, inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([x, weight, bias], [out]) = (inputs, outputs) else {
        unreachable!("the signature has three inputs and one output");
    };
    let n = x.last();
    let (x, eps) = (x.floats(), op.eps as f32);
    let (weight, bias) = (weight.floats().widened(), bias.floats().widened());
    out.floats().compute_rows(n, |at, row| {
        x.widen(at * n, row);
        let mean = rows::sum(row, |number| number) / n as f32;
        // In two passes: the mean of squares less the square of the mean would cancel.
        for number in row.iter_mut() {
            *number -= mean;
        }
        let variance = rows::dot(row, row) / n as f32;
        let root = (variance + eps).sqrt();
        for ((number, weight), bias) in row.iter_mut().zip(weight.iter()).zip(bias.iter()) {
            *number = *number / root * weight + bias;
        }
    });
}
