//! The error types of this crate.

use rialto_bridge::layout::counted;
use rialto_tensor::{Dtype, Shape};
use thiserror::Error as ThisError;

/// What can go wrong when a model is run.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// The device.
    #[error(transparent)]
    Backend(#[from] rialto_backend::Error),
    /// The program.
    #[error(transparent)]
    Program(#[from] rialto_program::Error),
    /// A dtype or a shape.
    #[error(transparent)]
    Tensor(#[from] rialto_tensor::Error),
    /// Weights that a checkpoint does not hold as the program needs them.
    #[error("{}", told(faults))]
    Weights {
        /// Everything that is wrong, none left out.
        faults: Vec<WeightFault>,
    },
    /// A weight that is not as long as its source said.
    #[error(
        "weight {weight} of param {param} needs {expected_bytes} bytes by its type and shape, {found_bytes} were read"
    )]
    WeightLength {
        /// The param.
        param: String,
        /// The tensor, or the param of Megatron's.
        weight: String,
        /// Bytes of its elements, or of its codes, or of its scales.
        expected_bytes: u64,
        /// Bytes that were read.
        found_bytes: u64,
    },
    /// Less memory for experts than those of one token take.
    #[error(
        "{} for experts on the device, those of one token need {}, all of them {}",
        counted(*bytes, "byte"),
        counted(*least_bytes, "byte"),
        counted(*all_bytes, "byte")
    )]
    ExpertMemory {
        /// The bytes that were allowed.
        bytes: u64,
        /// The fewest with which the model can run.
        least_bytes: u64,
        /// As many as all experts take.
        all_bytes: u64,
    },
    /// A token that the embedding has no row for.
    #[error(
        "token {token} at position {position} of text {text} is none of the {vocabulary} of the vocabulary"
    )]
    Token {
        /// The token.
        token: u32,
        /// Its position in what was given.
        position: usize,
        /// Which of the texts given it is in, from 0.
        text: usize,
        /// Rows of the embedding.
        vocabulary: u64,
    },
    /// A phase that leaves no logits, which a token is to be chosen by.
    #[error("phase {phase} leaves no logits: no output of it is F32 [rows, n]")]
    NoLogits {
        /// The phase.
        phase: String,
    },
    /// Logits of which none is a number.
    #[error("the logits of text {text} after {positions} tokens are NaN, all of them")]
    NotANumber {
        /// Which of the texts it is, from 0.
        text: usize,
        /// Tokens that it has.
        positions: u64,
    },
    /// Ways to choose tokens that make no sense.
    #[error("{what}")]
    Sampling {
        /// What is wrong.
        what: String,
    },
    /// A step that cannot be taken.
    #[error("{what}")]
    Step {
        /// What is wrong with it.
        what: String,
    },
    /// The caller asked to stop.
    #[error("stopped on request")]
    Cancelled,
    /// Two models that cannot be compared.
    #[error("the two cannot be compared: {what}")]
    Incomparable {
        /// What they do not share.
        what: String,
    },
}

