//! Which provider fields a user may set, and to what. Four kinds are refused: another value of a field that the family writes
//! about the weights, a value that a field of training does not take, fields that are known to give a model other params, and
//! modes of training that it does not have. All other fields are written as given.

use rialto_plugin::prelude::*;

/// Fields that a training run may want otherwise than the family writes them, or than Megatron has them.
const FREE: &[(&str, FieldKind)] = &[
    ("apply_rope_fusion", FieldKind::Switch),
    ("attention_dropout", FieldKind::Fraction),
    ("attention_softmax_in_fp32", FieldKind::Switch),
    ("cp_comm_type", FieldKind::Name),
    ("dsa_indexer_loss_coeff", FieldKind::Amount),
    ("dsa_indexer_use_sparse_loss", FieldKind::Switch),
    ("hidden_dropout", FieldKind::Fraction),
    ("init_method_std", FieldKind::Amount),
    ("moe_flex_dispatcher_backend", FieldKind::Name),
    ("moe_flex_dispatcher_num_sms", FieldKind::Count),
    ("moe_grouped_gemm", FieldKind::Switch),
    ("moe_permute_fusion", FieldKind::Switch),
    ("moe_permute_fusion_into_hybridep", FieldKind::Switch),
    ("moe_router_bias_update_rate", FieldKind::Amount),
    ("moe_router_dtype", FieldKind::Name),
    ("moe_router_load_balancing_type", FieldKind::Name),
    ("moe_shared_expert_overlap", FieldKind::Switch),
    ("moe_token_dispatcher_type", FieldKind::Name),
    (
        "recompute_granularity",
        FieldKind::Choice(&["null", "\"full\"", "\"selective\""]),
    ),
    ("recompute_modules", FieldKind::Names),
    ("seq_length", FieldKind::Count),
];

const CUT_BY_PATTERN: &str = "a hybrid model is cut by its layer pattern, which --pipeline gives";
const NO_FP8: &str = "sparse attention is not trained in FP8";
const NO_VIRTUAL_STAGES: &str = "a hybrid model has no virtual stages";
const BY_PATTERN: &str = "the layers are those of hybrid_layer_pattern";
const NO_SUCH_PARAMS: &str = "the weights have no params for it";

/// Fields that the family leaves as they are, the values they have then, and why. Source of the values: the defaults of
/// Megatron-Bridge's provider. It fails on some of them when a model is built, long after a checkpoint was written, and on
/// others not at all: the model is then another one.
const UNSET: &[(&str, &[&str], &str)] = &[
    (
        "account_for_embedding_in_pipeline_split",
        &["false"],
        CUT_BY_PATTERN,
    ),
    (
        "account_for_loss_in_pipeline_split",
        &["false"],
        CUT_BY_PATTERN,
    ),
    ("fp4", &["null"], "sparse attention is not trained in FP4"),
    ("fp8", &["null"], NO_FP8),
    ("fp8_param", &["false"], NO_FP8),
    ("hybrid_override_pattern", &["null"], BY_PATTERN),
    ("moe_latent_size", &["null"], NO_SUCH_PARAMS),
    ("moe_shared_expert_gate", &["false"], NO_SUCH_PARAMS),
    ("mtp_hybrid_override_pattern", &["null"], BY_PATTERN),
    (
        "mtp_use_repeated_layer",
        &["false"],
        "each prediction layer has params of its own",
    ),
    (
        "num_layers_in_first_pipeline_stage",
        &["null"],
        CUT_BY_PATTERN,
    ),
    (
        "num_layers_in_last_pipeline_stage",
        &["null"],
        CUT_BY_PATTERN,
    ),
    (
        "num_layers_per_virtual_pipeline_stage",
        &["null"],
        NO_VIRTUAL_STAGES,
    ),
    ("pipeline_model_parallel_layout", &["null"], CUT_BY_PATTERN),
    (
        "virtual_pipeline_model_parallel_size",
        &["null"],
        NO_VIRTUAL_STAGES,
    ),
];

const RULES: SettingRules<'_> = SettingRules {
    free: FREE,
    kept: UNSET,
    by_option: &[
        ("mtp_num_layers", "--mtp"),
        ("should_pad_vocab", "--pad-vocab"),
    ],
};

/// Refuses settings that are known to make another model of the weights, or one that does not train. Errors:
/// [`Error::Settings`], all of them.
pub(crate) fn check(
    provider: &Map<String, Value>,
    settings: &Map<String, Value>,
) -> Result<(), Error> {
    let mut faults = RULES.faults(provider, settings);
    // Layers that share an indexer read what an earlier layer left behind; replayed alone, attention would find nothing.
    if recomputes_attention_alone(settings) {
        faults.push(SettingFault::new(
            "recompute_granularity",
            &json!("selective"),
            "core attention cannot be recomputed without its stage",
            "recompute_granularity=full, or recompute_modules without core_attn",
        ));
    }
    SettingFault::refuse(faults)
}

