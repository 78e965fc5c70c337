//! Dispatches of recorded calls: what is bound, in which order, and what is rounded to BF16 afterwards.

use std::sync::Arc;

use rialto_backend::{Buffer, Error, OpCall, Operand, Recording};
use rialto_tensor::Dtype;

use crate::device::NAME;
use crate::ops;
use crate::shader::{self, E4M3, KIND};
use crate::shared::Shared;
use crate::storage::Storage;

/// Words of the uniform buffer of a dispatch.
const PARAMS: usize = 32;

/// Workgroups along the first axis before the second begins.
const FOLD: u64 = 65_535;

/// Elements of a workgroup where each invocation has one.
pub(crate) const GROUP: u64 = 64;

/// A dispatch that is being put together.
pub(crate) struct Launch {
    shader: &'static str,
    constants: Vec<(String, u32)>,
    params: Vec<u32>,
    /// By number of binding, from 1.
    bindings: Vec<wgpu::Buffer>,
    groups: u64,
}

impl Launch {
    /// A shader with so many workgroups.
    pub(crate) fn new(shader: &'static str, groups: u64) -> Launch {
        Launch {
            shader,
            constants: Vec::new(),
            params: Vec::new(),
            bindings: Vec::new(),
            groups,
        }
    }

    /// The sizes, in order.
    pub(crate) fn params(mut self, params: impl IntoIterator<Item = u64>) -> Launch {
        // Sizes of what a device holds: elements are below 2^32, since a binding's bytes are.
        self.params
            .extend(params.into_iter().map(|value| value as u32));
        self
    }

    /// Floats that the shader calls `name`.
    pub(crate) fn floats(mut self, name: &str, floats: &Floats) -> Launch {
        self.constants.push((format!("{name}_{KIND}"), floats.kind));
        self.bindings.push(floats.buffer.clone());
        self
    }

    /// A matrix that the shader calls `name`: two bindings.
    pub(crate) fn weight(mut self, name: &str, weight: &Weight) -> Launch {
        self.constants.push((format!("{name}_{KIND}"), weight.kind));
        self.bindings
            .extend([weight.codes.clone(), weight.scales.clone()]);
        self
    }

    /// A constant of the shader.
    pub(crate) fn constant(mut self, name: &str, value: u32) -> Launch {
        self.constants.push((name.to_owned(), value));
        self
    }

    /// A buffer as it is.
    pub(crate) fn buffer(mut self, buffer: &wgpu::Buffer) -> Launch {
        self.bindings.push(buffer.clone());
        self
    }
}

/// A buffer of F32 or BF16 elements.
#[derive(Clone)]
pub(crate) struct Floats {
    buffer: wgpu::Buffer,
    kind: u32,
    /// Extents.
    pub(crate) shape: Vec<u64>,
}

impl Floats {
    /// F32 elements that another dispatch leaves.
    pub(crate) fn scratch(buffer: &wgpu::Buffer, shape: Vec<u64>) -> Floats {
        Floats {
            buffer: buffer.clone(),
            kind: 0,
            shape,
        }
    }

    /// The device's memory.
    pub(crate) fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }

    /// Elements of all axes.
    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Elements of the last axis.
    pub(crate) fn last(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }
}

/// A matrix `[.., n, k]` in any encoding.
#[derive(Clone)]
pub(crate) struct Weight {
    codes: wgpu::Buffer,
    scales: wgpu::Buffer,
    kind: u32,
    block: [u64; 2],
    /// Extents.
    pub(crate) shape: Vec<u64>,
}

impl Weight {
    /// Rows and columns of each matrix, rows and columns of a block: what a shader's `NAME_shape` gives.
    pub(crate) fn sizes(&self) -> [u64; 4] {
        let [.., n, k] = self.shape.as_slice() else {
            unreachable!("a weight has two axes at least");
        };
        // A block larger than the matrix is the matrix.
        let [rows, columns] = self.block;
        [*n, *k, rows.min((*n).max(1)), columns.min((*k).max(1))]
    }

    /// Whether four columns from a multiple of four on are whole words, with one scale.
    pub(crate) fn has_fours(&self) -> bool {
        let [_, k, _, columns] = self.sizes();
        let is_in_blocks = self.kind == E4M3;
        k.is_multiple_of(4) && (!is_in_blocks || columns.is_multiple_of(4))
    }
}

/// A dispatch, ready to be run.
struct Dispatch {
    pipeline: Arc<wgpu::ComputePipeline>,
    bindings: wgpu::BindGroup,
    groups: [u32; 3],
}

/// What operations write their dispatches into.
pub(crate) struct Recorder {
    shared: Arc<Shared>,
    dispatches: Vec<Dispatch>,
}

impl Recorder {
    pub(crate) fn floats(&self, operand: &Operand) -> Result<Floats, Error> {
        let tensor = operand.values.tensor();
        let kind = match (shader::kind(tensor.dtype), &operand.blocks) {
            (Some(kind), None) => kind,
            _ => return Err(self.unsupported(&format!("{tensor} here"))),
        };
        Ok(Floats {
            buffer: self.buffer(&operand.values)?,
            kind,
            shape: tensor.shape.extents().to_vec(),
        })
    }

    /// Elements that are only copied: those of [`Recorder::floats`], and I32.
    pub(crate) fn words(&self, operand: &Operand) -> Result<Floats, Error> {
        let tensor = operand.values.tensor();
        if tensor.dtype != Dtype::I32 {
            return self.floats(operand);
        }
        Ok(Floats {
            buffer: self.buffer(&operand.values)?,
            kind: 0,
            shape: tensor.shape.extents().to_vec(),
        })
    }

