//! `rialto backend`: the devices that models run on.

use rialto_backend::{DeviceInfo, Probe};
use serde::Serialize;

use crate::arguments::{Backend, BackendCommand};
use crate::failure::Failure;
use crate::model::backends;
use crate::output::{Output, Report, bytes, count};

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
        for Found { backend, probe } in &self.0 {
            lines.extend(probe.devices.iter().flat_map(device_lines));
            for rejected in &probe.rejected {
                lines.push(format!("{backend}  rejected: {rejected}"));
            }
            if let Some(reason) = &probe.absent {
                lines.push(format!("{backend}  no device: {reason}"));
            }
        }
        lines
    }
}

/// What chooses a device and what it is; under it what it is held to and what it can do beyond others.
fn device_lines(info: &DeviceInfo) -> Vec<String> {
    let memory = info.memory_bytes.map(bytes);
    let details = info.details.iter();
    let details = details.map(|(name, value)| format!("{name} {value}"));
    let facts = [info.name.clone(), info.kind.to_string()].into_iter();
    let facts: Vec<String> = facts.chain(memory).chain(details).collect();
    let limits = info.limits.iter();
    let limits: Vec<String> = limits
        .map(|(name, most)| format!("{name} {}", count(*most)))
        .collect();
    let features: Vec<String> = info.features.iter().cloned().collect();
    let mut lines = vec![format!(
        "{}:{}  {}",
        info.backend,
        info.index,
        facts.join(", ")
    )];
    for (what, parts) in [("limits", limits), ("features", features)] {
        if !parts.is_empty() {
            lines.push(format!("        {what}: {}", parts.join(", ")));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use rialto_backend::{DeviceKind, Rejected};

    use super::*;

    #[test]
    fn fc_64_devices_are_listed_with_what_they_are_and_others_with_the_reason() {
        let card = DeviceInfo {
            backend: "wgpu".to_owned(),
            index: 0,
            name: "Card".to_owned(),
            kind: DeviceKind::Hardware,
            memory_bytes: Some(8_000_000_000),
            details: [("driver".to_owned(), "made up 1.0".to_owned())].into(),
            limits: [("binding_bytes".to_owned(), 1 << 20)].into(),
            features: ["f16".to_owned()].into(),
        };
        let relic = Rejected {
            name: "Relic".to_owned(),
            reason: "no compute shaders".to_owned(),
        };
        let list = List(vec![
            Found {
                backend: "wgpu",
                probe: Probe {
                    devices: vec![card],
                    rejected: vec![relic],
                    absent: None,
                },
            },
            Found {
                backend: "cuda",
                probe: Probe {
                    absent: Some("libcuda.so.1 was not found".to_owned()),
                    ..Probe::default()
                },
            },
        ]);
        let lines = [
            "wgpu:0  Card, hardware, 8.00 GB, driver made up 1.0",
            "        limits: binding_bytes 1,048,576",
            "        features: f16",
            "wgpu  rejected: Relic (no compute shaders)",
            "cuda  no device: libcuda.so.1 was not found",
        ];
        assert_eq!(list.lines(), lines);
        let document = serde_json::to_value(&list).expect("it is data");
        assert_eq!(document[0]["devices"][0]["kind"], "hardware");
        assert_eq!(
            document[0]["devices"][0]["limits"]["binding_bytes"],
            1 << 20
        );
        assert_eq!(document[0]["rejected"][0]["reason"], "no compute shaders");
        assert_eq!(document[1]["absent"], "libcuda.so.1 was not found");
    }
}
