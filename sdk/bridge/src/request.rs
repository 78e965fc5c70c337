//! The bodies of requests that cross the ABI, and of the detail an error crosses with.
//!
//! Author side and host side never see each other, so what both must spell alike stands here. A config crosses as its
//! original text: the plugin sees exactly what the host saw, key order and spelling of numbers included.

use serde::{Deserialize, Serialize};

use crate::{Error, MapOptions, ModelSpec, PipelineRequest, ProgramOptions};

/// Asks whether a family takes a config.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// Text of `config.json`.
    pub config: String,
}

/// Asks for a config in Megatron's words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapConfigRequest {
    /// Text of `config.json`.
    pub config: String,
    /// What the user asks for.
    pub options: MapOptions,
}

/// Asks what must change in a config so that it describes a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnmapConfigRequest {
    /// The model.
    pub spec: ModelSpec,
    /// Text of the `config.json` to change.
    pub reference: String,
}

/// Asks for the weight map, the placement or the codecs of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpecRequest {
    /// The model.
    pub spec: ModelSpec,
}

/// Asks for the pipeline layout of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipelineLayoutRequest {
    /// The model.
    pub spec: ModelSpec,
    /// What the user asks for.
    pub request: PipelineRequest,
}

/// Asks for the forward pass of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramRequest {
    /// The model.
    pub spec: ModelSpec,
    /// What the user asks for.
    pub options: ProgramOptions,
}

/// What an error says besides its code. Read leniently: an author in C may give a message alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// The stable name of the kind.
    pub slug: String,
    /// One line.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// Everything found, where the message shows only some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<String>,
    /// The entry that panicked, for code 12: `message` is then what the panic said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
}

impl ErrorDetail {
    /// The detail of an error.
    #[must_use]
    pub fn of(error: &Error) -> ErrorDetail {
        let (message, entry) = match error {
            Error::Panic { entry, message } => (message.clone(), Some(entry.clone())),
            _ => (error.to_string(), None),
        };
        ErrorDetail {
            slug: error.slug().to_owned(),
            message,
            help: error.help(),
            findings: error.findings(),
            entry,
        }
    }

    /// The error that came with a code, as it looks to the host.
    #[must_use]
    pub fn into_error(self, code: u32) -> Error {
        match self.entry {
            Some(entry) if code == PANIC => Error::Panic {
                entry,
                message: self.message,
            },
            _ => Error::Plugin {
                code,
                slug: self.slug,
                message: self.message,
                help: self.help,
                findings: self.findings,
            },
        }
    }
}

/// The code of a panic.
const PANIC: u32 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reads_the_same_on_the_other_side() {
        let unsupported = Error::Unsupported {
            what: "hidden_act".to_owned(),
            found: "gelu".to_owned(),
            supported: "silu".to_owned(),
        };
        let requirement = Error::Requirement {
            document: "weight map".to_owned(),
            missing: "rule/box/1".to_owned(),
        };
        let panic = Error::Panic {
            entry: "weight_map".to_owned(),
            message: "index out of bounds".to_owned(),
        };
        let pipeline = Error::Pipeline {
            faults: vec!["too few stages".to_owned(), "too many layers".to_owned()],
            valid: "others".to_owned(),
        };
        for error in [unsupported, requirement, panic, pipeline] {
            let bytes = serde_json::to_vec(&ErrorDetail::of(&error)).unwrap();
            let detail: ErrorDetail = serde_json::from_slice(&bytes).unwrap();
            let other = detail.into_error(error.code());
            assert_eq!(other.code(), error.code());
            assert_eq!(other.slug(), error.slug());
            assert_eq!(other.to_string(), error.to_string());
            assert_eq!(other.help(), error.help());
            assert_eq!(other.findings(), error.findings());
        }
    }
}
