use super::*;
use crate::device::{DeviceInfo, Rejected};
use crate::{Buffer, Capabilities, OpCall, Recording, TensorType};

/// A driver that finds what it is told to, and of which devices open or not.
struct Made {
    name: &'static str,
    probe: Probe,
    refusal: Option<Error>,
}

/// A device of such a driver.
struct Opened(DeviceInfo);

impl Backend for Opened {
    fn device(&self) -> &DeviceInfo {
        &self.0
    }

    fn capabilities(&self) -> &Capabilities {
        unreachable!("nobody asks")
    }

    fn allocate(&self, _: &TensorType) -> Result<Buffer, Error> {
        unreachable!("nobody asks")
    }

    fn write(&self, _: &Buffer, _: u64, _: &[u8]) -> Result<(), Error> {
        unreachable!("nobody asks")
    }

    fn read(&self, _: &Buffer, _: u64, _: &mut [u8]) -> Result<(), Error> {
        unreachable!("nobody asks")
    }

    fn record(&self, _: Vec<OpCall>) -> Result<Box<dyn Recording>, Error> {
        unreachable!("nobody asks")
    }
}

impl Driver for Made {
    fn name(&self) -> &'static str {
        self.name
    }

    fn probe(&self) -> Probe {
        self.probe.clone()
    }

    fn open(&self, number: usize, _: &OpenOptions) -> Result<Arc<dyn Backend>, Error> {
        if let Some(error) = &self.refusal {
            return Err(error.clone());
        }
        match self.probe.devices.get(number) {
            Some(info) => Ok(Arc::new(Opened(info.clone()))),
            None => Err(Error::NoDevice {
                backend: self.name.to_owned(),
                asked: number.to_string(),
                reason: String::new(),
                probe: Box::new(self.probe.clone()),
            }),
        }
    }
}

fn driver(name: &'static str, devices: &[(&str, DeviceKind)]) -> Made {
    let devices = devices.iter().enumerate();
    let devices = devices.map(|(index, (device, kind))| DeviceInfo {
        backend: name.to_owned(),
        index,
        name: (*device).to_owned(),
        kind: *kind,
        memory_bytes: None,
        details: Default::default(),
        limits: Default::default(),
        features: Default::default(),
    });
    Made {
        name,
        probe: Probe {
            devices: devices.collect(),
            ..Probe::default()
        },
        refusal: None,
    }
}

/// The processor, and a driver that found nothing usable.
fn without_hardware() -> Registry {
    let mut wgpu = driver("wgpu", &[]);
    wgpu.probe.absent = Some("no adapter can be used".to_owned());
    wgpu.probe.rejected = vec![Rejected {
        name: "Relic".to_owned(),
        reason: "no compute shaders".to_owned(),
    }];
    Registry::new().with(processor()).with(wgpu)
}

fn processor() -> Made {
    driver("cpu", &[("Pentium", DeviceKind::Processor)])
}

/// What is opened by a text, by its name, or the error.
fn open(registry: &Registry, choice: &str) -> Result<String, Error> {
    let opened = registry.open(&choice.parse().unwrap(), &OpenOptions::default());
    opened.map(|device| device.device().to_string())
}

fn open_any(registry: &Registry) -> (String, Vec<String>) {
    let (device, passed) = registry.open_any(&OpenOptions::default()).unwrap();
    let passed = passed.iter().map(ToString::to_string);
    (device.device().to_string(), passed.collect())
}

