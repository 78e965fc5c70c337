//! Which adapters are devices, in which order, and why others are not. All of it is decided over plain data: what a driver says of an
//! adapter is copied into [`Seen`] first, so that tests can make up machines.

use std::collections::{BTreeMap, BTreeSet};

use rialto_backend::{DeviceInfo, DeviceKind, Probe, Rejected};

use crate::NAME;
use crate::replay::FOLD;
use crate::settings::Settings;

/// An adapter as its driver describes it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) name: String,
    /// Vulkan, Metal or DirectX 12.
    pub(crate) api: String,
    /// Name and version; may be empty.
    pub(crate) driver: String,
    pub(crate) kind: wgpu::DeviceType,
    pub(crate) has_compute: bool,
    pub(crate) limits: wgpu::Limits,
    pub(crate) has_f16: bool,
    /// Lanes of the smallest and the largest subgroup, where shaders may know of them.
    pub(crate) subgroups: Option<[u32; 2]>,
}

impl Seen {
    /// What a driver says.
    pub(crate) fn of(adapter: &wgpu::Adapter) -> Seen {
        let (info, features) = (adapter.get_info(), adapter.features());
        let flags = adapter.get_downlevel_capabilities().flags;
        let lanes = [info.subgroup_min_size, info.subgroup_max_size];
        Seen {
            name: info.name,
            api: info.backend.to_string(),
            driver: format!("{} {}", info.driver, info.driver_info)
                .trim()
                .to_owned(),
            kind: info.device_type,
            has_compute: flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS),
            limits: adapter.limits(),
            has_f16: features.contains(wgpu::Features::SHADER_F16),
            subgroups: features.contains(wgpu::Features::SUBGROUP).then_some(lanes),
        }
    }

    /// The adapter as it is used: with less of it, where settings say so.
    fn held_to(mut self, settings: &Settings) -> Seen {
        let limits = &mut self.limits;
        let buffer_bytes = settings.buffer_bytes.unwrap_or(u64::MAX);
        limits.max_buffer_size = limits.max_buffer_size.min(buffer_bytes);
        limits.max_storage_buffer_binding_size = limits
            .max_storage_buffer_binding_size
            .min(settings.binding_bytes.unwrap_or(u64::MAX))
            .min(limits.max_buffer_size);
        limits.max_compute_invocations_per_workgroup = limits
            .max_compute_invocations_per_workgroup
            .min(settings.invocations.unwrap_or(u32::MAX));
        self.has_compute &= !settings.lacks_compute;
        self
    }

    /// The interface and the driver, which may be what is to be renewed.
    fn by(&self) -> String {
        match self.driver.as_str() {
            "" => self.api.clone(),
            driver => format!("{}, driver {driver}", self.api),
        }
    }

    /// Where it stands among others.
    fn rank(&self) -> u8 {
        match self.kind {
            wgpu::DeviceType::DiscreteGpu => 0,
            wgpu::DeviceType::IntegratedGpu => 1,
            wgpu::DeviceType::VirtualGpu => 2,
            wgpu::DeviceType::Other => 3,
            wgpu::DeviceType::Cpu => 4,
        }
    }

    /// What it lacks of what shaders need, each with the number found and the number needed.
    fn lacks(&self) -> Vec<String> {
        if !self.has_compute {
            return vec!["no compute shaders".to_owned()];
        }
        let lacking = NEEDED.iter().filter_map(|need| {
            let found = (need.found)(&self.limits);
            (found < need.least).then(|| format!("{} {}, {} needed", found, need.what, need.least))
        });
        lacking.collect()
    }

    /// As a device with a number.
    fn described(&self, index: usize, settings: &Settings) -> DeviceInfo {
        let kind = match self.kind {
            wgpu::DeviceType::Cpu => DeviceKind::Software,
            _ => DeviceKind::Hardware,
        };
        let mut details = BTreeMap::from([("api".to_owned(), self.api.clone())]);
        if !self.driver.is_empty() {
            details.insert("driver".to_owned(), self.driver.clone());
        }
        let limits = LIMITS.map(|(name, found)| (name.to_owned(), found(&self.limits)));
        let mut features = BTreeSet::new();
        if self.has_f16 {
            features.insert("f16".to_owned());
        }
        match self.subgroups {
            None => {}
            Some([least, most]) if least == most => {
                features.insert(format!("subgroups of {least}"));
            }
            Some([least, most]) => {
                features.insert(format!("subgroups of {least} to {most}"));
            }
        }
        DeviceInfo {
            backend: NAME.to_owned(),
            index,
            name: self.name.clone(),
            kind,
            memory_bytes: settings.memory_bytes,
            details,
            limits: BTreeMap::from(limits),
            features,
        }
    }
}

