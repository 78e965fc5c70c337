//! Matrix products with weights.

use serde::{Deserialize, Serialize};

use super::{Contract, Signature, shapes};
use crate::{Element, ValueType};

/// The element type of a product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinearOut {
    /// Activations.
    #[default]
    Activation,
    /// F32: routers, indexer weights, logits.
    F32,
}

/// A linear layer: `out = x W^T`, without bias.
///
/// **Shapes**: `x` `[.., k]`; `weight` `[n, k]`, F32, BF16, or E4M3 in blocks with scales `[ceil(n/rows), ceil(k/columns)]`;
/// out `[.., n]`. The head is this with `out` F32.
/// **Numerics**: products and sums in F32, one rounding at the end. A code in blocks is `bf16(f32(code) * scale)` before it is
/// multiplied: the scale of a block is that of the element's own row and column, also where the last block is cut.
/// **Determinism**: each element is one sum over `k` in the backend's order, the same for any number of rows.
/// **Backward**: `x`, `weight`.
/// **Source**: `[out, in]` matrices of both checkpoints; `weight_block_size` of `quantization_config`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// The element type of the result.
    #[serde(default)]
    pub out: LinearOut,
}

impl Contract for Linear {
    const SIGNATURE: Signature = Signature {
        inputs: &["x", "weight"],
        optional: 0,
        outputs: &["out"],
        saved: &["x", "weight"],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [x, weight] = inputs else {
            unreachable!("the signature has two inputs");
        };
        shapes::float("x", x)?;
        shapes::weight("weight", weight)?;
        let k = shapes::last("x", x)?;
        let [n, of] = shapes::axes("weight", weight, "[n, k]")?;
        if *of != k {
            return Err(format!("x has {k} columns, weight {of}"));
        }
        let element = match self.out {
            LinearOut::Activation => Element::Activation,
            LinearOut::F32 => Element::F32,
        };
        Ok(vec![x.with_last(*n).with_element(element)])
    }
}
