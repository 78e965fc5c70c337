//! What the published checkpoints of the GLM-5 family hold, by a second path.
//!
//! A config is walked layer by layer into names, shapes and dtypes. Nothing here is shared with the family's plugin or with the
//! crates that carry it out, so the two can be held against each other; the table of tensors is that of the model's published
//! headers. Only what the published configs say is understood: a lack of a number is a panic, and lists of layer types are
//! taken as they stand.
//!
//! Letters: `h` hidden, `v` vocabulary, `a` heads, `dn dr dv` widths of a head without and with rotary embedding and of its
//! values, `rq rk` latent ranks, `hi di` heads and width of an indexer, `e` experts, `f` an expert's channels.

use serde_json::Value;

/// Rows and columns for which a scale stands.
const BLOCK: u64 = 128;

/// An element type by what a header calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dtype {
    /// 8 bits, as codes that a scale multiplies.
    F8E4m3,
    /// 16 bits.
    Bf16,
    /// 32 bits.
    F32,
}

impl Dtype {
    /// Its name in a safetensors header.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F8E4m3 => "F8_E4M3",
            Dtype::Bf16 => "BF16",
            Dtype::F32 => "F32",
        }
    }

    /// Bytes of one element.
    #[must_use]
    pub fn width_bytes(self) -> u64 {
        match self {
            Dtype::F8E4m3 => 1,
            Dtype::Bf16 => 2,
            Dtype::F32 => 4,
        }
    }
}

/// Which part of the model a tensor is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The decoder, its embedding and its head.
    Main,
    /// Multi-token prediction.
    Mtp,
}

/// One tensor of a published checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: Dtype,
    /// Its extents in elements, outermost first.
    pub shape: Vec<u64>,
    /// The part of the model.
    pub part: Part,
    /// Whether it is the scales of the tensor before it, and so no weight.
    pub is_scale: bool,
}

impl Tensor {
    /// Elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Bytes as stored.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.elements() * self.dtype.width_bytes()
    }
}

/// Every tensor of the checkpoint that a config was published with, the scales of a matrix after it: the embedding, the layers
/// by number with the prediction layers last, the head.
///
/// # Panics
///
/// If the config lacks a number.
#[must_use]
pub fn tensors(config: &Value) -> Vec<Tensor> {
    let mut walk = Walk {
        config,
        is_fp8: !config["quantization_config"].is_null(),
        part: Part::Main,
        tensors: Vec::new(),
    };
    walk.model();
    walk.tensors
}

struct Walk<'a> {
    config: &'a Value,
    is_fp8: bool,
    part: Part,
    tensors: Vec<Tensor>,
}