/// A number of an adapter.
type Found = fn(&wgpu::Limits) -> u64;

/// What shaders need of an adapter.
struct Need {
    what: &'static str,
    found: Found,
    least: u64,
}

/// Shaders are core WGSL, and keep these numbers, some of which are below what WebGPU promises.
const NEEDED: [Need; 6] = [
    Need {
        what: "bytes of a binding",
        found: |limits| limits.max_storage_buffer_binding_size,
        least: 1 << 10,
    },
    Need {
        what: "storage buffers of a stage",
        found: |limits| limits.max_storage_buffers_per_shader_stage.into(),
        least: 8,
    },
    Need {
        what: "bytes of workgroup memory",
        found: |limits| limits.max_compute_workgroup_storage_size.into(),
        least: 16 << 10,
    },
    Need {
        what: "invocations of a workgroup",
        found: |limits| limits.max_compute_invocations_per_workgroup.into(),
        least: 128,
    },
    Need {
        what: "invocations along one dimension",
        found: |limits| limits.max_compute_workgroup_size_x.into(),
        least: 128,
    },
    Need {
        what: "workgroups of a dimension",
        found: |limits| limits.max_compute_workgroups_per_dimension.into(),
        least: FOLD,
    },
];

/// What is told of a device.
const LIMITS: [(&str, Found); 6] = [
    ("binding_bytes", |limits| {
        limits.max_storage_buffer_binding_size
    }),
    ("buffer_bytes", |limits| limits.max_buffer_size),
    ("storage_buffers", |limits| {
        limits.max_storage_buffers_per_shader_stage.into()
    }),
    ("workgroup_bytes", |limits| {
        limits.max_compute_workgroup_storage_size.into()
    }),
    ("workgroup_invocations", |limits| {
        limits.max_compute_invocations_per_workgroup.into()
    }),
    ("workgroups", |limits| {
        limits.max_compute_workgroups_per_dimension.into()
    }),
];

/// What becomes of adapters.
pub(crate) struct Sorted {
    /// The devices, what was rejected, and why there are none.
    pub(crate) probe: Probe,
    /// For each device, its place among what was seen.
    pub(crate) places: Vec<usize>,
}

/// Takes the adapters that can run every shader, hardware before software and of equals the one that was seen first. `apis` are those
/// that were asked.
pub(crate) fn sort(seen: &[Seen], settings: &Settings, apis: &str) -> Sorted {
    let mut kept = Vec::new();
    let mut rejected = Vec::new();
    for (place, adapter) in seen.iter().enumerate() {
        let adapter = adapter.clone().held_to(settings);
        match adapter.lacks().as_slice() {
            [] => kept.push((place, adapter)),
            lacking => rejected.push(Rejected {
                reason: format!("{}: {}", adapter.by(), lacking.join("; ")),
                name: adapter.name,
            }),
        }
    }
    kept.sort_by_key(|(_, adapter)| adapter.rank());
    let devices = kept.iter().enumerate();
    let devices = devices.map(|(index, (_, adapter))| adapter.described(index, settings));
    let absent = match (kept.is_empty(), rejected.is_empty()) {
        (false, _) => None,
        (true, false) => Some("no adapter can be used".to_owned()),
        (true, true) => Some(format!(
            "no adapter was found: no loader or driver of {apis}, or no hardware that one serves"
        )),
    };
    Sorted {
        probe: Probe {
            devices: devices.collect(),
            rejected,
            absent,
        },
        places: kept.iter().map(|(place, _)| *place).collect(),
    }
}

#[cfg(test)]
mod tests;
