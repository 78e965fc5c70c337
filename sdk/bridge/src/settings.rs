//! Provider fields that a user sets.
//!
//! A setting is a field of Megatron's provider by its name, and the value that `run_config.yaml` shall have for it. What it
//! means is the family's to say; here stands what holds for every family.

use std::fmt;

use serde_json::{Map, Number, Value};

use crate::{Error, PipelineLayout};

/// A provider field that a user may not set to what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingFault {
    /// The field and the value asked for, as a user writes them: `field=value`, text without quotes.
    pub setting: String,
    /// Why not.
    pub reason: String,
    /// What would do instead.
    pub supported: String,
}

impl SettingFault {
    /// What is wrong with the value of a field.
    #[must_use]
    pub fn new(field: &str, value: &Value, reason: &str, supported: &str) -> SettingFault {
        let setting = match value.as_str() {
            Some(text) => format!("{field}={text}"),
            None => format!("{field}={value}"),
        };
        SettingFault {
            setting,
            reason: reason.to_owned(),
            supported: supported.to_owned(),
        }
    }

    /// An error if there is any. Errors: [`Error::Settings`].
    pub fn refuse(faults: Vec<SettingFault>) -> Result<(), Error> {
        match faults.is_empty() {
            true => Ok(()),
            false => Err(Error::Settings { faults }),
        }
    }
}

impl fmt::Display for SettingFault {
    /// Prints `--set fp8=hybrid is refused: why; supported: null`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SettingFault {
            setting,
            reason,
            supported,
        } = self;
        write!(
            f,
            "--set {setting} is refused: {reason}; supported: {supported}"
        )
    }
}

/// What a provider field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// True or false.
    Switch,
    /// Text.
    Name,
    /// A list of texts, or nothing.
    Names,
    /// A number of things, at least one.
    Count,
    /// A probability, below 1.
    Fraction,
    /// A factor or a width, at least 0.
    Amount,
    /// One of these, each in JSON.
    Choice(&'static [&'static str]),
}

impl FieldKind {
    /// Whether a value is of this kind.
    #[must_use]
    pub fn holds(self, value: &Value) -> bool {
        match self {
            FieldKind::Switch => value.is_boolean(),
            FieldKind::Name => value.as_str().is_some_and(|name| !name.is_empty()),
            FieldKind::Names => match value {
                Value::Array(names) => names.iter().all(|name| FieldKind::Name.holds(name)),
                other => other.is_null(),
            },
            FieldKind::Count => value.as_u64().is_some_and(|count| count > 0),
            FieldKind::Fraction => value
                .as_f64()
                .is_some_and(|part| (0.0..1.0).contains(&part)),
            FieldKind::Amount => value.as_f64().is_some_and(|amount| amount >= 0.0),
            FieldKind::Choice(values) => is_one_of(values, value),
        }
    }

    /// The values of this kind, as a message names them.
    #[must_use]
    pub fn expected(self) -> String {
        let fixed = match self {
            FieldKind::Switch => "true or false",
            FieldKind::Name => "a name",
            FieldKind::Names => "null or a list of names",
            FieldKind::Count => "a whole number from 1",
            FieldKind::Fraction => "a number from 0 to below 1",
            FieldKind::Amount => "a number from 0",
            FieldKind::Choice(values) => return values.join(" or ").replace('"', ""),
        };
        fixed.to_owned()
    }
}

const ANOTHER_ATTENTION: &str = "the weights were trained with another attention";
const ANOTHER_BLOCK: &str = "the weights were trained with another block";
const ANOTHER_DEALING: &str = "--pipeline deals the layers";
const ANOTHER_ROPE: &str = "the weights were trained with another rotary embedding";
const LAYERS_ALIKE: &str = "the layers of a kind are alike in the weights";
const NO_SUCH_PARAMS: &str = "the weights have no params for it";
const VIRTUAL_STAGES: &str = "virtual stages deal the layers otherwise";

