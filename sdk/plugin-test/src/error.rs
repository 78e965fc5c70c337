//! Why a checkpoint cannot be used here; an author reads it as the words of a finding.

use thiserror::Error as ThisError;

/// What can be wrong on the way to a comparison.
#[derive(Debug, ThisError)]
pub(crate) enum Error {
    /// The files, or the Megatron checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] rialto_checkpoint::Error),
    /// The family.
    #[error(transparent)]
    Bridge(#[from] rialto_bridge::Error),
    /// A conversion.
    #[error(transparent)]
    Engine(#[from] rialto_engine::Error),
    /// A dtype or a shape.
    #[error(transparent)]
    Tensor(#[from] rialto_tensor::Error),
    /// What the independent reader says.
    #[error("{file}: {error}")]
    Safetensors {
        /// The file.
        file: String,
        /// Its words.
        error: safetensors::SafeTensorError,
    },
    /// JSON that is none, or not what it should be.
    #[error("{file}: {reason}")]
    Json {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// A param whose values are not stored.
    #[error("param {param} is not stored under its own key")]
    NotStored {
        /// The param.
        param: String,
    },
}

/// What went wrong, a line for each thing.
pub(crate) trait Told {
    /// All of it, none left out.
    fn lines(&self) -> Vec<String>;
}

/// The findings behind an error, or its message if there are none.
fn all(findings: Vec<String>, message: String) -> Vec<String> {
    match findings.is_empty() {
        true => vec![message],
        false => findings,
    }
}

impl Told for rialto_bridge::Error {
    fn lines(&self) -> Vec<String> {
        all(self.findings(), self.to_string())
    }
}

impl Told for rialto_engine::Error {
    fn lines(&self) -> Vec<String> {
        all(self.findings(), self.to_string())
    }
}

impl Told for Error {
    fn lines(&self) -> Vec<String> {
        match self {
            Error::Bridge(error) => error.lines(),
            Error::Engine(error) => error.lines(),
            other => vec![other.to_string()],
        }
    }
}
