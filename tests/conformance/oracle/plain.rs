//! Functions of elements and rows.

use rialto_program::op::{
    Binary, BinaryFunction, Pairing, Reduce, ReduceFunction, Rope, Scale, Unary, UnaryFunction,
};
use rialto_tensor::Dtype;

use super::Expected;
use crate::input::Input;
use crate::numbers::{self, DIVISION, Span, TINY, U, exp_error, gamma};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// What `1 / (1 + exp(-x))` is off by, relative: the exponential by its share of the sum, the sum, the division.
pub(super) fn sigmoid_error(x: f64) -> f64 {
    exp_error(x) * (1.0 - sigmoid(x)) + U + DIVISION
}

/// `x / (1 + exp(-x))`, or the sigmoid times `x`: one rounding more. Where the exponential is infinite or is flushed, `x` is beyond
/// 87 and the result less than 100 of the least number.
fn silu(x: f64) -> Span {
    let value = x * sigmoid(x);
    let off = value.abs() * (sigmoid_error(x) + 2.0 * U) + 100.0 * TINY;
    Span::around(value, if x == 0.0 { 0.0 } else { off })
}

/// The least of silu lies here, `-0.2784645`.
const LEAST_AT: f64 = -1.278_464_542_761_074;

/// [`silu`] of all numbers in a span: it falls up to its least and grows from there.
pub(super) fn silu_of(x: Span) -> Span {
    let (a, b) = (silu(x.low), silu(x.high));
    let low = match x.low < LEAST_AT && LEAST_AT < x.high {
        true => silu(LEAST_AT).low,
        false => a.low.min(b.low),
    };
    Span {
        low,
        high: a.high.max(b.high),
    }
}

pub(crate) fn swiglu(inputs: &[Input]) -> Vec<Span> {
    let (gate, up) = (inputs[0].values(), inputs[1].values());
    let out = inputs[0].dtype();
    let pairs = gate.iter().zip(&up);
    pairs
        .map(|(&g, &u)| {
            let product = silu(g).times(Span::exact(u)).widen(U, TINY);
            match g == 0.0 || u == 0.0 {
                true => Span::exact(0.0),
                false => product.round(out),
            }
        })
        .collect()
}

pub(crate) fn unary(op: &Unary, inputs: &[Input]) -> Vec<Span> {
    let out = inputs[0].dtype();
    let function = |x: f64| match op.function {
        UnaryFunction::Silu => silu(x),
        UnaryFunction::Sigmoid => {
            let value = sigmoid(x);
            Span::around(value, value * sigmoid_error(x) + TINY)
        }
        UnaryFunction::Relu => Span::exact(x.max(0.0)),
        UnaryFunction::Tanh => {
            // As `1 - 2 / (exp(2x) + 1)`, the plainest way in F32: what the quotient is off by and the difference's own rounding.
            let quotient = 2.0 / ((2.0 * x).exp() + 1.0);
            let off = quotient * (exp_error(2.0 * x) + U + DIVISION) + U;
            Span::around(x.tanh(), off)
        }
        UnaryFunction::Exp => Span::around(x.exp(), x.exp() * exp_error(x) + TINY),
    };
    let values = inputs[0].values();
    values.into_iter().map(|x| function(x).round(out)).collect()
}

pub(crate) fn binary(op: &Binary, inputs: &[Input]) -> Vec<Span> {
    let (x, y) = (inputs[0].values(), inputs[1].values());
    let out = inputs[0].dtype();
    let each = x.iter().zip(y.iter().cycle());
    each.map(|(&x, &y)| {
        // One F32 operation, and another rounding if the result is BF16; both are to nearest, so there is one answer.
        let exact = |value: f64| Span::exact(numbers::round(out, numbers::f32(value)));
        match op.function {
            BinaryFunction::Add => exact(x + y),
            BinaryFunction::Subtract => exact(x - y),
            BinaryFunction::Multiply => exact(x * y),
            BinaryFunction::Divide => {
                let quotient = x / y;
                Span::around(quotient, quotient.abs() * DIVISION).round(out)
            }
        }
    })
    .collect()
}

pub(crate) fn scale(op: &Scale, inputs: &[Input]) -> Vec<Span> {
    let out = inputs[0].dtype();
    let factor = numbers::f32(op.factor);
    let values = inputs[0].values().into_iter();
    values
        .map(|x| Span::exact(numbers::round(out, numbers::f32(factor * x))))
        .collect()
}

pub(crate) fn cast(inputs: &[Input], out: Dtype) -> Expected {
    match inputs[0].dtype() == out {
        true => Expected::Bytes(inputs[0].bytes.clone()),
        false => {
            let values = inputs[0].values().into_iter();
            let rounded: Vec<f64> = values.map(|x| numbers::round(out, x)).collect();
            Expected::exactly(&rounded)
        }
    }
}

