//! The forward pass, from token ids to logits: what each layer makes of the residual stream, as calls of known operations.
//!
//! One phase serves prompts and single tokens alike: of each position its rotated keys and its values are kept.

use rialto_plugin::prelude::program::builder::{Builder, Param, PhaseBuilder, Value};
use rialto_plugin::prelude::program::op::{Gqa, Pairing, Rope};
use rialto_plugin::prelude::program::step;
use rialto_plugin::prelude::{
    Error, ForwardPass, ModelSpec, Program, ProgramOptions, SettingFault,
};

use crate::Qwen3;
use crate::config::Model;

impl ForwardPass for Qwen3 {
    fn program(&self, spec: &ModelSpec, options: &ProgramOptions) -> Result<Program, Error> {
        let model: Model = spec.own()?;
        let unknown = options.settings.iter().map(|(name, value)| {
            SettingFault::new(name, value, "the forward pass has no settings", "none")
        });
        SettingFault::refuse(unknown.collect())?;
        let mut program = Builder::new();
        program.stop_tokens(model.forward.eos_token_id.clone());
        forward(&model, &mut program);
        Ok(program.finish()?)
    }
}

fn forward(model: &Model, program: &mut Builder) {
    let (v, h) = (model.vocab_size, model.hidden_size);
    let embedding = program.param("model.embed_tokens.weight", [v, h]);
    let norm = program.param("model.norm.weight", [h]);
    let head = match model.is_tied {
        true => embedding.clone(),
        false => program.param("lm_head.weight", [v, h]),
    };
    let mut phase = program.phase("forward");

    let mut x = phase.embed("hidden.0", &embedding);
    phase.stream(&x);
    for i in 0..model.num_hidden_layers {
        let mut layer = Layer {
            model,
            phase: &mut phase,
            i,
        };
        let normed = layer.rms_norm("attn_in", &x, "input_layernorm", h);
        let attended = layer.attention(&normed);
        let stream = layer.name("attn_residual");
        x = layer.phase.add(&stream, &x, &attended);

        let normed = layer.rms_norm("mlp_in", &x, "post_attention_layernorm", h);
        let fed = layer.mlp(&normed);
        x = phase.add(&format!("hidden.{}", i + 1), &x, &fed);
        phase.stream(&x);
    }
    let x = phase.rms_norm("hidden.final", &x, &norm, model.forward.rms_norm_eps);
    phase.stream(&x);

    let rows = phase.gather("head.rows", &x, step::ROWS);
    let logits = phase.linear_f32("logits", &rows, &head);
    phase.output(&logits);
    phase.output(&x);
}

/// A layer that is being written.
struct Layer<'a, 'b> {
    model: &'a Model,
    phase: &'a mut PhaseBuilder<'b>,
    i: u64,
}

impl Layer<'_, '_> {
    /// Causal attention, several query heads to a key head: `[t, h]` to `[t, h]`, called `attn_out`.
    fn attention(&mut self, x: &Value) -> Value {
        let Model {
            hidden_size: h,
            num_attention_heads: heads,
            num_key_value_heads: groups,
            head_dim: d,
            ..
        } = *self.model;

        // Queries and keys are normed head by head, then rotated; values are neither.
        let q = self.linear("q", x, "self_attn.q_proj", [heads * d, h]);
        let q = self.phase.reshape(&self.name("q_heads"), &q, [heads, d]);
        let q = self.rms_norm("q_normed", &q, "self_attn.q_norm", d);
        let q = self.rope("q_rotated", &q);

        let k = self.linear("k", x, "self_attn.k_proj", [groups * d, h]);
        let k = self.phase.reshape(&self.name("k_heads"), &k, [groups, d]);
        let k = self.rms_norm("k_normed", &k, "self_attn.k_norm", d);
        let k = self.rope("k_rotated", &k);
        let v = self.linear("v", x, "self_attn.v_proj", [groups * d, h]);

        let (i, program) = (self.i, self.phase.program());
        let keys = program.cache(&format!("keys.{i}"), groups * d);
        let values = program.cache(&format!("values.{i}"), groups * d);
        self.phase.append(&k, &keys);
        self.phase.append(&v, &values);
        let scale = (1.0 / d as f64).sqrt();
        let attended = self.phase.gqa(
            &self.name("attended"),
            &q,
            (&keys, &values),
            Gqa { groups, scale },
        );
        let attended = self
            .phase
            .reshape(&self.name("attended_heads"), &attended, [heads * d]);
        self.linear("attn_out", &attended, "self_attn.o_proj", [h, heads * d])
    }

    /// `down(silu(gate x) * up x)`, called `mlp_out`.
    fn mlp(&mut self, x: &Value) -> Value {
        let (h, f) = (self.model.hidden_size, self.model.intermediate_size);
        let gate = self.linear("mlp_gate", x, "mlp.gate_proj", [f, h]);
        let up = self.linear("mlp_up", x, "mlp.up_proj", [f, h]);
        let inner = self.phase.swiglu(&self.name("mlp_inner"), &gate, &up);
        self.linear("mlp_out", &inner, "mlp.down_proj", [h, f])
    }

    /// Rotates all of each head; the first half of it with the second.
    fn rope(&mut self, name: &str, x: &Value) -> Value {
        let rope = Rope {
            theta: self.model.forward.rope_theta,
            dims: self.model.head_dim,
            first: 0,
            pairing: Pairing::HalfSplit,
        };
        self.phase.rope(&self.name(name), x, rope)
    }

    fn linear(&mut self, name: &str, x: &Value, module: &str, shape: [u64; 2]) -> Value {
        let weight = self.weight(module, shape);
        self.phase.linear(&self.name(name), x, &weight)
    }

    fn rms_norm(&mut self, name: &str, x: &Value, module: &str, width: u64) -> Value {
        let weight = self.weight(module, [width]);
        let eps = self.model.forward.rms_norm_eps;
        self.phase.rms_norm(&self.name(name), x, &weight, eps)
    }

    fn weight<const N: usize>(&mut self, module: &str, shape: [u64; N]) -> Param {
        let tensor = format!("model.layers.{}.{module}.weight", self.i);
        self.phase.program().param(&tensor, shape)
    }

    /// The full name of a value.
    fn name(&self, name: &str) -> String {
        format!("layers.{}.{name}", self.i)
    }
}