impl Walk<'_> {
    fn number(&self, key: &str) -> u64 {
        let value = self.config[key].as_u64();
        value.unwrap_or_else(|| panic!("no number for {key}"))
    }

    /// What a list of layer types says of a layer; without the list, `otherwise`.
    fn is(&self, list: &str, layer: u64, kind: &str, otherwise: bool) -> bool {
        let at = usize::try_from(layer).expect("few layers");
        match &self.config[list] {
            Value::Null => otherwise,
            types => types[at] == *kind,
        }
    }

    fn push(&mut self, name: String, dtype: Dtype, shape: &[u64]) {
        self.tensors.push(Tensor {
            is_scale: false,
            name,
            dtype,
            shape: shape.to_vec(),
            part: self.part,
        });
    }

    /// What is BF16 in every release.
    fn plain(&mut self, name: String, shape: &[u64]) {
        self.push(name, Dtype::Bf16, shape);
    }

    /// What is block-scaled FP8 in the releases that have any.
    fn matrix(&mut self, name: String, rows: u64, columns: u64) {
        if !self.is_fp8 {
            return self.plain(name, &[rows, columns]);
        }
        let scales = format!("{name}_scale_inv");
        self.push(name, Dtype::F8E4m3, &[rows, columns]);
        let grid = [rows.div_ceil(BLOCK), columns.div_ceil(BLOCK)];
        self.push(scales, Dtype::F32, &grid);
        if let Some(last) = self.tensors.last_mut() {
            last.is_scale = true;
        }
    }

    fn model(&mut self) {
        let (v, h) = (self.number("vocab_size"), self.number("hidden_size"));
        let layers = self.number("num_hidden_layers");
        self.plain("model.embed_tokens.weight".to_owned(), &[v, h]);
        for layer in 0..layers {
            let has_indexer = self.is("indexer_types", layer, "full", true);
            // Configs without a list of MLP types count the dense layers, which come first.
            let first = self.config["first_k_dense_replace"].as_u64();
            let is_early = first.is_some_and(|first| layer < first);
            let is_dense = self.is("mlp_layer_types", layer, "dense", is_early);
            self.layer(layer, has_indexer, is_dense);
        }
        self.part = Part::Mtp;
        // FC-09: no count of prediction layers is a count of none.
        let depths = match &self.config["num_nextn_predict_layers"] {
            Value::Null => 0,
            _ => self.number("num_nextn_predict_layers"),
        };
        for layer in layers..layers + depths {
            let name = |field: &str| format!("model.layers.{layer}.{field}.weight");
            self.layer(layer, true, false);
            self.plain(name("enorm"), &[h]);
            self.plain(name("hnorm"), &[h]);
            self.plain(name("eh_proj"), &[h, 2 * h]);
            self.plain(name("shared_head.norm"), &[h]);
        }
        self.part = Part::Main;
        self.plain("model.norm.weight".to_owned(), &[h]);
        self.plain("lm_head.weight".to_owned(), &[v, h]);
    }

    fn layer(&mut self, layer: u64, has_indexer: bool, is_dense: bool) {
        let prefix = format!("model.layers.{layer}");
        let h = self.number("hidden_size");
        self.plain(format!("{prefix}.input_layernorm.weight"), &[h]);
        self.plain(format!("{prefix}.post_attention_layernorm.weight"), &[h]);
        self.attention(&format!("{prefix}.self_attn"), h);
        if has_indexer {
            self.indexer(&format!("{prefix}.self_attn.indexer"), h);
        }
        let mlp = format!("{prefix}.mlp");
        if is_dense {
            let width = self.number("intermediate_size");
            self.gated(&mlp, width, h);
        } else {
            self.experts(&mlp, h);
        }
    }

    fn attention(&mut self, prefix: &str, h: u64) {
        let a = self.number("num_attention_heads");
        let (rq, rk) = (self.number("q_lora_rank"), self.number("kv_lora_rank"));
        let (dn, dr) = (
            self.number("qk_nope_head_dim"),
            self.number("qk_rope_head_dim"),
        );
        let dv = self.number("v_head_dim");
        let name = |field: &str| format!("{prefix}.{field}.weight");
        self.matrix(name("q_a_proj"), rq, h);
        self.plain(name("q_a_layernorm"), &[rq]);
        self.matrix(name("q_b_proj"), a * (dn + dr), rq);
        self.matrix(name("kv_a_proj_with_mqa"), rk + dr, h);
        self.plain(name("kv_a_layernorm"), &[rk]);
        self.matrix(name("kv_b_proj"), a * (dn + dv), rk);
        self.matrix(name("o_proj"), h, a * dv);
    }

    fn indexer(&mut self, prefix: &str, h: u64) {
        let rq = self.number("q_lora_rank");
        let (hi, di) = (self.number("index_n_heads"), self.number("index_head_dim"));
        self.matrix(format!("{prefix}.wq_b.weight"), hi * di, rq);
        self.matrix(format!("{prefix}.wk.weight"), di, h);
        self.plain(format!("{prefix}.k_norm.weight"), &[di]);
        self.plain(format!("{prefix}.k_norm.bias"), &[di]);
        self.plain(format!("{prefix}.weights_proj.weight"), &[hi, h]);
    }

    fn experts(&mut self, mlp: &str, h: u64) {
        let (e, f) = (
            self.number("n_routed_experts"),
            self.number("moe_intermediate_size"),
        );
        let shared = self.number("n_shared_experts") * f;
        self.plain(format!("{mlp}.gate.weight"), &[e, h]);
        let bias = format!("{mlp}.gate.e_score_correction_bias");
        self.push(bias, Dtype::F32, &[e]);
        for expert in 0..e {
            self.gated(&format!("{mlp}.experts.{expert}"), f, h);
        }
        self.gated(&format!("{mlp}.shared_experts"), shared, h);
    }

    fn gated(&mut self, prefix: &str, width: u64, h: u64) {
        self.matrix(format!("{prefix}.gate_proj.weight"), width, h);
        self.matrix(format!("{prefix}.up_proj.weight"), width, h);
        self.matrix(format!("{prefix}.down_proj.weight"), h, width);
    }
}

#[cfg(test)]
mod tests;
