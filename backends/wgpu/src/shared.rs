//! What an opened device and its recordings share: queue, pipelines, and whether it was lost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rialto_backend::{DeviceInfo, Error};

use crate::device::NAME;
use crate::settings::Settings;
use crate::shader;

/// What a device allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) binding_bytes: u64,
    pub(crate) buffer_bytes: u64,
    pub(crate) invocations: u32,
    /// Multiplications and additions of a dispatch, so that none takes longer than a watchdog waits, which is two seconds.
    pub(crate) work: u64,
}

impl Limits {
    /// What can be bound wherever it begins.
    pub(crate) fn piece_bytes(&self) -> u64 {
        self.binding_bytes - 256
    }
}

/// What recordings share with their device.
pub(crate) struct Shared {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) name: String,
    pub(crate) limits: Limits,
    pub(crate) deadline: Duration,
    edits: Vec<(&'static str, &'static str, &'static str)>,
    /// By shader and constants.
    pipelines: Mutex<HashMap<PipelineKey, Arc<wgpu::ComputePipeline>>>,
    modules: Mutex<HashMap<&'static str, wgpu::ShaderModule>>,
    /// What the device said when it was lost, or of an error that nobody waited for.
    lost: Arc<Mutex<Option<String>>>,
}

type PipelineKey = (&'static str, Vec<(String, u32)>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Opens an adapter. Errors: [`Error::NoDevice`].
    pub(crate) fn open(
        adapter: &wgpu::Adapter,
        info: &DeviceInfo,
        settings: &Settings,
    ) -> Result<Shared, Error> {
        let given = adapter.limits();
        let core = wgpu::Limits::default();
        // What WebGPU promises, and larger bindings and buffers.
        let required = wgpu::Limits {
            max_buffer_size: given.max_buffer_size,
            max_storage_buffer_binding_size: given.max_storage_buffer_binding_size,
            ..core.clone()
        };
        let buffer_bytes = settings.buffer_bytes.unwrap_or(u64::MAX);
        let binding_bytes = settings.binding_bytes.unwrap_or(u64::MAX);
        let buffer_bytes = buffer_bytes.min(required.max_buffer_size) / 256 * 256;
        // What the slowest of a kind does in half a second.
        let work = match adapter.get_info().device_type {
            wgpu::DeviceType::Cpu => 1 << 28,
            _ => 1 << 35,
        };
        let limits = Limits {
            buffer_bytes,
            binding_bytes: binding_bytes
                .min(buffer_bytes)
                .min(required.max_storage_buffer_binding_size)
                / 256
                * 256,
            work: settings
                .dispatch_work
                .map_or(work, |most| most.clamp(1, work)),
            invocations: settings
                .invocations
                .unwrap_or(u32::MAX)
                .min(required.max_compute_invocations_per_workgroup),
        };
        let request = adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("rialto"),
            required_limits: required,
            ..wgpu::DeviceDescriptor::default()
        });
        let (device, queue) = pollster::block_on(request).map_err(|error| Error::NoDevice {
            backend: NAME.to_owned(),
            index: info.index,
            reason: error.to_string(),
        })?;
        let lost = Arc::new(Mutex::new(None));
        let (by_loss, by_error) = (Arc::clone(&lost), Arc::clone(&lost));
        device.set_device_lost_callback(move |reason, message| {
            locked(&by_loss).get_or_insert(format!("{reason:?}: {message}"));
        });
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            locked(&by_error).get_or_insert(error.to_string());
        }));
        Ok(Shared {
            device,
            queue,
            name: info.name.clone(),
            limits,
            deadline: settings.deadline,
            edits: settings.edits.clone(),
            pipelines: Mutex::default(),
            modules: Mutex::default(),
            lost,
        })
    }

    /// Errors: [`Error::Lost`] if the device has failed by now.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match locked(&self.lost).as_ref() {
            None => Ok(()),
            Some(reason) => Err(self.lost(reason)),
        }
    }

    pub(crate) fn lost(&self, reason: &str) -> Error {
        Error::Lost {
            device: self.name.clone(),
            reason: reason.to_owned(),
        }
    }

    /// Waits for what was submitted. Errors: [`Error::Lost`], also after a deadline.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        let wait = wgpu::PollType::Wait {
            submission_index: None,
            timeout: Some(self.deadline),
        };
        let polled = self.device.poll(wait);
        polled.map_err(|error| self.lost(&error.to_string()))?;
        self.check()
    }

    /// Bytes for elements: whole words, and at least one, so that it can be bound. Errors: [`Error::Memory`].
    pub(crate) fn allocate(
        &self,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer, Error> {
        let out_of_memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes.max(1).next_multiple_of(16),
            usage,
            mapped_at_creation: false,
        });
        match pollster::block_on(out_of_memory.pop()) {
            None => Ok(buffer),
            Some(_) => Err(Error::Memory {
                device: self.name.clone(),
                bytes,
            }),
        }
    }

    /// The pipeline of a shader with constants, which is made once.
    pub(crate) fn pipeline(
        &self,
        name: &'static str,
        constants: &[(String, u32)],
    ) -> Arc<wgpu::ComputePipeline> {
        let key = (name, constants.to_vec());
        let mut pipelines = locked(&self.pipelines);
        let made = pipelines.entry(key).or_insert_with(|| {
            let mut modules = locked(&self.modules);
            let module = modules.entry(name).or_insert_with(|| {
                let mut text = shader::source(name);
                for (_, part, other) in self.edits.iter().filter(|edit| edit.0 == name) {
                    assert!(text.contains(part), "shader {name} has no {part:?}");
                    text = text.replacen(part, other, 1);
                }
                self.device
                    .create_shader_module(wgpu::ShaderModuleDescriptor {
                        label: Some(name),
                        source: wgpu::ShaderSource::Wgsl(text.into()),
                    })
            });
            let constants: Vec<(&str, f64)> = constants
                .iter()
                .map(|(name, value)| (name.as_str(), f64::from(*value)))
                .collect();
            Arc::new(
                self.device
                    .create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                        label: Some(name),
                        layout: None,
                        module,
                        entry_point: Some("main"),
                        compilation_options: wgpu::PipelineCompilationOptions {
                            constants: &constants,
                            ..wgpu::PipelineCompilationOptions::default()
                        },
                        cache: None,
                    }),
            )
        });
        Arc::clone(made)
    }
}
