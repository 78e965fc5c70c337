//! The feed-forward part: one gated MLP, or routed experts and a shared one.

use rialto_plugin::prelude::program::builder::{Param, Value};
use rialto_plugin::prelude::program::op::{Router, Scoring};

use super::Block;
use crate::spec::{Mlp, Model};

/// Added to the sum of the chosen experts' weights before they are divided by it. Source: the router of DeepSeek-V3, which
/// transformers follows.
const ROUTER_EPS: f64 = 1e-20;

impl Block<'_, '_> {
    /// What the feed-forward part makes of the normed stream: `[t, h]` to `[t, h]`, called `mlp_out`.
    pub(super) fn feed_forward(&mut self, kind: Mlp, x: &Value) -> Value {
        match kind {
            Mlp::Dense => self.gated("mlp", x, "mlp", self.model.intermediate_size),
            Mlp::Sparse => self.experts(x),
        }
    }

    /// `down(silu(gate x) * up x)`, called `{name}_out`.
    fn gated(&mut self, name: &str, x: &Value, module: &str, width: u64) -> Value {
        let h = self.model.hidden_size;
        let value = |value: &str| format!("{name}_{value}");
        let matrix = |matrix: &str| format!("{module}.{matrix}_proj");
        let gate = self.linear(&value("gate"), x, &matrix("gate"), [width, h]);
        let up = self.linear(&value("up"), x, &matrix("up"), [width, h]);
        let inner = self.name(&value("inner"));
        let inner = self.phase.swiglu(&inner, &gate, &up);
        self.linear(&value("out"), &inner, &matrix("down"), [h, width])
    }

    /// The experts that a token chooses, by their weights, and the shared one as it is.
    fn experts(&mut self, x: &Value) -> Value {
        let Model {
            hidden_size: h,
            n_routed_experts: e,
            n_shared_experts: shared,
            moe_intermediate_size: f,
            ..
        } = *self.model;

        // The router is F32 throughout: rounding its weights or its logits would choose other experts.
        let gate = self.unrounded("mlp.gate.weight", &[e, h]);
        let logits = self.phase.linear_f32(&self.name("router_logits"), x, &gate);
        // The bias is for the choice alone.
        let bias = self.unrounded("mlp.gate.e_score_correction_bias", &[e]);
        let forward = &self.model.forward;
        let router = Router {
            scoring: Scoring::Sigmoid,
            top_k: forward.num_experts_per_tok,
            groups: forward.n_group,
            top_groups: forward.topk_group,
            normalize: true,
            epsilon: ROUTER_EPS,
            scale: forward.routed_scaling_factor,
        };
        let name = self.name("router");
        let (ids, weights) = self.phase.router(&name, &logits, Some(&bias), router);

        let gate = self.stack("gate_proj", [e, f, h]);
        let up = self.stack("up_proj", [e, f, h]);
        let down = self.stack("down_proj", [e, h, f]);
        let routed = self.phase.experts(
            &self.name("experts_out"),
            x,
            (&ids, &weights),
            [&gate, &up, &down],
        );
        let shared = self.gated("shared", x, "mlp.shared_experts", shared * f);
        self.add("mlp_out", &routed, &shared)
    }

    /// A param that is never rounded, by the whole name of its tensor.
    fn unrounded(&mut self, tensor: &str, shape: &[u64]) -> Param {
        let tensor = self.tensor(tensor);
        self.phase.program().param_f32(&tensor, shape)
    }

    /// A matrix of every expert, one above the other.
    fn stack(&mut self, matrix: &str, shape: [u64; 3]) -> Param {
        let tensors = self.tensor(&format!("mlp.experts.{{}}.{matrix}.weight"));
        self.phase.program().stack(&tensors, shape)
    }
}
