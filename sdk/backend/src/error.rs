//! The one error type of this crate.

use thiserror::Error as ThisError;

use std::time::Duration;

use crate::{Probe, TensorType};

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
    /// A backend that this program was built without.
    #[error("this program was built without {backend}")]
    NotBuilt {
        /// The backend.
        backend: String,
        /// What builds the program with it.
        command: String,
    },
    /// A device that this machine does not have.
    #[error(
        "{backend} has no device{}: {}",
        which(asked, probe),
        found(reason, probe)
    )]
    NoDevice {
        /// The backend.
        backend: String,
        /// The number or the name asked for.
        asked: String,
        /// What is known beyond what was found; may be empty.
        reason: String,
        /// What was found instead: devices, and what was rejected.
        probe: Box<Probe>,
    },
    /// A name that more than one device has.
    #[error("{text:?} is in the names of {} devices of {backend}: {}", found.len(), found.join(", "))]
    AmbiguousDevice {
        /// The backend.
        backend: String,
        /// The text asked for.
        text: String,
        /// The devices that have it in their names.
        found: Vec<String>,
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
    /// A buffer, or what of it is needed at once, that is larger than a device allows.
    #[error(
        "{tensor} of {} bytes, or a part of it that is needed at once, is larger than the {most_bytes} bytes that the device takes",
        tensor.size_bytes().unwrap_or(u64::MAX)
    )]
    BufferSize {
        /// All of it.
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
    #[error("{bytes} bytes of {device} memory could not be had{}", in_use(*used_bytes, *most_bytes))]
    Memory {
        /// The device.
        device: String,
        /// The bytes asked for.
        bytes: u64,
        /// Bytes that buffers have, if they are counted.
        used_bytes: Option<u64>,
        /// Bytes that buffers may have, if that is known.
        most_bytes: Option<u64>,
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
    /// A device that was not done in time. It may hang: what it was to compute is not known, and it is not used again.
    #[error("the device {device} was not done after {} s", deadline.as_secs_f64())]
    Deadline {
        /// The device.
        device: String,
        /// How long was waited.
        deadline: Duration,
    },
    /// A call that a device's own checks refuse, though those of the backend did not: a fault of the backend.
    #[error("the device {device} refused a call: {reason}")]
    Refused {
        /// The device.
        device: String,
        /// What it says.
        reason: String,
    },
}

/// Which one was asked for, where there are others.
fn which(asked: &str, probe: &Probe) -> String {
    match probe.devices.is_empty() {
        true => String::new(),
        false => format!(" {asked}"),
    }
}

/// What was found in place of a device.
fn found(reason: &str, probe: &Probe) -> String {
    let parts = [reason.to_owned(), probe.summary()];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("; ")
}

/// How much of a memory is in use, if that is known.
fn in_use(used: Option<u64>, most: Option<u64>) -> String {
    match (used, most) {
        (Some(used), Some(most)) => format!(", {used} of {most} bytes are in use"),
        (Some(used), None) => format!(", {used} bytes are in use"),
        _ => String::new(),
    }
}

impl Error {
    /// Kinds of this crate as (slug, code), those of programs not among them; `docs/errors.md` lists them.
    pub const KINDS: &'static [(&'static str, u32)] = &[
        ("backend/unknown", 1),
        ("backend/not-built", 7),
        ("backend/no-device", 7),
        ("backend/ambiguous-device", 1),
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
        ("backend/deadline", 7),
        ("backend/refused", 13),
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
            Error::NotBuilt { .. } => "backend/not-built",
            Error::NoDevice { .. } => "backend/no-device",
            Error::AmbiguousDevice { .. } => "backend/ambiguous-device",
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
            Error::Deadline { .. } => "backend/deadline",
            Error::Refused { .. } => "backend/refused",
        }
    }

    /// The findings behind an error that collects them.
    #[must_use]
    pub fn findings(&self) -> Vec<String> {
        match self {
            Error::Program(error) => error.findings(),
            Error::NoDevice { probe, .. } => {
                let devices = probe.devices.iter().map(ToString::to_string);
                let rejected = probe.rejected.iter();
                let rejected = rejected.map(|rejected| format!("rejected: {rejected}"));
                devices.chain(rejected).collect()
            }
            Error::AmbiguousDevice { found, .. } => found.clone(),
            _ => Vec::new(),
        }
    }

    /// What to do about it, if there is one thing to do.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match self {
            Error::UnknownBackend { .. } => Some(
                "`rialto backend list` shows the devices there are, `auto` takes the best of them"
                    .to_owned(),
            ),
            Error::NotBuilt { command, .. } => Some(format!("build it with: {command}")),
            Error::BufferSize { .. } => Some(
                "give fewer positions (`--max-new-tokens`) if it is a cache; choose a device that takes more, or run with `--backend cpu`"
                    .to_owned(),
            ),
            Error::NoDevice { backend, probe, .. } if backend == "wgpu" && probe.devices.is_empty() => Some(
                "install the driver of the GPU, or Mesa's software adapter (mesa-vulkan-drivers and libvulkan1 on Debian and Ubuntu), or run with `--backend cpu`"
                    .to_owned(),
            ),
            Error::NoDevice { .. } => {
                Some("`rialto backend list` shows the devices there are".to_owned())
            }
            Error::AmbiguousDevice { .. } => {
                Some("give more of the name, or the number before it".to_owned())
            }
            Error::Lost { .. } | Error::Deadline { .. } => Some(
                "look at the system's log; open the device again, or run with `--backend cpu`"
                    .to_owned(),
            ),
            Error::Threads { .. } => {
                Some("one thread for each core is the fastest, and the default".to_owned())
            }
            Error::UnsupportedOp { .. } | Error::UnsupportedElement { .. } => {
                Some("choose another backend; `--backend cpu` runs every operation".to_owned())
            }
            Error::Program(error) => error.help(),
            Error::Memory { .. } => {
                Some("give fewer positions (`--max-new-tokens`) or a smaller model, or free memory".to_owned())
            }
            Error::Pages { .. } => {
                Some("end other sequences, or make the caches longer".to_owned())
            }
            Error::Refused { .. } => {
                Some("report it with the device's name and driver".to_owned())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user cannot mend it, and is told so where it happens, in the words of `docs/errors.md`.
    #[test]
    fn a_call_that_a_device_refuses_is_to_be_reported() {
        let refused = Error::Refused {
            device: "a card".to_owned(),
            reason: "no such binding".to_owned(),
        };
        let help = refused.help().unwrap_or_default();
        let docs = include_str!("../../../docs/errors.md");
        let line = docs.lines().find(|line| line.contains(refused.slug()));
        let advice = line.and_then(|line| line.trim_end_matches(" |").rsplit(" | ").next());
        assert_eq!(Some(help.as_str()), advice);
    }
}
