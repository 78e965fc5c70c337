//! The provider of every release against the one that the real bridge makes of the same config, field by field.
//!
//! The dumps are of a bridge that aims at the older GPT model, so a few fields differ for a known reason. Each of those is held
//! to what it must be; nothing is left out of the comparison, and no field can leave it by another name.

use rialto_bridge::{Bridge, MapOptions, Mesh, MtpPolicy, PipelineRequest};
use rialto_engine::source_config;
use serde_json::{Map, Value, json};

use crate::world::{both_ways, fixture, on_disk};

/// A config and the dump of its provider.
const MODELS: [(&str, &str); 6] = [
    ("configs/glm-5", "glm-5"),
    ("configs/glm-5.1", "glm-5.1"),
    ("configs/glm-5.2", "glm-5.2"),
    // How the weights are stored is nothing to the provider.
    ("configs/glm-5.2-fp8", "glm-5.2"),
    ("configs/glm-5.3", "glm-5.3.reconstructed"),
    ("glm52-tiny", "glm52-tiny"),
];

/// What Megatron is told: the fields that the bridge of Megatron-Bridge maps from a config or sets itself, and the parallel sizes.
/// Everything else has the default of its class.
const FIELDS: &[&str] = &[
    "activation_func",
    "add_bias_linear",
    "add_qkv_bias",
    "apply_rope_fusion",
    "attention_dropout",
    "attention_softmax_in_fp32",
    "bf16",
    "cp_comm_type",
    "dsa_indexer_head_dim",
    "dsa_indexer_k_norm_epsilon",
    "dsa_indexer_loss_coeff",
    "dsa_indexer_n_heads",
    "dsa_indexer_rope_interleaved",
    "dsa_indexer_rotate_activation",
    "dsa_indexer_skip_topk_offset",
    "dsa_indexer_topk",
    "dsa_indexer_topk_freq",
    "dsa_indexer_use_sparse_loss",
    "experimental_attention_variant",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "ffn_hidden_size",
    "fp16",
    "gated_linear_unit",
    "hidden_dropout",
    "hidden_size",
    "hybrid_layer_pattern",
    "init_method_std",
    "is_hybrid_model",
    "kv_channels",
    "kv_lora_rank",
    "layernorm_epsilon",
    "make_vocab_size_divisible_by",
    "moe_ffn_hidden_size",
    "moe_flex_dispatcher_backend",
    "moe_flex_dispatcher_num_sms",
    "moe_grouped_gemm",
    "moe_layer_freq",
    "moe_permute_fusion",
    "moe_permute_fusion_into_hybridep",
    "moe_router_bias_update_rate",
    "moe_router_dtype",
    "moe_router_enable_expert_bias",
    "moe_router_group_topk",
    "moe_router_load_balancing_type",
    "moe_router_num_groups",
    "moe_router_pre_softmax",
    "moe_router_score_function",
    "moe_router_topk",
    "moe_router_topk_scaling_factor",
    "moe_shared_expert_intermediate_size",
    "moe_shared_expert_overlap",
    "moe_token_dispatcher_type",
    "mscale",
    "mscale_all_dim",
    "mtp_num_layers",
    "multi_latent_attention",
    "normalization",
    "num_attention_heads",
    "num_layers",
    "num_moe_experts",
    "num_query_groups",
    "params_dtype",
    "pipeline_model_parallel_size",
    "position_embedding_type",
    "q_lora_rank",
    "qk_head_dim",
    "qk_layernorm",
    "qk_pos_emb_head_dim",
    "rope_type",
    "rotary_base",
    "rotary_percent",
    "rotary_scaling_factor",
    "seq_length",
    "sequence_parallel",
    "share_embeddings_and_output_weights",
    "should_pad_vocab",
    "tensor_model_parallel_size",
    "v_head_dim",
    "vocab_size",
];

/// Ours, on one rank.
fn provider(family: &dyn Bridge, name: &str, mtp: MtpPolicy) -> Map<String, Value> {
    let config = source_config(on_disk(name).as_ref()).unwrap();
    let map_options = MapOptions {
        mtp,
        ..MapOptions::default()
    };
    let spec = family.map_config(&config, &map_options).unwrap();
    let mut fields = spec.provider.clone();
    for (field, value) in family
        .pipeline_layout(&spec, &PipelineRequest::new(Mesh::SINGLE))
        .unwrap()
        .provider
    {
        assert_eq!(fields.insert(field.clone(), value), None, "{field} twice");
    }
    fields
}

/// Theirs.
fn dump(name: &str) -> Map<String, Value> {
    let file = fixture(&format!("provider/{name}.json"));
    let mut document: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let Value::Object(fields) = document["fields"].take() else {
        panic!("{name} has fields")
    };
    fields
}

/// Whether two values are one, however a number is spelled.
pub(crate) fn is_same(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        _ => ours == theirs,
    }
}

