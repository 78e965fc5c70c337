//! `rialto backend`: the devices that models run on.

use rialto_backend::Probe;
use serde::Serialize;

use crate::arguments::{Backend, BackendCommand};
use crate::failure::Failure;
use crate::model::backends;
use crate::output::{Output, Report, bytes};

pub(crate) fn run(backend: &Backend, output: &Output) -> Result<(), Failure> {
    match backend.command {
        BackendCommand::List => {
            let registry = backends();
            let found = registry.drivers().iter().map(|driver| Found {
                backend: driver.name(),
                probe: driver.probe(),
            });
            output.result(&List(found.collect()))
        }
    }
}

/// A backend with what it found.
#[derive(Serialize)]
struct Found {
    backend: &'static str,
    #[serde(flatten)]
    probe: Probe,
}

#[derive(Serialize)]
#[serde(transparent)]
struct List(Vec<Found>);

impl Report for List {
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for found in &self.0 {
            for device in &found.probe.devices {
                let memory = device
                    .memory_bytes
                    .map(|memory| format!(", {}", bytes(memory)));
                let details: Vec<String> = device
                    .details
                    .iter()
                    .map(|(name, value)| format!(", {name} {value}"))
                    .collect();
                lines.push(format!(
                    "{}:{}  {}{}{}",
                    found.backend,
                    device.index,
                    device.name,
                    memory.unwrap_or_default(),
                    details.concat()
                ));
            }
            if let Some(reason) = &found.probe.absent {
                lines.push(format!("{}  no device: {reason}", found.backend));
            }
        }
        lines
    }
}
