//! The forward pass, from token ids to logits: what each layer makes of the residual stream, as calls of known operations.
//!
//! One phase serves prompts and single tokens alike. Attention is in the absorbed form: what is kept of a position is one latent
//! and one rotated key for all heads, and on layers with an indexer of their own the indexer's key beside them. Models are
//! compared by the names of values: `hidden.{i}` on the stream, `layers.{i}.*` in a layer, `mtp.*` in the prediction layer.

mod attention;
mod mlp;
mod mtp;

use rialto_plugin::prelude::program::builder::{Builder, Param, PhaseBuilder, Value};
use rialto_plugin::prelude::program::step;
use rialto_plugin::prelude::{
    Error, ForwardPass, Map, ModelSpec, Program, ProgramOptions, SettingFault, Value as Json,
};

use crate::Glm5;
use crate::codec::BLOCK_FP8;
use crate::spec::{Layer, Model};

/// Epsilon of the norms of both latents, unless a user sets [`LATENT_EPS_SETTING`]. Source: transformers, which leaves those two
/// at the default of its class; others take `rms_norm_eps` for them, and which one the weights were trained with is not public.
pub const LATENT_EPS: f64 = 1e-6;

/// The setting of that epsilon.
pub const LATENT_EPS_SETTING: &str = "latent_eps";

impl ForwardPass for Glm5 {
    fn program(&self, spec: &ModelSpec, options: &ProgramOptions) -> Result<Program, Error> {
        let model = Model::of(spec)?;
        let latent_eps = latent_eps(&options.settings)?;
        let mut program = Builder::new();
        program.stop_tokens(model.forward.eos_token_id.clone());
        program.block_codec(BLOCK_FP8);
        forward(&model, latent_eps, &mut program);
        for depth in 0..model.mtp_layers {
            mtp::forward(&model, latent_eps, depth, &mut program);
        }
        Ok(program.finish()?)
    }
}

/// The model: phase `forward`.
fn forward(model: &Model, latent_eps: f64, program: &mut Builder) {
    let (embedding, head) = (embedding(model, program), head(model, program));
    let norm = program.param("model.norm.weight", [model.hidden_size]);
    let mut phase = program.phase("forward");

    let mut x = phase.embed("hidden.0", &embedding);
    phase.stream(&x);
    // A layer that shares an indexer reads the selection of the nearest layer before it that has one.
    let mut selection = None;
    for (i, kind) in (0u64..).zip(&model.layers) {
        let mut layer = Block {
            model,
            latent_eps,
            phase: &mut phase,
            tensors: format!("model.layers.{i}"),
            values: format!("layers.{i}"),
        };
        x = layer.decoder(*kind, &x, &mut selection, &format!("hidden.{}", i + 1));
        phase.stream(&x);
    }
    let x = phase.rms_norm("hidden.final", &x, &norm, model.forward.rms_norm_eps);
    phase.stream(&x);

    let rows = phase.gather("head.rows", &x, step::ROWS);
    let logits = phase.linear_f32("logits", &rows, &head);
    phase.output(&logits);
    phase.output(&x);
}

fn embedding(model: &Model, program: &mut Builder) -> Param {
    let shape = [model.vocab_size, model.hidden_size];
    program.param("model.embed_tokens.weight", shape)
}

fn head(model: &Model, program: &mut Builder) -> Param {
    let shape = [model.vocab_size, model.hidden_size];
    program.param("lm_head.weight", shape)
}

/// A layer that is being written: where its weights are, and what its values are called.
struct Block<'a, 'b> {
    model: &'a Model,
    latent_eps: f64,
    phase: &'a mut PhaseBuilder<'b>,
    /// What the names of its tensors begin with.
    tensors: String,
    /// What the names of its values and caches begin with.
    values: String,
}

impl Block<'_, '_> {
    /// Attention, then the feed-forward part, each of the normed stream and added to it: `[t, h]` to `[t, h]`. The result has the
    /// name `out`; `selection` is what layers that share an indexer read, and becomes this layer's own if it has one.
    fn decoder(
        &mut self,
        kind: Layer,
        x: &Value,
        selection: &mut Option<Value>,
        out: &str,
    ) -> Value {
        let h = self.model.hidden_size;
        let normed = self.rms_norm("attn_in", x, "input_layernorm", h);
        let attended = self.attention(kind.indexer, &normed, selection);
        let x = self.add("attn_residual", x, &attended);

        let normed = self.rms_norm("mlp_in", &x, "post_attention_layernorm", h);
        let fed = self.feed_forward(kind.mlp, &normed);
        self.phase.add(out, &x, &fed)
    }

    /// The full name of a value or a cache.
    fn name(&self, name: &str) -> String {
        format!("{}.{name}", self.values)
    }

    /// The full name of a tensor.
    fn tensor(&self, name: &str) -> String {
        format!("{}.{name}", self.tensors)
    }

    fn weight<const N: usize>(&mut self, module: &str, shape: [u64; N]) -> Param {
        let tensor = self.tensor(&format!("{module}.weight"));
        self.phase.program().param(&tensor, shape)
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

    fn add(&mut self, name: &str, x: &Value, y: &Value) -> Value {
        self.phase.add(&self.name(name), x, y)
    }

    fn slice(&mut self, name: &str, x: &Value, start: u64, length: u64) -> Value {
        self.phase.slice(&self.name(name), x, start, length)
    }

    fn reshape<const N: usize>(&mut self, name: &str, x: &Value, shape: [u64; N]) -> Value {
        self.phase.reshape(&self.name(name), x, shape)
    }
}

/// The epsilon of the latents' norms. Errors: [`Error::Settings`] for it, and for every setting that there is none of.
fn latent_eps(settings: &Map<String, Json>) -> Result<f64, Error> {
    let mut eps = LATENT_EPS;
    let mut faults = Vec::new();
    for (name, value) in settings {
        let number = value.as_f64().filter(|number| *number > 0.0);
        match number {
            _ if name != LATENT_EPS_SETTING => faults.push(SettingFault::new(
                name,
                value,
                "the forward pass has no such setting",
                LATENT_EPS_SETTING,
            )),
            Some(number) => eps = number,
            None => faults.push(SettingFault::new(
                name,
                value,
                "it is no value of this setting",
                "a number above 0",
            )),
        }
    }
    SettingFault::refuse(faults)?;
    Ok(eps)
}

/// `n^-0.5`.
fn inverse_root(n: u64) -> f64 {
    (1.0 / n as f64).sqrt()
}
