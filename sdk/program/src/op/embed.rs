//! Rows of an embedding.

use serde::{Deserialize, Serialize};

use super::{Contract, Signature, shapes};
use crate::{Element, ValueType};

/// Rows of a table, one for each token.
///
/// **Shapes**: `ids` I32 `[n]`; `table` F32 or BF16 `[v, h]`; out `[n, h]` activations.
/// **Numerics**: a copy; an F32 row is rounded once where activations are BF16. An id of -1 gives zeros; others are below `v`,
/// which whoever writes the ids sees to.
/// **Determinism**: exact.
/// **Backward**: `ids`.
/// **Source**: `embed_tokens` of Hugging Face models, `word_embeddings` of Megatron's. No scaling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embed {}

impl Contract for Embed {
    const SIGNATURE: Signature = Signature {
        inputs: &["ids", "table"],
        optional: 0,
        outputs: &["out"],
        saved: &["ids"],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [ids, table] = inputs else {
            unreachable!("the signature has two inputs");
        };
        shapes::element("ids", ids, Element::I32)?;
        let [n] = shapes::axes("ids", ids, "[n]")?;
        shapes::float("table", table)?;
        let [_, h] = shapes::axes("table", table, "[v, h]")?;
        Ok(vec![ValueType::new(Element::Activation, [*n, *h])])
    }
}
