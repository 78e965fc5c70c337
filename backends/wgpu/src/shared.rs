//! What an opened device and its recordings share: queue, memory, pipelines, and whether it has failed.

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rialto_backend::{Budget, DeviceInfo, DeviceKind, Error};

use crate::allocation::Allocation;
use crate::settings::Settings;
use crate::shader;
use crate::wait::{self, DRIVER_DEADLINE, done, within};

/// What a device allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) binding_bytes: u64,
    pub(crate) buffer_bytes: u64,
    pub(crate) invocations: u32,
    /// Multiplications and additions of a dispatch, so that none takes longer than a watchdog waits, which is two seconds.
    pub(crate) work: u64,
    /// How often an invocation may go round loops, all of them together.
    pub(crate) loops: u64,
}

impl Limits {
    /// What can be bound wherever it begins.
    pub(crate) fn piece_bytes(&self) -> u64 {
        self.binding_bytes - 256
    }
}

/// How many submissions hardware may be behind: enough that it never waits for the host. Software computes where the host does, and
/// Mesa's waits inside of a submission until the one before is done, for ever if need be.
const AHEAD: usize = 8;

/// What recordings share with their device.
pub(crate) struct Shared {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: Queue,
    pub(crate) name: String,
    pub(crate) limits: Limits,
    pub(crate) deadline: Duration,
    pub(crate) budget: Arc<Budget>,
    edits: Vec<(&'static str, &'static str, &'static str)>,
    /// By shader and constants.
    pipelines: Mutex<HashMap<PipelineKey, Arc<wgpu::ComputePipeline>>>,
    modules: Mutex<HashMap<&'static str, wgpu::ShaderModule>>,
    /// What was submitted and perhaps is not done, the oldest first.
    submitted: Mutex<VecDeque<wgpu::SubmissionIndex>>,
    /// How many of these there may be when another is submitted.
    ahead: usize,
    /// The first failure after which the device is not used again: what it said when it was lost, or that it was not done in time.
    failed: Arc<Mutex<Option<Error>>>,
}

/// A queue, until its device ends.
pub(crate) struct Queue(Option<wgpu::Queue>);

impl Deref for Queue {
    type Target = wgpu::Queue;

