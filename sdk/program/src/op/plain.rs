//! Plain operations, of which a wiring that no other operation knows can be made: slowly instead of not at all.

use serde::{Deserialize, Serialize};

use super::{Contract, Signature, shapes};
use crate::{Dim, Element, ValueType};

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnaryFunction {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// The larger of `x` and 0; NaN stays.
    Relu,
    /// Hyperbolic tangent.
    Tanh,
    /// `e^x`.
    Exp,
}

/// A function of each element.
///
/// **Shapes**: `x` of any shape; out as `x`.
/// **Numerics**: F32, one rounding.
/// **Determinism**: each element on its own.
/// **Backward**: `x`.
/// **Source**: elementary functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unary {
    /// The function.
    pub function: UnaryFunction,
}

impl Contract for Unary {
    const SIGNATURE: Signature = Signature {
        inputs: &["x"],
        optional: 0,
        outputs: &["out"],
        saved: &["x"],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        shapes::float("x", &inputs[0])?;
        Ok(vec![inputs[0].clone()])
    }
}

/// A function of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BinaryFunction {
    /// `x + y`: residuals.
    Add,
    /// `x - y`.
    Subtract,
    /// `x * y`.
    Multiply,
    /// `x / y`.
    Divide,
}

/// A function of each element and its counterpart.
///
/// **Shapes**: `x` of any shape; `y` of the same, or of its last axes only, and then the same for each of the others; out as `x`.
/// **Numerics**: F32, one rounding to the element type of `x`.
/// **Determinism**: each element on its own.
/// **Backward**: `x`, `y`, but for additions.
/// **Source**: elementary functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binary {
    /// The function.
    pub function: BinaryFunction,
}

impl Contract for Binary {
    const SIGNATURE: Signature = Signature {
        inputs: &["x", "y"],
        optional: 0,
        outputs: &["out"],
        saved: &["x", "y"],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [x, y] = inputs else {
            unreachable!("the signature has two inputs");
        };
        shapes::float("x", x)?;
        shapes::float("y", y)?;
        match x.shape.ends_with(&y.shape) {
            true => Ok(vec![x.clone()]),
            false => Err(format!("y is {y}, expected the last axes of {x}")),
        }
    }
}

/// Multiplies by a number of the model: `out = factor * x`.
///
/// **Shapes**: `x` of any shape; out as `x`.
/// **Numerics**: the factor is rounded to F32; one rounding.
/// **Determinism**: each element on its own.
/// **Backward**: nothing.
/// **Source**: elementary functions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// The factor.
    pub factor: f64,
}

impl Contract for Scale {
    const SIGNATURE: Signature = Signature {
        inputs: &["x"],
        optional: 0,
        outputs: &["out"],
        saved: &[],
    };

    fn check(&self) -> Result<(), String> {
        shapes::number("factor", self.factor)
    }

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        shapes::float("x", &inputs[0])?;
        Ok(vec![inputs[0].clone()])
    }
}

/// Softmax over the last axis.
///
/// **Shapes**: `x` `[.., n]`; out as `x`.
/// **Numerics**: `exp(x - max)` over its sum, F32, one rounding. A row of negative infinity alone gives zeros.
/// **Determinism**: the sum in the backend's order, which does not depend on other rows.
/// **Backward**: `out`.
/// **Source**: elementary functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Softmax {}

impl Contract for Softmax {
    const SIGNATURE: Signature = Signature {
        inputs: &["x"],
        optional: 0,
        outputs: &["out"],
        saved: &["out"],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        shapes::float("x", &inputs[0])?;
        shapes::last("x", &inputs[0])?;
        Ok(vec![inputs[0].clone()])
    }
}

/// What a row becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceFunction {
    /// The sum; 0 of none.
    Sum,
    /// The mean; of none NaN.
    Mean,
    /// The largest, NaN if one is NaN; negative infinity of none.
    Max,
}

/// Reduces the last axis.
///
/// **Shapes**: `x` `[.., n]`; out `[..]`.
/// **Numerics**: F32, one rounding.
/// **Determinism**: in the backend's order, which does not depend on other rows.
/// **Backward**: `x` and `out`, for a maximum.
/// **Source**: elementary functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reduce {
    /// The function.
    pub function: ReduceFunction,
}

impl Contract for Reduce {
    const SIGNATURE: Signature = Signature {
        inputs: &["x"],
        optional: 0,
        outputs: &["out"],
        saved: &["x", "out"],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let x = &inputs[0];
        shapes::float("x", x)?;
        shapes::last("x", x)?;
        let mut out = x.clone();
        out.shape.pop();
        Ok(vec![out])
    }
}

/// Rows of a value by their numbers.
///
/// **Shapes**: `x` `[n, ..]`; `indices` I32 `[m]`; out `[m, ..]`.
/// **Numerics**: a copy. An index of -1 gives zeros; others are below `n`, which whoever writes them sees to.
/// **Determinism**: exact.
/// **Backward**: `indices`.
/// **Source**: the rows that the head reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gather {}

