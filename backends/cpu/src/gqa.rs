//! Dense attention with grouped queries.

use rialto_program::op::Gqa;

use crate::attention::Attention;
use crate::operand::{Tensor, TensorMut};
use crate::pages::Pages;

/// `rialto.gqa/1`: the heads of a group share its keys and values while these are F32.
pub(crate) fn gqa(op: &Gqa, inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([q, keys, values, row_seq, row_pos, page_table], [out]) = (inputs, outputs) else {
        unreachable!("the signature has six inputs and one output");
    };
    let [_, heads, d] = q.axes();
    let groups = op.groups as usize;
    let width = groups * d;
    // Each cache in its own pages: the table numbers those of both.
    let in_keys = Pages::new(keys.shape, *row_seq, *row_pos, *page_table);
    let in_values = Pages::new(values.shape, *row_seq, *row_pos, *page_table);
    let (q, keys, values) = (q.floats().widened(), keys.floats(), values.floats());
    let together = heads / groups;
    out.floats().compute_rows(together * d, |at, out| {
        let (token, group) = (at / groups, at % groups);
        let rows: Vec<(usize, usize)> = match (in_keys.of(token), in_values.of(token)) {
            (Some(of_keys), Some(of_values)) => (0..of_keys.positions())
                .filter_map(|position| of_keys.row(position).zip(of_values.row(position)))
                .collect(),
            _ => Vec::new(),
        };
        let attention = Attention {
            width: d,
            value_width: d,
            scale: op.scale as f32,
            positions: rows.len(),
            key: |at: usize, key: &mut [f32]| keys.widen(rows[at].0 * width + group * d, key),
            value: |at: usize, value: &mut [f32]| {
                values.widen(rows[at].1 * width + group * d, value);
            },
        };
        attention.attend(&q[at * together * d..][..together * d], out);
    });
}
