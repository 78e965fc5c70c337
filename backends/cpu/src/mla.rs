//! Multi-latent attention over a cache of latents.

use rayon::prelude::*;
use rialto_program::op::{MlaAbsorb, MlaExpand, SparseMla};

use crate::attention::Attention;
use crate::operand::{Tensor, TensorMut, index};
use crate::pages::Pages;
use crate::rows;
use crate::weight::{self, Matrix};

/// Most heads of a token that share the positions of a block while these are F32.
const HEADS: usize = 16;

/// `rialto.mla_absorb/1`.
///
/// The sum goes over rows of the matrix, not over columns: rows are scaled and added, eight at a time, while they are in the caches.
pub(crate) fn mla_absorb(op: &MlaAbsorb, inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([q, kv_b], [out]) = (inputs, outputs) else {
        unreachable!("the signature has two inputs and one output");
    };
    let ([tokens, heads, nope], latent) = (q.axes(), out.last());
    let (q, matrix) = (q.floats().widened(), Matrix::of(*kv_b, 0));
    let rows_of_head = nope + op.value as usize;
    // By head, so that each row is decoded once for all tokens.
    let mut results = vec![0.0; heads * tokens * latent];
    let by_head = results.par_chunks_mut(tokens * latent).enumerate();
    by_head.for_each_init(Vec::new, |scratch, (head, results)| {
        for begin in (0..nope).step_by(rows::FOLD) {
            let count = rows::FOLD.min(nope - begin);
            let rows = matrix.rows(head * rows_of_head + begin, count, scratch);
            for (token, out) in results.chunks_exact_mut(latent).enumerate() {
                let factors = &q[(token * heads + head) * nope + begin..][..count];
                rows::accumulate(out, factors, rows);
            }
        }
    });
    out.floats().compute_rows(latent, |at, out| {
        let (token, head) = (at / heads, at % heads);
        out.copy_from_slice(&results[(head * tokens + token) * latent..][..latent]);
    });
}

/// `rialto.sparse_mla/1`.
pub(crate) fn sparse_mla(op: &SparseMla, inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let [q, q_rope, indices, cache, row_seq, row_pos, page_table] = inputs else {
        unreachable!("the signature has seven inputs");
    };
    let [out] = outputs else {
        unreachable!("the signature has one output");
    };
    let ([_, heads, latent], rope) = (q.axes(), q_rope.last());
    let width = latent + rope;
    let k = indices.last();
    let pages = Pages::new(cache.shape, *row_seq, *row_pos, *page_table);
    let (q, q_rope, cache) = (q.floats(), q_rope.floats(), cache.floats());
    let indices = indices.ints();
    let together = (1..=HEADS.min(heads)).rev();
    let together = together
        .into_iter()
        .find(|&count| heads.is_multiple_of(count));
    let together = together.unwrap_or(1);
    out.floats().compute_rows(together * latent, |at, out| {
        let first = at * together;
        let token = first / heads;
        let rows: Vec<usize> = pages.of(token).map_or_else(Vec::new, |sequence| {
            let given = indices[token * k..][..k].iter();
            given
                .filter_map(|&position| index(position, sequence.positions()))
                .filter_map(|position| sequence.row(position))
                .collect()
        });
        let mut queries = vec![0.0; together * width];
        for (head, query) in queries.chunks_exact_mut(width).enumerate() {
            let (of_latent, of_rope) = query.split_at_mut(latent);
            q.widen((first + head) * latent, of_latent);
            q_rope.widen((first + head) * rope, of_rope);
        }
        let attention = Attention {
            width,
            value_width: latent,
            scale: op.scale as f32,
            positions: rows.len(),
            key: |at: usize, key: &mut [f32]| cache.widen(rows[at] * width, key),
            value: |at: usize, value: &mut [f32]| cache.widen(rows[at] * width, value),
        };
        attention.attend(&queries, out);
    });
}

/// `rialto.mla_expand/1`.
pub(crate) fn mla_expand(op: &MlaExpand, inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([x, kv_b], [out]) = (inputs, outputs) else {
        unreachable!("the signature has two inputs and one output");
    };
    let ([tokens, heads, latent], [rows, _]) = (x.axes(), kv_b.axes());
    let (x, matrix) = (x.floats().widened(), Matrix::of(*kv_b, 0));
    let (value, rows_of_head) = (op.value as usize, rows / heads);
    let vectors = weight::vectors(&x, latent, tokens * heads);
    let mut results = vec![0.0; heads * value * tokens];
    let by_head = results.par_chunks_mut(value * tokens).enumerate();
    by_head.for_each_init(Vec::new, |scratch, (head, results)| {
        let of_head = vectors.iter().skip(head).step_by(heads);
        let of_head: Vec<&[f32]> = of_head.copied().collect();
        let first = (head + 1) * rows_of_head - value;
        matrix.products(first, &of_head, scratch, results);
    });
    weight::transpose(&results, heads * value, out.floats());
}
