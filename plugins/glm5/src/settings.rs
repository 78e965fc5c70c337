//! Which provider fields a user may set: those that say how to train. What the weights and the family decide stays.

use rialto_plugin::prelude::*;

/// Fields that the family writes and that a training run may want otherwise.
const FREE: &[&str] = &[
    "apply_rope_fusion",
    "attention_dropout",
    "attention_softmax_in_fp32",
    "cp_comm_type",
    "dsa_indexer_loss_coeff",
    "dsa_indexer_use_sparse_loss",
    "hidden_dropout",
    "init_method_std",
    "moe_flex_dispatcher_backend",
    "moe_flex_dispatcher_num_sms",
    "moe_grouped_gemm",
    "moe_permute_fusion",
    "moe_permute_fusion_into_hybridep",
    "moe_router_bias_update_rate",
    "moe_router_dtype",
    "moe_router_load_balancing_type",
    "moe_shared_expert_overlap",
    "moe_token_dispatcher_type",
    "seq_length",
];

const CUT_BY_PATTERN: &str = "a hybrid model is cut by its layer pattern, which --pipeline gives";

/// Fields that this family leaves at null, and why. Source: the checks of Megatron-Bridge's provider for it, which fail when a
/// model is built: long after a checkpoint was written.
const UNSET: &[(&str, &str)] = &[
    ("fp4", "sparse attention is not trained in FP4"),
    ("fp8", "sparse attention is not trained in FP8"),
    ("num_layers_in_first_pipeline_stage", CUT_BY_PATTERN),
    ("num_layers_in_last_pipeline_stage", CUT_BY_PATTERN),
    ("pipeline_model_parallel_layout", CUT_BY_PATTERN),
    (
        "virtual_pipeline_model_parallel_size",
        "a hybrid model has no virtual stages",
    ),
];

/// Refuses settings that would make another model of the weights, or one that does not train. Errors: [`Error::Settings`], all of
/// them.
pub(crate) fn check(
    provider: &Map<String, Value>,
    settings: &Map<String, Value>,
) -> Result<(), Error> {
    let mut faults = Vec::new();
    for (key, value) in settings {
        let fault = |reason: &str, supported: &str| SettingFault {
            setting: setting(key, value),
            reason: reason.to_owned(),
            supported: supported.to_owned(),
        };
        if let Some((_, reason)) = UNSET.iter().find(|(unset, _)| unset == key) {
            if !value.is_null() {
                faults.push(fault(reason, "null"));
            }
            continue;
        }
        let decided = provider.get(key).filter(|_| !FREE.contains(&key.as_str()));
        if let Some(decided) = decided.filter(|decided| *decided != value) {
            let reason = match key.as_str() {
                "mtp_num_layers" => "--mtp decides it",
                "should_pad_vocab" => "--pad-vocab decides it",
                _ => "the config and the family decide it",
            };
            faults.push(fault(reason, &decided.to_string()));
        }
    }
    // Layers that share an indexer read what an earlier layer left behind; replayed alone, attention would find nothing.
    if recomputes_attention_alone(settings) {
        let value = json!("selective");
        faults.push(SettingFault {
            setting: setting("recompute_granularity", &value),
            reason: "core attention cannot be recomputed without its stage".to_owned(),
            supported: "recompute_granularity=full, or recompute_modules without core_attn"
                .to_owned(),
        });
    }
    SettingFault::refuse(faults)
}

/// Whether selective recomputation would take core attention, which it does unless other modules are named.
fn recomputes_attention_alone(settings: &Map<String, Value>) -> bool {
    let is_selective = settings.get("recompute_granularity") == Some(&json!("selective"));
    let takes_core = match settings.get("recompute_modules") {
        None | Some(Value::Null) => true,
        Some(Value::Array(modules)) => modules.contains(&json!("core_attn")),
        Some(other) => other == "core_attn",
    };
    is_selective && takes_core
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(settings: Value) -> String {
        let provider =
            json!({"hidden_size": 6144, "seq_length": 8, "mtp_num_layers": null, "bf16": true});
        let fields = |value: Value| value.as_object().unwrap().clone();
        match check(&fields(provider), &fields(settings)) {
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
}
