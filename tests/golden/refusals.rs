//! What this version does not map is refused by name, before any output.

use std::sync::Arc;

use rialto_bridge::{Bridge, Claim, Mesh, MtpPolicy, RawConfig};
use rialto_checkpoint::store::MemoryStore;
use rialto_engine::{DtypeChoice, Error, ImportPlan, Options};
use serde_json::{Value, json};

use crate::world::{both_ways, fixture, import, in_memory, iteration, on_disk, options};

fn tiny_config() -> Value {
    serde_json::from_slice(&std::fs::read(fixture("glm52-tiny/config.json")).unwrap()).unwrap()
}

fn plan_config(family: &dyn Bridge, config: &Value) -> Result<ImportPlan, Error> {
    let store = MemoryStore::new("config");
    store
        .insert("config.json", config.to_string().into_bytes())
        .unwrap();
    ImportPlan::new(family, Arc::new(store), &Options::default())
}

fn refused(family: &dyn Bridge, change: impl Fn(&mut Value)) -> Error {
    let mut config = tiny_config();
    change(&mut config);
    plan_config(family, &config).expect_err("a config that must be refused")
}

#[test]
fn other_releases_are_named_and_refused() {
    both_ways(|family| {
        for (config, release) in [
            ("glm-5", "glm-5 or glm-5.1"),
            ("glm-5.1", "glm-5 or glm-5.1"),
            ("glm-5.2-fp8", "glm-5.2-fp8 or glm-5.3"),
            ("glm-5.3", "glm-5.2-fp8 or glm-5.3"),
        ] {
            let error = ImportPlan::new(
                family,
                on_disk(&format!("configs/{config}")),
                &Options::default(),
            )
            .unwrap_err();
            assert_eq!(error.slug(), "bridge/unsupported");
            let text = error.to_string();
            assert!(
                text.contains(&format!("found {release} ("))
                    && text.ends_with("supported: glm-5.2"),
                "{text}"
            );
        }
    });
}

#[test]
fn other_architectures_are_not_claimed() {
    both_ways(|family| {
        for architectures in [
            json!(["Glm5NextForCausalLM"]),
            json!([]),
            json!(["GlmMoeDsaForCausalLM", "Other"]),
        ] {
            let mut config = tiny_config();
            config["architectures"] = architectures;
            let config = RawConfig::parse(config.to_string().as_bytes()).unwrap();
            assert!(matches!(family.claim(&config).unwrap(), Claim::No { .. }));
        }
    });
}

#[test]
fn other_topologies_are_refused_with_the_valid_choice() {
    both_ways(|family| {
        let meshes = [
            (
                "--tp",
                Mesh {
                    tp: 2,
                    ..Mesh::SINGLE
                },
            ),
            (
                "--pp",
                Mesh {
                    pp: 3,
                    ..Mesh::SINGLE
                },
            ),
            (
                "--ep",
                Mesh {
                    ep: 2,
                    ..Mesh::SINGLE
                },
            ),
            (
                "--etp",
                Mesh {
                    etp: 4,
                    ..Mesh::SINGLE
                },
            ),
        ];
        for (option, mesh) in meshes {
            let options = Options {
                mesh,
                ..Options::default()
            };
            let error = ImportPlan::new(family, on_disk("glm52-tiny"), &options).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains(option) && text.ends_with("supported: 1"),
                "{text}"
            );
        }
    });
}

