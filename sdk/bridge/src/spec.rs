//! The model in Megatron's words, as the family read it from `config.json`.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::Error;

/// The field of [`ModelSpec::extra`] whose values decide no tensor.
pub const FORWARD: &str = "forward";

/// The few values of a model that the SDK itself reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dims {
    /// Layers of the source model, without multi-token prediction.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Rows of the embedding, without padding.
    pub vocab: u64,
    /// Multi-token-prediction layers that the Megatron side holds.
    pub mtp_layers: u64,
    /// Multi-token-prediction layers of the source that are left out on the way.
    pub mtp_layers_dropped: u64,
}

/// What a model is, after the family has read its config.
///
/// It does not grow with every family: what the SDK reads is in `dims`, what Megatron reads is in `provider` under
/// Megatron's own field names, and what only the family reads is in `extra`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// The release as a person says it, such as `glm-5.2`.
    pub release: String,
    /// The architecture id of the config, such as `GlmMoeDsaForCausalLM`.
    pub architecture: String,
    /// What the SDK reads.
    pub dims: Dims,
    /// Python path of the provider class that `run_config.yaml` names as the model's `_target_`.
    pub provider_target: String,
    /// The provider's fields, in its own names and order of name.
    pub provider: Map<String, Value>,
    /// What only the family reads; opaque to the SDK, which asks one thing of it: whether two configs are of one model. There
    /// all must agree but the field [`FORWARD`], if there is one: numbers that only a forward pass reads, such as epsilons.
    #[serde(default)]
    pub extra: Value,
    /// Config keys that mean nothing to the family; they are kept in the stored config and listed.
    #[serde(default)]
    pub unread_keys: Vec<String>,
    /// What the user should know about this config, one line each.
    #[serde(default)]
    pub notices: Vec<String>,
}

impl ModelSpec {
    /// [`ModelSpec::extra`] without what decides no tensor.
    #[must_use]
    pub fn own_sizes(&self) -> Value {
        let mut own = self.extra.clone();
        if let Some(fields) = own.as_object_mut() {
            fields.shift_remove(FORWARD);
        }
        own
    }

    /// What only the family reads, as its own type. Errors: [`Error::Document`] for a spec that another family made.
    pub fn own<T: DeserializeOwned>(&self) -> Result<T, Error> {
        T::deserialize(&self.extra).map_err(|error| Error::Document {
            document: format!("{} model", self.release),
            reason: error.to_string(),
        })
    }
}

/// The fields of a JSON object, as a provider has them: `fields(json!({"num_layers": 2}))`.
///
/// # Panics
///
/// For JSON of another kind.
#[must_use]
pub fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        other => panic!("{other} is no object, and has no fields"),
    }
}

/// A thing of PyTorch as `run_config.yaml` names one: `torch.bfloat16` for `bfloat16`.
#[must_use]
pub fn torch(name: &str) -> Value {
    json!({"_target_": format!("torch.{name}"), "_call_": false})
}