/// Elements of the last axis, and how many rows there are.
fn last(input: &Input) -> (usize, usize) {
    let shape = input.shape();
    let (n, of) = (shape[shape.len() - 1], &shape[..shape.len() - 1]);
    (n as usize, of.iter().product::<u64>() as usize)
}

pub(crate) fn softmax(inputs: &[Input]) -> Vec<Span> {
    let x = inputs[0].values();
    let out = inputs[0].dtype();
    let (n, _) = last(&inputs[0]);
    let mut spans = Vec::with_capacity(x.len());
    for row in x.chunks_exact(n.max(1)) {
        spans.extend(
            shares(row)
                .into_iter()
                .map(|(value, off)| Span::around(value, off).round(out)),
        );
    }
    spans
}

/// The softmax of a row, and what each share is off by: the difference to the largest is rounded, the exponential is off by its own
/// bound, and the sum of these by the mean of both and its roundings.
pub(super) fn shares(row: &[f64]) -> Vec<(f64, f64)> {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        return vec![(0.0, 0.0); row.len()];
    }
    let weights: Vec<f64> = row.iter().map(|x| (x - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    let off: Vec<f64> = row
        .iter()
        .map(|x| match largest - x {
            // exp(-inf) is 0.
            below if below.is_infinite() => 0.0,
            below => (U * below).exp_m1() + exp_error(below),
        })
        .collect();
    let shares = weights.iter().map(|weight| weight / total);
    let total_off = gamma(row.len())
        + shares
            .clone()
            .zip(&off)
            .map(|(p, off)| p * off)
            .sum::<f64>();
    shares
        .zip(&off)
        .map(|(p, off)| {
            let relative = (off + total_off + DIVISION) * (1.0 + 2.0 * total_off);
            (p, p * relative + if p == 0.0 { 0.0 } else { TINY })
        })
        .collect()
}

pub(crate) fn reduce(op: &Reduce, inputs: &[Input]) -> Vec<Span> {
    let x = inputs[0].values();
    let out = inputs[0].dtype();
    let (n, rows) = last(&inputs[0]);
    let row = |number: usize| {
        let row = &x[number * n..(number + 1) * n];
        let sum: f64 = row.iter().sum();
        let off = gamma(n.saturating_sub(1)) * row.iter().map(|x| x.abs()).sum::<f64>();
        match op.function {
            ReduceFunction::Sum => Span::around(sum, off).round(out),
            // 0 / 0.
            ReduceFunction::Mean if n == 0 => Span::exact(f64::NAN),
            ReduceFunction::Mean => {
                let mean = sum / n as f64;
                let off = off / n as f64;
                Span::around(mean, off + DIVISION * (mean.abs() + off)).round(out)
            }
            ReduceFunction::Max if row.iter().any(|x| x.is_nan()) => Span::exact(f64::NAN),
            ReduceFunction::Max => {
                Span::exact(row.iter().copied().fold(f64::NEG_INFINITY, f64::max))
            }
        }
    };
    (0..rows).map(row).collect()
}

pub(crate) fn rope(op: &Rope, inputs: &[Input]) -> Vec<Span> {
    let (x, positions) = (inputs[0].values(), inputs[1].integers());
    let out = inputs[0].dtype();
    let (d, _) = last(&inputs[0]);
    let heads: u64 = inputs[0].shape()[1..].iter().product::<u64>() / (d as u64).max(1);
    let (dims, first) = (op.dims as usize, op.first as usize);
    let mut spans: Vec<Span> = x.iter().copied().map(Span::exact).collect();
    for row in 0..spans.len() / d.max(1) {
        let position = f64::from(positions[row / heads as usize]);
        if position < 0.0 {
            continue;
        }
        for j in 0..dims / 2 {
            let (a, b) = match op.pairing {
                Pairing::Interleaved => (2 * j, 2 * j + 1),
                Pairing::HalfSplit => (j, j + dims / 2),
            };
            let [a, b] = [a, b].map(|element| row * d + first + element);
            let angle = position * op.theta.powf(-2.0 * j as f64 / dims as f64);
            let (sine, cosine) = (numbers::f32(angle.sin()), numbers::f32(angle.cos()));
            // A power in F64 is off by an ulp or two of the angle, which may move a rounding of sine or cosine by one of F32.
            let table = angle * 2f64.powi(-51) + U * f64::from(angle != 0.0);
            let turned = |p: f64, q: f64| {
                let magnitude = (x[a] * p).abs() + (x[b] * q).abs();
                let off = (x[a].abs() + x[b].abs()) * table;
                Span::around(x[a] * p + x[b] * q, gamma(2) * magnitude + off + TINY).round(out)
            };
            spans[a] = turned(cosine, -sine);
            spans[b] = turned(sine, cosine);
        }
    }
    spans
}
