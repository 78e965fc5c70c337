//! `run_config.yaml`: what Megatron-Bridge reads beside the weights to build the model.
//!
//! Its `model` holds the provider class as `_target_` and the provider's fields; the sections of a training run are null,
//! as they are after an import. PyYAML reads it with YAML 1.1 rules, in which `1e-06` is a string and `off` is false: the
//! writer spells numbers with a dot and quotes such words.
//! Source: Megatron-Bridge's `ConfigContainer`.

use rialto_tensor::Location;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::Error;
use crate::store::{Store, read_whole};

/// Name of the file in an iteration directory.
pub const RUN_CONFIG: &str = "run_config.yaml";

/// Most bytes of one that is read; real ones have some tens of thousands.
const LIMIT: u64 = 16 << 20;

/// The key that names the class to build.
const TARGET: &str = "_target_";

/// The file's bytes for a provider class and its fields, in the fields' order. No field names another class: one called
/// `_target_` is left out. Errors: [`Error::RunConfig`].
pub fn run_config_yaml(
    provider_target: &str,
    fields: &Map<String, Value>,
) -> Result<Vec<u8>, Error> {
    let mut model = Map::new();
    model.insert(TARGET.to_owned(), json!(provider_target));
    let others = fields.iter().filter(|(field, _)| *field != TARGET);
    model.extend(others.map(|(field, value)| (field.clone(), value.clone())));
    let document = json!({
        "_target_": "megatron.bridge.training.config.ConfigContainer",
        "checkpoint": {
            "_target_": "megatron.bridge.training.config.CheckpointConfig",
            "ckpt_format": "torch_dist",
            "save_optim": false,
            "save_rng": false,
        },
        "dataset": null,
        "ddp": null,
        "dist": null,
        "model": model,
        "scheduler": null,
        "tokenizer": null,
        "train": null,
    });
    match serde_saphyr::to_string(&document) {
        Ok(text) => Ok(text.into_bytes()),
        Err(error) => Err(Error::RunConfig {
            reason: error.to_string(),
        }),
    }
}

/// The `vocab_size` of the model that the file of an iteration directory names: without padding, whatever its weights have.
/// None if there is no file, or it names none.
///
/// Errors: [`Error::RunConfigSyntax`] for a file that cannot be understood, or a size that is no size; those of reading.
pub fn read_vocab_size(iteration: &dyn Store) -> Result<Option<u64>, Error> {
    let bytes = match read_whole(iteration, RUN_CONFIG, LIMIT) {
        Ok(bytes) => bytes,
        Err(Error::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let location = Location::file(format!("{}/{RUN_CONFIG}", iteration.name()));
    vocab_size(&bytes).map_err(|reason| Error::RunConfigSyntax { location, reason })
}

/// The one field that is read. All others pass as they are: YAML has values that JSON lacks, such as an infinite float.
fn vocab_size(bytes: &[u8]) -> Result<Option<u64>, String> {
    #[derive(Deserialize)]
    struct RunConfig {
        model: Option<Model>,
    }
    #[derive(Deserialize)]
    struct Model {
        vocab_size: Option<u64>,
    }
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    // Megatron's configs hold infinite floats, which are no concern of a reader of one integer.
    let options = serde_saphyr::options! {
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    };
    let config: RunConfig = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| error.to_string().replace('\n', " "))?;
    Ok(config.model.and_then(|model| model.vocab_size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vocabulary_is_read_whatever_else_there_is() {
        let read = |text: &str| vocab_size(text.as_bytes());
        for text in [
            "model:\n  vocab_size: 256\n",
            "a: .inf\nmodel: {b: .nan, vocab_size: 256, c: [1e5, ~]}\n",
        ] {
            assert_eq!(read(text), Ok(Some(256)), "{text}");
        }
        for text in [
            "model:\n  vocab_size: null\n",
            "model: {}\n",
            "model: null\n",
            "a: 1\n",
        ] {
            assert_eq!(read(text), Ok(None), "{text}");
        }
        for text in [
            "model: {vocab_size: many}\n",
            "model: {vocab_size: -1}\n",
            "model: [\n",
            "- 1\n",
        ] {
            let reason = read(text).unwrap_err();
            assert!(
                !reason.contains('\n') && !reason.is_empty(),
                "{text}: {reason}"
            );
        }
    }

    fn written(fields: Value) -> String {
        let Value::Object(fields) = fields else {
            panic!("fields")
        };
        String::from_utf8(run_config_yaml("a.b.Provider", &fields).unwrap()).unwrap()
    }

    #[test]
    fn small_floats_have_the_dot_without_which_yaml_1_1_reads_a_string() {
        let text = written(json!({"eps": 1e-6, "large": 1e20, "zero": 0.0}));
        assert!(
            text.contains("eps: 1.0e-6\n")
                && text.contains("large: 1.0e+20\n")
                && text.contains("zero: 0.0\n"),
            "{text}"
        );
    }

    #[test]
    fn words_that_yaml_1_1_reads_as_other_kinds_are_quoted() {
        let text = written(json!({"a": "off", "b": "1e-5", "c": "null", "d": "12:30"}));
        assert!(
            text.contains("a: \"off\"\n") && text.contains("b: \"1e-5\"\n"),
            "{text}"
        );
        assert!(
            text.contains("c: \"null\"\n") && text.contains("d: \"12:30\"\n"),
            "{text}"
        );
    }

    #[test]
    fn no_field_replaces_the_class() {
        for fields in [
            json!({"_target_": "os.system"}),
            json!({"a": 1, "_target_": "os.system", "b": 2}),
            json!({"_target_": null}),
        ] {
            let text = written(fields.clone());
            let read: Value = serde_saphyr::from_str(&text).unwrap();
            assert_eq!(read["model"]["_target_"], "a.b.Provider", "{fields}");
            assert_eq!(text.matches("_target_:").count(), 3, "{text}");
            assert!(!text.contains("os.system"), "{text}");
        }
    }

    #[test]
    fn it_reads_back_equal() {
        let fields =
            json!({"pattern": "D-D-DE/DE", "freq": [0, 1], "none": null, "act": {"_call_": false}});
        let read: Value = serde_saphyr::from_str(&written(fields.clone())).unwrap();
        assert_eq!(read["model"]["_target_"], "a.b.Provider");
        for (key, value) in fields.as_object().unwrap() {
            assert_eq!(&read["model"][key], value, "{key}");
        }
    }
}
