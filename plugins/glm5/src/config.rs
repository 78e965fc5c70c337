//! `config.json`, key by key: what each means, and which values are refused because they would compute something else.

mod experts;
mod rope;
mod schedule;

use rialto_plugin::prelude::*;

use self::experts::Choice;
use self::schedule::Sharing;
use crate::Glm5;
use crate::codec::BLOCK;
use crate::settings;
use crate::spec::{Forward, Indexer, Layer, Mlp, Model, PROVIDER, Release, fixed_provider_fields};

/// The architecture id of the family.
pub const ARCHITECTURE: &str = "GlmMoeDsaForCausalLM";

/// What `model_type` says of the family, where it is there; a config that names two models is neither.
const MODEL_TYPE: &str = "glm_moe_dsa";

/// The key that says how the matrices are quantized.
const QUANTIZATION: &str = "quantization_config";

/// Keys that have one published value, which the forward pass takes for granted; another value is refused, and an absent key
/// has the published one.
const REQUIRED_VALUES: &[(&str, &str)] = &[
    ("attention_bias", "false"),
    ("hidden_act", "\"silu\""),
    // The name of `hidden_act` in some older configs.
    ("hidden_activation", "\"silu\""),
    ("indexer_rope_interleave", "true"),
    ("mlp_bias", "false"),
    ("moe_layer_freq", "1"),
    ("moe_router_dtype", "\"float32\""),
    ("norm_topk_prob", "true"),
    ("rope_interleave", "true"),
    ("scoring_func", "\"sigmoid\""),
    ("tie_word_embeddings", "false"),
    ("topk_method", "\"noaux_tc\""),
];

/// Keys that are read below, beside those of [`READ_KEYS`], and keys that say nothing about the conversion: those stay in the
/// stored config without a word.
const KNOWN_KEYS: &[&str] = &[
    "attention_dropout",
    "bos_token_id",
    "eos_token_id",
    "ep_size",
    "first_k_dense_replace",
    "head_dim",
    "hidden_size",
    "index_head_dim",
    "index_n_heads",
    "index_share_for_mtp_iteration",
    "index_skip_topk_offset",
    "index_topk",
    "index_topk_freq",
    "index_topk_pattern",
    "indexer_types",
    "initializer_range",
    "intermediate_size",
    "kv_lora_rank",
    "layer_types",
    "max_position_embeddings",
    "mlp_layer_types",
    "moe_intermediate_size",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "num_attention_heads",
    "num_experts",
    "num_experts_per_tok",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_local_experts",
    "num_nextn_predict_layers",
    "pad_token_id",
    "pretraining_tp",
    "q_lora_rank",
    "qk_head_dim",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "quantization_config",
    "rms_norm_eps",
    "routed_scaling_factor",
    "topk_group",
    "transformers_version",
    "use_cache",
    "v_head_dim",
    "vocab_size",
];

impl ConfigMapping for Glm5 {
    fn claim(&self, config: &RawConfig) -> Result<Claim, Error> {
        if let Some(reason) = config.is_not_of(ARCHITECTURE, MODEL_TYPE)? {
            return Ok(Claim::No { reason });
        }
        let (release, reason) = release(config)?;
        Ok(Claim::Yes {
            release: release.name.to_owned(),
            reason,
        })
    }

    fn map_config(&self, config: &RawConfig, options: &MapOptions) -> Result<ModelSpec, Error> {
        let (release, _) = release(config)?;
        config.require(REQUIRED_VALUES)?;
        check_quantization(config)?;
        let mut notices = Vec::new();
        let model = read_model(config, options, &mut notices)?;
        let provider = provider(config, &model, options, &mut notices)?;
        settings::check(&provider, &options.settings)?;
        Ok(ModelSpec {
            release: release.name.to_owned(),
            architecture: ARCHITECTURE.to_owned(),
            dims: Dims {
                layers: model.layers.len() as u64,
                hidden: model.hidden_size,
                vocab: model.vocab_size,
                mtp_layers: model.mtp_layers,
                mtp_layers_dropped: model.mtp_layers_dropped,
            },
            provider_target: PROVIDER.to_owned(),
            provider,
            extra: json!(model),
            unread_keys: config.unread(&[READ_KEYS, KNOWN_KEYS], REQUIRED_VALUES),
            notices,
        })
    }

    fn unmap_config(
        &self,
        spec: &ModelSpec,
        reference: &RawConfig,
    ) -> Result<Vec<ConfigEdit>, Error> {
        let mut edits = Vec::new();
        let key = "num_nextn_predict_layers";
        if reference.optional_integer(key)?.unwrap_or(0) != spec.dims.mtp_layers {
            edits.push(ConfigEdit::set(key, spec.dims.mtp_layers));
        }
        // Megatron holds decoded weights; what is exported is not quantized.
        if reference.value(QUANTIZATION).is_some() {
            edits.push(ConfigEdit::remove(QUANTIZATION));
        }
        Ok(edits)
    }
}

