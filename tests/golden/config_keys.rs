//! `config.json` key by key: every spelling that was seen, what it must become, and what is refused in which words.
//!
//! Tables of edits to one config. An accepted row names every field of the result that the edit may change, every notice and
//! every key that is not read; that nothing else changes is checked for each row.

mod experts;
mod rope;
mod schedule;

use std::collections::BTreeMap;

use rialto_bridge::{Bridge, Error, MapOptions, ModelSpec, RawConfig};
use serde_json::{Map, Value, json};

use crate::provider::is_same;
use crate::refusals::tiny_config;
use crate::world::both_ways;

/// Stands in an edit for a key that is taken away; `null` is a value like others.
const ABSENT: &str = "(absent)";

/// The config of glm52-tiny with other values for some keys.
fn edited(edits: &Value) -> Value {
    let mut config = tiny_config();
    let fields = config.as_object_mut().unwrap();
    for (key, value) in edits.as_object().unwrap() {
        match value.as_str() {
            Some(ABSENT) => assert!(fields.remove(key).is_some(), "{key} was there"),
            _ => drop(fields.insert(key.clone(), value.clone())),
        }
    }
    config
}

fn read(family: &dyn Bridge, edits: &Value) -> Result<ModelSpec, Error> {
    let config = RawConfig::parse(edited(edits).to_string().as_bytes()).unwrap();
    family.map_config(&config, &MapOptions::default())
}

/// Everything that a spec says but for its notices, by name: fields of the provider, and the family's own after `model.`.
fn facts(spec: &ModelSpec) -> BTreeMap<String, Value> {
    // What only the forward pass reads stands below.
    let mut own = spec.extra.as_object().unwrap().clone();
    let forward = own.remove("forward").unwrap();
    own.extend(forward.as_object().unwrap().clone());
    let model = own.into_iter();
    let model = model.map(|(field, value)| (format!("model.{field}"), value));
    let provider = spec.provider.clone().into_iter();
    let rest = [
        ("dims".to_owned(), json!(spec.dims)),
        ("release".to_owned(), json!(spec.release)),
        ("target".to_owned(), json!(spec.provider_target)),
    ];
    provider.chain(model).chain(rest).collect()
}

/// An edit, the fields that it changes with their new values, the notices and the keys that are not read.
struct Row {
    edits: Value,
    changes: Value,
    notices: Vec<&'static str>,
    unread: Vec<&'static str>,
}

impl Row {
    /// An edit that changes these fields and nothing else.
    fn new(edits: Value, changes: Value) -> Row {
        Row {
            edits,
            changes,
            notices: Vec::new(),
            unread: Vec::new(),
        }
    }

    /// An edit that changes nothing.
    fn same(edits: Value) -> Row {
        Row::new(edits, json!({}))
    }

    fn notice(mut self, notice: &'static str) -> Row {
        self.notices.push(notice);
        self
    }

