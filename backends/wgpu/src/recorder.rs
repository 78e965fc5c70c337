//! Dispatches of recorded calls: what is bound, in which order, and what is rounded to BF16 afterwards.

use std::ops::Range;
use std::sync::Arc;

use rialto_backend::{Buffer, Error, Operand};
use rialto_tensor::Dtype;

use crate::NAME;
use crate::launch::{Floats, Launch, Weight};
use crate::replay::Step;
use crate::shader;
use crate::shared::Shared;
use crate::storage::{Memory, Storage, f32s};

/// Elements for each of the units of a part.
pub(crate) fn times(part: &Range<u64>, each: u64) -> Range<u64> {
    part.start * each..part.end * each
}

/// What operations write their dispatches into.
pub(crate) struct Recorder {
    shared: Arc<Shared>,
    steps: Vec<Step>,
    /// Scratch of the call that is being recorded, and that of earlier calls, which is used again.
    taken: Vec<Arc<Memory>>,
    free: Vec<Arc<Memory>>,
}

impl Recorder {
    pub(crate) fn new(shared: &Arc<Shared>) -> Recorder {
        Recorder {
            shared: Arc::clone(shared),
            steps: Vec::new(),
            taken: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn floats(&self, operand: &Operand) -> Result<Floats, Error> {
        let tensor = operand.values.tensor();
        let kind = match (shader::kind(tensor.dtype), &operand.blocks) {
            (Some(kind), None) => kind,
            _ => return Err(self.unsupported(&format!("{tensor} here"))),
        };
        Ok(Floats {
            memory: self.memory(&operand.values)?,
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
            memory: self.memory(&operand.values)?,
            kind: 0,
            shape: tensor.shape.extents().to_vec(),
        })
    }

    /// A matrix, or several: F32, BF16, or codes in blocks.
    pub(crate) fn weight(&self, operand: &Operand) -> Result<Weight, Error> {
        let tensor = operand.values.tensor();
        let kind = shader::kind(tensor.dtype);
        let kind = kind.ok_or_else(|| self.unsupported(&format!("{tensor} here")))?;
        let codes = self.memory(&operand.values)?;
        let (scales, block) = match &operand.blocks {
            Some(blocks) => (Some(self.memory(&blocks.scales)?), blocks.block),
            None => (None, [1, 1]),
        };
        Ok(Weight {
            codes,
            scales,
            kind,
            block,
            shape: tensor.shape.extents().to_vec(),
        })
    }

    /// F32 memory for something between two dispatches of a call: rows of so many elements.
    pub(crate) fn scratch(&mut self, rows: u64, columns: u64) -> Result<Arc<Memory>, Error> {
        self.scratch_of(&[rows, columns])
    }

    fn scratch_of(&mut self, shape: &[u64]) -> Result<Arc<Memory>, Error> {
        let elements: u64 = shape.iter().product();
        // Not much more than is needed, and no more than can be bound where that can.
        let most = (4 * elements).min(elements.max(self.binding_bytes() / 4));
        let fits = |memory: &Arc<Memory>| {
            memory.is_one() && (elements..=most).contains(&memory.elements())
        };
        let found = (0..self.free.len())
            .filter(|&position| fits(&self.free[position]))
            .min_by_key(|&position| self.free[position].elements());
        let memory = match found {
            Some(position) => self.free.swap_remove(position),
            None => Arc::new(Memory::new(
                &self.shared,
                &f32s(shape),
                wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::INDIRECT,
            )?),
        };
        self.taken.push(Arc::clone(&memory));
        Ok(memory)
    }

    /// Numbers that are known when a call is recorded.
    pub(crate) fn table(&self, words: &[u32]) -> Result<Arc<Memory>, Error> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let memory = Memory::new(&self.shared, &f32s([words.len() as u64]), usage)?;
        let bytes: &[u8] = bytemuck::cast_slice(words);
        let mut rest = bytes;
        for (buffer, begin, length) in memory.spans(0..bytes.len() as u64) {
            let (piece, others) = rest.split_at(length as usize);
            self.shared.queue.write_buffer(buffer, begin, piece);
            rest = others;
        }
        Ok(Arc::new(memory))
    }

    /// The device's memory behind a buffer.
    pub(crate) fn memory(&self, buffer: &Buffer) -> Result<Arc<Memory>, Error> {
        Storage::of(buffer, &self.shared)
    }

    pub(crate) fn unsupported(&self, what: &str) -> Error {
        Error::UnsupportedElement {
            backend: NAME.to_owned(),
            what: what.to_owned(),
        }
    }

    /// Invocations that a workgroup of a shader has that takes any power of two.
    pub(crate) fn lanes(&self) -> u32 {
        match self.shared.limits.invocations >= 256 {
            true => 256,
            false => 128,
        }
    }

    /// How often an invocation may go round loops.
    pub(crate) fn loops(&self) -> u64 {
        self.shared.limits.loops
    }

    /// Most bytes of a binding.
    pub(crate) fn binding_bytes(&self) -> u64 {
        self.shared.limits.binding_bytes
    }

    /// How many units of so much work, about that of a multiplication and an addition, a dispatch may have.
    pub(crate) fn most(&self, work: u64) -> u64 {
        (self.shared.limits.work / work.max(1)).max(1)
    }

    /// Parts of so many units, `most` in each at most, such that what each operand has for a part can be bound. An operand has so many
    /// elements for a unit. Errors: [`Error::BufferSize`] for one whose elements for a single unit cannot be.
    pub(crate) fn parts(
        &self,
        units: u64,
        most: u64,
        operands: &[(&Memory, u64)],
    ) -> Result<Vec<Range<u64>>, Error> {
        let mut parts = Vec::new();
        let mut begin = 0;
        while begin < units {
            let mut end = units.min(begin.saturating_add(most.max(1)));
            for &(memory, each) in operands.iter().filter(|(_, each)| *each > 0) {
                let reach = memory.reach(begin * each);
                // Of what is packed, the last unit may have fewer elements.
                if reach < memory.elements() {
                    end = end.min(reach / each);
                }
                if end <= begin {
                    return Err(memory.too_large());
                }
            }
            parts.push(begin..end);
            begin = end;
        }
        Ok(parts)
    }

    /// Parts of something that is looked up in, one at least: without a unit there is nothing to be found, which is to be said, too.
    pub(crate) fn windows(
        &self,
        units: u64,
        operands: &[(&Memory, u64)],
    ) -> Result<Vec<Range<u64>>, Error> {
        let mut parts = self.parts(units, u64::MAX, operands)?;
        if parts.is_empty() {
            parts.push(0..0);
        }
        Ok(parts)
    }

    /// Where F32 results go, until [`Recorder::settle`].
    pub(crate) fn place(&mut self, out: &Buffer) -> Result<Arc<Memory>, Error> {
        let extents = out.tensor().shape.extents();
        match out.tensor().dtype {
            Dtype::Bf16 => self.scratch_of(extents),
            _ => self.memory(out),
        }
    }

    /// Rounds the results of a place, if they are BF16.
    pub(crate) fn settle(&mut self, place: &Arc<Memory>, out: &Buffer) -> Result<(), Error> {
        let tensor = out.tensor();
        if tensor.dtype != Dtype::Bf16 {
            return Ok(());
        }
        let elements: u64 = tensor.shape.extents().iter().product();
        let packed = self.memory(out)?;
        let words = elements.div_ceil(2);
        for part in self.parts(words, self.most(4), &[(place, 2), (&packed, 2)])? {
            let launch = Launch::elements("pack", &part, 4)
                .params([elements])
                .words(place, times(&part, 2))
                .words(&packed, times(&part, 2));
            self.dispatch(launch)?;
        }
        Ok(())
    }

    /// Runs `launch` for parts of units, each of which has so many elements of the result, which is the last binding; then rounds them.
    pub(crate) fn leave(
        &mut self,
        out: &Buffer,
        (units, each): (u64, u64),
        most: u64,
        operands: &[(&Memory, u64)],
        launch: impl Fn(&Range<u64>) -> Launch,
    ) -> Result<(), Error> {
        let place = self.place(out)?;
        let mut all = operands.to_vec();
        all.push((&place, each));
        for part in self.parts(units, most, &all)? {
            self.dispatch(launch(&part).words(&place, times(&part, each)))?;
        }
        self.settle(&place, out)
    }

    pub(crate) fn dispatch(&mut self, launch: Launch) -> Result<(), Error> {
        self.steps.extend(launch.into_step(&self.shared)?);
        Ok(())
    }

    /// Scratch of the call is free: dispatches run one after the other.
    pub(crate) fn end_of_call(&mut self) {
        self.free.append(&mut self.taken);
    }

    /// What was recorded.
    pub(crate) fn into_steps(self) -> Vec<Step> {
        self.steps
    }
}