/// Which release a config belongs to, and what in it says so.
fn release(config: &RawConfig) -> Result<(Release, String), Error> {
    let layers = schedule::indexers(config, &mut Vec::new())?;
    let shared = layers
        .iter()
        .filter(|&&indexer| indexer == Indexer::Shared)
        .count();
    let is_fp8 = is_fp8(config);
    let quantization = if is_fp8 {
        "a quantization_config"
    } else {
        "no quantization_config"
    };
    let reason = format!(
        "{ARCHITECTURE}, {shared} of {} layers share an indexer, {quantization}",
        layers.len()
    );
    Ok((Release::find(shared > 0, is_fp8), reason))
}

fn is_fp8(config: &RawConfig) -> bool {
    config.value(QUANTIZATION).is_some()
}

/// Refuses a quantization whose codes or blocks are not the codec's: the scales' shapes alone would not always tell. Which
/// tensors are quantized is not asked of the config; its list names some that do not exist.
fn check_quantization(config: &RawConfig) -> Result<(), Error> {
    if config
        .value(QUANTIZATION)
        .is_some_and(|fields| !fields.is_object())
    {
        return Err(config.wrong(QUANTIZATION, "an object"));
    }
    for (key, expected) in [
        ("fmt", json!("e4m3")),
        ("quant_method", json!("fp8")),
        ("weight_block_size", json!(BLOCK)),
    ] {
        let found = config
            .value(QUANTIZATION)
            .and_then(|fields| fields.get(key));
        if let Some(found) = found.filter(|found| **found != expected) {
            return Err(Error::ConfigValue {
                key: format!("{QUANTIZATION}.{key}"),
                expected: expected.to_string(),
                found: found.to_string(),
            });
        }
    }
    Ok(())
}

fn read_model(
    config: &RawConfig,
    options: &MapOptions,
    notices: &mut Vec<String>,
) -> Result<Model, Error> {
    let indexers = schedule::indexers(config, notices)?;
    let mlps = schedule::mlps(config, indexers.len(), notices)?;
    schedule::check_attention(config, indexers.len())?;
    let described = config
        .optional_integer("num_nextn_predict_layers")?
        .unwrap_or(0);
    if described > 1 {
        return Err(config.wrong("num_nextn_predict_layers", "0 or 1"));
    }
    let (mtp_layers, mtp_layers_dropped) = match options.mtp {
        MtpPolicy::Keep => (described, 0),
        MtpPolicy::Drop => (0, described),
        MtpPolicy::Absent => (0, 0),
    };
    let (nope, rope) = rope::query_widths(config, notices)?;
    if config.value("q_lora_rank").is_none() {
        // A model without it projects its queries in one step, and the indexer has nothing to read.
        return Err(config.wrong(
            "q_lora_rank",
            "the rank of the query latent, which the indexer needs",
        ));
    }
    let n_routed_experts = experts::routed(config, notices)?;
    Ok(Model {
        vocab_size: config.size("vocab_size")?,
        hidden_size: config.size("hidden_size")?,
        intermediate_size: config.size("intermediate_size")?,
        num_attention_heads: config.size("num_attention_heads")?,
        q_lora_rank: config.size("q_lora_rank")?,
        kv_lora_rank: config.size("kv_lora_rank")?,
        qk_nope_head_dim: nope,
        qk_rope_head_dim: rope,
        v_head_dim: config.size("v_head_dim")?,
        index_n_heads: config.size("index_n_heads")?,
        index_head_dim: index_width(config, rope)?,
        n_routed_experts,
        n_shared_experts: config.size("n_shared_experts")?,
        moe_intermediate_size: config.size("moe_intermediate_size")?,
        layers: indexers
            .into_iter()
            .zip(mlps)
            .map(|(indexer, mlp)| Layer { indexer, mlp })
            .collect(),
        mtp_layers,
        mtp_layers_dropped,
        forward: read_forward(config, n_routed_experts)?,
    })
}

/// What the forward pass of a model with so many experts reads besides.
fn read_forward(config: &RawConfig, n_routed_experts: u64) -> Result<Forward, Error> {
    let choice = Choice::read(config, n_routed_experts)?;
    Ok(Forward {
        rms_norm_eps: float(&config.positive("rms_norm_eps")?),
        // What there is to notice is noticed for the provider.
        rope_theta: float(&config.rotary_base(&mut Vec::new())?),
        index_topk: config.size("index_topk")?,
        num_experts_per_tok: choice.experts,
        n_group: choice.groups,
        topk_group: choice.chosen_groups,
        routed_scaling_factor: float(&config.positive("routed_scaling_factor")?),
        eos_token_id: config.token_ids("eos_token_id")?,
    })
}

