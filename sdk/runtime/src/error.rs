//! The error types of this crate.

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
    /// A param that the checkpoint has no weight for.
    #[error("param {param} of the program comes from {weight}, which the checkpoint does not hold")]
    Weight {
        /// The param.
        param: String,
        /// The tensor, or the param of Megatron's.
        weight: String,
    },
    /// A weight of another shape.
    #[error("{weight} has shape {found}, param {param} of the program needs {expected}")]
    WeightShape {
        /// The param.
        param: String,
        /// The tensor, or the param of Megatron's.
        weight: String,
        /// What the program says.
        expected: Shape,
        /// What the checkpoint has.
        found: Shape,
    },
    /// A weight whose elements are no floats.
    #[error("{weight} is {dtype}, param {param} of the program needs floats")]
    WeightDtype {
        /// The param.
        param: String,
        /// The tensor, or the param of Megatron's.
        weight: String,
        /// What the checkpoint has.
        dtype: Dtype,
    },
    /// A token that the embedding has no row for.
    #[error("token {token} at position {position} is none of the {vocabulary} of the vocabulary")]
    Token {
        /// The token.
        token: u32,
        /// Its position in what was given.
        position: usize,
        /// Rows of the embedding.
        vocabulary: u64,
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
        ("runtime/weight", 10),
        ("runtime/weight-shape", 10),
        ("runtime/weight-dtype", 3),
        ("runtime/token", 1),
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
            Error::Weight { .. } => "runtime/weight",
            Error::WeightShape { .. } => "runtime/weight-shape",
            Error::WeightDtype { .. } => "runtime/weight-dtype",
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
            Error::Weight { .. } | Error::WeightShape { .. } => Some(
                "the program and the weight map of the plugin do not agree; report it to its author"
                    .to_owned(),
            ),
            Error::Token { .. } => Some("give token ids of this model's tokenizer".to_owned()),
            _ => None,
        }
    }
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
