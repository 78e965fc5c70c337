//! `config.json`, key by key: what each means, and which values are refused because they would compute something else.

use rialto_plugin::prelude::*;

use crate::Glm5;
use crate::codec::BLOCK;
use crate::settings;
use crate::spec::{Indexer, Layer, Mlp, Model, PROVIDER, Release, fixed_provider_fields, object};

/// The architecture id of the family.
pub const ARCHITECTURE: &str = "GlmMoeDsaForCausalLM";

/// The key that says how the matrices are quantized.
const QUANTIZATION: &str = "quantization_config";

/// Keys that have one published value, which the forward pass takes for granted; another value is refused.
const REQUIRED_VALUES: &[(&str, &str)] = &[
    ("attention_bias", "false"),
    ("hidden_act", "\"silu\""),
    ("indexer_rope_interleave", "true"),
    ("moe_layer_freq", "1"),
    ("moe_router_dtype", "\"float32\""),
    ("norm_topk_prob", "true"),
    ("rope_interleave", "true"),
    ("scoring_func", "\"sigmoid\""),
    ("tie_word_embeddings", "false"),
    ("topk_method", "\"noaux_tc\""),
];

/// Keys that are read below, and keys that say nothing about the conversion and stay in the stored config.
const KNOWN_KEYS: &[&str] = &[
    "architectures",
    "attention_dropout",
    "bos_token_id",
    "dtype",
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
    "model_type",
    "moe_intermediate_size",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "num_attention_heads",
    "num_experts_per_tok",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_nextn_predict_layers",
    "pad_token_id",
    "pretraining_tp",
    "q_lora_rank",
    "qk_head_dim",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "quantization_config",
    "rms_norm_eps",
    "rope_parameters",
    "routed_scaling_factor",
    "topk_group",
    "transformers_version",
    "use_cache",
    "v_head_dim",
    "vocab_size",
];

impl ConfigMapping for Glm5 {
    fn claim(&self, config: &RawConfig) -> Result<Claim, Error> {
        let architectures = config.architectures()?;
        if architectures != [ARCHITECTURE] {
            let found = if architectures.is_empty() {
                "none".to_owned()
            } else {
                architectures.join(", ")
            };
            return Ok(Claim::No {
                reason: format!("architectures is {found}, not {ARCHITECTURE}"),
            });
        }
        let (release, reason) = release(config)?;
        Ok(Claim::Yes {
            release: release.name.to_owned(),
            reason,
        })
    }

    fn map_config(&self, config: &RawConfig, options: &MapOptions) -> Result<ModelSpec, Error> {
        let (release, _) = release(config)?;
        check_required_values(config)?;
        check_quantization(config)?;
        let mut notices = Vec::new();
        let model = read_model(config, options, &mut notices)?;
        let provider = provider(config, &model, &mut notices)?;
        settings::check(&provider, &options.settings)?;
        let is_unread = |key: &&String| {
            !KNOWN_KEYS.contains(&key.as_str())
                && !REQUIRED_VALUES.iter().any(|(known, _)| known == key)
        };
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
            unread_keys: config.values().keys().filter(is_unread).cloned().collect(),
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
        if reference.values().contains_key(QUANTIZATION) {
            edits.push(ConfigEdit::remove(QUANTIZATION));
        }
        Ok(edits)
    }
}

