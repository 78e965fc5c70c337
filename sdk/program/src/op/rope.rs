//! Rotary position embedding.

use serde::{Deserialize, Serialize};

use super::{Contract, Signature, shapes};
use crate::{Element, ValueType};

/// Which two elements are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// `(2j, 2j+1)`: GLM-5 and DeepSeek, in attention and in the indexer alike.
    Interleaved,
    /// `(j, j + dims/2)`: Llama and Qwen.
    HalfSplit,
}

/// Rotates part of each head by its token's position: pair `j` by `position * theta^(-2j/dims)`,
/// `(a, b) -> (a cos - b sin, b cos + a sin)`. Pairs stay where they were.
///
/// **Shapes**: `x` `[t, .., d]`; `row_pos` I32 `[t]`; out as `x`. Elements `first .. first + dims` of each head are rotated,
/// the others copied.
/// **Numerics**: angles, sines and cosines in F64, each rounded to F32: at a million positions an angle in F32 is off by
/// hundredths. The rotation in F32, one rounding at the end. A negative position is rotated by none.
/// **Determinism**: exact functions of position and element.
/// **Backward**: `row_pos`.
/// **Source**: Su et al. 2021; `rope_theta`, `rope_interleave`, `indexer_rope_interleave`, `qk_rope_head_dim`. The two pairings
/// agree until attention is sparse only if the other is wrong on both sides of every product.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Base of the angles.
    pub theta: f64,
    /// Elements rotated, an even number.
    pub dims: u64,
    /// The first of them.
    #[serde(default)]
    pub first: u64,
    /// Which are rotated together.
    pub pairing: Pairing,
}

impl Contract for Rope {
    const SIGNATURE: Signature = Signature {
        inputs: &["x", "row_pos"],
        optional: 0,
        outputs: &["out"],
        saved: &["row_pos"],
    };

    fn check(&self) -> Result<(), String> {
        shapes::number("theta", self.theta)?;
        if self.theta <= 0.0 {
            return Err(format!("theta is {}, expected more than 0", self.theta));
        }
        match self.dims.is_multiple_of(2) {
            true => Ok(()),
            false => Err(format!("dims is {}, expected an even number", self.dims)),
        }
    }

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [x, row_pos] = inputs else {
            unreachable!("the signature has two inputs");
        };
        shapes::float("x", x)?;
        if x.shape.len() < 2 {
            return Err(format!("x is {x}, expected [t, .., d]"));
        }
        shapes::element("row_pos", row_pos, Element::I32)?;
        shapes::shape("row_pos", row_pos, &x.shape[..1])?;
        let d = shapes::size("the width of a head", shapes::last("x", x)?)?;
        match self.first.checked_add(self.dims) {
            Some(end) if end <= d => Ok(vec![x.clone()]),
            _ => Err(format!(
                "{} elements from {} are rotated, a head has {d}",
                self.dims, self.first
            )),
        }
    }
}
