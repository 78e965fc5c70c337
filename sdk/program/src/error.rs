//! The one error type of this crate.

use std::fmt;

use thiserror::Error as ThisError;

/// How many faults a message shows; all of them are in the value.
const SHOWN: usize = 20;

/// What can be wrong with a program or a call.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// An operation that this version does not have.
    #[error("operation {op} is not known")]
    UnknownOp {
        /// Its name.
        op: String,
    },
    /// Attributes that are not the operation's.
    #[error("operation {op}: {reason}")]
    Attributes {
        /// Its name.
        op: String,
        /// What is wrong.
        reason: String,
    },
    /// Inputs that an operation does not take.
    #[error("operation {op}: {reason}")]
    Operands {
        /// Its name.
        op: String,
        /// What is wrong.
        reason: String,
    },
    /// A program that is not sound.
    #[error("{}", unsound(faults))]
    Unsound {
        /// Everything that is wrong, none left out.
        faults: Vec<Fault>,
    },
    /// A phase or a value that a program does not have.
    #[error("the program has no {what} {name:?}; it has: {}", known.join(", "))]
    Absent {
        /// Phase, value, cache.
        what: &'static str,
        /// The name asked for.
        name: String,
        /// Those there are.
        known: Vec<String>,
    },
}

impl Error {
    /// Kinds of this crate as (slug, code); `docs/errors.md` lists them.
    pub const KINDS: &'static [(&'static str, u32)] = &[
        ("program/unknown-op", 3),
        ("program/attributes", 4),
        ("program/operands", 4),
        ("program/unsound", 4),
        ("program/absent", 2),
    ];

    /// The status code that crosses the ABI; see `docs/errors.md`.
    #[must_use]
    pub fn code(&self) -> u32 {
        rialto_tensor::error::code_of(Error::KINDS, self.slug())
    }

    /// The stable name of this kind of error; see `docs/errors.md`.
    #[must_use]
    pub fn slug(&self) -> &'static str {
        match self {
            Error::UnknownOp { .. } => "program/unknown-op",
            Error::Attributes { .. } => "program/attributes",
            Error::Operands { .. } => "program/operands",
            Error::Unsound { .. } => "program/unsound",
            Error::Absent { .. } => "program/absent",
        }
    }

    /// What to do about it, if there is one thing to do.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match self {
            Error::UnknownOp { .. } => Some(
                "use a rialto that has it, or a plugin that does without; `docs/operations.md` lists those there are"
                    .to_owned(),
            ),
            Error::Attributes { .. } | Error::Operands { .. } | Error::Unsound { .. } => {
                Some("this is a fault of the plugin; report it to its author".to_owned())
            }
            Error::Absent { .. } => None,
        }
    }

    /// The findings behind an error that collects them.
    #[must_use]
    pub fn findings(&self) -> Vec<String> {
        match self {
            Error::Unsound { faults } => faults.iter().map(ToString::to_string).collect(),
            _ => Vec::new(),
        }
    }
}

/// One thing that is wrong with a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The phase, none for the program's own.
    pub phase: Option<String>,
    /// The call by its position in the phase and its operation, if it is one's.
    pub call: Option<(usize, String)>,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(phase) = &self.phase {
            write!(f, "phase {phase}, ")?;
        }
        if let Some((position, op)) = &self.call {
            write!(f, "call {position} ({op}), ")?;
        }
        f.write_str(&self.reason)
    }
}

fn unsound(faults: &[Fault]) -> String {
    let mut text = format!("the program is not sound, {} finding", faults.len());
    text.push_str(if faults.len() == 1 { ": " } else { "s: " });
    let shown: Vec<String> = faults.iter().take(SHOWN).map(ToString::to_string).collect();
    text.push_str(&shown.join("; "));
    if faults.len() > SHOWN {
        text.push_str(&format!("; and {} more", faults.len() - SHOWN));
    }
    text
}