impl Error {
    /// Kinds of this crate as (slug, code), those of programs, devices and tensors not among them; `docs/errors.md` lists them.
    pub const KINDS: &'static [(&'static str, u32)] = &[
        ("runtime/weights", 10),
        ("runtime/weight-length", 1),
        ("runtime/expert-memory", 6),
        ("runtime/token", 1),
        ("runtime/no-logits", 3),
        ("runtime/not-a-number", 4),
        ("runtime/sampling", 1),
        ("runtime/step", 1),
        ("runtime/cancelled", 9),
        ("runtime/incomparable", 1),
    ];

    /// The status code; see `docs/errors.md`.
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            Error::Backend(error) => error.code(),
            Error::Program(error) => error.code(),
            Error::Tensor(error) => error.code(),
            _ => rialto_tensor::error::code_of(Error::KINDS, self.slug()),
        }
    }

    /// The stable name of this kind of error; see `docs/errors.md`.
    #[must_use]
    pub fn slug(&self) -> &'static str {
        match self {
            Error::Backend(error) => error.slug(),
            Error::Program(error) => error.slug(),
            Error::Tensor(error) => error.slug(),
            Error::Weights { .. } => "runtime/weights",
            Error::WeightLength { .. } => "runtime/weight-length",
            Error::ExpertMemory { .. } => "runtime/expert-memory",
            Error::NoLogits { .. } => "runtime/no-logits",
            Error::NotANumber { .. } => "runtime/not-a-number",
            Error::Sampling { .. } => "runtime/sampling",
            Error::Token { .. } => "runtime/token",
            Error::Step { .. } => "runtime/step",
            Error::Cancelled => "runtime/cancelled",
            Error::Incomparable { .. } => "runtime/incomparable",
        }
    }

    /// What to do about it, if there is one thing to do.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match self {
            Error::Backend(error) => error.help(),
            Error::Program(error) => error.help(),
            Error::Tensor(error) => error.help(),
            Error::Weights { .. } => Some(
                "the program and the weight map of the plugin do not agree; report it to its author"
                    .to_owned(),
            ),
            Error::WeightLength { .. } => Some(
                "report it to the author of what the weights come from: it has to give as many bytes as it says"
                    .to_owned(),
            ),
            Error::NoLogits { .. } => Some("choose another phase of the program".to_owned()),
            Error::NotANumber { .. } => Some(
                "the weights hold NaN or numbers that are too large: `rialto compare` with a checkpoint that is right says from which layer on"
                    .to_owned(),
            ),
            Error::ExpertMemory { least_bytes, .. } => Some(format!(
                "allow at least {}, or leave `--expert-memory` out: all experts are on the device then",
                counted(*least_bytes, "byte")
            )),
            Error::Sampling { .. } => {
                Some("a temperature of 0 takes the likeliest token; the others cut what is drawn from".to_owned())
            }
            Error::Step { .. } => Some("ask for less, or for what the phase has".to_owned()),
            Error::Cancelled => Some("run again".to_owned()),
            Error::Incomparable { .. } => Some("compare two checkpoints of one model".to_owned()),
            Error::Token { .. } => Some("give token ids of this model's tokenizer".to_owned()),
        }
    }

    /// The findings behind an error that collects them.
    #[must_use]
    pub fn findings(&self) -> Vec<String> {
        match self {
            Error::Program(error) => error.findings(),
            Error::Backend(error) => error.findings(),
            Error::Weights { faults } => faults.iter().map(ToString::to_string).collect(),
            _ => Vec::new(),
        }
    }
}

/// How many faults a message shows; all of them are in the value.
const SHOWN: usize = 20;

fn told(faults: &[WeightFault]) -> String {
    let shown: Vec<String> = faults.iter().take(SHOWN).map(ToString::to_string).collect();
    match faults.len().checked_sub(SHOWN) {
        None | Some(0) => shown.join("; "),
        Some(more) => format!("{}; and {more} more", shown.join("; ")),
    }
}

/// One weight that is not as the program needs it.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
pub enum WeightFault {
    /// The checkpoint does not hold it.
    #[error("param {param} of the program comes from {weight}, which the checkpoint does not hold")]
    Missing {
        /// The param.
        param: String,
        /// The tensor, or the param of Megatron's.
        weight: String,
    },
    /// It has another shape.
    #[error("{weight} has shape {found}, param {param} of the program needs {expected}")]
    Shape {
        /// The param.
        param: String,
        /// The tensor, or the param of Megatron's.
        weight: String,
        /// What the program says.
        expected: Shape,
        /// What the checkpoint has.
        found: Shape,
    },
    /// Its elements are no floats.
    #[error("{weight} is {dtype}, param {param} of the program needs floats")]
    Dtype {
        /// The param.
        param: String,
        /// The tensor, or the param of Megatron's.
        weight: String,
        /// What the checkpoint has.
        dtype: Dtype,
    },
}

/// What can go wrong when a model is loaded: the same, or what its weights come from.
#[derive(Debug, ThisError)]
pub enum LoadError<E> {
    /// The program or the device.
    #[error(transparent)]
    Runtime(#[from] Error),
    /// Where the weights come from.
    #[error("{0}")]
    Source(E),
}

impl<E> From<rialto_backend::Error> for LoadError<E> {
    fn from(error: rialto_backend::Error) -> LoadError<E> {
        LoadError::Runtime(error.into())
    }
}

impl<E> From<rialto_tensor::Error> for LoadError<E> {
    fn from(error: rialto_tensor::Error) -> LoadError<E> {
        LoadError::Runtime(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_expert_memory_is_told_in_words_that_can_be_followed() {
        let error = Error::ExpertMemory {
            bytes: 1,
            least_bytes: 1234,
            all_bytes: 5678,
        };
        assert_eq!(
            error.to_string(),
            "1 byte for experts on the device, those of one token need 1234 bytes, all of them 5678 bytes"
        );
        assert_eq!(
            error.help().unwrap(),
            "allow at least 1234 bytes, or leave `--expert-memory` out: all experts are on the device then"
        );
    }
}
