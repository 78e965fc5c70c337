//! The one error type of this crate.

use thiserror::Error as ThisError;

use crate::TensorType;

/// What can go wrong on a device.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// A backend that this program does not have.
    #[error("there is no backend {name:?}; there are: {}", known.join(", "))]
    UnknownBackend {
        /// The name asked for.
        name: String,
        /// Those there are.
        known: Vec<String>,
    },
    /// A device that this machine does not have.
    #[error("{backend} has no device {index}: {reason}")]
    NoDevice {
        /// The backend.
        backend: String,
        /// The number asked for.
        index: usize,
        /// What was found instead.
        reason: String,
    },
    /// More threads than a backend starts.
    #[error(
        "{asked} threads were asked for, expected at most {most}; the machine has {cores} cores"
    )]
    Threads {
        /// The number asked for.
        asked: usize,
        /// The largest.
        most: usize,
        /// Cores that there are.
        cores: usize,
    },
    /// An operation that a backend does not run.
    #[error("backend {backend} does not run {op}")]
    UnsupportedOp {
        /// The backend.
        backend: String,
        /// The operation.
        op: String,
    },
    /// An element type, or an encoding of weights, that a backend does not compute with.
    #[error("backend {backend} does not compute with {what}")]
    UnsupportedElement {
        /// The backend.
        backend: String,
        /// What it does not.
        what: String,
    },
    /// An operand that does not fit its operation.
    #[error("operation {op}, {port}: {reason}")]
    Operand {
        /// The operation.
        op: String,
        /// The operand's name in the signature.
        port: String,
        /// What is wrong.
        reason: String,
    },
    /// A call that is wrong as such.
    #[error(transparent)]
    Program(#[from] rialto_program::Error),
    /// Bytes outside of a buffer.
    #[error("bytes {begin}..{end} are outside of a buffer of {size_bytes} bytes ({tensor})")]
    BufferRange {
        /// The buffer.
        tensor: TensorType,
        /// Its bytes.
        size_bytes: u64,
        /// The first byte asked for.
        begin: u64,
        /// The end of those asked for.
        end: u64,
    },
    /// A buffer that is larger than a device allows.
    #[error("a buffer of {tensor} is larger than the {most_bytes} bytes that one may have")]
    BufferSize {
        /// The buffer.
        tensor: TensorType,
        /// The largest, in bytes.
        most_bytes: u64,
    },
    /// A buffer of another device.
    #[error("the buffer of {tensor} is another device's")]
    ForeignBuffer {
        /// The buffer.
        tensor: TensorType,
    },
    /// Memory that is not there.
    #[error("{bytes} bytes of {device} memory could not be had")]
    Memory {
        /// The device.
        device: String,
        /// The bytes asked for.
        bytes: u64,
    },
    /// Pages of caches that are not there.
    #[error(
        "{needed} more pages of {page_positions} positions are needed for a sequence of {positions}, {free} of {all} are free"
    )]
    Pages {
        /// Pages asked for.
        needed: u64,
        /// Pages that nobody has.
        free: u64,
        /// All pages.
        all: u64,
        /// Positions of a page.
        page_positions: u64,
        /// Positions that the sequence would have.
        positions: u64,
    },
    /// A device that stopped working.
    #[error("the device {device} was lost: {reason}")]
    Lost {
        /// The device.
        device: String,
        /// What is known.
        reason: String,
    },
}

impl Error {
    /// Kinds of this crate as (slug, code), those of programs not among them; `docs/errors.md` lists them.
    pub const KINDS: &'static [(&'static str, u32)] = &[
        ("backend/unknown", 1),
        ("backend/no-device", 7),
        ("backend/threads", 1),
        ("backend/unsupported-op", 3),
        ("backend/unsupported-element", 3),
        ("backend/operand", 1),
        ("backend/buffer-range", 1),
        ("backend/buffer-size", 6),
        ("backend/foreign-buffer", 1),
        ("backend/memory", 6),
        ("backend/pages", 6),
        ("backend/lost", 7),
    ];

    /// The status code; see `docs/errors.md`.
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            Error::Program(error) => error.code(),
            _ => rialto_tensor::error::code_of(Error::KINDS, self.slug()),
        }
    }

    /// The stable name of this kind of error; see `docs/errors.md`.
    #[must_use]
    pub fn slug(&self) -> &'static str {
        match self {
            Error::UnknownBackend { .. } => "backend/unknown",
            Error::NoDevice { .. } => "backend/no-device",
            Error::Threads { .. } => "backend/threads",
            Error::UnsupportedOp { .. } => "backend/unsupported-op",
            Error::UnsupportedElement { .. } => "backend/unsupported-element",
            Error::Operand { .. } => "backend/operand",
            Error::Program(error) => error.slug(),
            Error::BufferRange { .. } => "backend/buffer-range",
            Error::BufferSize { .. } => "backend/buffer-size",
            Error::ForeignBuffer { .. } => "backend/foreign-buffer",
            Error::Memory { .. } => "backend/memory",
            Error::Pages { .. } => "backend/pages",
            Error::Lost { .. } => "backend/lost",
        }
    }

    /// The findings behind an error that collects them.
    #[must_use]
    pub fn findings(&self) -> Vec<String> {
        match self {
            Error::Program(error) => error.findings(),
            _ => Vec::new(),
        }
    }

    /// What to do about it, if there is one thing to do.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match self {
            Error::UnknownBackend { .. } => Some(
                "`rialto backend list` shows the devices there are; `wgpu` is a feature that a program is built with"
                    .to_owned(),
            ),
            Error::NoDevice { .. } => {
                Some("`rialto backend list` shows the devices there are".to_owned())
            }
            Error::Threads { .. } => {
                Some("one thread for each core is the fastest, and the default".to_owned())
            }
            Error::UnsupportedOp { .. } | Error::UnsupportedElement { .. } => {
                Some("choose another backend; `--backend cpu` runs every operation".to_owned())
            }
            Error::Program(error) => error.help(),
            Error::Memory { .. } => {
                Some("give fewer positions or a smaller model, or free memory".to_owned())
            }
            Error::Pages { .. } => {
                Some("end other sequences, or make the caches longer".to_owned())
            }
            _ => None,
        }
    }
}
