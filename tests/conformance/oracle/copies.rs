//! What moves elements and computes nothing. Results are bytes: a copy keeps also the sign of zero and the bits of NaN.

use rialto_program::op::Slice;
use rialto_tensor::Dtype;

use super::Expected;
use crate::input::{Input, encode};

/// Rows of a table, which may have another element type; -1 for zeros.
fn rows(table: &Input, indices: &[i32], out: Dtype) -> Vec<u8> {
    let count = table.extent(0);
    let bytes = match table.dtype() == out {
        true => table.bytes.clone(),
        false => encode(out, &table.values()),
    };
    let of_row: u64 = table.shape()[1..].iter().product();
    let size = (of_row * out.size_bytes()) as usize;
    let mut made = Vec::with_capacity(indices.len() * size);
    for &index in indices {
        match usize::try_from(index) {
            Ok(index) => {
                assert!(index < count, "row {index} of {count}");
                made.extend_from_slice(&bytes[index * size..(index + 1) * size]);
            }
            Err(_) => made.resize(made.len() + size, 0),
        }
    }
    made
}

pub(crate) fn embed(inputs: &[Input], out: Dtype) -> Expected {
    Expected::Bytes(rows(&inputs[1], &inputs[0].integers(), out))
}

pub(crate) fn gather(inputs: &[Input]) -> Expected {
    let out = inputs[0].dtype();
    Expected::Bytes(rows(&inputs[0], &inputs[1].integers(), out))
}

/// Bytes of a row of the last axis.
fn last_bytes(input: &Input) -> usize {
    let last = input.shape().last().copied().unwrap_or(1);
    (last * input.dtype().size_bytes()) as usize
}

pub(crate) fn concat(inputs: &[Input]) -> Expected {
    let [x, y] = [&inputs[0], &inputs[1]];
    let (n, m) = (last_bytes(x), last_bytes(y));
    let shape = x.shape();
    let rows: u64 = shape[..shape.len() - 1].iter().product();
    let mut made = Vec::with_capacity(x.bytes.len() + y.bytes.len());
    for row in 0..rows as usize {
        made.extend_from_slice(&x.bytes[row * n..(row + 1) * n]);
        made.extend_from_slice(&y.bytes[row * m..(row + 1) * m]);
    }
    Expected::Bytes(made)
}

pub(crate) fn slice(op: &Slice, inputs: &[Input]) -> Expected {
    let x = &inputs[0];
    let size = x.dtype().size_bytes() as usize;
    let (begin, length) = (op.start as usize * size, op.length as usize * size);
    let rows = x.bytes.chunks_exact(last_bytes(x).max(1));
    Expected::Bytes(
        rows.flat_map(|row| row[begin..begin + length].to_vec())
            .collect(),
    )
}

/// The cache after its rows were written; everything else as it was.
pub(crate) fn append(inputs: &[Input]) -> Vec<u8> {
    let [rows, cache] = [&inputs[0], &inputs[1]];
    let [seqs, positions, table] = [2, 3, 4].map(|input| inputs[input].integers());
    let (page, columns) = (cache.extent(1), inputs[4].extent(1));
    let size = last_bytes(cache);
    let given = match rows.dtype() == cache.dtype() {
        true => rows.bytes.clone(),
        false => encode(cache.dtype(), &rows.values()),
    };
    let mut made = cache.bytes.clone();
    for (token, (&seq, &position)) in seqs.iter().zip(&positions).enumerate() {
        let (Ok(seq), Ok(position)) = (usize::try_from(seq), usize::try_from(position)) else {
            continue;
        };
        let column = position / page;
        let number = match column < columns {
            true => table[seq * columns + column],
            false => -1,
        };
        if let Ok(number) = usize::try_from(number) {
            let begin = (number * page + position % page) * size;
            made[begin..begin + size].copy_from_slice(&given[token * size..(token + 1) * size]);
        }
    }
    made
}