    fn unread(mut self, keys: &[&'static str]) -> Row {
        self.unread.extend(keys);
        self
    }
}

fn accepted(rows: &[Row]) {
    both_ways(|family| {
        let own = read(family, &json!({})).unwrap();
        assert_eq!((own.notices.len(), own.unread_keys.len()), (0, 0));
        let own = facts(&own);
        for row in rows {
            let edits = &row.edits;
            let spec = read(family, edits).unwrap_or_else(|error| panic!("{edits}: {error}"));
            assert_eq!(spec.notices, row.notices, "{edits}");
            assert_eq!(spec.unread_keys, row.unread, "{edits}");
            let found = facts(&spec);
            assert!(found.keys().eq(own.keys()), "{edits}");
            let changed = found
                .iter()
                .filter(|(field, value)| !is_same(value, &own[*field]));
            let changed: Map<String, Value> = changed
                .map(|(field, value)| (field.clone(), value.clone()))
                .collect();
            let expected = row.changes.as_object().unwrap();
            let is_expected = |(field, value): (&String, &Value)| {
                expected
                    .get(field)
                    .is_some_and(|expected| is_same(value, expected))
            };
            assert!(
                changed.len() == expected.len() && changed.iter().all(is_expected),
                "{edits}: changed {changed:?}, expected {expected:?}"
            );
        }
    });
}

fn refused(rows: &[(Value, &str)]) {
    both_ways(|family| {
        for (edits, expected) in rows {
            let error = match read(family, edits) {
                Ok(_) => panic!("{edits} is accepted, expected: {expected}"),
                Err(error) => error,
            };
            assert_eq!(error.slug(), "config/value", "{edits}: {error}");
            assert_eq!(
                error.to_string(),
                format!("config.json: {expected}"),
                "{edits}"
            );
        }
    });
}

/// No value is a constant of the program: each comes from its key, and each key has its own fields.
#[test]
fn every_key_changes_its_own_fields_and_no_other() {
    let model = |key: &str, field: &str, value: u64| {
        let mut changes = Map::new();
        changes.insert(format!("model.{key}"), json!(value));
        changes.insert(field.to_owned(), json!(value));
        Row::new(json!({key: value}), Value::Object(changes))
    };
    accepted(&[
        model("intermediate_size", "ffn_hidden_size", 120),
        model("q_lora_rank", "q_lora_rank", 50),
        model("kv_lora_rank", "kv_lora_rank", 34),
        model("v_head_dim", "v_head_dim", 42),
        model("index_n_heads", "dsa_indexer_n_heads", 9),
        model("index_head_dim", "dsa_indexer_head_dim", 34),
        model("n_routed_experts", "num_moe_experts", 9),
        Row::new(
            json!({"num_attention_heads": 8, "num_key_value_heads": 8}),
            json!({"model.num_attention_heads": 8, "num_attention_heads": 8, "num_query_groups": 8}),
        ),
        Row::new(
            json!({"vocab_size": 300}),
            json!({
                "vocab_size": 300, "model.vocab_size": 300,
                "dims": {"layers": 8, "hidden": 96, "vocab": 300, "mtp_layers": 1, "mtp_layers_dropped": 0},
            }),
        ),
        Row::new(
            json!({"hidden_size": 100}),
            json!({
                "hidden_size": 100, "model.hidden_size": 100,
                "dims": {"layers": 8, "hidden": 100, "vocab": 256, "mtp_layers": 1, "mtp_layers_dropped": 0},
            }),
        ),
        Row::new(
            json!({"moe_intermediate_size": 24}),
            json!({
                "moe_ffn_hidden_size": 24, "moe_shared_expert_intermediate_size": 24,
                "model.moe_intermediate_size": 24,
            }),
        ),
        Row::new(
            json!({"n_shared_experts": 3}),
            json!({"moe_shared_expert_intermediate_size": 60, "model.n_shared_experts": 3}),
        ),
        Row::new(
            json!({"qk_nope_head_dim": 26, "qk_head_dim": 42}),
            json!({"qk_head_dim": 26, "model.qk_nope_head_dim": 26}),
        ),
        Row::new(
            json!({"qk_rope_head_dim": 18, "qk_head_dim": 42}),
            json!({"qk_pos_emb_head_dim": 18, "kv_channels": 18, "model.qk_rope_head_dim": 18}),
        ),
        model("index_topk", "dsa_indexer_topk", 17),
        model("num_experts_per_tok", "moe_router_topk", 8),
        Row::new(
            json!({"routed_scaling_factor": 1.25}),
            json!({"moe_router_topk_scaling_factor": 1.25, "model.routed_scaling_factor": 1.25}),
        ),
        Row::new(
            json!({"max_position_embeddings": 4096}),
            json!({"seq_length": 4096}),
        ),
        Row::new(
            json!({"attention_dropout": 0.25}),
            json!({"attention_dropout": 0.25}),
        ),
        Row::new(
            json!({"initializer_range": 0.5}),
            json!({"init_method_std": 0.5}),
        ),
        // FC-09: each of these is a model without prediction layers.
        Row::new(json!({"num_nextn_predict_layers": ABSENT}), no_mtp()),
        Row::new(json!({"num_nextn_predict_layers": null}), no_mtp()),
        Row::new(json!({"num_nextn_predict_layers": 0}), no_mtp()),
        Row::new(
            json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}),
            json!({"release": "glm-5.2-fp8 or glm-5.3"}),
        ),
    ]);
}