impl Contract for Gather {
    const SIGNATURE: Signature = Signature {
        inputs: &["x", "indices"],
        optional: 0,
        outputs: &["out"],
        saved: &["indices"],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [x, indices] = inputs else {
            unreachable!("the signature has two inputs");
        };
        let has_rows = x.element.is_float() || x.element == Element::I32;
        if x.shape.is_empty() || x.block.is_some() || !has_rows {
            return Err(format!("x is {x}, expected F32, BF16 or I32 [n, ..]"));
        }
        shapes::element("indices", indices, Element::I32)?;
        let [m] = shapes::axes("indices", indices, "[m]")?;
        let mut out = x.clone();
        out.shape[0] = *m;
        Ok(vec![out])
    }
}

/// Puts rows of two values behind each other: `out = [x | y]`.
///
/// **Shapes**: `x` `[.., n]`; `y` `[.., m]` of the same element type; out `[.., n + m]`.
/// **Numerics**: a copy.
/// **Determinism**: exact.
/// **Backward**: nothing.
/// **Source**: the input of multi-token prediction; rows of a latent cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Concat {}

impl Contract for Concat {
    const SIGNATURE: Signature = Signature {
        inputs: &["x", "y"],
        optional: 0,
        outputs: &["out"],
        saved: &[],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [x, y] = inputs else {
            unreachable!("the signature has two inputs");
        };
        shapes::float("x", x)?;
        let (n, m) = (shapes::last("x", x)?, shapes::last("y", y)?);
        shapes::exactly("y", y, &x.with_last(m))?;
        let (n, m) = (
            shapes::size("the width of x", n)?,
            shapes::size("the width of y", m)?,
        );
        let sum = n.checked_add(m);
        let sum = sum.ok_or_else(|| format!("{n} and {m} elements are too many"))?;
        Ok(vec![x.with_last(sum.into())])
    }
}

/// Part of the last axis.
///
/// **Shapes**: `x` `[.., n]`; out `[.., length]`: elements `start .. start + length`.
/// **Numerics**: a copy.
/// **Determinism**: exact.
/// **Backward**: nothing.
/// **Source**: the parts of a fused projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// The first element.
    pub start: u64,
    /// How many.
    pub length: u64,
}

impl Contract for Slice {
    const SIGNATURE: Signature = Signature {
        inputs: &["x"],
        optional: 0,
        outputs: &["out"],
        saved: &[],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let x = &inputs[0];
        shapes::float("x", x)?;
        let n = shapes::size("the width of x", shapes::last("x", x)?)?;
        match self.start.checked_add(self.length) {
            Some(end) if end <= n => Ok(vec![x.with_last(self.length.into())]),
            _ => Err(format!(
                "{} elements from {} of {n}",
                self.length, self.start
            )),
        }
    }
}

/// Other axes for the same elements; the first stays.
///
/// **Shapes**: `x` `[t, ..]`; out `[t] + shape`, as many elements.
/// **Numerics**: none: rows are dense and row-major before and after.
/// **Determinism**: exact.
/// **Backward**: nothing.
/// **Source**: heads of a projection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reshape {
    /// The axes after the first.
    pub shape: Vec<u64>,
}

impl Contract for Reshape {
    const SIGNATURE: Signature = Signature {
        inputs: &["x"],
        optional: 0,
        outputs: &["out"],
        saved: &[],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let x = &inputs[0];
        shapes::float("x", x)?;
        let [t, of_row @ ..] = x.shape.as_slice() else {
            return Err(format!("x is {x}, expected [t, ..]"));
        };
        let mut before = 1u64;
        for dim in of_row {
            before = before.saturating_mul(shapes::size("an extent of a row", *dim)?);
        }
        let after = self
            .shape
            .iter()
            .fold(1u64, |all, &n| all.saturating_mul(n));
        if before != after {
            return Err(format!("x is {x}, {:?} has {after} elements", self.shape));
        }
        let shape = std::iter::once(*t).chain(self.shape.iter().map(|&n| Dim::Size(n)));
        Ok(vec![ValueType::new(x.element, shape)])
    }
}

/// The same numbers in another element type.
///
/// **Shapes**: `x` of any shape; out as `x`.
/// **Numerics**: exact to F32, one rounding to activations of BF16.
/// **Determinism**: each element on its own.
/// **Backward**: nothing.
/// **Source**: elementary functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cast {
    /// The element type of the result.
    pub to: super::LinearOut,
}

impl Contract for Cast {
    const SIGNATURE: Signature = Signature {
        inputs: &["x"],
        optional: 0,
        outputs: &["out"],
        saved: &[],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        shapes::float("x", &inputs[0])?;
        let element = match self.to {
            super::LinearOut::Activation => Element::Activation,
            super::LinearOut::F32 => Element::F32,
        };
        Ok(vec![inputs[0].with_element(element)])
    }
}
