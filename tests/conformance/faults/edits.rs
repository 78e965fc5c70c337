//! What faults do to bytes: of an input before it is read, of an output after it was made.

use rialto_program::Op;
use rialto_program::op::Pairing;
use rialto_tensor::Dtype;

use crate::input::{Input, decode, decode_ints, encode};
use crate::numbers;

pub(super) fn ints(bytes: &[u8], edit: impl FnOnce(&mut Vec<i32>)) -> Vec<u8> {
    let mut ints = decode_ints(bytes);
    edit(&mut ints);
    ints.iter().flat_map(|int| int.to_le_bytes()).collect()
}

pub(super) fn each_int(bytes: &[u8], edit: impl Fn(i32) -> i32) -> Vec<u8> {
    ints(bytes, |ints| {
        for int in ints {
            *int = edit(*int);
        }
    })
}

pub(super) fn each_f32(bytes: &[u8], edit: impl Fn(f64) -> f64) -> Vec<u8> {
    let values: Vec<f64> = decode(Dtype::F32, bytes).into_iter().map(edit).collect();
    encode(Dtype::F32, &values)
}

/// A token reads a position more than its own, where there is one: the mask is off by one.
pub(super) fn one_later(_: &Op, given: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    let table = &given[given.len() - 1];
    let cache = given.iter().rev().find(|input| input.shape().len() == 3);
    let page = cache.map_or(1, |cache| cache.shape()[1]);
    let (columns, pages) = (table.extent(1), table.integers());
    let seqs = given[given.len() - 3].integers();
    ints(&bytes, |positions| {
        for (position, seq) in positions.iter_mut().zip(seqs) {
            let column = (*position as usize + 1) / page as usize;
            let has_page =
                seq >= 0 && column < columns && pages[seq as usize * columns + column] >= 0;
            *position += i32::from(has_page);
        }
    })
}

/// A token does not read itself, where there is another.
pub(super) fn one_earlier(_: &Op, _: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    each_int(&bytes, |position| (position - 1).max(0))
}

/// Position `p` is taken to lie in page `p / page` of the pool, whatever the table says.
pub(super) fn pages_in_order(_: &Op, given: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    let columns = given[given.len() - 1].extent(1).max(1);
    ints(&bytes, |pages| {
        for (at, page) in pages.iter_mut().enumerate() {
            if *page >= 0 {
                *page = (at % columns) as i32;
            }
        }
    })
}

pub(super) fn zeros(_: &Op, _: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    vec![0; bytes.len()]
}

pub(super) fn ones_f32(_: &Op, _: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    each_f32(&bytes, |_| 1.0)
}

pub(super) fn copies_its_input(_: &Op, given: &[Input], _: Vec<u8>) -> Vec<u8> {
    given[0].bytes.clone()
}

pub(super) fn next_row_of_scales(scales: &mut [f64], shape: &[u64]) {
    let across = shape.last().copied().unwrap_or(1) as usize;
    let by = across.min(scales.len());
    scales.rotate_left(by);
}

/// The last block's scale for the first.
pub(super) fn scales_upside_down(scales: &mut [f64], _: &[u64]) {
    scales.reverse();
}

pub(super) fn minus_one_as_zero(_: &Op, _: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    each_int(&bytes, |int| if int == -1 { 0 } else { int })
}

pub(super) fn truncate(value: f64) -> f64 {
    let bits = (value as f32).to_bits() & 0xffff_0000;
    f32::from_bits(bits).into()
}

/// To 11 digits and then to 8, as by way of F16.
pub(super) fn twice(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let quantum = 2f64.powi(value.abs().log2().floor() as i32 - 10);
    numbers::bf16((value / quantum).round_ties_even() * quantum)
}

pub(super) fn rows_of(bytes: &[u8], width: usize, edit: impl Fn(&mut [i32])) -> Vec<u8> {
    ints(bytes, |ints| {
        for row in ints.chunks_exact_mut(width.max(1)) {
            edit(row);
        }
    })
}

pub(super) fn width_of_topk(op: &Op) -> usize {
    match op {
        Op::TopK(op) => op.k as usize,
        _ => 1,
    }
}

/// By score instead of by position.
pub(super) fn by_score(op: &Op, given: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    let n = given[0].extent(1);
    let scores = given[0].values();
    ints(&bytes, |ints| {
        for (row, ints) in ints.chunks_exact_mut(width_of_topk(op)).enumerate() {
            let score = |&at: &i32| match at {
                -1 => f64::NEG_INFINITY,
                at => scores[row * n + at as usize],
            };
            ints.sort_by(|a, b| score(b).total_cmp(&score(a)));
        }
    })
}

/// Of equal scores the last wins: the boundary score's lowest position is changed for its highest that was left out.
pub(super) fn last_of_ties(op: &Op, given: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    let n = given[0].extent(1);
    let scores = given[0].values();
    ints(&bytes, |ints| {
        for (row, ints) in ints.chunks_exact_mut(width_of_topk(op)).enumerate() {
            let scores = &scores[row * n..(row + 1) * n];
            let chosen: Vec<i32> = ints.iter().copied().filter(|&at| at >= 0).collect();
            let least = chosen
                .iter()
                .copied()
                .min_by(|a, b| scores[*a as usize].total_cmp(&scores[*b as usize]));
            let Some(least) = least else { continue };
            let left = (0..n as i32)
                .rev()
                .find(|at| !chosen.contains(at) && scores[*at as usize] == scores[least as usize]);
            let Some(left) = left else { continue };
            for int in ints.iter_mut().filter(|int| **int == least) {
                *int = left;
            }
            ints[..chosen.len()].sort_unstable();
        }
    })
}