fn no_mtp() -> Value {
    json!({
        "mtp_num_layers": null,
        "model.mtp_layers": 0,
        "dims": {"layers": 8, "hidden": 96, "vocab": 256, "mtp_layers": 0, "mtp_layers_dropped": 0},
    })
}

/// Eight layers of sparse attention but for one.
fn layer_types(at: usize, other: Value) -> Vec<Value> {
    let mut layers = vec![json!("indexed_attention"); 8];
    layers[at] = other;
    layers
}

/// Every layer has sparse attention; a config that says otherwise is of another model.
#[test]
fn another_attention_of_any_layer_is_refused() {
    let known = "expected indexed_attention or deepseek_sparse_attention";
    for (at, other) in [
        (0, json!("full_attention")),
        (7, json!("sliding_attention")),
        (3, json!("linear_attention")),
        (3, json!("Indexed_attention")),
        (3, json!("")),
        (3, json!(null)),
        (3, json!(7)),
        (3, json!(["indexed_attention"])),
    ] {
        let expected = format!("layer_types is {other}, {known}");
        refused(&[(json!({"layer_types": layer_types(at, other)}), &expected)]);
    }
    for count in [0, 1, 7, 9] {
        let expected = format!(
            "layer_types is {count} entries, expected 8 entries, one for each of num_hidden_layers"
        );
        let list = vec!["indexed_attention"; count];
        refused(&[(json!({"layer_types": list}), &expected)]);
    }
    for other in [json!("indexed_attention"), json!(8), json!({}), json!(true)] {
        let expected = format!("layer_types is {other}, expected a list of names");
        refused(&[(json!({"layer_types": other}), &expected)]);
    }
}

#[test]
fn what_says_nothing_about_the_model_changes_nothing() {
    let mut rows = vec![
        Row::same(json!({"index_share_for_mtp_iteration": false})),
        Row::same(json!({"index_share_for_mtp_iteration": ABSENT})),
        Row::same(json!({"transformers_version": "4.1"})),
        Row::same(json!({"layer_types": null})),
        Row::same(json!({"layer_types": vec!["indexed_attention"; 8]})),
        Row::same(json!({"layer_types": vec!["deepseek_sparse_attention"; 8]})),
        Row::same(json!({"layer_types": layer_types(3, json!("deepseek_sparse_attention"))})),
        Row::same(json!({"ep_size": 8, "pretraining_tp": 2, "use_cache": false})),
        Row::same(json!({"pad_token_id": null, "bos_token_id": 0})),
        Row::same(json!({"quantization_config": null})),
        // Carried, and said to be.
        Row::same(json!({"a_new_key": {"deep": [1, 2]}, "auto_map": {}}))
            .unread(&["a_new_key", "auto_map"]),
        Row::same(json!({"output_router_logits": true})).unread(&["output_router_logits"]),
    ];
    // Whatever stands there, no width comes from it.
    for value in [
        json!(64),
        json!(192),
        json!(ABSENT),
        json!(null),
        json!(0),
        json!(-1),
        json!("wide"),
        json!([1]),
    ] {
        rows.push(Row::same(json!({"head_dim": value})));
    }
    accepted(&rows);
}

/// Older configs lack keys, and the published values are then meant.
#[test]
fn an_absent_key_has_the_published_value() {
    let keys = [
        "attention_bias",
        "attention_dropout",
        "dtype",
        "hidden_act",
        "indexer_rope_interleave",
        "initializer_range",
        "model_type",
        "moe_layer_freq",
        "moe_router_dtype",
        "n_group",
        "norm_topk_prob",
        "num_key_value_heads",
        "qk_head_dim",
        "rope_interleave",
        "scoring_func",
        "tie_word_embeddings",
        "topk_group",
        "topk_method",
        // Those that only say again what another one says.
        "first_k_dense_replace",
        "mlp_layer_types",
        "index_topk_pattern",
        "indexer_types",
        "qk_rope_head_dim",
    ];
    let mut rows = Vec::new();
    for key in keys {
        rows.push(Row::same(json!({key: ABSENT})));
        rows.push(Row::same(json!({key: null})));
    }
    accepted(&rows);
}

