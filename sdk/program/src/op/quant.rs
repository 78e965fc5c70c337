//! Block-scaled E4M3.

use rialto_tensor::Dtype;
use serde::{Deserialize, Serialize};

use super::{Contract, Signature, shapes};
use crate::{Dim, Element, ValueType};

fn grid(shape: &[Dim; 2], block: [u64; 2]) -> Result<ValueType, String> {
    let mut extents = Vec::with_capacity(2);
    for (dim, size) in shape.iter().zip(block) {
        extents.push(match (dim, size) {
            (Dim::Size(n), size) => Dim::Size(n.div_ceil(size)),
            (other, 1) => *other,
            (other, size) => {
                return Err(format!(
                    "blocks of {size} along {other}, which no model fixes"
                ));
            }
        });
    }
    Ok(ValueType::new(Element::F32, extents))
}

fn block(block: [u64; 2]) -> Result<(), String> {
    match block.contains(&0) {
        true => Err(format!(
            "a block is {} by {}, expected at least 1",
            block[0], block[1]
        )),
        false => Ok(()),
    }
}

/// Quantizes a matrix to E4M3 in blocks: `scale = amax / 448` of each block, `code = e4m3(x / scale)`.
///
/// **Shapes**: `x` `[n, k]`; `codes` F8_E4M3 `[n, k]`; `scales` F32 `[ceil(n/rows), ceil(k/columns)]`. Blocks at the edges may
/// be cut.
/// **Numerics**: `amax` over the finite elements of the block; the scale at least `2^-126`, so that it is no subnormal, and 1 for
/// a block whose finite elements are zeros, or that has none. With `power_of_two` the scale is rounded *up* to a power of two, so that nothing clips. The
/// quotient is F32, rounded to nearest even and saturated: 448 is the largest, also for infinity. NaN stays NaN.
/// **Determinism**: exact.
/// **Backward**: nothing.
/// **Source**: `activation_scheme: dynamic`, blocks of 1 by 128; `weight_block_size`, 128 by 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuantizeBlock {
    /// Rows and columns of a block.
    pub block: [u64; 2],
    /// Whether scales are powers of two.
    #[serde(default)]
    pub power_of_two: bool,
}

impl Contract for QuantizeBlock {
    const SIGNATURE: Signature = Signature {
        inputs: &["x"],
        optional: 0,
        outputs: &["codes", "scales"],
        saved: &[],
    };

    fn check(&self) -> Result<(), String> {
        block(self.block)
    }

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let x = &inputs[0];
        shapes::float("x", x)?;
        let axes = shapes::axes("x", x, "[n, k]")?;
        let codes = x.with_element(Element::Of(Dtype::F8E4m3));
        Ok(vec![codes, grid(axes, self.block)?])
    }
}

/// Decodes E4M3 in blocks: `out = bf16(f32(code) * scale)`.
///
/// **Shapes**: `codes` F8_E4M3 `[n, k]`; `scales` F32 `[ceil(n/rows), ceil(k/columns)]`; out activations `[n, k]`.
/// **Numerics**: the product in F32, rounded to BF16 also where activations are F32: the model is defined so. NaN stays NaN.
/// **Determinism**: exact.
/// **Backward**: nothing.
/// **Source**: `weight_block_size`, `weight_scale_inv`, which is the multiplier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DequantizeBlock {
    /// Rows and columns of a block.
    pub block: [u64; 2],
}

impl Contract for DequantizeBlock {
    const SIGNATURE: Signature = Signature {
        inputs: &["codes", "scales"],
        optional: 0,
        outputs: &["out"],
        saved: &[],
    };

    fn check(&self) -> Result<(), String> {
        block(self.block)
    }

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [codes, scales] = inputs else {
            unreachable!("the signature has two inputs");
        };
        shapes::element("codes", codes, Element::Of(Dtype::F8E4m3))?;
        let axes = shapes::axes("codes", codes, "[n, k]")?;
        shapes::exactly("scales", scales, &grid(axes, self.block)?)?;
        Ok(vec![codes.with_element(Element::Activation)])
    }
}
