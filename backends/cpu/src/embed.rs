//! Rows of an embedding.

use crate::operand::{Tensor, TensorMut, index};

/// `rialto.embed/1`.
pub(crate) fn embed(inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([ids, table], [out]) = (inputs, outputs) else {
        unreachable!("the signature has two inputs and one output");
    };
    let [rows, width] = table.axes();
    let (ids, table) = (ids.ints(), table.floats());
    out.floats()
        .store_rows(width, |at, out| match index(ids[at], rows) {
            Some(id) => out.copy(table.part(id * width, width)),
            None => out.zero(),
        });
}
