//! Dispatches, ready to be run any number of times.

use std::sync::Arc;

use rialto_backend::{Counts, Error};

use crate::allocation::Allocation;
use crate::shader::PARAMS;
use crate::shared::Shared;

/// Workgroups along the first axis before the second begins.
pub(crate) const FOLD: u64 = 65_535;

/// Bytes from the params of a dispatch to those of the next: what a binding of a uniform begins at a multiple of.
const STRIDE: u64 = 256;

/// Dispatches' work, in that of the largest one, before they are submitted: a display may be waiting for the same device.
const SUBMITTED: u64 = 4;

/// How many workgroups.
pub(crate) enum Groups {
    /// So many.
    Are(u64),
    /// Three words of a buffer say it, from a byte on.
    At(Arc<Allocation>, u64),
}

/// A dispatch with what is bound.
pub(crate) struct Step {
    pub(crate) shader: &'static str,
    pub(crate) pipeline: Arc<wgpu::ComputePipeline>,
    /// Words of the uniform.
    pub(crate) params: Vec<u32>,
    /// Buffer, first byte and bytes, by number of binding, from 1.
    pub(crate) bindings: Vec<(Arc<Allocation>, u64, u64)>,
    pub(crate) groups: Groups,
    pub(crate) work: u64,
}

struct Dispatch {
    pipeline: Arc<wgpu::ComputePipeline>,
    bindings: wgpu::BindGroup,
    groups: Groups,
    /// What is bound, whose bytes count as long as the recording has it.
    _bound: Vec<Arc<Allocation>>,
    /// Whether it is the last of a submit.
    ends: bool,
}

/// Dispatches in order.
pub(crate) struct Replay {
    shared: Arc<Shared>,
    dispatches: Vec<Dispatch>,
    _uniform: Allocation,
    counts: Counts,
}

impl Replay {
    /// Makes bind groups. Errors: [`Error::Memory`] for the params.
    pub(crate) fn new(steps: Vec<Step>, shared: &Arc<Shared>) -> Result<Replay, Error> {
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let bytes = 4 * PARAMS as u64 * 4;
        let uniform = shared.allocate(STRIDE * steps.len() as u64 + bytes, usage)?;
        let mut params = vec![0u32; steps.len() * STRIDE as usize / 4];
        for (step, params) in steps.iter().zip(params.chunks_mut(STRIDE as usize / 4)) {
            params[..step.params.len()].copy_from_slice(&step.params);
        }
        let write = bytemuck::cast_slice(&params);
        shared.queue.write_buffer(&uniform, 0, write);
        let mut counts = Counts {
            dispatches: steps.len() as u64,
            ..Counts::default()
        };
        let mut work = 0;
        let mut dispatches = Vec::with_capacity(steps.len());
        let most = SUBMITTED * shared.limits.work;
        for (number, step) in (0..).zip(steps) {
            counts.bound_bytes += step.bindings.iter().map(|(.., size)| size).sum::<u64>();
            let own = wgpu::BufferBinding {
                buffer: &uniform,
                offset: STRIDE * number,
                size: wgpu::BufferSize::new(bytes),
            };
            let others = step
                .bindings
                .iter()
                .map(|(buffer, offset, size)| wgpu::BufferBinding {
                    buffer,
                    offset: *offset,
                    size: wgpu::BufferSize::new(*size),
                });
            let entries: Vec<wgpu::BindGroupEntry<'_>> = (0..)
                .zip(std::iter::once(own).chain(others))
                .map(|(binding, bound)| wgpu::BindGroupEntry {
                    binding,
                    resource: wgpu::BindingResource::Buffer(bound),
                })
                .collect();
            let bindings = shared.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(step.shader),
                layout: &step.pipeline.get_bind_group_layout(0),
                entries: &entries,
            });
            work += step.work;
            let ends = work >= most;
            if ends {
                (work, counts.submits) = (0, counts.submits + 1);
            }
            dispatches.push(Dispatch {
                pipeline: step.pipeline,
                bindings,
                groups: step.groups,
                _bound: step.bindings.into_iter().map(|(bound, ..)| bound).collect(),
                ends,
            });
        }
        if dispatches.last().is_some_and(|last| !last.ends) {
            counts.submits += 1;
        }
        Ok(Replay {
            shared: Arc::clone(shared),
            dispatches,
            _uniform: uniform,
            counts,
        })
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Submits all of it. A command buffer of this API can be submitted once: it is encoded anew, from bind groups that stay. Errors:
    /// [`Error::Lost`], [`Error::Deadline`].
    pub(crate) fn run(&self) -> Result<(), Error> {
        self.shared.check()?;
        self.shared.guarded(0, || self.submit())
    }

    fn submit(&self) -> Result<(), Error> {
        for dispatches in self.dispatches.split_inclusive(|dispatch| dispatch.ends) {
            let mut encoder = self
                .shared
                .device
                .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for dispatch in dispatches {
                pass.set_pipeline(&dispatch.pipeline);
                pass.set_bind_group(0, &dispatch.bindings, &[]);
                match &dispatch.groups {
                    Groups::Are(count) => {
                        let (x, y) = ((*count).min(FOLD), count.div_ceil(FOLD));
                        pass.dispatch_workgroups(x as u32, y as u32, 1);
                    }
                    Groups::At(buffer, begin) => pass.dispatch_workgroups_indirect(buffer, *begin),
                }
            }
            drop(pass);
            self.shared.submit([encoder.finish()])?;
        }
        Ok(())
    }
}
