//! Adapters: what is there, and how one is opened.

use std::collections::BTreeMap;
use std::sync::Arc;

use rialto_backend::{Backend, DeviceInfo, Driver, Error, OpenOptions, Probe};

use crate::device::{NAME, WgpuBackend};
use crate::settings::Settings;

/// Finds adapters of Vulkan, Metal and DirectX 12.
#[derive(Clone, Debug, Default)]
pub struct WgpuDriver {
    settings: Settings,
}

impl WgpuDriver {
    /// With all that adapters give.
    #[must_use]
    pub fn new() -> WgpuDriver {
        WgpuDriver::default()
    }

    /// With less.
    #[must_use]
    pub fn with_settings(settings: Settings) -> WgpuDriver {
        WgpuDriver { settings }
    }

    /// How much it uses.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}

/// Adapters that can compute, hardware before software, each with its description; and why others cannot.
fn adapters() -> (Vec<(wgpu::Adapter, DeviceInfo)>, Vec<String>) {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let found = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    let mut rejected = Vec::new();
    let mut kept: Vec<wgpu::Adapter> = Vec::new();
    for adapter in found {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        match limits.max_compute_invocations_per_workgroup {
            0 => rejected.push(format!(
                "{} ({}) has no compute shaders",
                info.name, info.backend
            )),
            _ => kept.push(adapter),
        }
    }
    kept.sort_by_key(|adapter| match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    });
    let described = kept.into_iter().enumerate().map(|(index, adapter)| {
        let described = describe(index, &adapter);
        (adapter, described)
    });
    (described.collect(), rejected)
}

fn describe(index: usize, adapter: &wgpu::Adapter) -> DeviceInfo {
    let (info, limits) = (adapter.get_info(), adapter.limits());
    let kind = match info.device_type {
        wgpu::DeviceType::Cpu => "software",
        _ => "hardware",
    };
    let mut details = BTreeMap::from([
        ("api".to_owned(), info.backend.to_string()),
        ("kind".to_owned(), kind.to_owned()),
        (
            "largest binding".to_owned(),
            limits.max_storage_buffer_binding_size.to_string(),
        ),
    ]);
    if !info.driver.is_empty() {
        let driver = format!("{} {}", info.driver, info.driver_info);
        details.insert("driver".to_owned(), driver.trim().to_owned());
    }
    DeviceInfo {
        backend: NAME.to_owned(),
        index,
        name: info.name,
        memory_bytes: None,
        details,
    }
}

/// Why there is no device, with what was seen.
fn absent(rejected: &[String]) -> String {
    match rejected {
        [] => "no adapter was found: no driver of Vulkan, Metal or DirectX 12".to_owned(),
        rejected => rejected.join("; "),
    }
}

impl Driver for WgpuDriver {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> Probe {
        let (found, rejected) = adapters();
        Probe {
            absent: found.is_empty().then(|| absent(&rejected)),
            devices: found.into_iter().map(|(_, described)| described).collect(),
        }
    }

    fn open(&self, index: usize, _: &OpenOptions) -> Result<Arc<dyn Backend>, Error> {
        let (mut found, rejected) = adapters();
        if index >= found.len() {
            let reason = match found.len() {
                0 => absent(&rejected),
                count => format!("it has {count}"),
            };
            return Err(Error::NoDevice {
                backend: NAME.to_owned(),
                index,
                reason,
            });
        }
        let (adapter, info) = found.swap_remove(index);
        Ok(Arc::new(WgpuBackend::open(&adapter, info, &self.settings)?))
    }
}
