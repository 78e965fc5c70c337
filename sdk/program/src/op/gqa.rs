//! Dense attention with grouped queries.

use serde::{Deserialize, Serialize};

use super::{Contract, Signature, shapes};
use crate::ValueType;

/// Causal attention of each token to all positions of its sequence up to its own; several query heads share a key head.
///
/// **Shapes**: `q` `[t, h, d]`; `keys` and `values` caches `[pool, page, groups * d]`; `row_seq`, `row_pos` I32 `[t]`;
/// `page_table` I32 `[sequences, pages]`; out as `q`. Query head `i` reads group `i / (h / groups)`.
/// **Numerics**: logits, softmax and sums in F32; probabilities are not rounded; one rounding at the end. A position that has no
/// page is none; a token without any gets zeros.
/// **Determinism**: sums go through positions in ascending order.
/// **Backward**: all inputs, and the sum of exponentials.
/// **Source**: Ainslie et al. 2023; `num_key_value_heads`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gqa {
    /// Key heads.
    pub groups: u64,
    /// Factor of the logits, `d^-0.5`.
    pub scale: f64,
}

impl Contract for Gqa {
    const SIGNATURE: Signature = Signature {
        inputs: &["q", "keys", "values", "row_seq", "row_pos", "page_table"],
        optional: 0,
        outputs: &["out"],
        saved: &["q", "keys", "values", "out"],
    };

    fn check(&self) -> Result<(), String> {
        match self.groups > 0 {
            true => shapes::number("scale", self.scale),
            false => Err("groups is 0, expected at least 1".to_owned()),
        }
    }

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [q, keys, values, row_seq, row_pos, page_table] = inputs else {
            unreachable!("the signature has six inputs");
        };
        shapes::float("q", q)?;
        let [t, h, d] = shapes::axes("q", q, "[t, h, d]")?;
        let (heads, d) = (
            shapes::size("the number of heads", *h)?,
            shapes::size("the width of a head", *d)?,
        );
        if !heads.is_multiple_of(self.groups) {
            return Err(format!(
                "{} groups do not divide {heads} heads",
                self.groups
            ));
        }
        for (name, cache) in [("keys", keys), ("values", values)] {
            let (width, _) = shapes::cached(cache, [row_seq, row_pos, page_table], *t)?;
            if self.groups.checked_mul(d) != Some(width) {
                let groups = self.groups;
                return Err(format!(
                    "{name} are {width} wide, {groups} groups of {d} elements are not"
                ));
            }
        }
        Ok(vec![q.clone()])
    }
}
