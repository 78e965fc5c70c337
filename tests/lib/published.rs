//! What the published checkpoints of the GLM-5 family hold, by a second path.
//!
//! A config is walked layer by layer into names, shapes and dtypes. Nothing here is shared with the family's plugin or with the
//! crates that carry it out, so the two can be held against each other; the table of tensors is that of the model's published
//! headers. Only what the published configs say is understood: lists of layer types are taken as they stand, and what else could
//! say which layer has what is refused, not passed over.
//!
//! Letters: `h` hidden, `v` vocabulary, `a` heads, `dn dr dv` widths of a head without and with rotary embedding and of its
//! values, `rq rk` latent ranks, `hi di` heads and width of an indexer, `e` experts, `f` an expert's channels.

use serde_json::{Value, json};

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
/// Errors: a line that names the key of the config that is not as it should be.
pub fn read(config: &Value) -> Result<Vec<Tensor>, String> {
    let mut walk = Walk {
        config,
        is_fp8: is_fp8(&config["quantization_config"])?,
        part: Part::Main,
        tensors: Vec::new(),
    };
    walk.model()?;
    Ok(walk.tensors)
}

/// The same of a config that is known to be read.
///
/// # Panics
///
/// If it is not.
#[must_use]
pub fn tensors(config: &Value) -> Vec<Tensor> {
    read(config).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(key: &str, found: &Value, expected: &str) -> String {
    let found = match found {
        Value::Null => "absent".to_owned(),
        found => found.to_string(),
    };
    format!("{key} is {found}, expected {expected}")
}

/// Whether the matrices are codes with scales.
fn is_fp8(quantization: &Value) -> Result<bool, String> {
    if quantization.is_null() {
        return Ok(false);
    }
    let block = [BLOCK, BLOCK];
    for (key, expected) in [
        ("quant_method", json!("fp8")),
        ("weight_block_size", json!(block)),
    ] {
        if quantization[key] != expected {
            let name = format!("quantization_config.{key}");
            return Err(refused(&name, &quantization[key], &expected.to_string()));
        }
    }
    Ok(true)
}

struct Walk<'a> {
    config: &'a Value,
    is_fp8: bool,
    part: Part,
    tensors: Vec<Tensor>,
}

