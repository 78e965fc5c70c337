//! `config.json`, key by key: what each means, which values are refused because they would compute something else, and what
//! Megatron calls it.

use rialto_plugin::prelude::*;
use rialto_plugin::serde::{Deserialize, Serialize};

use crate::{Qwen3, settings};

/// The architecture id of the family.
pub const ARCHITECTURE: &str = "Qwen3ForCausalLM";

/// What a config of the family is called. All sizes have the same keys.
pub const RELEASE: &str = "qwen3";

/// What `model_type` says where it is there.
const MODEL_TYPE: &str = "qwen3";

/// The Megatron-Bridge provider class that a checkpoint names.
const PROVIDER: &str = "megatron.bridge.models.gpt_provider.GPTModelProvider";

/// Keys that have one published value, which the forward pass takes for granted.
const REQUIRED_VALUES: &[(&str, &str)] = &[
    ("attention_bias", "false"),
    ("hidden_act", "\"silu\""),
    ("use_sliding_window", "false"),
];

/// Keys that are read below, beside those of [`READ_KEYS`], and keys that say nothing about the conversion.
const KNOWN_KEYS: &[&str] = &[
    "attention_dropout",
    "bos_token_id",
    "eos_token_id",
    "head_dim",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    // Which layers would slide, if any did.
    "max_window_layers",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "pad_token_id",
    "rms_norm_eps",
    "sliding_window",
    "tie_word_embeddings",
    "transformers_version",
    "use_cache",
    "vocab_size",
];

/// Most layers of a model.
const MOST_LAYERS: u64 = 1_000;

/// Most heads of a layer.
const MOST_HEADS: u64 = 1 << 16;

/// The attention of a layer, as `layer_types` has it.
const ATTENTION: &str = "full_attention";

/// The model's numbers; the config key of each is its name unless said otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(crate = "rialto_plugin::serde", deny_unknown_fields)]
#[allow(missing_docs, reason = "each field is the config key of its name")]
pub struct Model {
    pub vocab_size: u64,
    pub hidden_size: u64,
    pub intermediate_size: u64,
    pub num_hidden_layers: u64,
    pub num_attention_heads: u64,
    pub num_key_value_heads: u64,
    /// Not `hidden_size / num_attention_heads`.
    pub head_dim: u64,
    /// `tie_word_embeddings`.
    pub is_tied: bool,
    /// What only the forward pass reads.
    pub forward: Forward,
}

/// Numbers that decide no tensor: the same weights may be run with others. The config key of each is its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(crate = "rialto_plugin::serde", deny_unknown_fields)]
#[allow(missing_docs, reason = "each field is the config key of its name")]
pub struct Forward {
    pub rms_norm_eps: f64,
    /// The base of the rotary embedding, in whichever spelling the config has it.
    pub rope_theta: f64,
    /// The token ids that end a text.
    pub eos_token_id: Vec<u32>,
}

impl Model {
    fn read(config: &RawConfig) -> Result<Model, Error> {
        let (heads, groups) = ("num_attention_heads", "num_key_value_heads");
        let model = Model {
            vocab_size: config.size("vocab_size")?,
            hidden_size: config.size("hidden_size")?,
            intermediate_size: config.size("intermediate_size")?,
            num_hidden_layers: config.bounded("num_hidden_layers", MOST_LAYERS)?,
            num_attention_heads: config.bounded(heads, MOST_HEADS)?,
            num_key_value_heads: config.bounded(groups, MOST_HEADS)?,
            head_dim: config.size("head_dim")?,
            is_tied: is_tied(config)?,
            forward: Forward {
                rms_norm_eps: float(&config.positive("rms_norm_eps")?),
                // What there is to notice is noticed for the provider.
                rope_theta: float(&config.rotary_base(&mut Vec::new())?),
                eos_token_id: config.token_ids("eos_token_id")?,
            },
        };
        if !model
            .num_attention_heads
            .is_multiple_of(model.num_key_value_heads)
        {
            let expected = format!("a divisor of {heads} {}", model.num_attention_heads);
            return Err(config.wrong(groups, &expected));
        }
        if !model.head_dim.is_multiple_of(2) {
            // The rotary embedding turns pairs.
            return Err(config.wrong("head_dim", "an even number"));
        }
        Ok(model)
    }

    /// Query heads of each key and value head.
    #[must_use]
    pub fn heads_of_group(&self) -> u64 {
        self.num_attention_heads / self.num_key_value_heads
    }

    /// What the vocabulary is padded to a multiple of for each rank: the largest power of two up to 128 that divides it, as
    /// Megatron-Bridge chooses.
    #[must_use]
    pub fn vocabulary_multiple(&self) -> u64 {
        1 << self.vocab_size.trailing_zeros().min(7)
    }
}

