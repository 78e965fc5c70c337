//! Which positions sparse attention reads.

use serde::{Deserialize, Serialize};

use super::{Contract, Signature, shapes};
use crate::{Element, ValueType};

/// The lightning indexer: `score[t, s] = sum_h head_scale * w[t, h] * relu(scale * q[t, h] . k[s])` for each position `s` of
/// the token's sequence up to its own.
///
/// **Shapes**: `q` `[t, h, d]`; `weights` F32 `[t, h]`; `keys` a cache `[pool, page, d]`; `row_seq`, `row_pos` I32 `[t]`;
/// `page_table` I32 `[sequences, pages]`; out F32 `[t, context]`, where `context = pages * page`.
/// **Numerics**: products and sums in F32, heads in ascending order. Negative infinity stands beyond the token's own position, for
/// padding, and where a position has no page. Weights may be negative, and so may scores; a key for which no head fires scores exactly 0.
/// **Determinism**: each score depends on its token and key alone.
/// **Backward**: `q`, `weights`, `keys`. It is not part of the model's own loss: the selection has no gradient.
/// **Source**: DeepSeek-V3.2; `index_n_heads`, `index_head_dim`. Scale `d^-0.5`, head scale `h^-0.5`: both positive, so that
/// neither changes a selection.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexerScores {
    /// Factor of each product of query and key.
    pub scale: f64,
    /// Factor of each weight.
    pub head_scale: f64,
}

impl Contract for IndexerScores {
    const SIGNATURE: Signature = Signature {
        inputs: &["q", "weights", "keys", "row_seq", "row_pos", "page_table"],
        optional: 0,
        outputs: &["scores"],
        saved: &["q", "weights", "keys"],
    };

    fn check(&self) -> Result<(), String> {
        shapes::number("scale", self.scale)?;
        shapes::number("head_scale", self.head_scale)
    }

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [q, weights, keys, row_seq, row_pos, page_table] = inputs else {
            unreachable!("the signature has six inputs");
        };
        shapes::float("q", q)?;
        let [t, h, d] = shapes::axes("q", q, "[t, h, d]")?;
        shapes::element("weights", weights, Element::F32)?;
        shapes::shape("weights", weights, &[*t, *h])?;
        let (width, context) = shapes::cached(keys, [row_seq, row_pos, page_table], *t)?;
        let d = shapes::size("the width of a head", *d)?;
        match d == width {
            true => Ok(vec![ValueType::new(Element::F32, [*t, context])]),
            false => Err(format!("q has heads of {d} elements, keys of {width}")),
        }
    }
}

/// The positions of the `k` largest scores of each row.
///
/// **Shapes**: `scores` F32 `[t, n]`; out I32 `[t, k]`.
/// **Numerics**: exact. Of equal scores the lower position wins, -0 and 0 being equal; positions are ascending, and -1 stands
/// behind them where there are fewer than `k`. Negative infinity and NaN are never selected.
/// **Determinism**: one answer, on every backend.
/// **Backward**: nothing.
/// **Source**: `index_topk`. Ties are structural: every key for which no head fires scores 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopK {
    /// How many, at least 1.
    pub k: u64,
}

impl Contract for TopK {
    const SIGNATURE: Signature = Signature {
        inputs: &["scores"],
        optional: 0,
        outputs: &["indices"],
        saved: &[],
    };

    fn check(&self) -> Result<(), String> {
        match self.k {
            0 => Err("k is 0, expected at least 1".to_owned()),
            _ => Ok(()),
        }
    }

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [scores] = inputs else {
            unreachable!("the signature has one input");
        };
        shapes::element("scores", scores, Element::F32)?;
        let [t, _] = shapes::axes("scores", scores, "[t, n]")?;
        Ok(vec![ValueType::new(Element::I32, [*t, self.k.into()])])
    }
}