#[test]
fn config_values_that_would_compute_something_else_are_refused_by_key() {
    both_ways(|family| {
        let cases = [
            ("scoring_func", json!("softmax")),
            ("hidden_act", json!("gelu")),
            ("rope_interleave", json!(false)),
            ("indexer_rope_interleave", json!(false)),
            ("tie_word_embeddings", json!(true)),
            ("attention_bias", json!(true)),
            ("qk_head_dim", json!(41)),
            ("q_lora_rank", Value::Null),
            ("num_hidden_layers", json!(0)),
            ("num_hidden_layers", json!(9)),
            ("n_routed_experts", json!("8")),
            ("num_nextn_predict_layers", json!(2)),
            ("num_nextn_predict_layers", json!("one")),
            ("vocab_size", json!(1u64 << 40)),
            ("n_routed_experts", json!(1u64 << 31)),
        ];
        for (key, value) in cases {
            let error = refused(family, |config| config[key] = value.clone());
            assert!(
                ["config/value", "bridge/unsupported"].contains(&error.slug()),
                "{key}: {error}"
            );
            // Another number of layers contradicts the lists, and those are named.
            let named = if value == json!(9) {
                "indexer_types"
            } else {
                key
            };
            assert!(error.to_string().contains(named), "{key}: {error}");
        }
        let error = refused(family, |config| {
            config["rope_parameters"]["rope_type"] = json!("yarn")
        });
        assert!(
            error
                .to_string()
                .contains("rope_parameters.rope_type is \"yarn\", expected \"default\""),
            "{error}"
        );
        let error = refused(family, |config| {
            drop(config.as_object_mut().unwrap().remove("rope_parameters"))
        });
        assert!(
            error
                .to_string()
                .contains("rope_parameters.rope_theta is absent"),
            "{error}"
        );
    });
}

#[test]
fn an_indexer_list_of_another_length_is_refused_with_both_lengths() {
    both_ways(|family| {
        let error = refused(family, |config| {
            drop(config["indexer_types"].as_array_mut().unwrap().pop())
        });
        let text = error.to_string();
        assert!(
            text.contains("indexer_types is 7 entries, expected 8 entries"),
            "{text}"
        );
    });
}

#[test]
fn the_indexer_list_decides_over_frequency_and_offset_and_says_so() {
    both_ways(|family| {
        let mut config = tiny_config();
        config["index_topk_freq"] = json!(2);
        let plan = plan_config(family, &config).unwrap();
        let notices = plan.summary().notices.join("\n");
        assert!(
            notices
                .contains("index_topk_freq and index_skip_topk_offset contradicts indexer_types"),
            "{notices}"
        );
        assert_eq!(plan.summary().source.tensors, 296);
    });
}

#[test]
fn the_two_numbers_of_the_schedule_follow_the_layers() {
    both_ways(|family| {
        let numbers = |change: &dyn Fn(&mut Value)| {
            let mut config = tiny_config();
            change(&mut config);
            let plan = plan_config(family, &config).unwrap();
            let provider = &plan.spec().provider;
            let of = |field: &str| provider[field].as_u64().unwrap();
            let numbers = (
                of("dsa_indexer_topk_freq"),
                of("dsa_indexer_skip_topk_offset"),
            );
            (numbers, plan.summary().notices.join("\n"))
        };
        let ((frequency, offset), notices) = numbers(&|_| ());
        assert_eq!((frequency, offset), (4, 3));
        assert!(!notices.contains("run_config.yaml"), "{notices}");
        let without = |config: &mut Value| {
            for key in ["index_topk_freq", "index_skip_topk_offset"] {
                config.as_object_mut().unwrap().remove(key);
            }
        };
        let (found, notices) = numbers(&without);
        assert_eq!(found, (4, 3));
        assert!(notices.contains("follow from the layers"), "{notices}");
        let (found, notices) = numbers(&|config| config["index_topk_freq"] = json!(2));
        assert_eq!(found, (4, 3));
        assert!(notices.contains("contradicts indexer_types"), "{notices}");
        // Full, shared, full, full: no two numbers say so.
        let (found, notices) = numbers(&|config| {
            config["indexer_types"][1] = json!("shared");
        });
        assert_eq!(found, (4, 3));
        assert!(
            notices.contains("no dsa_indexer_topk_freq and offset express these layers"),
            "{notices}"
        );
    });
}

