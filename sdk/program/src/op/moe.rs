//! Mixture of experts.

use serde::{Deserialize, Serialize};

use super::{Contract, Signature, shapes};
use crate::{Element, ValueType};

/// What a router makes of its logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scoring {
    /// Each on its own.
    Sigmoid,
    /// Over all experts.
    Softmax,
}

/// Chooses experts for each token, and how much of each.
///
/// `s = sigmoid(logits)` or `softmax(logits)`; the choice is by `c = s + bias`. With more than one group, experts are cut into
/// equal groups in order; a group's score is the sum of its two largest `c`, and only the `top_groups` best groups stay. Of those
/// the `top_k` largest `c` are chosen. The weight of a chosen expert is `s`, without the bias; with `normalize` divided by
/// `epsilon` plus the sum of those chosen; and in any case times `scale`.
///
/// **Shapes**: `logits` F32 `[t, e]`; `bias` F32 `[e]`, may be left out; `ids` I32 `[t, k]`, ascending; `weights` F32 `[t, k]`,
/// in the order of `ids`.
/// **Numerics**: F32 throughout, sums in ascending order of expert. Of equal choices the lower expert wins, of equal groups the
/// lower group. NaN is never chosen while there is a number, and a group with more of it among its two best comes after one with less.
/// **Determinism**: one choice for given logits and bias.
/// **Backward**: `logits`, `ids`.
/// **Source**: DeepSeek-V3; `scoring_func`, `n_group`, `topk_group`, `num_experts_per_tok`, `norm_topk_prob`,
/// `routed_scaling_factor`, `e_score_correction_bias`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Router {
    /// What it makes of logits.
    pub scoring: Scoring,
    /// Experts of a token.
    pub top_k: u64,
    /// Groups of experts.
    #[serde(default = "one")]
    pub groups: u64,
    /// Groups that stay.
    #[serde(default = "one")]
    pub top_groups: u64,
    /// Whether the weights of a token are divided by their sum.
    pub normalize: bool,
    /// Added to that sum.
    #[serde(default)]
    pub epsilon: f64,
    /// Factor of the weights.
    pub scale: f64,
}

fn one() -> u64 {
    1
}

impl Contract for Router {
    const SIGNATURE: Signature = Signature {
        inputs: &["logits", "bias"],
        optional: 1,
        outputs: &["ids", "weights"],
        saved: &["logits", "ids"],
    };

    fn check(&self) -> Result<(), String> {
        if self.top_k == 0 || self.groups == 0 || self.top_groups == 0 {
            return Err("top_k, groups and top_groups are at least 1".to_owned());
        }
        if self.top_groups > self.groups {
            let (top, all) = (self.top_groups, self.groups);
            return Err(format!("top_groups is {top}, of {all} groups"));
        }
        shapes::number("scale", self.scale)?;
        shapes::number("epsilon", self.epsilon)?;
        match self.epsilon >= 0.0 {
            true => Ok(()),
            false => Err(format!("epsilon is {}, expected 0 or more", self.epsilon)),
        }
    }

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let logits = &inputs[0];
        shapes::element("logits", logits, Element::F32)?;
        let [t, e] = shapes::axes("logits", logits, "[t, e]")?;
        if let Some(bias) = inputs.get(1) {
            shapes::element("bias", bias, Element::F32)?;
            shapes::shape("bias", bias, &[*e])?;
        }
        let experts = shapes::size("the number of experts", *e)?;
        if !experts.is_multiple_of(self.groups) {
            return Err(format!(
                "{} groups do not divide {experts} experts",
                self.groups
            ));
        }
        let each = experts / self.groups;
        if self.groups > 1 && each < 2 {
            return Err(format!(
                "groups of {each} have no two experts to score them by"
            ));
        }
        if self.top_k > each * self.top_groups {
            let stay = each * self.top_groups;
            return Err(format!(
                "top_k is {}, of {stay} experts that stay",
                self.top_k
            ));
        }
        Ok(vec![
            ValueType::new(Element::I32, [*t, self.top_k.into()]),
            ValueType::new(Element::F32, [*t, self.top_k.into()]),
        ])
    }
}

/// The chosen experts of each token: `out = sum_j w_j * down_j(silu(gate_j x) * (up_j x))`.
///
/// **Shapes**: `x` `[t, h]`; `ids` I32 and `weights` F32 `[t, k]`; `gate` and `up` `[e, f, h]`, `down` `[e, h, f]`, weights as
/// `linear` takes them, with blocks on their last two axes; out as `x`. An id of -1 is nobody.
/// **Numerics**: products of gate and up are rounded to the element type of `x`, then `silu(g) * u` is once; products of down,
/// their weights and the sum over experts are F32, in the order of `ids`; one rounding at the end.
/// **Determinism**: the order of a token's experts is that of its ids, whatever other tokens chose. An expert that nobody chose
/// is not read.
/// **Backward**: all inputs.
/// **Source**: Shazeer 2020 (SwiGLU); `mlp.experts`. The checkpoint's `[out, in]` matrices, one above the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {}

impl Contract for Experts {
    const SIGNATURE: Signature = Signature {
        inputs: &["x", "ids", "weights", "gate", "up", "down"],
        optional: 0,
        outputs: &["out"],
        saved: &["x", "ids", "weights", "gate", "up", "down"],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [x, ids, weights, gate, up, down] = inputs else {
            unreachable!("the signature has six inputs");
        };
        shapes::float("x", x)?;
        let [t, h] = shapes::axes("x", x, "[t, h]")?;
        shapes::element("ids", ids, Element::I32)?;
        let [_, k] = shapes::axes("ids", ids, "[t, k]")?;
        shapes::shape("ids", ids, &[*t, *k])?;
        shapes::element("weights", weights, Element::F32)?;
        shapes::shape("weights", weights, &[*t, *k])?;
        for (name, weight) in [("gate", gate), ("up", up), ("down", down)] {
            shapes::weight(name, weight)?;
        }
        let [e, f, _] = shapes::axes("gate", gate, "[e, f, h]")?;
        shapes::shape("gate", gate, &[*e, *f, *h])?;
        shapes::shape("up", up, &[*e, *f, *h])?;
        shapes::shape("down", down, &[*e, *h, *f])?;
        Ok(vec![x.clone()])
    }
}

/// The gate of a gated MLP: `out = silu(gate) * up`, where `silu(g) = g / (1 + exp(-g))`.
///
/// **Shapes**: `gate` and `up` of one shape; out as `gate`.
/// **Numerics**: F32, one rounding.
/// **Determinism**: each element on its own.
/// **Backward**: `gate`, `up`.
/// **Source**: Shazeer 2020; `hidden_act: silu`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwiGlu {}

impl Contract for SwiGlu {
    const SIGNATURE: Signature = Signature {
        inputs: &["gate", "up"],
        optional: 0,
        outputs: &["out"],
        saved: &["gate", "up"],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [gate, up] = inputs else {
            unreachable!("the signature has two inputs");
        };
        shapes::float("gate", gate)?;
        shapes::exactly("up", up, gate)?;
        Ok(vec![gate.clone()])
    }
}