/// A number that the model cannot be computed without is never made up.
#[test]
fn an_absent_size_is_refused_by_its_key() {
    let keys = [
        "hidden_size",
        "index_head_dim",
        "index_n_heads",
        "index_topk",
        "intermediate_size",
        "kv_lora_rank",
        "max_position_embeddings",
        "moe_intermediate_size",
        "n_shared_experts",
        "num_attention_heads",
        "num_experts_per_tok",
        "num_hidden_layers",
        "qk_nope_head_dim",
        "v_head_dim",
        "vocab_size",
    ];
    for key in keys {
        let rows = [
            (ABSENT.into(), "absent"),
            (Value::Null, "null"),
            (json!("8"), "\"8\""),
            (json!(1.5), "1.5"),
            (json!(-1), "-1"),
        ];
        for (value, found) in rows {
            let expected = format!("{key} is {found}, expected a whole number");
            refused(&[(json!({key: value}), &expected)]);
        }
        let most = match key {
            "num_hidden_layers" => 1_000,
            "num_experts_per_tok" => 8,
            _ => 1u64 << 31,
        };
        for value in [0, most + 1, u64::MAX] {
            let expected = format!("{key} is {value}, expected 1 to {most}");
            refused(&[(json!({key: value}), &expected)]);
        }
    }
    for key in ["rms_norm_eps", "routed_scaling_factor"] {
        for (value, found) in [
            (ABSENT.into(), "absent"),
            (json!("1e-5"), "\"1e-5\""),
            (json!(0), "0"),
            (json!(-0.5), "-0.5"),
        ] {
            let expected = format!("{key} is {found}, expected a positive number");
            refused(&[(json!({key: value}), &expected)]);
        }
    }
}

/// It is no affair of Megatron's.
#[test]
fn what_ends_a_text_is_a_token_id_or_a_list_of_them() {
    let ids = |ids: Value| json!({"model.eos_token_id": ids});
    accepted(&[
        Row::new(json!({"eos_token_id": 3}), ids(json!([3]))),
        Row::new(json!({"eos_token_id": [7, 3]}), ids(json!([7, 3]))),
        Row::new(json!({"eos_token_id": []}), ids(json!([]))),
        Row::new(json!({"eos_token_id": null}), ids(json!([]))),
        Row::new(json!({"eos_token_id": ABSENT}), ids(json!([]))),
    ]);
    for value in [
        json!("3"),
        json!(-1),
        json!(1.5),
        json!(1u64 << 32),
        json!([3, "4"]),
        json!([[3]]),
        json!({}),
    ] {
        let expected = format!("eos_token_id is {value}, expected a token id or a list of them");
        refused(&[(json!({"eos_token_id": value}), &expected)]);
    }
}

#[test]
fn what_would_compute_something_else_is_refused_by_its_key() {
    refused(&[
        (
            json!({"attention_bias": true}),
            "attention_bias is true, expected false",
        ),
        (
            json!({"mlp_bias": true}),
            "mlp_bias is true, expected false",
        ),
        (
            json!({"hidden_act": "gelu"}),
            "hidden_act is \"gelu\", expected \"silu\"",
        ),
        (
            json!({"hidden_activation": "gelu"}),
            "hidden_activation is \"gelu\", expected \"silu\"",
        ),
        (
            json!({"hidden_act": ABSENT, "hidden_activation": "relu"}),
            "hidden_activation is \"relu\", expected \"silu\"",
        ),
        (
            json!({"scoring_func": "softmax"}),
            "scoring_func is \"softmax\", expected \"sigmoid\"",
        ),
        (
            json!({"topk_method": "greedy"}),
            "topk_method is \"greedy\", expected \"noaux_tc\"",
        ),
        (
            json!({"norm_topk_prob": false}),
            "norm_topk_prob is false, expected true",
        ),
        (
            json!({"moe_layer_freq": 2}),
            "moe_layer_freq is 2, expected 1",
        ),
        (
            json!({"moe_router_dtype": "bfloat16"}),
            "moe_router_dtype is \"bfloat16\", expected \"float32\"",
        ),
        (
            json!({"rope_interleave": false}),
            "rope_interleave is false, expected true",
        ),
        (
            json!({"indexer_rope_interleave": false}),
            "indexer_rope_interleave is false, expected true",
        ),
        (
            json!({"tie_word_embeddings": true}),
            "tie_word_embeddings is true, expected false",
        ),
        (
            json!({"num_key_value_heads": 2}),
            "num_key_value_heads is 2, expected num_attention_heads 4",
        ),
        (
            json!({"num_nextn_predict_layers": 2}),
            "num_nextn_predict_layers is 2, expected 0 or 1",
        ),
        (
            json!({"num_nextn_predict_layers": "one"}),
            "num_nextn_predict_layers is \"one\", expected a whole number",
        ),
        (
            json!({"q_lora_rank": null}),
            "q_lora_rank is null, expected the rank of the query latent, which the indexer needs",
        ),
        (
            json!({"q_lora_rank": ABSENT}),
            "q_lora_rank is absent, expected the rank of the query latent, which the indexer needs",
        ),
        (
            json!({"q_lora_rank": 0}),
            "q_lora_rank is 0, expected 1 to 2147483648",
        ),
        (
            json!({"attention_dropout": 1}),
            "attention_dropout is 1, expected a number from 0 to below 1",
        ),
        (
            json!({"attention_dropout": "none"}),
            "attention_dropout is \"none\", expected a number from 0 to below 1",
        ),
        (
            json!({"initializer_range": -0.1}),
            "initializer_range is -0.1, expected a number from 0 to below 1",
        ),
        (
            json!({"quantization_config": "fp8"}),
            "quantization_config is \"fp8\", expected an object",
        ),
    ]);
}