#[test]
fn keys_that_are_not_read_are_listed() {
    both_ways(|family| {
        let mut config = tiny_config();
        config["a_new_key"] = json!({"deep": [1, 2]});
        let plan = plan_config(family, &config).unwrap();
        let notices = plan.summary().notices.join("\n");
        assert!(
            notices.contains("kept without being read: a_new_key"),
            "{notices}"
        );
    });
}

#[test]
fn an_mtp_count_of_null_zero_or_none_means_no_mtp() {
    both_ways(|family| {
        for value in [Some(Value::Null), Some(json!(0)), None] {
            let mut config = tiny_config();
            match value {
                Some(value) => config["num_nextn_predict_layers"] = value,
                None => drop(
                    config
                        .as_object_mut()
                        .unwrap()
                        .remove("num_nextn_predict_layers"),
                ),
            }
            let plan = plan_config(family, &config).unwrap();
            assert_eq!(
                (plan.summary().source.tensors, plan.summary().mtp_layers),
                (249, 0)
            );
        }
    });
}

#[test]
fn fp8_weights_are_refused_by_dtype_and_name() {
    both_ways(|family| {
        let source = in_memory("glm52-tiny");
        let name = "model.layers.0.self_attn.q_a_proj.weight";
        for shard in [
            "model-00001-of-00003.safetensors",
            "model-00002-of-00003.safetensors",
            "model-00003-of-00003.safetensors",
        ] {
            let bytes = source.bytes(shard).unwrap();
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let mut header: serde_json::Map<String, Value> =
                serde_json::from_slice(&bytes[8..8 + length]).unwrap();
            let Some(entry) = header.get_mut(name) else {
                continue;
            };
            // Twice the columns at half the width: the same bytes.
            entry["dtype"] = json!("F8_E4M3");
            entry["shape"][1] = json!(entry["shape"][1].as_u64().unwrap() * 2);
            let text = serde_json::to_vec(&header).unwrap();
            let rewritten = [
                &(text.len() as u64).to_le_bytes(),
                text.as_slice(),
                &bytes[8 + length..],
            ]
            .concat();
            source.insert(shard, rewritten).unwrap();
        }
        let error = ImportPlan::new(family, Arc::new(source), &Options::default()).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(&format!("{name} has dtype F8_E4M3"))
                && text.contains("expected BF16 or F32"),
            "{text}"
        );
    });
}

#[test]
fn a_router_in_f32_keeps_its_dtype_or_is_narrowed_when_asked_and_the_bias_never_is() {
    both_ways(|family| {
        let narrow = Options {
            dtype: DtypeChoice::Bf16,
            ..options(MtpPolicy::Keep)
        };
        let run = iteration(Arc::new(
            import(family, on_disk("glm52-tiny"), &narrow).unwrap(),
        ));
        let dtypes: Vec<String> = run
            .metadata()
            .tensors
            .iter()
            .filter(|(_, entry)| entry.dtype.safetensors_name() != "BF16")
            .map(|(name, entry)| format!("{name} {}", entry.dtype))
            .collect();
        assert_eq!(dtypes.len(), 6);
        assert!(
            dtypes
                .iter()
                .all(|line| line.ends_with("mlp.router.expert_bias F32")),
            "{dtypes:?}"
        );
    });
}

#[test]
fn shards_without_their_index_are_no_config_only_directory() {
    both_ways(|family| {
        let source = in_memory("glm52-tiny");
        source.remove("model.safetensors.index.json");
        let error = ImportPlan::new(family, Arc::new(source), &Options::default()).unwrap_err();
        assert_eq!(error.slug(), "hf/no-weights");
    });
}

#[test]
fn a_config_alone_plans_and_does_not_import() {
    both_ways(|family| {
        let error = import(family, on_disk("configs/glm-5.2"), &Options::default()).unwrap_err();
        assert_eq!(error.slug(), "engine/no-weights");
    });
}
