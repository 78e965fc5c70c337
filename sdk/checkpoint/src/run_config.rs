//! `run_config.yaml`: what Megatron-Bridge reads beside the weights to build the model.
//!
//! Its `model` holds the provider class as `_target_` and the provider's fields; the sections of a training run are null,
//! as they are after an import. PyYAML reads it with YAML 1.1 rules, in which `1e-06` is a string and `off` is false: the
//! writer spells numbers with a dot and quotes such words.
//! Source: Megatron-Bridge's `ConfigContainer`.

use serde_json::{Map, Value, json};

use crate::Error;

/// Name of the file in an iteration directory.
pub const RUN_CONFIG: &str = "run_config.yaml";

/// The file's bytes for a provider class and its fields, in the fields' order. Errors: [`Error::RunConfig`].
pub fn run_config_yaml(
    provider_target: &str,
    fields: &Map<String, Value>,
) -> Result<Vec<u8>, Error> {
    let mut model = Map::new();
    model.insert("_target_".to_owned(), json!(provider_target));
    model.extend(fields.clone());
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

#[cfg(test)]
mod tests {
    use super::*;

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