#[test]
fn the_dtype_is_that_of_megatron_and_its_older_key_counts_if_it_is_alone() {
    let torch = |name: &str| json!({"_target_": format!("torch.{name}"), "_call_": false});
    let half = || json!({"params_dtype": torch("float16"), "bf16": false, "fp16": true});
    let single = || json!({"params_dtype": torch("float32"), "bf16": false});
    let contradicts = "config.json: torch_dtype contradicts dtype; dtype decides";
    accepted(&[
        Row::new(json!({"dtype": "float16"}), half()),
        Row::new(json!({"dtype": "float32"}), single()),
        Row::new(json!({"dtype": ABSENT, "torch_dtype": "float16"}), half()),
        Row::new(json!({"dtype": null, "torch_dtype": "float32"}), single()),
        Row::same(json!({"dtype": ABSENT, "torch_dtype": "bfloat16"})),
        Row::same(json!({"torch_dtype": "bfloat16"})),
        Row::same(json!({"torch_dtype": null})),
        Row::same(json!({"torch_dtype": "float32"})).notice(contradicts),
        Row::same(json!({"torch_dtype": "nonsense"})).notice(contradicts),
        Row::new(
            json!({"dtype": "float32", "torch_dtype": "bfloat16"}),
            single(),
        )
        .notice(contradicts),
    ]);
    let known = "expected bfloat16, float16, float32";
    for (key, other) in [("dtype", "torch_dtype"), ("torch_dtype", "dtype")] {
        for value in [
            json!("float64"),
            json!("torch.bfloat16"),
            json!("float8_e4m3fn"),
            json!("auto"),
            json!(16),
            json!(["bfloat16"]),
        ] {
            let mut edits = json!({key: value});
            if key == "torch_dtype" {
                edits[other] = json!(ABSENT);
            }
            refused(&[(edits, &format!("{key} is {value}, {known}"))]);
        }
    }
}

/// From the config to the field and no further: neither number is a constant of the program, and neither takes the other's.
#[test]
fn fc_04_the_epsilon_of_the_norms_is_the_config_s_and_that_of_the_indexer_stays() {
    let mut rows = Vec::new();
    for epsilon in [json!(1e-6), json!(0.001), json!(1)] {
        rows.push(Row::new(
            json!({"rms_norm_eps": epsilon}),
            json!({"layernorm_epsilon": epsilon, "model.rms_norm_eps": epsilon}),
        ));
    }
    accepted(&rows);
    both_ways(|family| {
        let provider = read(family, &json!({"rms_norm_eps": 0.25}))
            .unwrap()
            .provider;
        assert_eq!(
            (
                &provider["layernorm_epsilon"],
                &provider["dsa_indexer_k_norm_epsilon"]
            ),
            (&json!(0.25), &json!(1e-6))
        );
    });
}