/// Whether selective recomputation would take core attention, which it does unless other modules are named.
fn recomputes_attention_alone(settings: &Map<String, Value>) -> bool {
    let is_selective = settings.get("recompute_granularity") == Some(&json!("selective"));
    let takes_core = match settings.get("recompute_modules") {
        None | Some(Value::Null) => true,
        Some(Value::Array(modules)) => modules.contains(&json!("core_attn")),
        // No list of names, and refused as such.
        Some(_) => false,
    };
    is_selective && takes_core
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(settings: Value) -> String {
        let fields = |value: Value| value.as_object().unwrap().clone();
        let mut provider = crate::spec::fixed_provider_fields();
        provider.extend(fields(json!({
            "attention_dropout": 0.0, "bf16": true, "hidden_size": 6144, "init_method_std": 0.02, "mtp_num_layers": null,
            "rotary_base": 8_000_000, "seq_length": 8, "should_pad_vocab": true,
        })));
        match check(&provider, &fields(settings)) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_cannot_be_trained_is_refused_with_what_can() {
        for (settings, expected) in [
            (
                json!({"fp8": "hybrid"}),
                "--set fp8=hybrid is refused: sparse attention is not trained in FP8; supported: null",
            ),
            (json!({"fp8": "e4m3"}), "--set fp8=e4m3 is refused"),
            (json!({"fp4": "e2m1"}), "--set fp4=e2m1 is refused"),
            (
                json!({"virtual_pipeline_model_parallel_size": 2}),
                "no virtual stages; supported: null",
            ),
            (
                json!({"pipeline_model_parallel_layout": "E|t"}),
                "which --pipeline gives; supported: null",
            ),
            (
                json!({"num_layers_in_first_pipeline_stage": 4}),
                "which --pipeline gives",
            ),
            (
                json!({"num_layers_in_last_pipeline_stage": 4}),
                "which --pipeline gives",
            ),
            (
                json!({"recompute_granularity": "selective"}),
                "supported: recompute_granularity=full, or",
            ),
            (
                json!({"recompute_granularity": "selective", "recompute_modules": ["mlp", "core_attn"]}),
                "without core_attn",
            ),
            (
                json!({"recompute_granularity": "selective", "recompute_modules": null}),
                "without core_attn",
            ),
            (
                json!({"hidden_size": 4096}),
                "--set hidden_size=4096 is refused: the config and the family decide it; supported: 6144",
            ),
            (json!({"bf16": false}), "supported: true"),
            (json!({"mtp_num_layers": 1}), "--mtp decides it"),
            (
                json!({"should_pad_vocab": false}),
                "--pad-vocab decides it; supported: true",
            ),
            (json!({"rotary_base": 8_000_001.0}), "supported: 8000000"),
            (json!({"rotary_base": "8000000"}), "supported: 8000000"),
            (json!({"bf16": 1}), "supported: true"),
        ] {
            let message = refused(settings.clone());
            assert!(message.contains(expected), "{settings}: {message}");
        }
        let both = refused(json!({"fp8": "hybrid", "hidden_size": 1}));
        assert!(
            both.contains("fp8") && both.contains("hidden_size"),
            "{both}"
        );
    }

    #[test]
    fn how_to_train_is_the_users_choice() {
        for settings in [
            json!({}),
            json!({"seq_length": 4096, "attention_dropout": 0.1}),
            json!({"fp8": null, "virtual_pipeline_model_parallel_size": null}),
            json!({"hidden_size": 6144}),
            json!({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}),
            json!({"recompute_granularity": "selective", "recompute_modules": ["mlp"]}),
            json!({"recompute_modules": ["core_attn"]}),
            json!({"calculate_per_token_loss": true}),
        ] {
            assert_eq!(refused(settings.clone()), "", "{settings}");
        }
    }

    #[test]
    fn a_value_equal_to_the_decided_one_passes_however_it_is_spelled() {
        for settings in [
            json!({"hidden_size": 6144}),
            json!({"hidden_size": 6144.0}),
            json!({"rotary_base": 8e6}),
            json!({"hidden_dropout": 0, "attention_dropout": 0}),
            json!({"seq_length": 8.0}),
            json!({"mtp_num_layers": null, "should_pad_vocab": true, "bf16": true}),
        ] {
            assert_eq!(refused(settings.clone()), "", "{settings}");
        }
    }

    /// Every field that is left free, with every kind of value that there is.
    #[test]
    fn a_field_of_training_takes_the_kind_of_value_that_it_has() {
        let kinds = [
            json!(null),
            json!(true),
            json!(false),
            json!(""),
            json!("abc"),
            json!("7"),
            json!(0),
            json!(7),
            json!(-1),
            json!(0.5),
            json!(1.0),
            json!(7.5),
            json!(-0.5),
            json!([]),
            json!([7]),
            json!({}),
        ];
        let taken = |field: &str| match field {
            "moe_flex_dispatcher_num_sms" | "seq_length" => {
                (vec![json!(7)], "a whole number from 1")
            }
            "attention_dropout" | "hidden_dropout" => {
                (vec![json!(0), json!(0.5)], "a number from 0 to below 1")
            }
            "dsa_indexer_loss_coeff" | "init_method_std" | "moe_router_bias_update_rate" => (
                vec![json!(0), json!(7), json!(0.5), json!(1.0), json!(7.5)],
                "a number from 0",
            ),
            "cp_comm_type"
            | "moe_flex_dispatcher_backend"
            | "moe_router_dtype"
            | "moe_router_load_balancing_type"
            | "moe_token_dispatcher_type" => (vec![json!("abc"), json!("7")], "a name"),
            _ => (vec![json!(true), json!(false)], "true or false"),
        };
        // The words of recomputation have a test of their own.
        let of_kinds = FREE
            .iter()
            .filter(|(field, _)| !field.starts_with("recompute_"));
        for (field, _) in of_kinds {
            let (taken, expected) = taken(field);
            for value in &kinds {
                let message = refused(json!({*field: value}));
                if taken.contains(value) {
                    assert_eq!(message, "", "{field}={value}");
                } else {
                    let end = format!("it is no value of this field; supported: {expected}");
                    assert!(message.ends_with(&end), "{field}={value}: {message:?}");
                }
            }
        }
    }

    #[test]
    fn recomputation_is_asked_for_by_the_words_there_are() {
        for (field, supported, wrong) in [
            (
                "recompute_granularity",
                "null or full or selective",
                [
                    json!("Full"),
                    json!(""),
                    json!(true),
                    json!(1),
                    json!(["full"]),
                    json!({}),
                ],
            ),
            (
                "recompute_modules",
                "null or a list of names",
                [
                    json!("core_attn"),
                    json!([1]),
                    json!([""]),
                    json!([null]),
                    json!(false),
                    json!({}),
                ],
            ),
        ] {
            assert_eq!(refused(json!({field: null})), "");
            for value in wrong {
                let message = refused(json!({field: value}));
                assert!(message.ends_with(supported), "{field}={value}: {message:?}");
                // Said once, not once more as what would follow from it.
                let message = refused(json!({"recompute_granularity": "selective", field: value}));
                assert_eq!(message.matches("--set").count(), 1, "{message}");
            }
        }
        assert_eq!(refused(json!({"recompute_modules": []})), "");
    }

    /// Every field that is left as it is, with every kind of value that there is.
    #[test]
    fn a_field_that_makes_another_model_stays_as_it_is() {
        let layers = [
            "heterogeneous_layers_config_path",
            "heterogeneous_layers_config_encoded_json",
            "heterogeneous_x",
        ];
        let listed = UNSET.iter().map(|(field, ..)| *field);
        for field in listed.chain(layers) {
            let kept = match field {
                "account_for_embedding_in_pipeline_split"
                | "account_for_loss_in_pipeline_split"
                | "fp8_param"
                | "moe_shared_expert_gate"
                | "mtp_use_repeated_layer" => vec![json!(false)],
                _ if layers.contains(&field) => vec![json!(null), json!(false)],
                _ => vec![json!(null)],
            };
            for value in [
                json!(null),
                json!(false),
                json!(true),
                json!(0),
                json!(2),
                json!("vanilla"),
                json!("off-by-one"),
                json!("null"),
                json!([]),
                json!([128, 0]),
                json!({}),
            ] {
                let message = refused(json!({field: value}));
                assert_eq!(
                    message.is_empty(),
                    kept.contains(&value),
                    "{field}={value}: {message}"
                );
                if !message.is_empty() {
                    assert!(message.contains("; supported: "), "{message}");
                }
            }
        }
    }

    #[test]
    fn each_field_stands_in_one_table_and_the_family_writes_none_that_it_leaves() {
        let provider = crate::spec::fixed_provider_fields();
        let elsewhere = [
            "attention_dropout",
            "init_method_std",
            "recompute_granularity",
            "recompute_modules",
            "seq_length",
        ];
        for (field, kind) in FREE {
            assert!(!UNSET.iter().any(|(unset, ..)| unset == field), "{field}");
            match provider.get(*field) {
                Some(value) => assert!(kind.holds(value), "{field} {value} {kind:?}"),
                None => assert!(elsewhere.contains(field), "{field}"),
            }
        }
        for (field, ..) in UNSET {
            assert!(!provider.contains_key(*field), "{field}");
        }
    }
}
