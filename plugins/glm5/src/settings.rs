//! Which provider fields a user may set, and to what. Four kinds are refused: another value of a field that the family writes
//! about the weights, a value that a field of training does not take, fields that are known to give a model other params, and
//! modes of training that it does not have. All other fields are written as given.

use rialto_plugin::prelude::*;

/// What a field of training holds.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Switch,
    Name,
    /// A number of things, at least one.
    Count,
    /// A probability, below 1.
    Fraction,
    /// A factor or a width, at least 0.
    Amount,
}

impl Kind {
    fn holds(self, value: &Value) -> bool {
        match self {
            Kind::Switch => value.is_boolean(),
            Kind::Name => value.as_str().is_some_and(|name| !name.is_empty()),
            Kind::Count => value.as_u64().is_some_and(|count| count > 0),
            Kind::Fraction => value
                .as_f64()
                .is_some_and(|part| (0.0..1.0).contains(&part)),
            Kind::Amount => value.as_f64().is_some_and(|amount| amount >= 0.0),
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Kind::Switch => "true or false",
            Kind::Name => "a name",
            Kind::Count => "a whole number from 1",
            Kind::Fraction => "a number from 0 to below 1",
            Kind::Amount => "a number from 0",
        }
    }
}

/// Fields that the family writes and that a training run may want otherwise.
const FREE: &[(&str, Kind)] = &[
    ("apply_rope_fusion", Kind::Switch),
    ("attention_dropout", Kind::Fraction),
    ("attention_softmax_in_fp32", Kind::Switch),
    ("cp_comm_type", Kind::Name),
    ("dsa_indexer_loss_coeff", Kind::Amount),
    ("dsa_indexer_use_sparse_loss", Kind::Switch),
    ("hidden_dropout", Kind::Fraction),
    ("init_method_std", Kind::Amount),
    ("moe_flex_dispatcher_backend", Kind::Name),
    ("moe_flex_dispatcher_num_sms", Kind::Count),
    ("moe_grouped_gemm", Kind::Switch),
    ("moe_permute_fusion", Kind::Switch),
    ("moe_permute_fusion_into_hybridep", Kind::Switch),
    ("moe_router_bias_update_rate", Kind::Amount),
    ("moe_router_dtype", Kind::Name),
    ("moe_router_load_balancing_type", Kind::Name),
    ("moe_shared_expert_overlap", Kind::Switch),
    ("moe_token_dispatcher_type", Kind::Name),
    ("seq_length", Kind::Count),
];

const CUT_BY_PATTERN: &str = "a hybrid model is cut by its layer pattern, which --pipeline gives";
const NO_FP8: &str = "sparse attention is not trained in FP8";
const NO_VIRTUAL_STAGES: &str = "a hybrid model has no virtual stages";
const BY_PATTERN: &str = "the layers are those of hybrid_layer_pattern";
const HETEROGENEOUS: &str = "the layers of a kind are alike in the weights";
const NO_SUCH_PARAMS: &str = "the weights have no params for it";
const OTHER_ATTENTION: &str = "the weights were trained with another attention";

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
    ("attention_output_gate", &["false"], NO_SUCH_PARAMS),
    ("fp4", &["null"], "sparse attention is not trained in FP4"),
    ("fp8", &["null"], NO_FP8),
    ("fp8_param", &["false"], NO_FP8),
    ("heterogeneous_block_specs", &["false"], HETEROGENEOUS),
    ("hybrid_override_pattern", &["null"], BY_PATTERN),
    ("moe_latent_size", &["null"], NO_SUCH_PARAMS),
    ("moe_shared_expert_gate", &["false"], NO_SUCH_PARAMS),
    ("mtp_hybrid_override_pattern", &["null"], BY_PATTERN),
    (
        "mtp_use_repeated_layer",
        &["false"],
        "each prediction layer has params of its own",
    ),
    ("no_rope_freq", &["null"], OTHER_ATTENTION),
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
    (
        "padded_vocab_size",
        &["null"],
        "it follows from vocab_size, and from --pad-vocab",
    ),
    ("pipeline_model_parallel_layout", &["null"], CUT_BY_PATTERN),
    ("softmax_type", &["\"vanilla\""], OTHER_ATTENTION),
    (
        "virtual_pipeline_model_parallel_size",
        &["null"],
        NO_VIRTUAL_STAGES,
    ),
    ("window_size", &["null"], OTHER_ATTENTION),
];

/// The values that a field must keep, and why, if it is one of [`UNSET`] or of those that describe layers one by one.
fn unset(field: &str) -> Option<(&'static [&'static str], &'static str)> {
    let listed = UNSET.iter().find(|(unset, ..)| *unset == field);
    match listed {
        Some((_, kept, reason)) => Some((*kept, *reason)),
        None if field.starts_with("heterogeneous_") => Some((&["null", "false"], HETEROGENEOUS)),
        None => None,
    }
}

/// Refuses settings that are known to make another model of the weights, or one that does not train. Errors:
/// [`Error::Settings`], all of them.
pub(crate) fn check(
    provider: &Map<String, Value>,
    settings: &Map<String, Value>,
) -> Result<(), Error> {
    let faults = settings
        .iter()
        .filter_map(|(field, value)| fault(provider, field, value));
    let mut faults: Vec<SettingFault> = faults.collect();
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

/// What is wrong with one setting, whatever the others are.
fn fault(provider: &Map<String, Value>, field: &str, value: &Value) -> Option<SettingFault> {
    let decided = provider.get(field);
    if decided.is_some_and(|decided| is_same_value(decided, value)) {
        return None;
    }
    let fault =
        |reason: &str, supported: &str| Some(SettingFault::new(field, value, reason, supported));
    let no_value = "it is no value of this field";
    if let Some((kept, reason)) = unset(field) {
        let is_kept = kept.contains(&value.to_string().as_str());
        return fault(reason, &kept.join(" or ")).filter(|_| !is_kept);
    }
    if let Some((_, kind)) = FREE.iter().find(|(free, _)| *free == field) {
        return fault(no_value, kind.expected()).filter(|_| !kind.holds(value));
    }
    match field {
        "recompute_granularity" => {
            let holds = value.is_null() || value == "full" || value == "selective";
            fault(no_value, "null, full or selective").filter(|_| !holds)
        }
        "recompute_modules" => {
            let holds = match value {
                Value::Array(names) => names.iter().all(|name| Kind::Name.holds(name)),
                other => other.is_null(),
            };
            fault(no_value, "null or a list of names").filter(|_| !holds)
        }
        _ => {
            let reason = match field {
                "mtp_num_layers" => "--mtp decides it",
                "should_pad_vocab" => "--pad-vocab decides it",
                _ => "the config and the family decide it",
            };
            decided.and_then(|decided| fault(reason, &decided.to_string()))
        }
    }
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
        for (field, _) in FREE {
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
                "null, full or selective",
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
                | "attention_output_gate"
                | "fp8_param"
                | "heterogeneous_block_specs"
                | "moe_shared_expert_gate"
                | "mtp_use_repeated_layer" => vec![json!(false)],
                "softmax_type" => vec![json!("vanilla")],
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
        let of_config = ["attention_dropout", "init_method_std", "seq_length"];
        for (field, kind) in FREE {
            assert!(unset(field).is_none(), "{field}");
            match provider.get(*field) {
                Some(value) => assert!(kind.holds(value), "{field} {value} {kind:?}"),
                None => assert!(of_config.contains(field), "{field}"),
            }
        }
        for (field, ..) in UNSET {
            assert!(!provider.contains_key(*field), "{field}");
        }
    }
}