impl Walk<'_> {
    fn number(&self, key: &str) -> Result<u64, String> {
        let value = &self.config[key];
        value
            .as_u64()
            .ok_or_else(|| refused(key, value, "a whole number"))
    }

    /// A number that some releases do not give.
    fn number_or(&self, key: &str, otherwise: u64) -> Result<u64, String> {
        match &self.config[key] {
            Value::Null => Ok(otherwise),
            _ => self.number(key),
        }
    }

    /// Which layers are of the first of two kinds, as a list of layer types says it. `None` without the list.
    fn kinds(
        &self,
        list: &str,
        kinds: [&str; 2],
        layers: u64,
    ) -> Result<Option<Vec<bool>>, String> {
        let value = &self.config[list];
        let words = match value {
            Value::Null => return Ok(None),
            Value::Array(words) => words.as_slice(),
            _ => &[],
        };
        if words.len() as u64 != layers {
            let expected = format!("one for each of {layers} layers");
            return Err(format!(
                "{list} has {} entries, expected {expected}",
                words.len()
            ));
        }
        let is_known = |word: &Value| kinds.iter().any(|kind| word == kind);
        if let Some(layer) = words.iter().position(|word| !is_known(word)) {
            let (key, expected) = (format!("{list}[{layer}]"), kinds.join(" or "));
            return Err(refused(&key, &words[layer], &expected));
        }
        Ok(Some(words.iter().map(|word| word == kinds[0]).collect()))
    }

    /// Which layers have an indexer of their own: all, without a list. Other ways to say it are understood by programs that
    /// load a model, and here refused where no list decides.
    fn indexers(&self, layers: u64) -> Result<Vec<bool>, String> {
        if let Some(full) = self.kinds("indexer_types", ["full", "shared"], layers)? {
            return Ok(full);
        }
        let pattern = &self.config["index_topk_pattern"];
        if !pattern.is_null() {
            let expected = "none without indexer_types";
            return Err(refused("index_topk_pattern", pattern, expected));
        }
        match self.number_or("index_topk_freq", 1)? {
            0 | 1 => (0..layers).map(|_| Ok(true)).collect(),
            frequency => {
                let expected = "at most 1 without indexer_types";
                Err(refused("index_topk_freq", &frequency.into(), expected))
            }
        }
    }

    /// Which layers are dense: without a list the first ones, as many as are counted.
    fn dense(&self, layers: u64) -> Result<Vec<bool>, String> {
        if let Some(dense) = self.kinds("mlp_layer_types", ["dense", "sparse"], layers)? {
            return Ok(dense);
        }
        let frequency = self.number_or("moe_layer_freq", 1)?;
        if frequency != 1 {
            let expected = "1 without mlp_layer_types";
            return Err(refused("moe_layer_freq", &frequency.into(), expected));
        }
        let first = self.number_or("first_k_dense_replace", 0)?;
        Ok((0..layers).map(|layer| layer < first).collect())
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

    fn model(&mut self) -> Result<(), String> {
        let (v, h) = (self.number("vocab_size")?, self.number("hidden_size")?);
        let layers = self.number("num_hidden_layers")?;
        self.plain("model.embed_tokens.weight".to_owned(), &[v, h]);
        let (indexers, dense) = (self.indexers(layers)?, self.dense(layers)?);
        for (layer, (has_indexer, is_dense)) in (0..).zip(indexers.into_iter().zip(dense)) {
            self.layer(layer, has_indexer, is_dense)?;
        }
        self.part = Part::Mtp;
        // FC-09: no count of prediction layers is a count of none.
        let depths = self.number_or("num_nextn_predict_layers", 0)?;
        for layer in layers..layers + depths {
            let name = |field: &str| format!("model.layers.{layer}.{field}.weight");
            self.layer(layer, true, false)?;
            self.plain(name("enorm"), &[h]);
            self.plain(name("hnorm"), &[h]);
            self.plain(name("eh_proj"), &[h, 2 * h]);
            self.plain(name("shared_head.norm"), &[h]);
        }
        self.part = Part::Main;
        self.plain("model.norm.weight".to_owned(), &[h]);
        self.plain("lm_head.weight".to_owned(), &[v, h]);
        Ok(())
    }

    fn layer(&mut self, layer: u64, has_indexer: bool, is_dense: bool) -> Result<(), String> {
        let prefix = format!("model.layers.{layer}");
        let h = self.number("hidden_size")?;
        self.plain(format!("{prefix}.input_layernorm.weight"), &[h]);
        self.plain(format!("{prefix}.post_attention_layernorm.weight"), &[h]);
        self.attention(&format!("{prefix}.self_attn"), h)?;
        if has_indexer {
            self.indexer(&format!("{prefix}.self_attn.indexer"), h)?;
        }
        let mlp = format!("{prefix}.mlp");
        if is_dense {
            let width = self.number("intermediate_size")?;
            self.gated(&mlp, width, h);
        } else {
            self.experts(&mlp, h)?;
        }
        Ok(())
    }

    fn attention(&mut self, prefix: &str, h: u64) -> Result<(), String> {
        let a = self.number("num_attention_heads")?;
        let (rq, rk) = (self.number("q_lora_rank")?, self.number("kv_lora_rank")?);
        let (dn, dr) = (
            self.number("qk_nope_head_dim")?,
            self.number("qk_rope_head_dim")?,
        );
        let dv = self.number("v_head_dim")?;
        let name = |field: &str| format!("{prefix}.{field}.weight");
        self.matrix(name("q_a_proj"), rq, h);
        self.plain(name("q_a_layernorm"), &[rq]);
        self.matrix(name("q_b_proj"), a * (dn + dr), rq);
        self.matrix(name("kv_a_proj_with_mqa"), rk + dr, h);
        self.plain(name("kv_a_layernorm"), &[rk]);
        self.matrix(name("kv_b_proj"), a * (dn + dv), rk);
        self.matrix(name("o_proj"), h, a * dv);
        Ok(())
    }

    fn indexer(&mut self, prefix: &str, h: u64) -> Result<(), String> {
        let rq = self.number("q_lora_rank")?;
        let (hi, di) = (
            self.number("index_n_heads")?,
            self.number("index_head_dim")?,
        );
        self.matrix(format!("{prefix}.wq_b.weight"), hi * di, rq);
        self.matrix(format!("{prefix}.wk.weight"), di, h);
        self.plain(format!("{prefix}.k_norm.weight"), &[di]);
        self.plain(format!("{prefix}.k_norm.bias"), &[di]);
        self.plain(format!("{prefix}.weights_proj.weight"), &[hi, h]);
        Ok(())
    }

    fn experts(&mut self, mlp: &str, h: u64) -> Result<(), String> {
        let (e, f) = (
            self.number("n_routed_experts")?,
            self.number("moe_intermediate_size")?,
        );
        let shared = self.number("n_shared_experts")? * f;
        self.plain(format!("{mlp}.gate.weight"), &[e, h]);
        let bias = format!("{mlp}.gate.e_score_correction_bias");
        self.push(bias, Dtype::F32, &[e]);
        for expert in 0..e {
            self.gated(&format!("{mlp}.experts.{expert}"), f, h);
        }
        self.gated(&format!("{mlp}.shared_experts"), shared, h);
        Ok(())
    }

    fn gated(&mut self, prefix: &str, width: u64, h: u64) {
        self.matrix(format!("{prefix}.gate_proj.weight"), width, h);
        self.matrix(format!("{prefix}.up_proj.weight"), width, h);
        self.matrix(format!("{prefix}.down_proj.weight"), h, width);
    }
}

#[cfg(test)]
mod tests;