#[test]
fn a_choice_is_a_backend_and_perhaps_a_number_or_a_name() {
    let choice = |text: &str| {
        text.parse::<Choice>()
            .map(|choice| (choice.backend, choice.device))
    };
    assert_eq!(choice("cpu"), Ok(("cpu".to_owned(), Which::Number(0))));
    assert_eq!(choice("wgpu:1"), Ok(("wgpu".to_owned(), Which::Number(1))));
    for name in ["llvmpipe", "-1", "GeForce RTX: 4090"] {
        let named = Which::Named(name.to_owned());
        assert_eq!(
            choice(&format!("wgpu:{name}")),
            Ok(("wgpu".to_owned(), named))
        );
    }
    for wrong in ["", ":1", ":name", "wgpu:", "wgpu:99999999999999999999"] {
        assert!(choice(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn an_unknown_backend_is_refused_with_those_there_are() {
    let error = open(&Registry::new().with(processor()), "cuda").unwrap_err();
    assert_eq!(error.slug(), "backend/unknown");
    let text = error.to_string();
    assert!(text.contains("cuda") && text.contains("cpu"), "{text}");
}

#[test]
fn a_name_chooses_the_only_device_that_has_it() {
    let kinds = [
        ("Radeon 780M", DeviceKind::Hardware),
        ("Radeon RX 7900", DeviceKind::Hardware),
        ("llvmpipe (LLVM 15)", DeviceKind::Software),
    ];
    let registry = Registry::new()
        .with(processor())
        .with(driver("wgpu", &kinds));
    assert_eq!(
        open(&registry, "wgpu:LLVM").unwrap(),
        "wgpu:2 llvmpipe (LLVM 15)"
    );
    assert_eq!(
        open(&registry, "wgpu:rx 79").unwrap(),
        "wgpu:1 Radeon RX 7900"
    );
    // For every backend.
    assert_eq!(open(&registry, "cpu:pentium").unwrap(), "cpu:0 Pentium");
    let several = open(&registry, "wgpu:radeon").unwrap_err();
    assert_eq!(several.slug(), "backend/ambiguous-device");
    assert_eq!(
        several.findings(),
        ["wgpu:0 Radeon 780M", "wgpu:1 Radeon RX 7900"]
    );
    let none = open(&registry, "wgpu:arc").unwrap_err();
    assert_eq!(none.slug(), "backend/no-device");
    for (name, _) in kinds {
        assert!(none.to_string().contains(name), "{none}");
    }
}

#[test]
fn fc_59_an_explicit_choice_fails_with_the_reasons_and_takes_no_other() {
    let registry = without_hardware();
    for choice in ["wgpu", "wgpu:3", "wgpu:radeon"] {
        let error = open(&registry, choice).unwrap_err();
        assert_eq!((error.slug(), error.code()), ("backend/no-device", 7));
        let text = error.to_string();
        assert!(text.contains("no adapter can be used"), "{text}");
        assert!(text.contains("Relic (no compute shaders)"), "{text}");
        assert_eq!(error.findings(), ["rejected: Relic (no compute shaders)"]);
    }
}

#[test]
fn fc_59_an_automatic_choice_falls_back_to_the_processor_and_says_why() {
    assert_eq!(
        open_any(&without_hardware()),
        (
            "cpu:0 Pentium".to_owned(),
            vec!["wgpu: no adapter can be used; rejected: Relic (no compute shaders)".to_owned()]
        )
    );
    // Hardware that does not open is no reason to give up, either.
    let mut broken = driver("cuda", &[("H200", DeviceKind::Hardware)]);
    broken.refusal = Some(Error::Lost {
        device: "H200".to_owned(),
        reason: "fell off the bus".to_owned(),
    });
    let registry = Registry::new()
        .with(broken)
        .with(driver("wgpu", &[("llvmpipe", DeviceKind::Software)]))
        .with(processor());
    assert_eq!(
        open_any(&registry),
        (
            "cpu:0 Pentium".to_owned(),
            vec![
                "cuda: the device H200 was lost: fell off the bus".to_owned(),
                "wgpu: only software adapters".to_owned()
            ]
        )
    );
}

#[test]
fn fc_63_hardware_is_taken_before_the_processor_and_software_never() {
    let (hardware, software) = (
        ("Radeon", DeviceKind::Hardware),
        ("llvmpipe", DeviceKind::Software),
    );
    for devices in [[hardware, software], [software, hardware]] {
        let registry = Registry::new()
            .with(processor())
            .with(driver("wgpu", &devices));
        let (chosen, passed) = open_any(&registry);
        assert!(chosen.ends_with("Radeon"), "{chosen}");
        assert_eq!(passed, [] as [String; 0]);
    }
    let registry = Registry::new()
        .with(driver("wgpu", &[software]))
        .with(processor());
    assert_eq!(open_any(&registry).0, "cpu:0 Pentium");
}

#[test]
fn fc_64_with_no_device_at_all_the_error_lists_every_backend_that_was_tried() {
    let mut cuda = driver("cuda", &[]);
    cuda.probe.absent = Some("libcuda.so.1 was not found".to_owned());
    let registry = Registry::new()
        .with(cuda)
        .with(driver("wgpu", &[("llvmpipe", DeviceKind::Software)]));
    let error = registry.open_any(&OpenOptions::default()).err().unwrap();
    assert_eq!(error.slug(), "backend/no-device");
    assert!(
        error
            .to_string()
            .ends_with("cuda: libcuda.so.1 was not found; wgpu: only software adapters"),
        "{error}"
    );
}