/// Fields of Megatron's provider with which it would make another model of any weights, the values that they have by default, and
/// why they stay. A family that writes such a field, or has a row of its own for it, knows better.
const OF_EVERY_FAMILY: &[(&str, &[&str], &str)] = &[
    (
        "account_for_embedding_in_pipeline_split",
        &["false"],
        ANOTHER_DEALING,
    ),
    (
        "account_for_loss_in_pipeline_split",
        &["false"],
        ANOTHER_DEALING,
    ),
    (
        "apply_residual_connection_post_layernorm",
        &["false"],
        ANOTHER_BLOCK,
    ),
    ("attention_output_gate", &["false"], NO_SUCH_PARAMS),
    (
        "experimental_attention_variant",
        &["null"],
        ANOTHER_ATTENTION,
    ),
    ("heterogeneous_block_specs", &["false"], LAYERS_ALIKE),
    ("heterogeneous_*", &["null", "false"], LAYERS_ALIKE),
    ("hybrid_override_pattern", &["null"], LAYERS_ALIKE),
    ("is_hybrid_model", &["false"], ANOTHER_BLOCK),
    ("linear_attention_freq", &["null"], ANOTHER_ATTENTION),
    ("mtp_num_layers", &["null"], NO_SUCH_PARAMS),
    ("multi_latent_attention", &["false"], ANOTHER_ATTENTION),
    ("no_rope_freq", &["null"], ANOTHER_ROPE),
    (
        "num_layers_in_first_pipeline_stage",
        &["null"],
        ANOTHER_DEALING,
    ),
    (
        "num_layers_in_last_pipeline_stage",
        &["null"],
        ANOTHER_DEALING,
    ),
    (
        "num_layers_per_virtual_pipeline_stage",
        &["null"],
        VIRTUAL_STAGES,
    ),
    ("num_moe_experts", &["null"], NO_SUCH_PARAMS),
    (
        "padded_vocab_size",
        &["null"],
        "it follows from vocab_size, and from --pad-vocab",
    ),
    ("pipeline_model_parallel_layout", &["null"], ANOTHER_DEALING),
    ("qk_l2_norm", &["false"], ANOTHER_ATTENTION),
    ("rope_scaling", &["false"], ANOTHER_ROPE),
    ("rotary_interleaved", &["false"], ANOTHER_ROPE),
    ("softmax_scale", &["null"], ANOTHER_ATTENTION),
    ("softmax_type", &["\"vanilla\""], ANOTHER_ATTENTION),
    (
        "virtual_pipeline_model_parallel_size",
        &["null"],
        VIRTUAL_STAGES,
    ),
    ("window_attn_skip_freq", &["null"], ANOTHER_ATTENTION),
    ("window_size", &["null"], ANOTHER_ATTENTION),
];

/// What a family knows of the provider fields that a user may set. Another value of a field that the family writes about the
/// weights is refused, and so is one that a table here does not allow, and one that would make another model of any weights; all other fields
/// are written as given.
#[derive(Clone, Copy, Debug)]
pub struct SettingRules<'a> {
    /// Fields whose value is the user's choice, and what they hold.
    pub free: &'a [(&'a str, FieldKind)],
    /// Fields that stay as Megatron has them, by name or by a beginning with `*` after it: the values that they may have, in
    /// JSON, and why. A name stands before a beginning.
    pub kept: &'a [(&'a str, &'a [&'a str], &'a str)],
    /// Fields that an option decides, and the option.
    pub by_option: &'a [(&'a str, &'a str)],
}

impl SettingRules<'_> {
    /// What is wrong with settings beside the fields that a family writes, each for itself.
    #[must_use]
    pub fn faults(
        &self,
        provider: &Map<String, Value>,
        settings: &Map<String, Value>,
    ) -> Vec<SettingFault> {
        let settings = settings.iter();
        let faults = settings.filter_map(|(field, value)| self.fault(provider, field, value));
        faults.collect()
    }

    fn fault(
        &self,
        provider: &Map<String, Value>,
        field: &str,
        value: &Value,
    ) -> Option<SettingFault> {
        let decided = provider.get(field);
        if decided.is_some_and(|decided| is_same_value(decided, value)) {
            return None;
        }
        let fault = |reason: &str, supported: &str| {
            Some(SettingFault::new(field, value, reason, supported))
        };
        // What a family writes itself is its own affair, and so is what it leaves to the user.
        let is_free = self.free.iter().any(|(free, _)| *free == field);
        let of_all = || (!is_free && decided.is_none()).then(|| row(OF_EVERY_FAMILY, field));
        if let Some((kept, reason)) = row(self.kept, field).or_else(|| of_all().flatten()) {
            let is_kept = is_one_of(kept, value);
            let supported = kept.join(" or ");
            return fault(reason, &supported).filter(|_| !is_kept);
        }
        if let Some((_, kind)) = self.free.iter().find(|(free, _)| *free == field) {
            let fault = fault("it is no value of this field", &kind.expected());
            return fault.filter(|_| !kind.holds(value));
        }
        let decided = decided?.to_string();
        match self.by_option.iter().find(|(other, _)| *other == field) {
            Some((_, option)) => fault(&format!("{option} decides it"), &decided),
            None => fault("the config and the family decide it", &decided),
        }
    }
}