    fn deref(&self) -> &wgpu::Queue {
        self.0.as_ref().expect("it is there until the device ends")
    }
}

type PipelineKey = (&'static str, Vec<(String, u32)>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Opens an adapter, which was compared with what shaders need before. Errors: what the driver says.
    pub(crate) fn open(
        adapter: wgpu::Adapter,
        info: &DeviceInfo,
        settings: &Settings,
    ) -> Result<Shared, String> {
        let given = adapter.limits();
        // What WebGPU promises, or less where an adapter has less; and larger bindings and buffers.
        let required = wgpu::Limits {
            max_buffer_size: given.max_buffer_size,
            max_storage_buffer_binding_size: given.max_storage_buffer_binding_size,
            ..wgpu::Limits::default().or_worse_values_from(&given)
        };
        let buffer_bytes = settings.buffer_bytes.unwrap_or(u64::MAX);
        let binding_bytes = settings.binding_bytes.unwrap_or(u64::MAX);
        let buffer_bytes = buffer_bytes.min(required.max_buffer_size) / 256 * 256;
        // What the slowest of a kind does in half a second.
        let work = match info.kind {
            DeviceKind::Software => 1 << 28,
            _ => 1 << 35,
        };
        // Mesa's end loops after 65,535 rounds and go on as if nothing were amiss.
        let loops = match info.kind {
            DeviceKind::Software => 60_000,
            _ => u32::MAX.into(),
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
                .min(required.max_compute_invocations_per_workgroup)
                .min(required.max_compute_workgroup_size_x),
            loops,
        };
        let request = move || {
            done(adapter.request_device(&wgpu::DeviceDescriptor {
                label: Some("rialto"),
                required_limits: required,
                ..wgpu::DeviceDescriptor::default()
            }))
        };
        let (device, queue) = within(DRIVER_DEADLINE, request)
            .map_err(|unanswered| format!("its driver {unanswered}"))?
            .map_err(|error| error.to_string())?;
        let failed = Arc::new(Mutex::new(None));
        let lost = {
            let (failed, name) = (Arc::clone(&failed), info.name.clone());
            move |reason: String| {
                locked(&failed).get_or_insert(Error::Lost {
                    device: name.clone(),
                    reason,
                });
            }
        };
        // Errors that no scope waits for: nobody can say which results they spoil.
        let by_error = lost.clone();
        device.set_device_lost_callback(move |reason, message| {
            lost(format!("{reason:?}: {message}"));
        });
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            by_error(error.to_string());
        }));
        Ok(Shared {
            device,
            queue: Queue(Some(queue)),
            name: info.name.clone(),
            limits,
            deadline: settings.deadline,
            budget: Budget::new(settings.memory_bytes),
            edits: settings.edits.clone(),
            pipelines: Mutex::default(),
            modules: Mutex::default(),
            submitted: Mutex::default(),
            ahead: match info.kind {
                DeviceKind::Software => 0,
                _ => AHEAD,
            },
            failed,
        })
    }

    /// Errors: [`Error::Lost`] or [`Error::Deadline`] if the device has failed by now.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match locked(&self.failed).as_ref() {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// The device is lost, and not used again.
    pub(crate) fn lost(&self, reason: &str) -> Error {
        self.fail(Error::Lost {
            device: self.name.clone(),
            reason: reason.to_owned(),
        })
    }

    /// The device has failed for good: from now on, this is what every call says, or what an earlier failure was.
    pub(crate) fn fail(&self, error: Error) -> Error {
        locked(&self.failed).get_or_insert(error).clone()
    }

    /// The device was not done by the deadline, and is not used again.
    pub(crate) fn late(&self) -> Error {
        self.fail(Error::Deadline {
            device: self.name.clone(),
            deadline: self.deadline,
        })
    }

    /// Submits commands, when not too much is before them. Errors: those of [`Shared::wait`].
    pub(crate) fn submit(
        &self,
        commands: impl IntoIterator<Item = wgpu::CommandBuffer>,
    ) -> Result<(), Error> {
        // Held while waiting: whoever comes next would wait for the same.
        let mut submitted = locked(&self.submitted);
        self.check()?;
        while submitted.len() > self.ahead {
            let oldest = submitted.pop_front();
            self.wait_for(oldest)?;
        }
        submitted.push_back(self.queue.submit(commands));
        Ok(())
    }

    /// Waits for all that was submitted. Errors: [`Error::Lost`], [`Error::Deadline`].
    pub(crate) fn wait(&self) -> Result<(), Error> {
        self.wait_for(None)
    }

    fn wait_for(&self, submission: Option<wgpu::SubmissionIndex>) -> Result<(), Error> {
        match wait::poll(&self.device, submission, self.deadline) {
            Ok(()) => self.check(),
            Err(Some(wgpu::PollError::Timeout)) => Err(self.late()),
            Err(Some(error)) => Err(self.lost(&error.to_string())),
            Err(None) => Err(self.lost("its driver failed while it was waited for")),
        }
    }

    /// Loses the device, as a driver would: tests see what becomes of it.
    pub(crate) fn lose(&self) {
        self.device.destroy();
        // A device that was destroyed says so when its queue is empty, and to whoever polls.
        let _ = self.wait();
    }

    /// Does something that the device may refuse, and that needs so many bytes. Errors: those of `call`, [`Error::Memory`],
    /// [`Error::Refused`], and [`Error::Lost`] or [`Error::Deadline`] if the device has failed by then, whatever `call` says: of a
    /// lost device wgpu gives handles that do nothing, and no error.
    pub(crate) fn guarded<T>(
        &self,
        bytes: u64,
        call: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        use wgpu::ErrorFilter::{Internal, OutOfMemory, Validation};
        let scopes =
            [OutOfMemory, Internal, Validation].map(|kind| self.device.push_error_scope(kind));
        let made = call();
        let errors = scopes.into_iter().rev().map(|scope| done(scope.pop()));
        let errors: Vec<wgpu::Error> = errors.flatten().flatten().collect();
        self.check()?;
        let made = made?;
        match errors.last() {
            None => Ok(made),
            Some(error) => Err(self.refusal(error, bytes)),
        }
    }

    /// What the device says of a call that needs so many bytes.
    fn refusal(&self, error: &wgpu::Error, bytes: u64) -> Error {
        match error {
            wgpu::Error::OutOfMemory { .. } => self.out_of_memory(bytes),
            error => Error::Refused {
                device: self.name.clone(),
                reason: error.to_string(),
            },
        }
    }

    fn out_of_memory(&self, bytes: u64) -> Error {
        Error::Memory {
            device: self.name.clone(),
            bytes,
            used_bytes: Some(self.budget.held()),
            most_bytes: self.budget.most(),
        }
    }

    /// Bytes for elements: whole words, and at least one, so that it can be bound. They count as long as the allocation lives.
    /// Errors: [`Error::Memory`], and those of [`Shared::guarded`].
    pub(crate) fn allocate(
        &self,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<Allocation, Error> {
        let size = bytes.max(1).next_multiple_of(16);
        let share = self.budget.share(size);
        let share = share.ok_or_else(|| self.out_of_memory(size))?;
        let buffer = self.create(size, usage)?;
        Ok(Allocation::new(buffer, share))
    }

    /// A buffer that does not count: what the host reads through is the host's memory. Errors: as [`Shared::allocate`].
    pub(crate) fn create(
        &self,
        size: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer, Error> {
        self.guarded(size, || {
            Ok(self.device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size,
                usage,
                mapped_at_creation: false,
            }))
        })
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

/// Whoever is last, the device, a buffer or a recording, does not wait longer than the deadline.
impl Drop for Shared {
    fn drop(&mut self) {
        let patience = match self.check() {
            Ok(()) => self.deadline,
            Err(_) => Duration::ZERO,
        };
        let is_idle = wait::poll(&self.device, None, patience).is_ok();
        if let Some(queue) = self.queue.0.take() {
            wait::end(queue, is_idle);
        }
    }
}

#[cfg(test)]
mod tests;
