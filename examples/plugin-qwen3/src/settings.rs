//! Which provider fields a user may set, and to what.

use rialto_plugin::prelude::*;

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
    // What would make another model of any weights is refused for every family.
    kept: &[
        (
            "hetereogenous_dist_checkpoint",
            &["false"],
            "--layer-axis decides it",
        ),
        ("hybrid_layer_pattern", &["null"], "it is no hybrid model"),
        ("moe_layer_freq", &["1"], "all layers are alike"),
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
