//! Choosing of the next token.

use serde::{Deserialize, Serialize};

use super::{Contract, Signature, shapes};
use crate::{Element, ValueType};

/// The largest logit of each row.
///
/// **Shapes**: `logits` F32 `[r, v]`; out I32 `[r]`.
/// **Numerics**: exact. Of equal logits the lower token wins. NaN never wins; a row of NaN alone gives -1.
/// **Determinism**: one answer.
/// **Backward**: nothing.
/// **Source**: greedy decoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Argmax {}

impl Contract for Argmax {
    const SIGNATURE: Signature = Signature {
        inputs: &["logits"],
        optional: 0,
        outputs: &["tokens"],
        saved: &[],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let logits = &inputs[0];
        shapes::element("logits", logits, Element::F32)?;
        let [r, _] = shapes::axes("logits", logits, "[r, v]")?;
        Ok(vec![ValueType::new(Element::I32, [*r])])
    }
}

/// A token of each row by chance: of the probabilities `softmax(logits / temperature)`, cut and drawn from.
///
/// Tokens are put in order, the likeliest first, of equally likely ones the lower. Kept are the first `top_k` (all for 0); of
/// these, whose probabilities are scaled to a sum of 1, the first that sum to `top_p` (all for 1); and of those the ones that are at
/// least `min_p` times as likely as the first. Of what is kept, the token is the first up to and with which the sum is more than
/// `draw` times the sum of all kept.
///
/// **Shapes**: `logits` F32 `[r, v]`; `temperature`, `top_p`, `min_p`, `draw` F32 `[r]`; `top_k` I32 `[r]`; out I32 `[r]`. They
/// lie on the device: each row has its own.
/// **Numerics**: probabilities and sums in F32, sums in that order. A temperature of 0 is `argmax`. At least one token is kept, also
/// where `top_p` is 0. NaN is never chosen; a row of NaN alone gives -1, and of one of negative infinity alone all tokens are equally
/// likely.
/// **Determinism**: chance is in `draw` alone, a number from 0 to less than 1 that the runtime makes of seed, sequence and
/// position: the same whatever the batch.
/// **Backward**: nothing.
/// **Source**: Holtzman et al. 2020 (top-p); `temperature`, `top_p`, `top_k` of `generation_config.json`, which transformers
/// applies one after the other: temperature, `top_k`, `top_p`, `min_p`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {}

impl Contract for Sample {
    const SIGNATURE: Signature = Signature {
        inputs: &["logits", "temperature", "top_k", "top_p", "min_p", "draw"],
        optional: 0,
        outputs: &["tokens"],
        saved: &[],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [logits, temperature, top_k, top_p, min_p, draw] = inputs else {
            unreachable!("the signature has six inputs");
        };
        shapes::element("logits", logits, Element::F32)?;
        let [r, _] = shapes::axes("logits", logits, "[r, v]")?;
        let each = [
            ("temperature", temperature, Element::F32),
            ("top_k", top_k, Element::I32),
            ("top_p", top_p, Element::F32),
            ("min_p", min_p, Element::F32),
            ("draw", draw, Element::F32),
        ];
        for (name, value, element) in each {
            shapes::element(name, value, element)?;
            shapes::shape(name, value, &[*r])?;
        }
        Ok(vec![ValueType::new(Element::I32, [*r])])
    }
}
