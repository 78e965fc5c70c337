//! Plain operations.

use rayon::prelude::*;
use rialto_program::op::{
    Binary, BinaryFunction, Reduce, ReduceFunction, Scale, Slice, Unary, UnaryFunction,
};

use crate::function;
use crate::operand::{CHUNK, Floats, FloatsMut, Tensor, TensorMut, index};
use crate::rows;
use crate::storage::Elements;

/// A function of each element.
fn map(x: Floats<'_>, out: FloatsMut<'_>, function: impl Fn(f32) -> f32 + Sync + Send) {
    out.compute_rows(CHUNK, |at, row| {
        x.widen(at * CHUNK, row);
        for number in row {
            *number = function(*number);
        }
    });
}

/// A function of each element and its counterpart in `y`, which begins again where it ends.
pub(crate) fn combine(
    x: Floats<'_>,
    y: Floats<'_>,
    out: FloatsMut<'_>,
    function: impl Fn(f32, f32) -> f32 + Sync + Send,
) {
    out.compute_rows(CHUNK, |at, row| {
        let begin = at * CHUNK;
        x.widen(begin, row);
        let mut counterparts = [0.0; CHUNK];
        let counterparts = &mut counterparts[..row.len()];
        let mut done = 0;
        while done < row.len() {
            let first = (begin + done) % y.len();
            let now = (y.len() - first).min(row.len() - done);
            y.widen(first, &mut counterparts[done..done + now]);
            done += now;
        }
        for (number, &counterpart) in row.iter_mut().zip(&*counterparts) {
            *number = function(*number, counterpart);
        }
    });
}

/// `rialto.unary/1`.
pub(crate) fn unary(op: &Unary, inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([x], [out]) = (inputs, outputs) else {
        unreachable!("the signature has one input and one output");
    };
    let function = match op.function {
        UnaryFunction::Silu => function::silu,
        UnaryFunction::Sigmoid => function::sigmoid,
        UnaryFunction::Relu => function::relu,
        UnaryFunction::Tanh => function::tanh,
        UnaryFunction::Exp => function::exp,
    };
    map(x.floats(), out.floats(), function);
}

/// `rialto.binary/1`.
pub(crate) fn binary(op: &Binary, inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([x, y], [out]) = (inputs, outputs) else {
        unreachable!("the signature has two inputs and one output");
    };
    let (x, y, out) = (x.floats(), y.floats(), out.floats());
    match op.function {
        BinaryFunction::Add => combine(x, y, out, |x, y| x + y),
        BinaryFunction::Subtract => combine(x, y, out, |x, y| x - y),
        BinaryFunction::Multiply => combine(x, y, out, |x, y| x * y),
        BinaryFunction::Divide => combine(x, y, out, |x, y| x / y),
    }
}

/// `rialto.scale/1`.
pub(crate) fn scale(op: &Scale, inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([x], [out]) = (inputs, outputs) else {
        unreachable!("the signature has one input and one output");
    };
    let factor = op.factor as f32;
    map(x.floats(), out.floats(), |x| factor * x);
}

/// `rialto.softmax/1`.
pub(crate) fn softmax(inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([x], [out]) = (inputs, outputs) else {
        unreachable!("the signature has one input and one output");
    };
    let (n, x) = (x.last(), x.floats());
    out.floats().compute_rows(n, |at, row| {
        x.widen(at * n, row);
        let total = rows::exponentials(row);
        row.iter_mut().for_each(|number| *number /= total);
    });
}

/// `rialto.reduce/1`.
pub(crate) fn reduce(op: &Reduce, inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    /// Rows that are one piece of work.
    const ROWS: usize = 16;

    let ([x], [out]) = (inputs, outputs) else {
        unreachable!("the signature has one input and one output");
    };
    let (n, x) = (x.last(), x.floats());
    let sum = |row: &[f32]| rows::sum(row, |number| number);
    out.floats().compute_rows(ROWS, |at, out| {
        let mut row = vec![0.0; n];
        for (index, out) in out.iter_mut().enumerate() {
            x.widen((at * ROWS + index) * n, &mut row);
            *out = match op.function {
                ReduceFunction::Sum => sum(&row),
                ReduceFunction::Mean => sum(&row) / n as f32,
                ReduceFunction::Max if row.iter().any(|number| number.is_nan()) => f32::NAN,
                ReduceFunction::Max => rows::largest(&row),
            };
        }
    });
}

/// `rialto.gather/1`.
pub(crate) fn gather(inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([x, indices], [out]) = (inputs, outputs) else {
        unreachable!("the signature has two inputs and one output");
    };
    let (count, width, indices) = (x.shape[0], x.row(), indices.ints());
    if let Elements::I32(x) = x.elements {
        let rows = out.ints().par_chunks_mut(width).enumerate();
        rows.for_each(|(at, out)| match index(indices[at], count) {
            Some(row) => out.copy_from_slice(&x[row * width..][..width]),
            None => out.fill(0),
        });
        return;
    }
    let x = x.floats();
    out.floats()
        .store_rows(width, |at, out| match index(indices[at], count) {
            Some(row) => out.copy(x.part(row * width, width)),
            None => out.zero(),
        });
}

/// `rialto.concat/1`.
pub(crate) fn concat(inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([x, y], [out]) = (inputs, outputs) else {
        unreachable!("the signature has two inputs and one output");
    };
    let (n, m) = (x.last(), y.last());
    let (x, y) = (x.floats(), y.floats());
    out.floats().store_rows(n + m, |at, mut out| {
        out.part(0, n).copy(x.part(at * n, n));
        out.part(n, m).copy(y.part(at * m, m));
    });
}

/// `rialto.slice/1`.
pub(crate) fn slice(op: &Slice, inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([x], [out]) = (inputs, outputs) else {
        unreachable!("the signature has one input and one output");
    };
    let (n, x) = (x.last(), x.floats());
    let (start, length) = (op.start as usize, op.length as usize);
    out.floats().store_rows(length, |at, out| {
        out.copy(x.part(at * n + start, length));
    });
}

/// `rialto.reshape/1`, and `rialto.cast/1`: the same numbers in the same order.
pub(crate) fn copy(inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([x], [out]) = (inputs, outputs) else {
        unreachable!("the signature has one input and one output");
    };
    let x = x.floats();
    out.floats().store_rows(CHUNK, |at, out| {
        let length = out.len();
        out.copy(x.part(at * CHUNK, length));
    });
}
