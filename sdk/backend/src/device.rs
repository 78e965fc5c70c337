//! Devices as they are described, and drivers, which find them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use serde::Serialize;

use crate::{Backend, Error};

/// What computes behind a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// The processor of the machine.
    Processor,
    /// A chip beside it, such as a GPU.
    Hardware,
    /// A driver that computes on the processor after all. It is there for tests: the processor's own backend is faster.
    Software,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceKind::Processor => "processor",
            DeviceKind::Hardware => "hardware",
            DeviceKind::Software => "software",
        })
    }
}

/// A device, as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// Name of the backend: `cpu`, `wgpu`, `cuda`.
    pub backend: String,
    /// Its number among the backend's devices.
    pub index: usize,
    /// What its maker calls it.
    pub name: String,
    /// What computes.
    pub kind: DeviceKind,
    /// Memory in bytes, if it is known.
    pub memory_bytes: Option<u64>,
    /// What else is known: instructions, driver, threads.
    pub details: BTreeMap<String, String>,
    /// Limits that operations have to keep, where there are any. The unit is in the name, as in `binding_bytes`.
    pub limits: BTreeMap<String, u64>,
    /// What it can do that not every device of its backend can.
    pub features: BTreeSet<String>,
}

/// A device by the name that chooses it: `wgpu:0 NAME`.
impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} {}", self.backend, self.index, self.name)
    }
}

/// What was found and is not offered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rejected {
    /// What its maker calls it.
    pub name: String,
    /// What it lacks, with the number found and the number needed.
    pub reason: String,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.reason)
    }
}

/// What a driver found on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// The devices, hardware before software: the number of each is its place.
    pub devices: Vec<DeviceInfo>,
    /// What cannot be used, and why.
    pub rejected: Vec<Rejected>,
    /// Why there are no devices, in a few words.
    pub absent: Option<String>,
}

impl Probe {
    /// All of it in one line: why there is no device, those there are, and what was rejected.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut parts: Vec<String> = self.absent.iter().cloned().collect();
        if !self.devices.is_empty() {
            let names: Vec<String> = self.devices.iter().map(ToString::to_string).collect();
            parts.push(format!("there are {}", names.join(", ")));
        }
        if !self.rejected.is_empty() {
            let names: Vec<String> = self.rejected.iter().map(ToString::to_string).collect();
            parts.push(format!("rejected: {}", names.join(", ")));
        }
        parts.join("; ")
    }
}

/// How a device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Threads of the host that compute, for a backend that does it there; by default one for each core.
    pub threads: Option<NonZeroUsize>,
}

/// A backend before one of its devices is opened. Probing never fails and never loads more than it needs: a machine without the
/// backend's libraries is an answer.
pub trait Driver: Send + Sync {
    /// Name of the backend.
    fn name(&self) -> &'static str;

    /// What is there.
    fn probe(&self) -> Probe;

    /// Opens a device by its number. Errors: [`Error::NoDevice`], [`Error::Lost`], [`Error::Deadline`].
    fn open(&self, index: usize, options: &OpenOptions) -> Result<Arc<dyn Backend>, Error>;
}
