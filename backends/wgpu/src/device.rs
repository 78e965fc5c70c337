//! What is there, and an opened device.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use rialto_backend::{
    Backend, Buffer, Capabilities, DeviceInfo, Driver, Error, OpCall, OpenOptions, Probe,
    Recording, TensorType,
};
use rialto_tensor::Dtype;

use crate::ops;
use crate::recording::WgpuRecording;
use crate::shader;
use crate::storage::Storage;

/// Name of the backend.
pub(crate) const NAME: &str = "wgpu";

/// How long a device may take for what was submitted.
const DEADLINE: Duration = Duration::from_secs(60);

/// Bytes that are written, or read back, at a time: what of a weight is in the host's memory once more.
const PIECE_BYTES: u64 = 16 << 20;

/// Finds adapters of Vulkan, Metal and DirectX 12.
#[derive(Clone, Copy, Debug, Default)]
pub struct WgpuDriver;

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
        Ok(Arc::new(WgpuBackend::open(&adapter, info)?))
    }
}

/// What recordings share with their device.
pub(crate) struct Shared {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) name: String,
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
    /// Errors: [`Error::Lost`] if the device has failed by now.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match locked(&self.lost).as_ref() {
            None => Ok(()),
            Some(reason) => Err(self.lost(reason)),
        }
    }

    fn lost(&self, reason: &str) -> Error {
        Error::Lost {
            device: self.name.clone(),
            reason: reason.to_owned(),
        }
    }

    /// Waits for what was submitted. Errors: [`Error::Lost`], also after a deadline.
    fn wait(&self) -> Result<(), Error> {
        let wait = wgpu::PollType::Wait {
            submission_index: None,
            timeout: Some(DEADLINE),
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
            size: bytes.max(1).next_multiple_of(4),
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
                self.device
                    .create_shader_module(wgpu::ShaderModuleDescriptor {
                        label: Some(name),
                        source: wgpu::ShaderSource::Wgsl(shader::source(name).into()),
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

/// An opened adapter.
pub struct WgpuBackend {
    info: DeviceInfo,
    capabilities: Capabilities,
    shared: Arc<Shared>,
}

impl WgpuBackend {
    fn open(adapter: &wgpu::Adapter, info: DeviceInfo) -> Result<WgpuBackend, Error> {
        let limits = wgpu::Limits {
            max_buffer_size: adapter.limits().max_buffer_size,
            max_storage_buffer_binding_size: adapter.limits().max_storage_buffer_binding_size,
            ..wgpu::Limits::default()
        };
        let largest = limits
            .max_storage_buffer_binding_size
            .min(limits.max_buffer_size);
        let request = adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("rialto"),
            required_limits: limits,
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
        let shared = Arc::new(Shared {
            device,
            queue,
            name: info.name.clone(),
            pipelines: Mutex::default(),
            modules: Mutex::default(),
            lost,
        });
        Ok(WgpuBackend {
            capabilities: Capabilities {
                ops: ops::names().map(str::to_owned).collect::<BTreeSet<_>>(),
                activations: vec![Dtype::F32, Dtype::Bf16],
                runs_block_weights: true,
                is_row_invariant: true,
                max_buffer_bytes: Some(largest),
            },
            info,
            shared,
        })
    }

    fn range(&self, buffer: &Buffer, begin: u64, length: usize) -> Result<Arc<Storage>, Error> {
        let storage = Storage::of(buffer, &self.shared)?;
        let size_bytes = buffer.tensor().size_bytes()?;
        let end = begin.saturating_add(length as u64);
        match end <= size_bytes {
            true => Ok(storage),
            false => Err(Error::BufferRange {
                tensor: buffer.tensor().clone(),
                size_bytes,
                begin,
                end,
            }),
        }
    }

    /// Whole words of a buffer.
    fn read_words(&self, source: &wgpu::Buffer, begin: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let length = bytes.len() as u64;
        let staging = self.shared.allocate(length, usage)?;
        let mut encoder = self
            .shared
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(source, begin, &staging, 0, length);
        self.shared.queue.submit([encoder.finish()]);
        let (told, mapped) = mpsc::channel();
        staging
            .slice(..)
            .map_async(wgpu::MapMode::Read, move |result| {
                // Nobody listens only where waiting has failed.
                let _ = told.send(result);
            });
        self.shared.wait()?;
        // It may be told by another thread, which waits for the same device and is not done telling yet.
        match mapped.recv_timeout(DEADLINE) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(self.shared.lost(&error.to_string())),
            Err(_) => return Err(self.shared.lost("memory was not mapped in time")),
        }
        let view = staging.slice(..).get_mapped_range();
        let view = view.map_err(|error| self.shared.lost(&error.to_string()))?;
        bytes.copy_from_slice(&view[..bytes.len()]);
        Ok(())
    }
}

impl Backend for WgpuBackend {
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&self, tensor: &TensorType) -> Result<Buffer, Error> {
        let is_known = matches!(
            tensor.dtype,
            Dtype::F32 | Dtype::Bf16 | Dtype::I32 | Dtype::F8E4m3
        );
        if !is_known {
            return Err(Error::UnsupportedElement {
                backend: NAME.to_owned(),
                what: format!("elements of {}", tensor.dtype),
            });
        }
        let bytes = tensor.size_bytes()?;
        if let Some(most_bytes) = self
            .capabilities
            .max_buffer_bytes
            .filter(|&most| bytes > most)
        {
            return Err(Error::BufferSize {
                tensor: tensor.clone(),
                most_bytes,
            });
        }
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST;
        let buffer = self.shared.allocate(bytes, usage)?;
        let storage = Storage::new(buffer, &self.shared);
        Ok(Buffer::new(tensor.clone(), Arc::new(storage)))
    }

    fn write(&self, buffer: &Buffer, offset_bytes: u64, bytes: &[u8]) -> Result<(), Error> {
        let storage = self.range(buffer, offset_bytes, bytes.len())?;
        self.shared.check()?;
        let mut begin = offset_bytes;
        for piece in bytes.chunks(PIECE_BYTES as usize) {
            let end = begin + piece.len() as u64;
            let (first, last) = (begin / 4 * 4, end.next_multiple_of(4));
            if (first, last) == (begin, end) {
                self.shared
                    .queue
                    .write_buffer(&storage.buffer, begin, piece);
            } else {
                // Of a word that is written in part, the other bytes stay.
                let mut words = vec![0; (last - first) as usize];
                self.read_words(&storage.buffer, first, &mut words)?;
                words[(begin - first) as usize..][..piece.len()].copy_from_slice(piece);
                self.shared
                    .queue
                    .write_buffer(&storage.buffer, first, &words);
            }
            begin = end;
        }
        self.shared.check()
    }

    fn read(&self, buffer: &Buffer, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let storage = self.range(buffer, offset_bytes, bytes.len())?;
        self.shared.check()?;
        let mut begin = offset_bytes;
        for piece in bytes.chunks_mut(PIECE_BYTES as usize) {
            let end = begin + piece.len() as u64;
            let (first, last) = (begin / 4 * 4, end.next_multiple_of(4));
            let mut words = vec![0; (last - first) as usize];
            self.read_words(&storage.buffer, first, &mut words)?;
            piece.copy_from_slice(&words[(begin - first) as usize..][..piece.len()]);
            begin = end;
        }
        Ok(())
    }

    fn record(&self, calls: Vec<OpCall>) -> Result<Box<dyn Recording>, Error> {
        Ok(Box::new(WgpuRecording::new(&calls, &self.shared)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads wait for one device, and any of them may be told what another waits for.
    #[test]
    fn many_threads_read_what_they_wrote() {
        let opened = WgpuDriver.open(0, &OpenOptions::default());
        let Ok(device) = opened else {
            // The conformance suite says whether there must be one.
            return;
        };
        std::thread::scope(|scope| {
            for thread in 0..8u8 {
                let device = &device;
                scope.spawn(move || {
                    let tensor = TensorType::new(Dtype::F32, [33]);
                    let buffer = device.allocate(&tensor).unwrap();
                    for round in 0..50 {
                        let bytes = [thread ^ round; 33 * 4];
                        device.write(&buffer, 0, &bytes).unwrap();
                        let mut found = [0; 33 * 4];
                        device.read(&buffer, 0, &mut found).unwrap();
                        assert_eq!(found, bytes);
                    }
                });
            }
        });
    }
}
