//! Choices: of positions, of tokens.

use rialto_program::op::TopK;

use super::plain::shares;
use super::{Answer, Expected};
use crate::input::Input;
use crate::numbers::{DIVISION, U, exp_error, gamma};

/// Positions that may be chosen, the largest first and of equal ones the lower.
fn descending(row: &[f64], may: impl Fn(f64) -> bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).filter(|&at| may(row[at])).collect();
    // Adding 0 makes 0 of -0, so that both are equal; the sort is stable.
    order.sort_by(|&a, &b| (row[b] + 0.0).total_cmp(&(row[a] + 0.0)));
    order
}

pub(crate) fn topk(op: &TopK, inputs: &[Input]) -> Vec<i32> {
    let scores = inputs[0].values();
    let (t, n, k) = (inputs[0].extent(0), inputs[0].extent(1), op.k as usize);
    let mut made = Vec::with_capacity(t * k);
    for row in 0..t {
        let row = &scores[row * n..(row + 1) * n];
        let mut chosen = descending(row, |x| !x.is_nan() && x != f64::NEG_INFINITY);
        chosen.truncate(k);
        chosen.sort_unstable();
        made.extend(chosen.iter().map(|&at| at as i32));
        made.resize(made.len() + k - chosen.len(), -1);
    }
    made
}

/// The largest, the lower of equal ones; -1 if none is a number.
fn largest(row: &[f64]) -> i32 {
    let order = descending(row, |x| !x.is_nan());
    order.first().map_or(-1, |&at| at as i32)
}

pub(crate) fn argmax(inputs: &[Input]) -> Vec<i32> {
    let logits = inputs[0].values();
    let (r, v) = (inputs[0].extent(0), inputs[0].extent(1));
    (0..r)
        .map(|row| largest(&logits[row * v..(row + 1) * v]))
        .collect()
}

/// How a row is cut and drawn from.
struct Draw {
    temperature: f64,
    top_k: i32,
    top_p: f64,
    min_p: f64,
    draw: f64,
}

pub(crate) fn sample(inputs: &[Input]) -> Answer {
    let logits = inputs[0].values();
    let (r, v) = (inputs[0].extent(0), inputs[0].extent(1));
    let [temperature, top_p, min_p, draw] = [1, 3, 4, 5].map(|input| inputs[input].values());
    let top_k = inputs[2].integers();
    let (mut tokens, mut doubt) = (Vec::with_capacity(r), None);
    for row in 0..r {
        let how = Draw {
            temperature: temperature[row],
            top_k: top_k[row],
            top_p: top_p[row],
            min_p: min_p[row],
            draw: draw[row],
        };
        let (token, in_doubt) = drawn(&logits[row * v..(row + 1) * v], &how);
        tokens.push(token);
        doubt = doubt.or(in_doubt.map(|reason| format!("row {row}: {reason}")));
    }
    Answer {
        doubt,
        ..Expected::Ints(tokens).into()
    }
}

fn drawn(row: &[f64], how: &Draw) -> (i32, Option<String>) {
    let order = descending(row, |x| !x.is_nan());
    if order.is_empty() || how.temperature == 0.0 {
        return (largest(row), None);
    }
    let scaled: Vec<f64> = order.iter().map(|&at| row[at] / how.temperature).collect();
    let chances: Vec<f64> = shares(&scaled).iter().map(|(share, _)| *share).collect();
    // What a chance may be off by, relative, compared with another chance of the row: the quotient by the temperature, the difference
    // to the largest, the exponential. That of the likely ones, where anything is decided.
    let each = scaled
        .iter()
        .zip(&chances)
        .filter(|(_, chance)| **chance > 1e-6)
        .map(|(z, _)| {
            let below = scaled[0] - z;
            (DIVISION * z.abs() + U * below).exp_m1() + exp_error(below) + DIVISION
        })
        .fold(0.0, f64::max);
    let mut doubt = None;
    let mut near = |what: &str, a: f64, b: f64, off: f64| {
        // Where both are the same number, they are so on purpose.
        if a != b && (a - b).abs() <= 2.0 * off * a.abs().max(b.abs()) {
            doubt = Some(format!("{what}: {a:e} or {b:e}"));
        }
    };
    let mut kept = match usize::try_from(how.top_k) {
        Ok(count) if count > 0 => count.min(order.len()),
        _ => order.len(),
    };
    if kept < order.len() {
        near("top_k", chances[kept - 1], chances[kept], each);
    }
    // Parts of what was kept so far. A sum of them is compared with a number: its roundings, and those of the sum of all below it.
    let of_top_k = 2.0 * (each + gamma(kept));
    let whole: f64 = chances[..kept].iter().sum();
    let mut sum = 0.0;
    if how.top_p < 1.0 {
        for (position, chance) in chances[..kept].iter().enumerate() {
            near("top_p", sum, how.top_p, of_top_k);
            sum += chance / whole;
            if sum >= how.top_p {
                near("top_p", sum, how.top_p, of_top_k);
                kept = position + 1;
                break;
            }
        }
    }
    let floor = how.min_p * chances[0];
    if how.min_p > 0.0 {
        for &chance in &chances[..kept] {
            near("min_p", chance, floor, each);
        }
        kept = chances[..kept]
            .iter()
            .take_while(|chance| **chance >= floor)
            .count();
    }
    // Here the sum of all falls out.
    let of_kept = 2.0 * (each + gamma(kept));
    let all: f64 = chances[..kept].iter().sum();
    let mut sum = 0.0;
    for position in 0..kept {
        let before = sum;
        sum += chances[position];
        if sum > how.draw * all {
            if position > 0 {
                near("draw", before, how.draw * all, of_kept);
                near("order", chances[position - 1], chances[position], each);
            }
            if position + 1 < kept {
                near("draw", sum, how.draw * all, of_kept);
                near("order", chances[position], chances[position + 1], each);
            }
            return (order[position] as i32, doubt);
        }
    }
    // Only roundings of F64 come here: a draw is less than 1.
    (order[kept - 1] as i32, doubt)
}
