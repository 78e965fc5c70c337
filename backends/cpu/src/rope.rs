//! Rotary position embedding.

use rialto_program::op::{Pairing, Rope};
use rialto_tensor::format::bf16;

use crate::operand::{FloatsMut, Tensor, TensorMut};

/// `rialto.rope/1`.
pub(crate) fn rope(op: &Rope, inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([x, row_pos], [out]) = (inputs, outputs) else {
        unreachable!("the signature has two inputs and one output");
    };
    let (width, row) = (x.last(), x.row());
    let (x, row_pos) = (x.floats(), row_pos.ints());
    let (first, dims) = (op.first as usize, op.dims as usize);
    let pairs = dims / 2;
    let frequencies: Vec<f64> = (0..pairs)
        .map(|pair| op.theta.powf(-2.0 * pair as f64 / dims as f64))
        .collect();
    out.floats().store_rows(row, |token, mut out| {
        let position = row_pos[token];
        out.part(0, row).copy(x.part(token * row, row));
        if position < 0 {
            return;
        }
        // Once for all heads of the token.
        let turns: Vec<(f32, f32)> = frequencies
            .iter()
            .map(|frequency| (f64::from(position) * frequency).sin_cos())
            .map(|(sine, cosine)| (sine as f32, cosine as f32))
            .collect();
        let of_pair = |pair: usize| match op.pairing {
            Pairing::Interleaved => (2 * pair, 2 * pair + 1),
            Pairing::HalfSplit => (pair, pair + pairs),
        };
        for head in (0..row).step_by(width) {
            let head = head + first;
            for (pair, &turn) in turns.iter().enumerate() {
                let (a, b) = of_pair(pair);
                rotate(&mut out, head + a, head + b, turn);
            }
        }
    });
}

/// Rotates two elements where they are.
fn rotate(out: &mut FloatsMut<'_>, a: usize, b: usize, (sine, cosine): (f32, f32)) {
    let rotated = |a: f32, b: f32| (a * cosine - b * sine, b * cosine + a * sine);
    match out {
        FloatsMut::F32(out) => (out[a], out[b]) = rotated(out[a], out[b]),
        FloatsMut::Bf16(out) => {
            let (x, y) = rotated(bf16::decode(out[a]), bf16::decode(out[b]));
            (out[a], out[b]) = (bf16::round(x), bf16::round(y));
        }
    }
}