/// What a field of ours must be, given theirs; `None` is a field that theirs does not have.
fn expected(field: &str, theirs: &Map<String, Value>) -> Option<Value> {
    let sparse = || theirs["moe_layer_freq"].as_array().unwrap().iter();
    let object = |name: &str| json!({"_target_": name, "_call_": false});
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let there = theirs.get(field);
    Some(match field {
        // A block is two layers of the hybrid model: attention, and what follows it.
        "num_layers" => json!(2 * there?.as_u64().unwrap()),
        "moe_layer_freq" => json!(
            sparse()
                .flat_map(|is| [json!(0), is.clone()])
                .collect::<Vec<_>>()
        ),
        "is_hybrid_model" => {
            assert_eq!(there?, false);
            json!(true)
        }
        // Only the hybrid model has one.
        "hybrid_layer_pattern" => {
            assert_eq!(there, None);
            let symbols = sparse().map(|is| if is == 1 { "DE" } else { "D-" });
            json!(symbols.collect::<String>())
        }
        // A later version of the same bridge sets it to 0.
        "moe_router_bias_update_rate" => {
            assert_eq!(there?, 0.001);
            json!(0)
        }
        // Not yet finalized there: then it is the tensor-parallel size.
        "expert_tensor_parallel_size" => {
            assert_eq!(there?, &Value::Null);
            theirs["tensor_model_parallel_size"].clone()
        }
        // Python's own things, which the dump spells as text.
        "activation_func" => {
            let text = text(there?);
            object(text.strip_prefix("callable:").unwrap())
        }
        "params_dtype" => object(&text(there?)),
        _ => there?.clone(),
    })
}

#[test]
fn every_field_is_what_the_real_bridge_makes_of_the_same_config() {
    both_ways(|family| {
        for (config, name) in MODELS {
            let (ours, theirs) = (provider(family, config, MtpPolicy::Drop), dump(name));
            let mut names: Vec<&str> = ours.keys().map(String::as_str).collect();
            names.sort_unstable();
            assert_eq!(names, FIELDS, "{config}");
            let mut differing = Vec::new();
            for (field, value) in &ours {
                let expected = expected(field, &theirs)
                    .unwrap_or_else(|| panic!("{config}: the real provider has no {field}"));
                assert!(
                    is_same(value, &expected),
                    "{config}: {field} is {value}, expected {expected}"
                );
                if !theirs
                    .get(field)
                    .is_some_and(|theirs| is_same(value, theirs))
                {
                    differing.push(field.as_str());
                }
            }
            // What differs from the dump as it stands is what is explained above, and no more.
            differing.sort_unstable();
            let explained = [
                "activation_func",
                "expert_tensor_parallel_size",
                "hybrid_layer_pattern",
                "is_hybrid_model",
                "moe_layer_freq",
                "moe_router_bias_update_rate",
                "num_layers",
                "params_dtype",
            ];
            assert_eq!(differing, explained, "{config}");
            // The name that the dump was given; a checkpoint of ours has no model of that name to offer.
            assert!(theirs["hf_model_id"].is_string() && !ours.contains_key("hf_model_id"));
        }
    });
}

#[test]
fn multi_token_prediction_changes_its_count_and_the_pattern_alone() {
    both_ways(|family| {
        for (config, _) in MODELS {
            let without = provider(family, config, MtpPolicy::Drop);
            let mut with = provider(family, config, MtpPolicy::Keep);
            assert_eq!(
                with.insert("mtp_num_layers".to_owned(), Value::Null),
                Some(json!(1))
            );
            let pattern = without["hybrid_layer_pattern"].clone();
            let expected = json!(format!("{}/DE", pattern.as_str().unwrap()));
            assert_eq!(
                with.insert("hybrid_layer_pattern".to_owned(), pattern),
                Some(expected)
            );
            assert_eq!(with, without, "{config}");
        }
    });
}

/// Fields of the real provider that the family leaves as they are: setting one to its own value is no change, and setting one
/// to another makes another model.
#[test]
fn a_field_that_the_family_leaves_keeps_the_value_of_the_real_provider() {
    let fields = [
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
        "attention_output_gate",
        "fp4",
        "fp8",
        "fp8_param",
        "heterogeneous_block_specs",
        "hybrid_override_pattern",
        "moe_latent_size",
        "moe_shared_expert_gate",
        "mtp_hybrid_override_pattern",
        "mtp_use_repeated_layer",
        "no_rope_freq",
        "num_layers_in_first_pipeline_stage",
        "num_layers_in_last_pipeline_stage",
        "num_layers_per_virtual_pipeline_stage",
        "padded_vocab_size",
        "pipeline_model_parallel_layout",
        "recompute_granularity",
        "recompute_modules",
        "softmax_type",
        "virtual_pipeline_model_parallel_size",
        "window_size",
    ];
    both_ways(|family| {
        let theirs = dump("glm-5.2");
        let config = source_config(on_disk("configs/glm-5.2").as_ref()).unwrap();
        let map = |field: &str, value: &Value| {
            let settings = Map::from_iter([(field.to_owned(), value.clone())]);
            let map_options = MapOptions {
                settings,
                ..MapOptions::default()
            };
            family.map_config(&config, &map_options)
        };
        for field in fields {
            // Those that the dump has no more are null in the versions that have them.
            let own = theirs.get(field).unwrap_or(&Value::Null);
            map(field, own).unwrap_or_else(|error| panic!("{field}={own}: {error}"));
            let error = map(field, &json!([7])).unwrap_err();
            assert_eq!(error.slug(), "bridge/settings", "{field}: {error}");
        }
    });
}