pub(super) fn last_of_equal_logits(_: &Op, given: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    let v = given[0].extent(1);
    let logits = given[0].values();
    ints(&bytes, |tokens| {
        for (token, row) in tokens.iter_mut().zip(logits.chunks_exact(v)) {
            if *token >= 0 {
                let largest = row[*token as usize];
                let last = row.iter().rposition(|&logit| logit == largest);
                *token = last.map_or(-1, |at| at as i32);
            }
        }
    })
}

/// Weights are larger with the bias, as if what chooses would weigh.
pub(super) fn bias_weighs(_: &Op, given: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    let Some(bias) = given.get(1).map(Input::values) else {
        return bytes;
    };
    let largest = bias
        .iter()
        .fold(0.0, |most: f64, bias| most.max(bias.abs()));
    each_f32(&bytes, |weight| weight * (1.0 + largest))
}

pub(super) fn reversed_pairs(_: &Op, given: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    rows_of(&bytes, given[1].extent(1), <[i32]>::reverse)
}

pub(super) fn next_expert(_: &Op, given: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    let experts = given[3].shape()[0] as i32;
    each_int(&bytes, |id| if id < 0 { id } else { (id + 1) % experts })
}

pub(super) fn duplicates_once(_: &Op, given: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    rows_of(&bytes, given[2].extent(1), |row| {
        for at in 1..row.len() {
            if row[..at].contains(&row[at]) {
                row[at] = -1;
            }
        }
    })
}

/// What is beyond a token's own position is read as if it were that.
pub(super) fn clamped_indices(_: &Op, given: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    let (k, positions) = (given[2].extent(1), given[5].integers());
    ints(&bytes, |ints| {
        for (row, position) in ints.chunks_exact_mut(k.max(1)).zip(positions) {
            for int in row {
                *int = (*int).min(position);
            }
        }
    })
}

/// A leading block without a position spoils the row: its largest logit was -inf, and the difference to it NaN.
pub(super) fn leading_nothing_is_nan(_: &Op, given: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    let dtype = given[0].dtype();
    let of_token = given[0].extent(1) * given[0].extent(2);
    let k = given[2].extent(1);
    let indices = given[2].integers();
    let mut values = decode(dtype, &bytes);
    if k >= 64 {
        for (token, row) in indices.chunks_exact(k).enumerate() {
            if row[..64].iter().all(|&index| index == -1) {
                values[token * of_token..(token + 1) * of_token].fill(f64::NAN);
            }
        }
    }
    encode(dtype, &values)
}

/// Heads are taken to go round the groups.
pub(super) fn heads_around(op: &Op, given: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    let Op::Gqa(op) = op else { return bytes };
    let (heads, d) = (given[0].extent(1), given[0].extent(2));
    let each = heads / op.groups as usize;
    let values = given[0].values();
    let at = |row: usize, head: usize| {
        let other = head % each * op.groups as usize + head / each;
        (row * heads + other) * d
    };
    let mut moved = Vec::with_capacity(values.len());
    for row in 0..given[0].extent(0) {
        for head in 0..heads {
            moved.extend_from_slice(&values[at(row, head)..at(row, head) + d]);
        }
    }
    encode(given[0].dtype(), &moved)
}

pub(super) fn no_weight_below_zero(_: &Op, _: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    each_f32(&bytes, |weight| weight.max(0.0))
}

/// A large negative number where it should say that there is nothing.
pub(super) fn finite_mask(_: &Op, _: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    each_f32(&bytes, |score| {
        if score == f64::NEG_INFINITY {
            -1e30
        } else {
            score
        }
    })
}

pub(super) fn rows_depend_on_their_number(_: &Op, given: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    // One bit of the first row, as another order of additions would have it, if there are more rows.
    let mut bytes = bytes;
    if given[0].shape()[0] > 1 && given[0].shape().len() == 2 && !bytes.is_empty() {
        bytes[0] ^= 1;
    }
    bytes
}

pub(super) fn no_scale_of_zeros(_: &Op, _: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    each_f32(&bytes, |scale| if scale == 1.0 { 0.0 } else { scale })
}

pub(super) fn infinity_as_nan(_: &Op, given: &[Input], mut bytes: Vec<u8>) -> Vec<u8> {
    for (code, x) in bytes.iter_mut().zip(given[0].values()) {
        if x.is_infinite() {
            *code |= 0x7f;
        }
    }
    bytes
}

pub(super) fn codes_towards_zero(_: &Op, _: &[Input], mut bytes: Vec<u8>) -> Vec<u8> {
    for code in bytes.iter_mut().filter(|code| **code & 7 > 0) {
        *code -= 1;
    }
    bytes
}

pub(super) fn swapped(_: &Op, given: &[Input], _: Vec<u8>) -> Vec<u8> {
    given[1].bytes.clone()
}

/// What a sum with 0 does to it.
pub(super) fn negative_zero_is_lost(_: &Op, _: &[Input], bytes: Vec<u8>) -> Vec<u8> {
    match bytes.len() % 4 {
        0 => each_f32(&bytes, |value| value + 0.0),
        _ => bytes,
    }
}

pub(super) fn other_pairing(op: Op) -> Op {
    match op {
        Op::Rope(mut rope) => {
            rope.pairing = match rope.pairing {
                Pairing::Interleaved => Pairing::HalfSplit,
                Pairing::HalfSplit => Pairing::Interleaved,
            };
            rope.into()
        }
        other => other,
    }
}

/// The type of what was made of codes, by its bytes.
pub(super) fn dtype_of(given: &[Input], bytes: &[u8]) -> Dtype {
    match bytes.len() == 4 * given[0].bytes.len() {
        true => Dtype::F32,
        false => Dtype::Bf16,
    }
}
