//! Drivers, what they find, and the registry of them.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use serde::Serialize;

use crate::{Backend, Error};

/// A device, as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// Name of the backend: `cpu`, `wgpu`, `cuda`.
    pub backend: String,
    /// Its number among the backend's devices.
    pub index: usize,
    /// What its maker calls it.
    pub name: String,
    /// Memory in bytes, if it is known.
    pub memory_bytes: Option<u64>,
    /// What else is known: instructions, driver, threads.
    pub details: BTreeMap<String, String>,
}

/// What a driver found on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// The devices.
    pub devices: Vec<DeviceInfo>,
    /// Why there are none, in a few words.
    pub absent: Option<String>,
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

    /// Opens a device by its number. Errors: [`Error::NoDevice`], [`Error::Lost`].
    fn open(&self, index: usize, options: &OpenOptions) -> Result<Arc<dyn Backend>, Error>;
}

/// Which device is meant: `cpu`, or `wgpu:1` for the second of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Name of the backend.
    pub backend: String,
    /// Number of the device.
    pub index: usize,
}

impl std::str::FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Choice, String> {
        let (backend, index) = match text.split_once(':') {
            Some((backend, index)) => (backend, index.parse().ok()),
            None => (text, Some(0)),
        };
        match index {
            Some(index) if !backend.is_empty() => Ok(Choice {
                backend: backend.to_owned(),
                index,
            }),
            _ => Err(format!("{text:?} is no device; cpu or wgpu:1 would be")),
        }
    }
}

/// The drivers that an application has.
#[derive(Default)]
pub struct Registry {
    drivers: Vec<Box<dyn Driver>>,
}

impl Registry {
    /// Nobody.
    #[must_use]
    pub fn new() -> Registry {
        Registry::default()
    }

    /// With one more.
    #[must_use]
    pub fn with(mut self, driver: impl Driver + 'static) -> Registry {
        self.drivers.push(Box::new(driver));
        self
    }

    /// All of them, in the order in which they came.
    #[must_use]
    pub fn drivers(&self) -> &[Box<dyn Driver>] {
        &self.drivers
    }

    /// Opens the device that is meant. There is no other in its place. Errors: [`Error::UnknownBackend`], and those of
    /// [`Driver::open`].
    pub fn open(&self, choice: &Choice, options: &OpenOptions) -> Result<Arc<dyn Backend>, Error> {
        let mut drivers = self.drivers.iter();
        let driver = drivers.find(|driver| driver.name() == choice.backend);
        let driver = driver.ok_or_else(|| Error::UnknownBackend {
            name: choice.backend.clone(),
            known: self
                .drivers
                .iter()
                .map(|driver| driver.name().to_owned())
                .collect(),
        })?;
        driver.open(choice.index, options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_a_name_and_perhaps_a_number() {
        let choice = |text: &str| {
            text.parse::<Choice>()
                .map(|choice| (choice.backend, choice.index))
        };
        assert_eq!(choice("cpu"), Ok(("cpu".to_owned(), 0)));
        assert_eq!(choice("wgpu:1"), Ok(("wgpu".to_owned(), 1)));
        for wrong in ["", ":1", "wgpu:", "wgpu:x", "wgpu:-1"] {
            assert!(choice(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_unknown_backend_is_refused_with_those_there_are() {
        let choice = "cuda".parse().unwrap();
        let error = Registry::new()
            .open(&choice, &OpenOptions::default())
            .err()
            .unwrap();
        assert_eq!(error.slug(), "backend/unknown");
        assert!(error.to_string().contains("cuda"));
    }
}
