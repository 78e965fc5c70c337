//! Adapters: what is there, and how one is opened.

use std::sync::Arc;

use rialto_backend::{Backend, Driver, Error, OpenOptions, Probe};

use crate::NAME;
use crate::device::WgpuBackend;
use crate::probe::{Seen, Sorted, sort};
use crate::settings::Settings;
use crate::wait::{DRIVER_DEADLINE, done, within};

/// Variables that say where Vulkan's loader looks for drivers: worth a word if it finds none.
const LOADER_VARIABLES: [&str; 3] = [
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "VK_LOADER_DRIVERS_DISABLE",
];

/// Finds adapters of Vulkan, Metal and DirectX 12.
#[derive(Clone, Debug, Default)]
pub struct WgpuDriver {
    settings: Settings,
}

/// What drivers gave, and what became of it.
struct Found {
    adapters: Vec<wgpu::Adapter>,
    sorted: Sorted,
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

    /// Asks the drivers, which may take long to answer. Errors: the reason why there is no answer.
    fn find(&self) -> Result<Found, String> {
        let enumerate = || {
            let descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
            let instance = wgpu::Instance::new(descriptor);
            done(instance.enumerate_adapters(wgpu::Backends::PRIMARY))
        };
        let adapters = within(DRIVER_DEADLINE, enumerate).map_err(|unanswered| {
            format!("which adapters there are is not known: a driver {unanswered}")
        })?;
        let seen: Vec<Seen> = adapters.iter().map(Seen::of).collect();
        Ok(Found {
            sorted: sort(&seen, &self.settings, &asked()),
            adapters,
        })
    }

    /// An adapter by its number, as a type of its own: tests make it fail.
    #[doc(hidden)]
    pub fn open_adapter(&self, index: usize) -> Result<WgpuBackend, Error> {
        let refused = |reason: String, probe: Probe| Error::NoDevice {
            backend: NAME.to_owned(),
            asked: index.to_string(),
            reason,
            probe: Box::new(probe),
        };
        let mut found = match self.find() {
            Ok(found) => found,
            Err(reason) => return Err(refused(reason, Probe::default())),
        };
        let probe = found.sorted.probe;
        let (Some(info), Some(&place)) = (probe.devices.get(index), found.sorted.places.get(index))
        else {
            return Err(refused(String::new(), probe));
        };
        let adapter = found.adapters.swap_remove(place);
        WgpuBackend::open(adapter, info.clone(), &self.settings)
            .map_err(|reason| refused(format!("it cannot be opened: {reason}"), probe))
    }
}

/// The interfaces that are asked for adapters, and what the environment tells their loaders.
fn asked() -> String {
    let apis = wgpu::Instance::enabled_backend_features() & wgpu::Backends::PRIMARY;
    let names = [
        (wgpu::Backends::VULKAN, "Vulkan"),
        (wgpu::Backends::METAL, "Metal"),
        (wgpu::Backends::DX12, "DirectX 12"),
    ];
    let names: Vec<&str> = names
        .iter()
        .filter(|(api, _)| apis.contains(*api))
        .map(|(_, name)| *name)
        .collect();
    let mut text = names.join(" or ");
    for variable in LOADER_VARIABLES {
        if let Some(value) = std::env::var_os(variable) {
            text.push_str(&format!(" ({variable} is {value:?})"));
        }
    }
    text
}

impl Driver for WgpuDriver {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> Probe {
        match self.find() {
            Ok(found) => found.sorted.probe,
            Err(reason) => Probe {
                absent: Some(reason),
                ..Probe::default()
            },
        }
    }

    fn open(&self, index: usize, _: &OpenOptions) -> Result<Arc<dyn Backend>, Error> {
        Ok(Arc::new(self.open_adapter(index)?))
    }
}
