//! The drivers that an application has, and which of their devices is meant.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::Serialize;

use crate::device::{DeviceKind, Driver, OpenOptions, Probe};
use crate::{Backend, Error};

/// Which of a backend's devices is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one with this number.
    Number(usize),
    /// The only one whose name has this text in it, in capitals or not.
    Named(String),
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Which::Number(number) => write!(f, "{number}"),
            Which::Named(text) => write!(f, "{text:?}"),
        }
    }
}

/// Which device is meant: `cpu`, `wgpu:1` for the second of a backend, or `wgpu:radeon` for the only one with such a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Name of the backend.
    pub backend: String,
    /// Which of its devices.
    pub device: Which,
}

impl Choice {
    /// The first device of a backend.
    #[must_use]
    pub fn first(backend: &str) -> Choice {
        Choice {
            backend: backend.to_owned(),
            device: Which::Number(0),
        }
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Choice, String> {
        let wrong = || format!("{text:?} is no device; cpu, wgpu:1 or wgpu:NAME would be");
        let (backend, device) = match text.split_once(':') {
            None => (text, Which::Number(0)),
            Some((backend, device)) => {
                let device = device.trim();
                let is_number = device.bytes().all(|byte| byte.is_ascii_digit());
                let which = match is_number {
                    true => Which::Number(device.parse().map_err(|_| wrong())?),
                    false => Which::Named(device.to_owned()),
                };
                (backend, which)
            }
        };
        if backend.is_empty() {
            return Err(wrong());
        }
        Ok(Choice {
            backend: backend.to_owned(),
            device,
        })
    }
}

/// A backend none of whose devices was taken where nobody said which.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Passed {
    /// The backend.
    pub backend: String,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backend, self.reason)
    }
}

/// A backend that an application was built without: it is listed with the reason, and has no device.
pub struct NotBuilt {
    /// Its name.
    pub name: &'static str,
    /// What builds the application with it.
    pub command: &'static str,
}

impl NotBuilt {
    fn error(&self) -> Error {
        Error::NotBuilt {
            backend: self.name.to_owned(),
            command: self.command.to_owned(),
        }
    }
}

impl Driver for NotBuilt {
    fn name(&self) -> &'static str {
        self.name
    }

    fn probe(&self) -> Probe {
        Probe {
            absent: Some(format!(
                "{}; {}",
                self.error(),
                self.error().help().unwrap_or_default()
            )),
            ..Probe::default()
        }
    }

    fn open(&self, _: usize, _: &OpenOptions) -> Result<Arc<dyn Backend>, Error> {
        Err(self.error())
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

    /// Opens the device that is meant. There is no other in its place. Errors: [`Error::UnknownBackend`],
    /// [`Error::AmbiguousDevice`], and those of [`Driver::open`].
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
        let number = match &choice.device {
            Which::Number(number) => *number,
            Which::Named(text) => named(driver.name(), text, driver.probe())?,
        };
        driver.open(number, options)
    }

    /// Opens a device where nobody says which: the first hardware that opens, in the order of the drivers, else the processor. Software
    /// is never taken. With it, the backends that were passed over, and why. Errors: [`Error::NoDevice`] if there is none of either.
    pub fn open_any(
        &self,
        options: &OpenOptions,
    ) -> Result<(Arc<dyn Backend>, Vec<Passed>), Error> {
        let found: Vec<(&dyn Driver, Probe)> = self
            .drivers
            .iter()
            .map(|driver| (driver.as_ref(), driver.probe()))
            .collect();
        let of = |kind: DeviceKind| {
            found.iter().flat_map(move |(driver, probe)| {
                let devices = probe.devices.iter().filter(move |info| info.kind == kind);
                devices.map(move |info| (*driver, info.index))
            })
        };
        let mut refused: Vec<(&str, String)> = Vec::new();
        for (driver, number) in of(DeviceKind::Hardware).chain(of(DeviceKind::Processor)) {
            match driver.open(number, options) {
                Ok(device) => {
                    let chosen = driver.name();
                    let others = found.iter().filter(|(driver, probe)| {
                        let mut devices = probe.devices.iter();
                        driver.name() != chosen
                            && !devices.any(|info| info.kind == DeviceKind::Processor)
                    });
                    let passed = others.map(|(driver, probe)| passed(*driver, probe, &refused));
                    return Ok((device, passed.collect()));
                }
                Err(error) => refused.push((driver.name(), error.to_string())),
            }
        }
        let tried: Vec<String> = found
            .iter()
            .map(|(driver, probe)| passed(*driver, probe, &refused).to_string())
            .collect();
        Err(Error::NoDevice {
            backend: "auto".to_owned(),
            asked: "of any kind".to_owned(),
            reason: tried.join("; "),
            probe: Box::default(),
        })
    }
}

/// Why no device of a backend was taken.
fn passed(driver: &dyn Driver, probe: &Probe, refused: &[(&str, String)]) -> Passed {
    let mut reasons = refused.iter().filter(|(name, _)| *name == driver.name());
    let has_hardware = probe
        .devices
        .iter()
        .any(|info| info.kind == DeviceKind::Hardware);
    let reason = match (reasons.next(), has_hardware) {
        (Some((_, reason)), _) => reason.clone(),
        (None, true) => "another came first".to_owned(),
        (None, false) if probe.devices.is_empty() => probe.summary(),
        (None, false) => "only software adapters".to_owned(),
    };
    Passed {
        backend: driver.name().to_owned(),
        reason,
    }
}

/// The number of the only device with this text in its name.
fn named(backend: &str, text: &str, probe: Probe) -> Result<usize, Error> {
    let wanted = text.to_lowercase();
    let fits = probe
        .devices
        .iter()
        .filter(|info| info.name.to_lowercase().contains(&wanted));
    let fits: Vec<_> = fits.collect();
    match fits.as_slice() {
        [only] => Ok(only.index),
        [] => Err(Error::NoDevice {
            backend: backend.to_owned(),
            asked: format!("{text:?}"),
            reason: String::new(),
            probe: Box::new(probe),
        }),
        several => Err(Error::AmbiguousDevice {
            backend: backend.to_owned(),
            text: text.to_owned(),
            found: several.iter().map(ToString::to_string).collect(),
        }),
    }
}

#[cfg(test)]
mod tests;