    /// A matrix, or several: F32, BF16, or codes in blocks.
    pub(crate) fn weight(&self, operand: &Operand) -> Result<Weight, Error> {
        let tensor = operand.values.tensor();
        let kind = shader::kind(tensor.dtype);
        let kind = kind.ok_or_else(|| self.unsupported(&format!("{tensor} here")))?;
        let codes = self.buffer(&operand.values)?;
        let (scales, block) = match &operand.blocks {
            Some(blocks) => (self.buffer(&blocks.scales)?, blocks.block),
            // Bound, and not read.
            None => (codes.clone(), [1, 1]),
        };
        Ok(Weight {
            codes,
            scales,
            kind,
            block,
            shape: tensor.shape.extents().to_vec(),
        })
    }

    /// F32 memory for something between two dispatches.
    pub(crate) fn scratch(&self, elements: u64) -> Result<wgpu::Buffer, Error> {
        self.shared
            .allocate(4 * elements, wgpu::BufferUsages::STORAGE)
    }

    /// Numbers that are known when a call is recorded.
    pub(crate) fn table(&self, words: &[u32]) -> Result<wgpu::Buffer, Error> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        // At least one element of what a shader may take it for.
        let bytes = (4 * words.len() as u64).max(16);
        let buffer = self.shared.allocate(bytes, usage)?;
        self.shared
            .queue
            .write_buffer(&buffer, 0, bytemuck::cast_slice(words));
        Ok(buffer)
    }

    /// The device's memory behind a buffer.
    pub(crate) fn buffer(&self, buffer: &Buffer) -> Result<wgpu::Buffer, Error> {
        Ok(Storage::of(buffer, &self.shared)?.buffer.clone())
    }

    pub(crate) fn unsupported(&self, what: &str) -> Error {
        Error::UnsupportedElement {
            backend: NAME.to_owned(),
            what: what.to_owned(),
        }
    }

    /// Runs `launch` with the place for its F32 results as the last binding. Results in BF16 are rounded by a dispatch after it.
    pub(crate) fn leave(&mut self, launch: Launch, out: &Buffer) -> Result<(), Error> {
        let place = self.place(out)?;
        self.dispatch(launch.buffer(&place))?;
        self.settle(&place, out)
    }

    /// Where F32 results go, until [`Recorder::settle`].
    pub(crate) fn place(&self, out: &Buffer) -> Result<wgpu::Buffer, Error> {
        match out.tensor().dtype {
            Dtype::Bf16 => self.scratch(out.tensor().shape.extents().iter().product()),
            _ => self.buffer(out),
        }
    }

    /// Rounds the results of a place, if they are BF16.
    pub(crate) fn settle(&mut self, place: &wgpu::Buffer, out: &Buffer) -> Result<(), Error> {
        let tensor = out.tensor();
        if tensor.dtype != Dtype::Bf16 {
            return Ok(());
        }
        let elements: u64 = tensor.shape.extents().iter().product();
        let pack = Launch::new("pack", elements.div_ceil(2 * GROUP));
        let packed = self.buffer(out)?;
        self.dispatch(pack.params([elements]).buffer(place).buffer(&packed))
    }

    pub(crate) fn dispatch(&mut self, launch: Launch) -> Result<(), Error> {
        if launch.groups == 0 {
            return Ok(());
        }
        let pipeline = self.shared.pipeline(launch.shader, &launch.constants);
        let mut params = launch.params;
        params.resize(PARAMS, 0);
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let uniform = self.shared.allocate(4 * PARAMS as u64, usage)?;
        self.shared
            .queue
            .write_buffer(&uniform, 0, bytemuck::cast_slice(&params));
        let buffers = std::iter::once(&uniform).chain(&launch.bindings);
        let entries: Vec<wgpu::BindGroupEntry<'_>> = (0..)
            .zip(buffers)
            .map(|(binding, buffer)| wgpu::BindGroupEntry {
                binding,
                resource: buffer.as_entire_binding(),
            })
            .collect();
        let bindings = self
            .shared
            .device
            .create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(launch.shader),
                layout: &pipeline.get_bind_group_layout(0),
                entries: &entries,
            });
        let groups = [launch.groups.min(FOLD), launch.groups.div_ceil(FOLD), 1];
        self.dispatches.push(Dispatch {
            pipeline,
            bindings,
            groups: groups.map(|count| count as u32),
        });
        Ok(())
    }
}

/// A list of calls on one device.
pub(crate) struct WgpuRecording {
    shared: Arc<Shared>,
    dispatches: Vec<Dispatch>,
}

impl WgpuRecording {
    pub(crate) fn new(calls: &[OpCall], shared: &Arc<Shared>) -> Result<WgpuRecording, Error> {
        let mut recorder = Recorder {
            shared: Arc::clone(shared),
            dispatches: Vec::new(),
        };
        let invalid = shared
            .device
            .push_error_scope(wgpu::ErrorFilter::Validation);
        for call in calls {
            ops::record(call, &mut recorder)?;
        }
        if let Some(error) = pollster::block_on(invalid.pop()) {
            return Err(Error::Lost {
                device: shared.name.clone(),
                reason: format!("a call could not be recorded: {error}"),
            });
        }
        Ok(WgpuRecording {
            shared: Arc::clone(shared),
            dispatches: recorder.dispatches,
        })
    }
}

impl Recording for WgpuRecording {
    fn replay(&mut self) -> Result<(), Error> {
        self.shared.check()?;
        let mut encoder = self
            .shared
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        for dispatch in &self.dispatches {
            pass.set_pipeline(&dispatch.pipeline);
            pass.set_bind_group(0, &dispatch.bindings, &[]);
            let [x, y, z] = dispatch.groups;
            pass.dispatch_workgroups(x, y, z);
        }
        drop(pass);
        self.shared.queue.submit([encoder.finish()]);
        self.shared.check()
    }
}
