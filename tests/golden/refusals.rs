//! What this version does not map is refused by name, before any output.

use std::sync::Arc;

use rialto_bridge::{Bridge, Claim, Mesh, MtpPolicy, RawConfig};
use rialto_checkpoint::store::{MemoryStore, Store};
use rialto_engine::{DtypeChoice, Error, ExportOptions, ImportPlan, Options, source_config};
use serde_json::{Value, json};

use crate::world::{
    GOLDENS, both_ways, export, fixture, import, in_memory, iteration, on_disk, options,
};

pub(crate) fn tiny_config() -> Value {
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
fn every_release_is_told_by_what_its_config_holds() {
    both_ways(|family| {
        for (name, release) in [
            ("configs/glm-5", "glm-5 or glm-5.1"),
            ("configs/glm-5.1", "glm-5 or glm-5.1"),
            ("configs/glm-5.2", "glm-5.2"),
            ("configs/glm-5.2-fp8", "glm-5.2-fp8 or glm-5.3"),
            ("configs/glm-5.3", "glm-5.2-fp8 or glm-5.3"),
            ("glm5-tiny", "glm-5 or glm-5.1"),
            ("glm53-tiny", "glm-5.2-fp8 or glm-5.3"),
        ] {
            let config = source_config(on_disk(name).as_ref()).unwrap();
            let Claim::Yes { release: found, .. } = family.claim(&config).unwrap() else {
                panic!("{name} is claimed")
            };
            assert_eq!(found, release, "{name}");
        }
    });
}

/// The scales' shapes alone would not tell 100 rows a block from 128.
#[test]
fn another_quantization_than_the_codec_s_is_refused_by_its_key() {
    both_ways(|family| {
        for (key, value) in [
            ("weight_block_size", json!([64, 64])),
            ("weight_block_size", json!([100, 136])),
            ("weight_block_size", json!([128])),
            ("weight_block_size", json!(null)),
            ("quant_method", json!("gptq")),
            ("quant_method", json!(null)),
            ("fmt", json!("e5m2")),
            ("fmt", json!("E4M3")),
            ("fmt", json!("e4m3fn")),
            ("fmt", json!("")),
            ("fmt", json!(null)),
            ("fmt", json!(["e4m3"])),
        ] {
            let source = in_memory("glm53-tiny");
            let mut config: Value =
                serde_json::from_slice(&source.bytes("config.json").unwrap()).unwrap();
            config["quantization_config"][key] = value.clone();
            source
                .insert("config.json", config.to_string().into_bytes())
                .unwrap();
            let error = ImportPlan::new(family, Arc::new(source), &Options::default()).unwrap_err();
            let expected = format!("config.json: quantization_config.{key} is {value}");
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    });
}

/// Near matches are no matches: a model that is nearly this one computes something else.
#[test]
fn fc_08_another_architecture_is_refused_by_name_before_any_weight_is_read() {
    both_ways(|family| {
        let own = "GlmMoeDsaForCausalLM";
        let cases = [
            (
                json!(["Glm5NextForCausalLM"]),
                json!("glm5_next"),
                "architectures is Glm5NextForCausalLM, not",
            ),
            (
                json!(["DeepseekV32ForCausalLM"]),
                json!("deepseek_v32"),
                "architectures is DeepseekV32ForCausalLM, not",
            ),
            (
                json!(["GlmMoeDsaForCausalLm"]),
                json!("glm_moe_dsa"),
                "architectures is GlmMoeDsaForCausalLm, not",
            ),
            (
                json!(["GlmMoeDsaForCausalLM "]),
                json!("glm_moe_dsa"),
                "architectures is GlmMoeDsaForCausalLM , not",
            ),
            (
                json!(["GlmMoeDsaModel"]),
                json!("glm_moe_dsa"),
                "architectures is GlmMoeDsaModel, not",
            ),
            (
                json!([own, "Other"]),
                json!("glm_moe_dsa"),
                "architectures is GlmMoeDsaForCausalLM, Other, not",
            ),
            (
                json!([]),
                json!("glm_moe_dsa"),
                "architectures is none, not",
            ),
            (
                Value::Null,
                json!("glm_moe_dsa"),
                "architectures is none, not",
            ),
            (
                json!([own]),
                json!("glm5_next"),
                "and model_type is \"glm5_next\", not \"glm_moe_dsa\"",
            ),
            (
                json!([own]),
                json!("glm_moe_dsa_next"),
                "and model_type is \"glm_moe_dsa_next\", not \"glm_moe_dsa\"",
            ),
        ];
        for (architectures, model_type, expected) in cases {
            let source = in_memory("glm52-tiny");
            let mut config = tiny_config();
            config["architectures"] = architectures;
            config["model_type"] = model_type;
            source
                .insert("config.json", config.to_string().into_bytes())
                .unwrap();
            // To read it would be another error.
            source
                .insert(
                    "model-00001-of-00003.safetensors",
                    b"no safetensors".as_slice(),
                )
                .unwrap();
            let error =
                ImportPlan::new(family, Arc::new(source.clone()), &Options::default()).unwrap_err();
            assert_eq!(error.slug(), "engine/not-claimed", "{error}");
            let text = error.to_string();
            assert!(text.contains(expected) && text.contains(own), "{text}");
            // The other way asks the same question of the reference.
            let reference = Some(Arc::new(source) as Arc<dyn Store>);
            let error = export(
                family,
                GOLDENS[0].run(),
                reference,
                &ExportOptions::default(),
            );
            assert_eq!(
                error.unwrap_err().slug(),
                "engine/not-claimed",
                "{expected}"
            );
        }
        let config = RawConfig::parse(tiny_config().to_string().as_bytes()).unwrap();
        assert!(matches!(family.claim(&config).unwrap(), Claim::Yes { .. }));
    });
}

/// Wherever the tensors have another number than the config, the one line of advice says both.
#[test]
fn one_number_of_the_config_that_the_tensors_contradict_is_named_with_theirs() {
    both_ways(|family| {
        for (key, own, others) in [
            ("n_routed_experts", 8, [7, 9, 256]),
            ("moe_intermediate_size", 20, [10, 24, 28]),
            ("q_lora_rank", 48, [40, 50, 96]),
        ] {
            for other in others {
                let source = in_memory("glm52-tiny");
                let mut config = tiny_config();
                config[key] = json!(other);
                source
                    .insert("config.json", config.to_string().into_bytes())
                    .unwrap();
                let error = ImportPlan::new(family, Arc::new(source), &options(MtpPolicy::Keep))
                    .unwrap_err();
                assert_eq!(error.slug(), "weight-map/not-total", "{key}: {error}");
                let expected =
                    format!("every shape that differs has {own} where the config leads to {other}");
                let help = error
                    .help()
                    .unwrap_or_else(|| panic!("{key} {other}: no advice"));
                assert!(help.starts_with(&expected), "{help}");
            }
        }
        // Two numbers are not explained by one.
        let source = in_memory("glm52-tiny");
        let mut config = tiny_config();
        config["n_routed_experts"] = json!(9);
        config["kv_lora_rank"] = json!(34);
        source
            .insert("config.json", config.to_string().into_bytes())
            .unwrap();
        let error =
            ImportPlan::new(family, Arc::new(source), &options(MtpPolicy::Keep)).unwrap_err();
        assert_eq!(error.help(), None);
    });
}

/// The tensors have to be cut into equal parts, and heads and experts stay whole.
#[test]
fn fc_23_a_mesh_that_cannot_split_a_dimension_is_refused_with_the_valid_choices() {
    let mesh = |tp, pp, ep, etp| Mesh { tp, pp, ep, etp };
    let refused = |family: &dyn Bridge, name: &str, mesh: Mesh| {
        let options = Options {
            mesh,
            ..Options::default()
        };
        ImportPlan::new(family, on_disk(name), &options).unwrap_err()
    };
    both_ways(|family| {
        for (name, mesh, expected) in [
            (
                "glm53-tiny",
                mesh(2, 1, 1, 1),
                "--tp 2 does not divide 5 attention heads; valid for this model: 1",
            ),
            (
                "glm53-tiny",
                mesh(1, 1, 2, 1),
                "--ep 2 does not divide 5 experts; valid for this model: 1, 5",
            ),
            (
                "glm53-tiny",
                mesh(1, 1, 1, 5),
                "--etp 5 does not divide 24 channels of an expert; valid for this model: 1, 2, 3, 4, 6, 8, 12, 24",
            ),
            (
                "glm52-tiny",
                mesh(3, 1, 3, 3),
                "--tp 3 does not divide 256 vocabulary rows, 4 attention heads, 112 channels of a dense MLP, 20 channels of the \
                 shared experts; valid for this model: 1, 2, 4; --ep 3 does not divide 8 experts; valid for this model: \
                 1, 2, 4, 8; --etp 3 does not divide 20 channels of an expert; valid for this model: 1, 2, 4, 5, 10, 20",
            ),
        ] {
            let error = refused(family, name, mesh);
            assert_eq!(
                (error.slug(), error.to_string().as_str()),
                ("bridge/mesh", expected)
            );
        }
        for (name, pp, expected) in [
            (
                "glm52-tiny",
                5,
                "--pp 5 does not fit 4 groups of layers that share an indexer; valid for this model: 1 to 4",
            ),
            (
                "glm53-tiny",
                3,
                "--pp 3 does not fit 2 groups of layers that share an indexer; valid for this model: 1 to 2",
            ),
            (
                "glm5-tiny",
                7,
                "--pp 7 does not fit 6 groups of layers that share an indexer; valid for this model: 1 to 6",
            ),
        ] {
            let error = refused(family, name, mesh(1, pp, 1, 1));
            assert_eq!(
                (error.slug(), error.to_string().as_str()),
                ("bridge/pipeline", expected)
            );
        }
    });
}

#[test]
fn fc_05_an_indexer_list_of_another_length_is_refused_with_both_lengths() {
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
fn fc_05_the_indexer_list_decides_over_frequency_and_offset_and_says_so() {
    both_ways(|family| {
        let mut config = tiny_config();
        config["index_topk_freq"] = json!(2);
        let plan = plan_config(family, &config).unwrap();
        let notices = plan.summary().notices.join("\n");
        assert!(
            notices.contains("index_topk_freq and index_skip_topk_offset contradict indexer_types"),
            "{notices}"
        );
        assert_eq!(plan.summary().source.tensors, 296);
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
fn fc_09_an_mtp_count_of_null_zero_or_none_means_no_mtp() {
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
fn fc_31_a_router_in_f32_keeps_its_dtype_or_is_narrowed_when_asked_and_the_bias_never_is() {
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

/// Each size may be sound, and what they add up to not: every two of them as large as they may be.
#[test]
fn sizes_that_add_up_to_more_than_a_number_holds_are_an_error() {
    let sizes = [
        "hidden_size",
        "intermediate_size",
        "moe_intermediate_size",
        "vocab_size",
        "kv_lora_rank",
        "n_shared_experts",
        "v_head_dim",
    ];
    let mut refused = 0;
    for (number, first) in sizes.iter().enumerate() {
        for second in &sizes[number..] {
            for shift in [28, 30, 31] {
                let mut config = tiny_config();
                for key in [first, second] {
                    config[key] = json!(1u64 << shift);
                }
                match plan_config(&rialto_glm5::Glm5, &config) {
                    Ok(plan) => {
                        let tensors = plan.mapping().tensors().iter();
                        let elements =
                            tensors.map(|tensor| u128::from(tensor.shape.elements().unwrap()));
                        assert_eq!(
                            elements.sum::<u128>(),
                            plan.summary().source.elements.into()
                        );
                    }
                    Err(error) => {
                        refused += 1;
                        let slugs = ["engine/too-large", "tensor/shape-overflow"];
                        assert!(
                            slugs.contains(&error.slug()),
                            "{first} {second} {shift}: {error}"
                        );
                    }
                }
            }
        }
    }
    assert!(refused > 10, "{refused}");
}