/// Whether a value is one of these, each in JSON.
fn is_one_of(values: &[&str], value: &Value) -> bool {
    let values = values
        .iter()
        .map(|text| serde_json::from_str::<Value>(text));
    let mut known = values.filter_map(Result::ok);
    known.any(|known| is_same_value(&known, value))
}

/// The values that a table lets a field have, and why.
fn row<'a>(
    table: &[(&str, &'a [&'a str], &'a str)],
    field: &str,
) -> Option<(&'a [&'a str], &'a str)> {
    let named = table.iter().find(|(name, ..)| *name == field);
    let begins = |(name, ..): &&(&str, &[&str], &str)| {
        let beginning = name.strip_suffix('*');
        beginning.is_some_and(|beginning| field.starts_with(beginning))
    };
    let entry = named.or_else(|| table.iter().find(begins));
    entry.map(|(_, kept, reason)| (*kept, *reason))
}

/// What the name of a field looks like.
pub const FIELD_NAME: &str = "small letters, digits and _, a letter first";

/// Whether a text is the name of a field. A name that begins with `_` is none: `_target_` says which class is built.
#[must_use]
pub fn is_field_name(name: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.starts_with(|first: char| first.is_ascii_lowercase()) && name.chars().all(is_inner)
}

/// Refuses settings whose names are none of a field. Errors: [`Error::Settings`], all of them.
pub fn check_names(settings: &Map<String, Value>) -> Result<(), Error> {
    let wrong = settings.iter().filter(|(field, _)| !is_field_name(field));
    let faults = wrong.map(|(field, value)| {
        let reason = format!("{field:?} is no name of a field");
        SettingFault::new(field, value, &reason, FIELD_NAME)
    });
    SettingFault::refuse(faults.collect())
}

/// Refuses other values for fields that follow from a pipeline's layout. Errors: [`Error::Settings`], all of them.
pub fn check_layout(layout: &PipelineLayout, settings: &Map<String, Value>) -> Result<(), Error> {
    let changed = settings.iter().filter(|(field, value)| {
        let decided = layout.provider.get(*field);
        decided.is_some_and(|decided| !is_same_value(decided, value))
    });
    let faults = changed.map(|(field, value)| {
        SettingFault::new(
            field,
            value,
            "it follows from the mesh and the pipeline",
            "--tp, --pp, --ep, --etp and --pipeline",
        )
    });
    SettingFault::refuse(faults.collect())
}

/// The settings that change something: those whose value none of `providers` has already, however a number is spelled. So
/// what is written keeps the spelling that Megatron expects, a whole number without a fraction.
#[must_use]
pub fn changes(
    settings: &Map<String, Value>,
    providers: &[&Map<String, Value>],
) -> Map<String, Value> {
    let mut changed = settings.clone();
    changed.retain(|field, value| {
        let mut decided = providers.iter().filter_map(|fields| fields.get(field));
        !decided.any(|decided| is_same_value(decided, value))
    });
    changed
}

/// Whether two values are one, numbers by their size: `8000000` and `8000000.0` are.
#[must_use]
pub fn is_same_value(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => is_same_number(a, b),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same_value(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let is_in_b =
                |(key, a): (&String, &Value)| b.get(key).is_some_and(|b| is_same_value(a, b));
            a.len() == b.len() && a.iter().all(is_in_b)
        }
        _ => a == b,
    }
}