/// A number to compute with; the provider keeps it as it is spelled.
fn float(number: &Value) -> f64 {
    number
        .as_f64()
        .expect("a number that is positive has a value")
}

/// The width of the indexer's heads, of which the first part is turned as far as in the others.
fn index_width(config: &RawConfig, rope: u64) -> Result<u64, Error> {
    let key = "index_head_dim";
    let width = config.size(key)?;
    if width < rope {
        return Err(config.wrong(key, &format!("at least the rotary width {rope}")));
    }
    Ok(width)
}

/// Latent attention has one key and value for each head; another number would be another attention.
fn key_value_heads(config: &RawConfig, model: &Model) -> Result<u64, Error> {
    let key = "num_key_value_heads";
    let heads = model.num_attention_heads;
    match config.optional_integer(key)? {
        Some(found) if found != heads => {
            Err(config.wrong(key, &format!("num_attention_heads {heads}")))
        }
        _ => Ok(heads),
    }
}

/// The provider's fields: those that the config decides, over those that are the same for every model.
fn provider(
    config: &RawConfig,
    model: &Model,
    options: &MapOptions,
    notices: &mut Vec<String>,
) -> Result<Map<String, Value>, Error> {
    let sharing = Sharing::of(config, &model.layers, notices)?;
    let dtype = config.torch_dtype(notices)?;
    let is_sparse = |layer: &Layer| u8::from(layer.mlp == Mlp::Sparse);
    let physical_is_sparse: Vec<u8> = model
        .layers
        .iter()
        .flat_map(|layer| [0, is_sparse(layer)])
        .collect();
    let decided = json!({
        "add_qkv_bias": false,
        "attention_dropout": config.fraction_or("attention_dropout", 0.0)?,
        "bf16": dtype == "bfloat16",
        "dsa_indexer_head_dim": model.index_head_dim,
        "dsa_indexer_n_heads": model.index_n_heads,
        "dsa_indexer_rope_interleaved": true,
        // In layers of the source model, as Megatron-Bridge keeps them.
        "dsa_indexer_skip_topk_offset": sharing.offset,
        "dsa_indexer_topk": model.forward.index_topk,
        "dsa_indexer_topk_freq": sharing.frequency,
        "ffn_hidden_size": model.intermediate_size,
        "fp16": dtype == "float16",
        "hidden_size": model.hidden_size,
        "init_method_std": config.fraction_or("initializer_range", 0.02)?,
        // Not `head_dim`, which releases fill differently: Transformers, and so Megatron-Bridge, puts the rope width there.
        "kv_channels": model.qk_rope_head_dim,
        "kv_lora_rank": model.kv_lora_rank,
        "layernorm_epsilon": config.positive("rms_norm_eps")?,
        "moe_ffn_hidden_size": model.moe_intermediate_size,
        "moe_layer_freq": physical_is_sparse,
        "moe_router_group_topk": model.forward.topk_group,
        "moe_router_num_groups": model.forward.n_group,
        "moe_router_topk": model.forward.num_experts_per_tok,
        "moe_router_topk_scaling_factor": config.positive("routed_scaling_factor")?,
        "moe_shared_expert_intermediate_size": model.moe_intermediate_size * model.n_shared_experts,
        "mtp_num_layers": (model.mtp_layers > 0).then_some(model.mtp_layers),
        "num_attention_heads": model.num_attention_heads,
        "num_layers": 2 * model.layers.len(),
        "num_moe_experts": model.n_routed_experts,
        "num_query_groups": key_value_heads(config, model)?,
        "params_dtype": torch(dtype),
        "q_lora_rank": model.q_lora_rank,
        // Megatron's `qk_head_dim` is the part without position alone.
        "qk_head_dim": model.qk_nope_head_dim,
        "qk_pos_emb_head_dim": model.qk_rope_head_dim,
        "rotary_base": config.rotary_base(notices)?,
        "seq_length": config.size("max_position_embeddings")?,
        // `vocab_size` stays the true one all the same: Megatron-Bridge pads it again.
        "should_pad_vocab": options.pads_vocabulary,
        "v_head_dim": model.v_head_dim,
        "vocab_size": model.vocab_size,
    });
    let mut provider = fixed_provider_fields();
    provider.extend(fields(decided));
    provider.sort_keys();
    Ok(provider)
}