impl ConfigMapping for Qwen3 {
    fn claim(&self, config: &RawConfig) -> Result<Claim, Error> {
        if let Some(reason) = config.is_not_of(ARCHITECTURE, MODEL_TYPE)? {
            return Ok(Claim::No { reason });
        }
        let head = if is_tied(config)? {
            "its head is the embedding"
        } else {
            "its head is its own"
        };
        Ok(Claim::Yes {
            release: RELEASE.to_owned(),
            reason: format!("{ARCHITECTURE}, {head}"),
        })
    }

    fn map_config(&self, config: &RawConfig, options: &MapOptions) -> Result<ModelSpec, Error> {
        config.require(REQUIRED_VALUES)?;
        check_quantization(config)?;
        let model = Model::read(config)?;
        check_layer_types(config, model.num_hidden_layers)?;
        let mut notices = Vec::new();
        let provider = provider(config, &model, options, &mut notices)?;
        settings::check(&provider, &options.settings)?;
        Ok(ModelSpec {
            release: RELEASE.to_owned(),
            architecture: ARCHITECTURE.to_owned(),
            dims: Dims {
                layers: model.num_hidden_layers,
                hidden: model.hidden_size,
                vocab: model.vocab_size,
                mtp_layers: 0,
                mtp_layers_dropped: 0,
            },
            provider_target: PROVIDER.to_owned(),
            provider,
            extra: json!(model),
            unread_keys: config.unread(&[READ_KEYS, KNOWN_KEYS], REQUIRED_VALUES),
            notices,
        })
    }

    /// Nothing in a config follows from how Megatron holds the weights.
    fn unmap_config(&self, _: &ModelSpec, _: &RawConfig) -> Result<Vec<ConfigEdit>, Error> {
        Ok(Vec::new())
    }
}

/// A number to compute with; the provider keeps it as it is spelled.
fn float(number: &Value) -> f64 {
    number
        .as_f64()
        .expect("a number that is positive has a value")
}

/// Whether the head is the embedding. Absent, it is not.
fn is_tied(config: &RawConfig) -> Result<bool, Error> {
    let key = "tie_word_embeddings";
    match config.value(key) {
        None => Ok(false),
        Some(Value::Bool(is_tied)) => Ok(*is_tied),
        Some(_) => Err(config.wrong(key, "true or false")),
    }
}

fn check_quantization(config: &RawConfig) -> Result<(), Error> {
    let key = "quantization_config";
    match config.value(key) {
        None => Ok(()),
        Some(_) => Err(config.wrong(key, "none: only weights that are stored as they are")),
    }
}

/// Refuses layers that look through a window.
fn check_layer_types(config: &RawConfig, layers: u64) -> Result<(), Error> {
    let key = "layer_types";
    let Some(types) = config.value(key) else {
        return Ok(());
    };
    let is_plain = types.as_array().is_some_and(|types| {
        types.len() as u64 == layers && types.iter().all(|kind| kind == ATTENTION)
    });
    match is_plain {
        true => Ok(()),
        false => Err(config.wrong(key, &format!("{ATTENTION:?} for each of {layers} layers"))),
    }
}

/// The provider's fields, in the order of their names.
fn provider(
    config: &RawConfig,
    model: &Model,
    options: &MapOptions,
    notices: &mut Vec<String>,
) -> Result<Map<String, Value>, Error> {
    let dtype = config.torch_dtype(notices)?;
    Ok(fields(json!({
        "activation_func": torch("nn.functional.silu"),
        "add_bias_linear": false,
        "add_qkv_bias": false,
        "attention_dropout": config.fraction_or("attention_dropout", 0.0)?,
        "bf16": dtype == "bfloat16",
        "ffn_hidden_size": model.intermediate_size,
        "fp16": dtype == "float16",
        "gated_linear_unit": true,
        // Layers are alike, and stored so; `--layer-axis per-layer` is told in the checkpoint itself.
        "hetereogenous_dist_checkpoint": false,
        "hidden_dropout": 0.0,
        "hidden_size": model.hidden_size,
        "init_method_std": config.fraction_or("initializer_range", 0.02)?,
        "kv_channels": model.head_dim,
        "layernorm_epsilon": config.positive("rms_norm_eps")?,
        "layernorm_zero_centered_gamma": false,
        "make_vocab_size_divisible_by": model.vocabulary_multiple(),
        "normalization": "RMSNorm",
        "num_attention_heads": model.num_attention_heads,
        "num_layers": model.num_hidden_layers,
        "num_query_groups": model.num_key_value_heads,
        "params_dtype": torch(dtype),
        "position_embedding_type": "rope",
        "qk_layernorm": true,
        "rotary_base": config.rotary_base(notices)?,
        "rotary_percent": 1.0,
        "seq_length": config.size("max_position_embeddings")?,
        "share_embeddings_and_output_weights": model.is_tied,
        "should_pad_vocab": options.pads_vocabulary,
        "vocab_size": model.vocab_size,
    })))
}