/// Which release a config belongs to, and what in it says so.
fn release(config: &RawConfig) -> Result<(Release, String), Error> {
    let layers = indexers(config, &mut Vec::new())?;
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

fn check_required_values(config: &RawConfig) -> Result<(), Error> {
    for (key, expected) in REQUIRED_VALUES {
        // An absent key has the published value.
        let found = config.value(key).map(Value::to_string);
        if found.is_some_and(|found| found != *expected) {
            return Err(config.wrong(key, expected));
        }
    }
    Ok(())
}

/// Refuses a quantization whose codes or blocks are not the codec's: the scales' shapes alone would not always tell. Which
/// tensors are quantized is not asked of the config; its list names some that do not exist.
fn check_quantization(config: &RawConfig) -> Result<(), Error> {
    for (key, expected) in [
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

/// The indexer of every layer: `indexer_types` decides, then `index_topk_pattern`, then frequency and offset. A source that
/// contradicts the deciding one is a notice.
fn indexers(config: &RawConfig, notices: &mut Vec<String>) -> Result<Vec<Indexer>, Error> {
    let layers = config.integer("num_hidden_layers")?;
    let count = usize::try_from(layers)
        .ok()
        .filter(|count| (1..=10_000).contains(count));
    let count = count.ok_or_else(|| config.wrong("num_hidden_layers", "1 to 10000"))?;
    let mut sources: Vec<(&str, Vec<Indexer>)> = Vec::new();
    for (key, full, shared) in [
        ("indexer_types", "full", "shared"),
        ("index_topk_pattern", "F", "S"),
    ] {
        let Some(value) = config.value(key) else {
            continue;
        };
        let words = words(config, key, value)?;
        let read = words.iter().map(|word| match word {
            _ if word == full => Ok(Indexer::Full),
            _ if word == shared => Ok(Indexer::Shared),
            _ => Err(config.wrong(key, &format!("a list of {full} and {shared}"))),
        });
        let read: Vec<Indexer> = read.collect::<Result<_, _>>()?;
        check_length(key, read.len(), count)?;
        sources.push((key, read));
    }
    if let Some(sharing) = Sharing::read(config)? {
        let read = (0..layers).map(|layer| sharing.indexer(layer));
        sources.push(("index_topk_freq and index_skip_topk_offset", read.collect()));
    }
    let mut sources = sources.into_iter();
    let Some((decider, decided)) = sources.next() else {
        return Ok(vec![Indexer::Full; count]);
    };
    for (other, read) in sources.filter(|(_, read)| *read != decided) {
        let layer = read
            .iter()
            .zip(&decided)
            .position(|(a, b)| a != b)
            .unwrap_or_default();
        notices.push(format!(
            "config.json: {other} contradicts {decider} at layer {layer}; {decider} decides"
        ));
    }
    if decided[0] == Indexer::Shared {
        return Err(Error::ConfigValue {
            key: decider.to_owned(),
            expected: "layer 0 with an indexer of its own".to_owned(),
            found: "shared at layer 0".to_owned(),
        });
    }
    Ok(decided)
}

/// A schedule of indexers as two numbers: layer `i` has its own if `max(i + 1 - offset, 0)` is a multiple of `frequency`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sharing {
    frequency: u64,
    offset: u64,
}

impl Sharing {
    /// Every layer has its own.
    const NONE: Sharing = Sharing {
        frequency: 1,
        offset: 0,
    };

    /// What the config says, if it does. A frequency of 0 means 1, and an offset that is not given is 2, as transformers has it.
    fn read(config: &RawConfig) -> Result<Option<Sharing>, Error> {
        let offset = config.optional_integer("index_skip_topk_offset")?;
        let frequency = config.optional_integer("index_topk_freq")?;
        Ok(frequency.map(|frequency| Sharing {
            frequency: frequency.max(1),
            offset: offset.unwrap_or(if frequency > 1 { 2 } else { 0 }),
        }))
    }

    /// The two numbers of a schedule, if there are any: the leading full layers give the offset, the next one the frequency.
    fn express(layers: &[Layer]) -> Option<Sharing> {
        let full = |layer: &Layer| layer.indexer == Indexer::Full;
        let Some(first_shared) = layers.iter().position(|layer| !full(layer)) else {
            return Some(Sharing::NONE);
        };
        let next = layers[first_shared..].iter().position(full);
        let sharing = Sharing {
            offset: first_shared as u64,
            // Without another full layer any number does that the layers do not reach.
            frequency: next.unwrap_or(layers.len() - first_shared) as u64 + 1,
        };
        sharing.is_of(layers).then_some(sharing)
    }

    fn indexer(self, layer: u64) -> Indexer {
        let is_full = (layer + 1)
            .saturating_sub(self.offset)
            .is_multiple_of(self.frequency);
        if is_full {
            Indexer::Full
        } else {
            Indexer::Shared
        }
    }

    fn is_of(self, layers: &[Layer]) -> bool {
        (0..)
            .zip(layers)
            .all(|(at, layer)| self.indexer(at) == layer.indexer)
    }
}

/// The two numbers for Megatron, which knows no list: the config's own if they are true of the layers, else those that are.
fn sharing(
    config: &RawConfig,
    layers: &[Layer],
    notices: &mut Vec<String>,
) -> Result<Sharing, Error> {
    let given = Sharing::read(config)?;
    if let Some(given) = given.filter(|given| given.is_of(layers)) {
        return Ok(given);
    }
    let Some(found) = Sharing::express(layers) else {
        notices.push(
            "run_config.yaml: no dsa_indexer_topk_freq and offset express these layers; the config's are kept, \
             and a model built from them has other indexers"
                .to_owned(),
        );
        return Ok(given.unwrap_or(Sharing::NONE));
    };
    if found != Sharing::NONE {
        let Sharing { frequency, offset } = found;
        notices.push(format!(
            "run_config.yaml: dsa_indexer_topk_freq {frequency} and offset {offset} follow from the layers, not from the config"
        ));
    }
    Ok(found)
}

/// The feed-forward part of every layer: `mlp_layer_types` decides, then `first_k_dense_replace`.
fn mlps(config: &RawConfig, count: usize, notices: &mut Vec<String>) -> Result<Vec<Mlp>, Error> {
    let first_dense = config.optional_integer("first_k_dense_replace")?;
    let by_first = |first: u64| {
        (0..count as u64).map(move |layer| {
            if layer < first {
                Mlp::Dense
            } else {
                Mlp::Sparse
            }
        })
    };
    let Some(value) = config.value("mlp_layer_types") else {
        return Ok(by_first(first_dense.unwrap_or(3)).collect());
    };
    let words = words(config, "mlp_layer_types", value)?;
    let read = words.iter().map(|word| match word.as_str() {
        "dense" => Ok(Mlp::Dense),
        "sparse" => Ok(Mlp::Sparse),
        _ => Err(config.wrong("mlp_layer_types", "a list of dense and sparse")),
    });
    let read: Vec<Mlp> = read.collect::<Result<_, _>>()?;
    check_length("mlp_layer_types", read.len(), count)?;
    if first_dense.is_some_and(|first| !by_first(first).eq(read.iter().copied())) {
        notices.push("config.json: first_k_dense_replace contradicts mlp_layer_types; mlp_layer_types decides".to_owned());
    }
    Ok(read)
}

/// The entries of a list of strings, or the letters of one string.
fn words(config: &RawConfig, key: &str, value: &Value) -> Result<Vec<String>, Error> {
    match value {
        Value::String(letters) => Ok(letters.chars().map(String::from).collect()),
        Value::Array(entries) => {
            let wrong = || config.wrong(key, "a list of names");
            entries
                .iter()
                .map(|entry| entry.as_str().map(str::to_owned).ok_or_else(wrong))
                .collect()
        }
        _ => Err(config.wrong(key, "a list of names")),
    }
}

fn check_length(key: &str, found: usize, layers: usize) -> Result<(), Error> {
    if found == layers {
        return Ok(());
    }
    let expected = format!("{layers} entries, one for each of num_hidden_layers");
    Err(Error::ConfigValue {
        key: key.to_owned(),
        expected,
        found: format!("{found} entries"),
    })
}

fn read_model(
    config: &RawConfig,
    options: &MapOptions,
    notices: &mut Vec<String>,
) -> Result<Model, Error> {
    let indexers = indexers(config, notices)?;
    let mlps = mlps(config, indexers.len(), notices)?;
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
    let (nope, rope) = (
        positive(config, "qk_nope_head_dim")?,
        positive(config, "qk_rope_head_dim")?,
    );
    // Some tools rewrite the rope width from `head_dim`; the sum is what the tensors have.
    if config
        .optional_integer("qk_head_dim")?
        .is_some_and(|sum| Some(sum) != nope.checked_add(rope))
    {
        return Err(config.wrong(
            "qk_head_dim",
            &format!("qk_nope_head_dim + qk_rope_head_dim = {nope} + {rope}"),
        ));
    }
    Ok(Model {
        vocab_size: positive(config, "vocab_size")?,
        hidden_size: positive(config, "hidden_size")?,
        intermediate_size: positive(config, "intermediate_size")?,
        num_attention_heads: positive(config, "num_attention_heads")?,
        q_lora_rank: positive(config, "q_lora_rank")?,
        kv_lora_rank: positive(config, "kv_lora_rank")?,
        qk_nope_head_dim: nope,
        qk_rope_head_dim: rope,
        v_head_dim: positive(config, "v_head_dim")?,
        index_n_heads: positive(config, "index_n_heads")?,
        index_head_dim: positive(config, "index_head_dim")?,
        n_routed_experts: bounded(config, "n_routed_experts", 1 << 16)?,
        n_shared_experts: positive(config, "n_shared_experts")?,
        moe_intermediate_size: positive(config, "moe_intermediate_size")?,
        layers: indexers
            .into_iter()
            .zip(mlps)
            .map(|(indexer, mlp)| Layer { indexer, mlp })
            .collect(),
        mtp_layers,
        mtp_layers_dropped,
        is_fp8: is_fp8(config),
    })
}

/// A size: from 1 up to 2^31, so that twice the product of any two fits in 64 bits.
fn positive(config: &RawConfig, key: &str) -> Result<u64, Error> {
    bounded(config, key, 1 << 31)
}

fn bounded(config: &RawConfig, key: &str, most: u64) -> Result<u64, Error> {
    let value = config.integer(key)?;
    if (1..=most).contains(&value) {
        Ok(value)
    } else {
        Err(config.wrong(key, &format!("1 to {most}")))
    }
}

/// The rotary base: nested, because this family has no other spelling of it.
fn rotary_base(config: &RawConfig) -> Result<Value, Error> {
    let nested = |field: &str| {
        config
            .value("rope_parameters")
            .and_then(|parameters| parameters.get(field))
    };
    let wrong = |field: &str, expected: &str| Error::ConfigValue {
        key: format!("rope_parameters.{field}"),
        expected: expected.to_owned(),
        found: nested(field).map_or_else(|| "absent".to_owned(), Value::to_string),
    };
    if nested("rope_type").is_some_and(|kind| kind != "default") {
        return Err(wrong("rope_type", "\"default\""));
    }
    match nested("rope_theta") {
        Some(theta) if theta.as_f64().is_some_and(|theta| theta > 0.0) => Ok(theta.clone()),
        _ => Err(wrong("rope_theta", "a positive number")),
    }
}

/// The provider's fields: those that the config decides, over those that are the same for every model.
fn provider(
    config: &RawConfig,
    model: &Model,
    notices: &mut Vec<String>,
) -> Result<Map<String, Value>, Error> {
    let sharing = sharing(config, &model.layers, notices)?;
    let number = |key: &str| match config.value(key) {
        Some(value) if value.is_number() => Ok(value.clone()),
        _ => Err(config.wrong(key, "a number")),
    };
    let is_sparse = |layer: &Layer| u8::from(layer.mlp == Mlp::Sparse);
    let physical_is_sparse: Vec<u8> = model
        .layers
        .iter()
        .flat_map(|layer| [0, is_sparse(layer)])
        .collect();
    let decided = json!({
        "add_qkv_bias": false,
        "attention_dropout": number("attention_dropout")?,
        "dsa_indexer_head_dim": model.index_head_dim,
        "dsa_indexer_n_heads": model.index_n_heads,
        "dsa_indexer_rope_interleaved": true,
        // In layers of the source model, as Megatron-Bridge keeps them.
        "dsa_indexer_skip_topk_offset": sharing.offset,
        "dsa_indexer_topk": config.integer("index_topk")?,
        "dsa_indexer_topk_freq": sharing.frequency,
        "ffn_hidden_size": model.intermediate_size,
        "hidden_size": model.hidden_size,
        "init_method_std": number("initializer_range")?,
        // Not `head_dim`, which releases fill differently: Transformers, and so Megatron-Bridge, puts the rope width there.
        "kv_channels": model.qk_rope_head_dim,
        "kv_lora_rank": model.kv_lora_rank,
        "layernorm_epsilon": number("rms_norm_eps")?,
        "moe_ffn_hidden_size": model.moe_intermediate_size,
        "moe_layer_freq": physical_is_sparse,
        "moe_router_group_topk": config.integer("topk_group")?,
        "moe_router_num_groups": config.integer("n_group")?,
        "moe_router_topk": config.integer("num_experts_per_tok")?,
        "moe_router_topk_scaling_factor": number("routed_scaling_factor")?,
        "moe_shared_expert_intermediate_size": model.moe_intermediate_size * model.n_shared_experts,
        "mtp_num_layers": (model.mtp_layers > 0).then_some(model.mtp_layers),
        "num_attention_heads": model.num_attention_heads,
        "num_layers": 2 * model.layers.len(),
        "num_moe_experts": model.n_routed_experts,
        "num_query_groups": config.integer("num_key_value_heads")?,
        "q_lora_rank": model.q_lora_rank,
        // Megatron's `qk_head_dim` is the part without position alone.
        "qk_head_dim": model.qk_nope_head_dim,
        "qk_pos_emb_head_dim": model.qk_rope_head_dim,
        "rotary_base": rotary_base(config)?,
        "seq_length": config.integer("max_position_embeddings")?,
        "v_head_dim": model.v_head_dim,
        "vocab_size": model.vocab_size,
    });
    let mut fields = fixed_provider_fields();
    fields.extend(object(decided));
    fields.sort_keys();
    Ok(fields)
}
