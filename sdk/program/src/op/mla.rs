//! Multi-latent attention over a cache of latents, in the absorbed form: one row for each position, whatever the number of heads.

use serde::{Deserialize, Serialize};

use super::{Contract, Signature, shapes};
use crate::{Dim, Element, ValueType};

/// The rows of each head in the matrix that expands latents to keys and values: `nope` of keys, then `value` of values.
fn head_rows(weight: &ValueType, heads: Dim, nope: u64, value: u64) -> Result<Dim, String> {
    shapes::weight("kv_b", weight)?;
    let [rows, latent] = shapes::axes("kv_b", weight, "[heads * (nope + value), latent]")?;
    let (rows, heads) = (
        shapes::size("the rows of kv_b", *rows)?,
        shapes::size("the number of heads", heads)?,
    );
    let each = nope.checked_add(value);
    match each.and_then(|each| each.checked_mul(heads)) == Some(rows) {
        true => Ok(*latent),
        false => Err(format!(
            "kv_b has {rows} rows, {heads} heads of {nope} and {value} need another number"
        )),
    }
}

/// Queries against keys become queries against latents: `out[t, h] = q[t, h] W_k[h]`, where `W_k[h]` is rows
/// `h * (nope + value) .. + nope` of `kv_b`.
///
/// **Shapes**: `q` `[t, h, nope]`; `kv_b` `[h * (nope + value), latent]`, a weight as `linear` takes them; out
/// `[t, h, latent]`.
/// **Numerics**: as `linear`. A block's scale is that of the element's absolute row, which a head's rows may begin inside of.
/// **Determinism**: as `linear`.
/// **Backward**: `q`, `kv_b`.
/// **Source**: DeepSeek-V2, the absorbed form; `kv_b_proj`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MlaAbsorb {
    /// Rows of a head that make values.
    pub value: u64,
}

impl Contract for MlaAbsorb {
    const SIGNATURE: Signature = Signature {
        inputs: &["q", "kv_b"],
        optional: 0,
        outputs: &["out"],
        saved: &["q", "kv_b"],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [q, kv_b] = inputs else {
            unreachable!("the signature has two inputs");
        };
        shapes::float("q", q)?;
        let [_, heads, nope] = shapes::axes("q", q, "[t, h, nope]")?;
        let nope = shapes::size("the width of a head", *nope)?;
        let latent = head_rows(kv_b, *heads, nope, self.value)?;
        Ok(vec![q.with_last(latent)])
    }
}

/// Attention of each token to selected positions of its sequence, over latents.
///
/// With `key = [latent | rope]` a cache row, `logit[h, s] = scale * ([q[h] | q_rope[h]] . key[s])`, `p = softmax(logit)` over
/// the selected positions, `out[h] = sum_s p[h, s] * latent[s]`.
///
/// **Shapes**: `q` `[t, h, latent]`, absorbed; `q_rope` `[t, h, rope]`; `indices` I32 `[t, k]`; `cache`
/// `[pool, page, latent + rope]`; `row_seq`, `row_pos` I32 `[t]`; `page_table` I32 `[sequences, pages]`; out as `q`.
/// **Numerics**: logits, softmax and sums in F32; probabilities are not rounded; one rounding at the end. Only positions from 0
/// to the token's own count, of the indices given; -1 and later positions do not, wherever they stand. A position that is given
/// twice counts twice, and one that has no page is none. A token without any gets zeros.
/// **Determinism**: sums go through the indices in the order given, so that the same indices give the same bits.
/// **Backward**: all inputs, and the sum of exponentials.
/// **Source**: DeepSeek-V3.2 sparse attention; `scale` is `(nope + rope)^-0.5`, the width of a head that is not absorbed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SparseMla {
    /// Factor of the logits.
    pub scale: f64,
}

impl Contract for SparseMla {
    const SIGNATURE: Signature = Signature {
        inputs: &[
            "q",
            "q_rope",
            "indices",
            "cache",
            "row_seq",
            "row_pos",
            "page_table",
        ],
        optional: 0,
        outputs: &["out"],
        saved: &["q", "q_rope", "indices", "cache", "out"],
    };

    fn check(&self) -> Result<(), String> {
        shapes::number("scale", self.scale)
    }

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [q, q_rope, indices, cache, row_seq, row_pos, page_table] = inputs else {
            unreachable!("the signature has seven inputs");
        };
        shapes::float("q", q)?;
        shapes::float("q_rope", q_rope)?;
        let [t, h, latent] = shapes::axes("q", q, "[t, h, latent]")?;
        let [_, _, rope] = shapes::axes("q_rope", q_rope, "[t, h, rope]")?;
        shapes::shape("q_rope", q_rope, &[*t, *h, *rope])?;
        shapes::element("indices", indices, Element::I32)?;
        let [_, k] = shapes::axes("indices", indices, "[t, k]")?;
        shapes::shape("indices", indices, &[*t, *k])?;
        let (width, _) = shapes::cached(cache, [row_seq, row_pos, page_table], *t)?;
        let (latent, rope) = (
            shapes::size("the width of a latent", *latent)?,
            shapes::size("the width of a rotated part", *rope)?,
        );
        match latent.checked_add(rope) == Some(width) {
            true => Ok(vec![q.clone()]),
            false => Err(format!(
                "queries are {latent} and {rope} wide, cache rows {width}"
            )),
        }
    }
}

/// Attended latents become values: `out[t, h] = W_v[h] x[t, h]`, where `W_v[h]` is the last `value` of the rows of head `h` in
/// `kv_b`.
///
/// **Shapes**: `x` `[t, h, latent]`; `kv_b` `[h * (nope + value), latent]`; out `[t, h, value]`.
/// **Numerics**: as `linear`, blocks as in `mla_absorb`.
/// **Determinism**: as `linear`.
/// **Backward**: `x`, `kv_b`.
/// **Source**: DeepSeek-V2, the absorbed form; `v_head_dim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MlaExpand {
    /// Rows of a head that make values.
    pub value: u64,
}

impl Contract for MlaExpand {
    const SIGNATURE: Signature = Signature {
        inputs: &["x", "kv_b"],
        optional: 0,
        outputs: &["out"],
        saved: &["x", "kv_b"],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [x, kv_b] = inputs else {
            unreachable!("the signature has two inputs");
        };
        shapes::float("x", x)?;
        shapes::weight("kv_b", kv_b)?;
        let [_, heads, latent] = shapes::axes("x", x, "[t, h, latent]")?;
        let [rows, of] = shapes::axes("kv_b", kv_b, "[heads * (nope + value), latent]")?;
        if of != latent {
            return Err(format!("x has {latent} columns, kv_b {of}"));
        }
        let rows = shapes::size("the rows of kv_b", *rows)?;
        let heads = shapes::size("the number of heads", *heads)?;
        let each = rows.checked_div(heads).unwrap_or_default();
        match each * heads == rows && self.value <= each {
            true => Ok(vec![x.with_last(self.value.into())]),
            false => Err(format!(
                "kv_b has {rows} rows, {heads} heads with {} of values need another number",
                self.value
            )),
        }
    }
}