fn is_same_number(a: &Number, b: &Number) -> bool {
    // Whole numbers may be larger than a float tells apart.
    if a.is_f64() || b.is_f64() {
        a.as_f64() == b.as_f64()
    } else {
        a == b
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn layout(provider: Value) -> PipelineLayout {
        PipelineLayout {
            stages: Vec::new(),
            provider: fields(provider),
        }
    }

    #[test]
    fn a_name_is_small_letters_digits_and_underscores_after_a_letter() {
        for name in ["a", "bf16", "seq_length", "a_", "x1__y"] {
            assert!(is_field_name(name), "{name:?}");
            assert_eq!(check_names(&fields(json!({name: 1}))), Ok(()), "{name:?}");
        }
        for name in [
            "",
            "_",
            "_target_",
            "_call_",
            "_a",
            "1a",
            "9",
            "A",
            "seqLength",
            "a-b",
            "a.b",
            "a b",
            " a",
            "a ",
            "a\n",
            "a\tb",
            "a:b",
            "a#",
            "a'",
            "a\"",
            "ä",
            "a\u{301}",
            "a\u{0}",
            "model.seq_length",
            "?",
            "a=b",
            "<<",
            "&a",
            "*a",
            "!a",
        ] {
            assert!(!is_field_name(name), "{name:?}");
            let error = check_names(&fields(json!({"ok": 1, name: "os.system"}))).unwrap_err();
            assert_eq!(error.findings().len(), 1, "{name:?}");
            assert_eq!(error.slug(), "bridge/settings");
        }
        assert_eq!(
            check_names(&fields(json!({"_target_": "os.system"})))
                .unwrap_err()
                .to_string(),
            "--set _target_=os.system is refused: \"_target_\" is no name of a field; supported: small letters, digits and _, \
             a letter first"
        );
    }

    #[test]
    fn another_value_than_the_layout_s_is_refused() {
        let layout = layout(
            json!({"tensor_model_parallel_size": 2, "sequence_parallel": true, "hybrid_layer_pattern": "D-"}),
        );
        for settings in [
            json!({}),
            json!({"seq_length": 8}),
            json!({"tensor_model_parallel_size": 2}),
            json!({"tensor_model_parallel_size": 2.0}),
            json!({"sequence_parallel": true, "hybrid_layer_pattern": "D-"}),
        ] {
            assert_eq!(
                check_layout(&layout, &fields(settings.clone())),
                Ok(()),
                "{settings}"
            );
        }
        for settings in [
            json!({"tensor_model_parallel_size": 4}),
            json!({"tensor_model_parallel_size": "2"}),
            json!({"tensor_model_parallel_size": null}),
            json!({"sequence_parallel": 1}),
            json!({"sequence_parallel": false}),
            json!({"hybrid_layer_pattern": "DE", "seq_length": 8}),
        ] {
            let error = check_layout(&layout, &fields(settings.clone())).unwrap_err();
            assert_eq!(error.findings().len(), 1, "{settings}");
        }
        let error = check_layout(&layout, &fields(json!({"tensor_model_parallel_size": 4})));
        assert_eq!(
            error.unwrap_err().to_string(),
            "--set tensor_model_parallel_size=4 is refused: it follows from the mesh and the pipeline; \
             supported: --tp, --pp, --ep, --etp and --pipeline"
        );
    }

    #[test]
    fn values_are_the_same_whatever_their_spelling() {
        let large = u64::MAX;
        for (a, b) in [
            (json!(8_000_000), json!(8e6)),
            (json!(0), json!(-0.0)),
            (json!([1, {"a": 2}]), json!([1.0, {"a": 2.0}])),
            (json!({"a": 1, "b": null}), json!({"b": null, "a": 1})),
            (json!(large), json!(large)),
        ] {
            assert!(is_same_value(&a, &b) && is_same_value(&b, &a), "{a} {b}");
        }
        for (a, b) in [
            (json!(1), json!(true)),
            (json!(0), json!(null)),
            (json!(1), json!("1")),
            (json!(1), json!(1.5)),
            (json!(large), json!(large - 1)),
            (json!([1]), json!([1, 1])),
            (json!({"a": 1}), json!({"a": 1, "b": 1})),
            (json!({"a": 1}), json!({"b": 1})),
        ] {
            assert!(!is_same_value(&a, &b) && !is_same_value(&b, &a), "{a} {b}");
        }
    }

    #[test]
    fn only_what_is_another_value_is_a_change() {
        let (first, second) = (fields(json!({"a": 1, "b": "x"})), fields(json!({"c": 2})));
        let changed = |settings: Value| changes(&fields(settings), &[&first, &second]);
        assert_eq!(changed(json!({"a": 1.0, "b": "x", "c": 2})), Map::new());
        let other = json!({"a": 2, "b": null, "c": "2", "d": null});
        assert_eq!(changed(other.clone()), fields(other));
    }

    const RULES: SettingRules<'_> = SettingRules {
        free: &[
            ("dropout", FieldKind::Fraction),
            ("names", FieldKind::Names),
            ("softmax_scale", FieldKind::Amount),
            ("word", FieldKind::Choice(&["null", "\"full\""])),
        ],
        kept: &[
            ("window_size", &["null", "[128,0]"], "our own reason"),
            ("own_*", &["1"], "a beginning"),
            ("own_name", &["2"], "a name"),
        ],
        by_option: &[("should_pad_vocab", "--pad-vocab")],
    };

    fn told(settings: Value) -> Vec<String> {
        let provider = fields(json!({
            "hidden_size": 8, "is_hybrid_model": true, "should_pad_vocab": false, "dropout": 0.0,
        }));
        let faults = RULES.faults(&provider, &fields(settings));
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_field_is_free_kept_or_decided_and_any_other_is_written() {
        for settings in [
            json!({"dropout": 0.5, "names": null, "word": "full", "softmax_scale": 0.5}),
            json!({"names": ["a"], "word": null, "anything": [1]}),
            json!({"window_size": [128.0, 0], "own_x": 1.0, "own_name": 2}),
            json!({"hidden_size": 8.0, "is_hybrid_model": true, "should_pad_vocab": false}),
        ] {
            assert_eq!(told(settings.clone()), [""; 0], "{settings}");
        }
        for (settings, end) in [
            (
                json!({"dropout": 1}),
                "it is no value of this field; supported: a number from 0 to below 1",
            ),
            (json!({"names": "a"}), "supported: null or a list of names"),
            (json!({"word": "half"}), "supported: null or full"),
            (json!({"softmax_scale": -1}), "supported: a number from 0"),
            (
                json!({"window_size": [64, 0]}),
                "our own reason; supported: null or [128,0]",
            ),
            (json!({"own_x": 2}), "a beginning; supported: 1"),
            (json!({"own_name": 1}), "a name; supported: 2"),
            (
                json!({"hidden_size": 9}),
                "the config and the family decide it; supported: 8",
            ),
            (
                json!({"is_hybrid_model": false}),
                "the config and the family decide it; supported: true",
            ),
            (
                json!({"should_pad_vocab": true}),
                "--pad-vocab decides it; supported: false",
            ),
        ] {
            let told = told(settings.clone());
            assert!(
                told.len() == 1 && told[0].ends_with(end),
                "{settings}: {told:?}"
            );
        }
    }

    /// Every field with which any weights would be another model, with every kind of value.
    #[test]
    fn what_makes_another_model_of_any_weights_stays_as_megatron_has_it() {
        let other = SettingRules {
            free: &[],
            kept: &[],
            by_option: &[],
        };
        for (field, kept, _) in OF_EVERY_FAMILY {
            let field = field.replace('*', "x");
            for value in [
                json!(null),
                json!(false),
                json!(true),
                json!(2),
                json!(0.5),
                json!("vanilla"),
                json!("Ett|tL"),
                json!([128, 0]),
                json!({}),
            ] {
                let settings = fields(json!({field.clone(): value}));
                let is_kept = kept.contains(&value.to_string().as_str());
                let faults = other.faults(&Map::new(), &settings);
                assert_eq!(faults.is_empty(), is_kept, "{field}={value}");
                // A family that writes the field decides it.
                let faults = other.faults(&fields(json!({field.clone(): "ours"})), &settings);
                assert_eq!(faults[0].supported, "\"ours\"", "{field}={value}");
            }
        }
    }
}
