//! Matrix products with weights.

use crate::operand::{Tensor, TensorMut};
use crate::weight::{self, Matrix};

/// `rialto.linear/1`.
pub(crate) fn linear(inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([x, weight], [out]) = (inputs, outputs) else {
        unreachable!("the signature has two inputs and one output");
    };
    let [n, k] = weight.axes();
    let x = x.floats().widened();
    let leading = &out.shape[..out.shape.len() - 1];
    let vectors = weight::vectors(&x, k, leading.iter().product());
    weight::multiply(&Matrix::of(*weight, 0), n, &vectors, out.floats());
}
