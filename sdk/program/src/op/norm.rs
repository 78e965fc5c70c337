//! Norms over the last axis.

use serde::{Deserialize, Serialize};

use super::{Contract, Signature, shapes};
use crate::ValueType;

fn epsilon(eps: f64) -> Result<(), String> {
    shapes::number("eps", eps)?;
    match eps >= 0.0 {
        true => Ok(()),
        false => Err(format!("eps is {eps}, expected 0 or more")),
    }
}

/// Root mean square norm: `out = w * round(x / sqrt(mean(x^2) + eps))`.
///
/// **Shapes**: `x` `[.., n]`; `weight` F32 or BF16 `[n]`; out as `x`.
/// **Numerics**: two roundings: the normed row is rounded to the element type of `x` before it is multiplied by the weight, as
/// transformers does. In F32 the first is none. The mean is over `n`, the whole axis.
/// **Determinism**: the sum of squares in the backend's order, which does not depend on other rows.
/// **Backward**: `x`, `weight`.
/// **Source**: Zhang and Sennrich 2019; `rms_norm_eps`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RmsNorm {
    /// Added to the mean.
    pub eps: f64,
}

impl Contract for RmsNorm {
    const SIGNATURE: Signature = Signature {
        inputs: &["x", "weight"],
        optional: 0,
        outputs: &["out"],
        saved: &["x", "weight"],
    };

    fn check(&self) -> Result<(), String> {
        epsilon(self.eps)
    }

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [x, weight] = inputs else {
            unreachable!("the signature has two inputs");
        };
        normed(x, &[("weight", weight)])
    }
}

/// Layer norm: `out = round((x - mean(x)) / sqrt(var(x) + eps) * w + b)`, the variance biased.
///
/// **Shapes**: `x` `[.., n]`; `weight` and `bias` F32 or BF16 `[n]`; out as `x`.
/// **Numerics**: one rounding, at the end.
/// **Determinism**: both sums in the backend's order, which does not depend on other rows.
/// **Backward**: `x`, `weight`.
/// **Source**: Ba, Kiros and Hinton 2016; the indexer key of DeepSeek sparse attention, with an eps of 1e-6.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: f64,
}

impl Contract for LayerNorm {
    const SIGNATURE: Signature = Signature {
        inputs: &["x", "weight", "bias"],
        optional: 0,
        outputs: &["out"],
        saved: &["x", "weight"],
    };

    fn check(&self) -> Result<(), String> {
        epsilon(self.eps)
    }

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [x, weight, bias] = inputs else {
            unreachable!("the signature has three inputs");
        };
        normed(x, &[("weight", weight), ("bias", bias)])
    }
}

fn normed(x: &ValueType, vectors: &[(&str, &ValueType)]) -> Result<Vec<ValueType>, String> {
    shapes::float("x", x)?;
    let last = shapes::last("x", x)?;
    for (name, vector) in vectors {
        shapes::float(name, vector)?;
        shapes::shape(name, vector, &[last])?;
    }
    Ok(vec![x.clone()])
}
