//! Which provider fields a user may set, and to what.

use rialto_plugin::prelude::*;

const BY_PIPELINE: &str = "--pipeline deals the layers";
const LAYERS_ALIKE: &str = "all layers are alike";
const NO_SUCH_PARAMS: &str = "the weights have no params for it";
const OTHER_ATTENTION: &str = "the weights were trained with another attention";
const OTHER_DEALING: &str = "virtual stages deal the layers otherwise";

const RULES: SettingRules<'_> = SettingRules {
    free: &[
        ("attention_dropout", FieldKind::Fraction),
        ("hidden_dropout", FieldKind::Fraction),
        ("init_method_std", FieldKind::Amount),
        (
            "recompute_granularity",
            FieldKind::Choice(&["null", "\"full\"", "\"selective\""]),
        ),
        ("recompute_modules", FieldKind::Names),
        ("seq_length", FieldKind::Count),
        ("sequence_parallel", FieldKind::Switch),
    ],
    kept: &[
        (
            "account_for_embedding_in_pipeline_split",
            &["false"],
            BY_PIPELINE,
        ),
        (
            "account_for_loss_in_pipeline_split",
            &["false"],
            BY_PIPELINE,
        ),
        ("attention_output_gate", &["false"], NO_SUCH_PARAMS),
        (
            "hetereogenous_dist_checkpoint",
            &["false"],
            "--layer-axis decides it",
        ),
        ("heterogeneous_*", &["null", "false"], LAYERS_ALIKE),
        ("linear_attention_freq", &["null"], OTHER_ATTENTION),
        ("moe_layer_freq", &["1"], LAYERS_ALIKE),
        ("mtp_num_layers", &["null"], NO_SUCH_PARAMS),
        ("multi_latent_attention", &["false"], OTHER_ATTENTION),
        ("no_rope_freq", &["null"], OTHER_ATTENTION),
        ("num_layers_in_first_pipeline_stage", &["null"], BY_PIPELINE),
        ("num_layers_in_last_pipeline_stage", &["null"], BY_PIPELINE),
        (
            "num_layers_per_virtual_pipeline_stage",
            &["null"],
            OTHER_DEALING,
        ),
        ("num_moe_experts", &["null"], NO_SUCH_PARAMS),
        (
            "padded_vocab_size",
            &["null"],
            "it follows from vocab_size, and from --pad-vocab",
        ),
        ("softmax_type", &["\"vanilla\""], OTHER_ATTENTION),
        (
            "virtual_pipeline_model_parallel_size",
            &["null"],
            OTHER_DEALING,
        ),
        ("window_size", &["null"], OTHER_ATTENTION),
    ],
    by_option: &[("should_pad_vocab", "--pad-vocab")],
};

/// Refuses settings that are known to make another model of the weights. Errors: [`Error::Settings`], all of them.
pub(crate) fn check(
    provider: &Map<String, Value>,
    settings: &Map<String, Value>,
) -> Result<(), Error> {
    SettingFault::refuse(RULES.faults(provider, settings))
}
