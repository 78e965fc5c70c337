//! An opened device.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, mpsc};

use rialto_backend::{
    Backend, Buffer, Capabilities, DeviceInfo, Error, OpCall, Recording, TensorType,
};
use rialto_tensor::Dtype;

use crate::NAME;
use crate::ops;
use crate::recording::WgpuRecording;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::storage::{Memory, Storage};

/// Bytes that are written, or read back, at a time: what of a weight is in the host's memory once more.
const PIECE_BYTES: u64 = 16 << 20;

/// Bytes that are written before the device is waited for.
const STAGED_BYTES: u64 = 4 * PIECE_BYTES;

/// An opened adapter.
pub struct WgpuBackend {
    info: DeviceInfo,
    capabilities: Capabilities,
    shared: Arc<Shared>,
    /// Bytes written since it was last waited for because of them.
    staged: AtomicU64,
    /// Whoever writes a part of a word reads it, and writes the whole of it: nobody else writes meanwhile.
    words: RwLock<()>,
}

impl WgpuBackend {
    pub(crate) fn open(
        adapter: wgpu::Adapter,
        info: DeviceInfo,
        settings: &Settings,
    ) -> Result<WgpuBackend, String> {
        let shared = Arc::new(Shared::open(adapter, &info, settings)?);
        Ok(WgpuBackend {
            capabilities: Capabilities {
                ops: ops::names().map(str::to_owned).collect::<BTreeSet<_>>(),
                activations: vec![Dtype::F32, Dtype::Bf16],
                runs_block_weights: true,
                is_row_invariant: true,
                max_piece_bytes: Some(shared.limits.piece_bytes()),
            },
            info,
            shared,
            staged: AtomicU64::new(0),
            words: RwLock::default(),
        })
    }

    /// Loses the device, as if its driver had failed: tests see what becomes of it, and of others.
    #[doc(hidden)]
    pub fn lose(&self) {
        self.shared.lose();
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    fn range(&self, buffer: &Buffer, begin: u64, length: usize) -> Result<Arc<Memory>, Error> {
        let memory = Storage::of(buffer, &self.shared)?;
        let size_bytes = buffer.tensor().size_bytes()?;
        let end = begin.saturating_add(length as u64);
        match end <= size_bytes {
            true => Ok(memory),
            false => Err(Error::BufferRange {
                tensor: buffer.tensor().clone(),
                size_bytes,
                begin,
                end,
            }),
        }
    }

    /// Whole words into a buffer. wgpu has a copy of them until something is submitted and done, which while a model is loaded, or
    /// experts are brought, would be all of them: so it is waited for now and then.
    fn write_words(&self, target: &wgpu::Buffer, begin: u64, words: &[u8]) -> Result<(), Error> {
        let more = words.len() as u64;
        self.shared.guarded(more, || {
            self.shared.queue.write_buffer(target, begin, words);
            Ok(())
        })?;
        if self.staged.fetch_add(more, Ordering::Relaxed) + more < STAGED_BYTES {
            return Ok(());
        }
        self.staged.store(0, Ordering::Relaxed);
        self.shared.guarded(more, || self.shared.submit([]))?;
        self.shared.wait()
    }

    /// Whole words of a buffer.
    fn read_words(&self, source: &wgpu::Buffer, begin: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let length = bytes.len() as u64;
        let staging = self.shared.create(length, usage)?;
        let (told, mapped) = mpsc::channel();
        self.shared.guarded(length, || {
            let mut encoder = self
                .shared
                .device
                .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.copy_buffer_to_buffer(source, begin, &staging, 0, length);
            self.shared.submit([encoder.finish()])?;
            staging
                .slice(..)
                .map_async(wgpu::MapMode::Read, move |result| {
                    // Nobody listens only where waiting has failed.
                    let _ = told.send(result);
                });
            Ok(())
        })?;
        self.shared.wait()?;
        self.take_mapped(&staging, &mapped, bytes)
    }

    /// Bytes of a buffer of which is told when it is mapped. Errors: [`Error::Lost`] or [`Error::Deadline`] if it is not: the device
    /// was done, so what it says of nothing else is to be trusted.
    fn take_mapped(
        &self,
        staging: &wgpu::Buffer,
        mapped: &mpsc::Receiver<Result<(), wgpu::BufferAsyncError>>,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        // It may be told by another thread, which waits for the same device and is not done telling yet.
        match mapped.recv_timeout(self.shared.deadline) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(self.shared.lost(&error.to_string())),
            Err(_) => return Err(self.shared.late()),
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
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST;
        let memory = Memory::new(&self.shared, tensor, usage)?;
        let storage = Storage::new(memory, &self.shared);
        Ok(Buffer::new(tensor.clone(), Arc::new(storage)))
    }

    fn write(&self, buffer: &Buffer, offset_bytes: u64, bytes: &[u8]) -> Result<(), Error> {
        let memory = self.range(buffer, offset_bytes, bytes.len())?;
        self.shared.check()?;
        let mut rest = bytes;
        for (buffer, begin, length) in pieces(&memory, offset_bytes, bytes.len()) {
            let (piece, others) = rest.split_at(length as usize);
            rest = others;
            let end = begin + length;
            let (first, last) = (begin / 4 * 4, end.next_multiple_of(4));
            if (first, last) == (begin, end) {
                let _with_others = self.words.read().unwrap_or_else(PoisonError::into_inner);
                self.write_words(buffer, begin, piece)?;
            } else {
                // Of a word that is written in part, the other bytes stay.
                let _alone = self.words.write().unwrap_or_else(PoisonError::into_inner);
                let mut words = vec![0; (last - first) as usize];
                self.read_words(buffer, first, &mut words)?;
                words[(begin - first) as usize..][..piece.len()].copy_from_slice(piece);
                self.write_words(buffer, first, &words)?;
            }
        }
        Ok(())
    }

    fn read(&self, buffer: &Buffer, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let memory = self.range(buffer, offset_bytes, bytes.len())?;
        self.shared.check()?;
        let mut rest = &mut *bytes;
        for (buffer, begin, length) in pieces(&memory, offset_bytes, rest.len()) {
            let (piece, others) = rest.split_at_mut(length as usize);
            rest = others;
            let (first, last) = (begin / 4 * 4, (begin + length).next_multiple_of(4));
            let mut words = vec![0; (last - first) as usize];
            self.read_words(buffer, first, &mut words)?;
            piece.copy_from_slice(&words[(begin - first) as usize..][..piece.len()]);
        }
        Ok(())
    }

    fn record(&self, calls: Vec<OpCall>) -> Result<Box<dyn Recording>, Error> {
        Ok(Box::new(WgpuRecording::new(&calls, &self.shared)?))
    }
}

/// Bytes of a memory, in pieces that are in one buffer each, of [`PIECE_BYTES`] at most: the buffer, the first byte, and how many.
fn pieces(memory: &Memory, begin: u64, length: usize) -> Vec<(&wgpu::Buffer, u64, u64)> {
    let spans = memory.spans(begin..begin + length as u64);
    let cut = spans.into_iter().flat_map(|(buffer, first, length)| {
        let begins = (0..length).step_by(PIECE_BYTES as usize);
        begins.map(move |at| (buffer, first + at, PIECE_BYTES.min(length - at)))
    });
    cut.collect()
}

#[cfg(test)]
mod tests;
