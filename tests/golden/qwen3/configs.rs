//! Configs and settings: which say the same, and which are refused.

use std::sync::Arc;

use rialto_engine::Options;
use serde_json::{Value, json};

use super::{REAL, TIED, family, refused};
use crate::import::assert_provider;
use crate::world::{fixture, import, in_memory, on_disk};

#[test]
fn published_configs_and_those_of_newer_transformers_say_the_same() {
    let newer: Value =
        serde_json::from_slice(&std::fs::read(fixture("qwen3/tiny-tied/config.json")).unwrap())
            .unwrap();
    let mut published = newer.clone();
    let fields = published.as_object_mut().unwrap();
    for key in ["rope_parameters", "dtype", "layer_types"] {
        fields.remove(key).unwrap();
    }
    fields.insert("rope_theta".to_owned(), json!(1_000_000));
    fields.insert("rope_scaling".to_owned(), Value::Null);
    fields.insert("torch_dtype".to_owned(), json!("bfloat16"));
    let source = in_memory(TIED);
    source
        .insert("config.json", serde_json::to_vec(&published).unwrap())
        .unwrap();
    let run = import(family().as_ref(), Arc::new(source), &Options::default()).unwrap();
    assert!(assert_provider(&REAL[0], &run, &[]) >= 30);
}

#[test]
fn what_would_be_another_model_is_refused_by_name() {
    for (key, value, said) in [
        ("attention_bias", json!(true), "attention_bias"),
        ("hidden_act", json!("gelu"), "hidden_act"),
        ("use_sliding_window", json!(true), "use_sliding_window"),
        (
            "layer_types",
            json!(["full_attention", "sliding_attention", "full_attention"]),
            "layer_types",
        ),
        ("layer_types", json!(["full_attention"]), "layer_types"),
        (
            "num_key_value_heads",
            json!(3),
            "a divisor of num_attention_heads 8",
        ),
        ("num_key_value_heads", json!(0), "num_key_value_heads"),
        ("head_dim", json!(15), "an even number"),
        ("head_dim", Value::Null, "head_dim"),
        ("tie_word_embeddings", json!("yes"), "true or false"),
        (
            "quantization_config",
            json!({"quant_method": "fp8"}),
            "quantization_config",
        ),
        (
            "rope_parameters",
            json!({"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0}),
            "rope_parameters.rope_type",
        ),
        ("num_hidden_layers", json!(1001), "num_hidden_layers"),
    ] {
        let source = in_memory(TIED);
        let mut config: Value =
            serde_json::from_slice(&source.bytes("config.json").unwrap()).unwrap();
        config[key] = value.clone();
        source
            .insert("config.json", serde_json::to_vec(&config).unwrap())
            .unwrap();
        let message = refused(source, &Options::default());
        assert!(message.contains(said), "{key}={value}: {message}");
    }
}

#[test]
fn what_a_user_may_not_set_is_refused_and_what_trains_is_written() {
    let set = |field: &str, value: Value| Options {
        settings: [(field.to_owned(), value)].into_iter().collect(),
        ..Options::default()
    };
    for (field, value, said) in [
        (
            "num_query_groups",
            json!(4),
            "the config and the family decide it; supported: 2",
        ),
        (
            "hetereogenous_dist_checkpoint",
            json!(true),
            "--layer-axis decides it",
        ),
        (
            "heterogeneous_block_specs",
            json!(true),
            "alike in the weights",
        ),
        (
            "moe_layer_freq",
            json!([1, 0, 1]),
            "all layers are alike; supported: 1",
        ),
        ("window_size", json!([128, 0]), "another attention"),
        ("should_pad_vocab", json!(true), "--pad-vocab decides it"),
        ("seq_length", json!(0), "a whole number from 1"),
    ] {
        let message = refused(in_memory(TIED), &set(field, value));
        assert!(message.contains(said), "{field}: {message}");
    }
    for (field, value) in [
        ("seq_length", json!(64)),
        ("sequence_parallel", json!(true)),
        ("fp8", json!("hybrid")),
    ] {
        assert!(
            import(family().as_ref(), on_disk(TIED), &set(field, value)).is_ok(),
            "{field}"
        );
    }
}
