//! Memory behind a buffer.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rialto_backend::{Buffer, Error, Share, TensorType};
use rialto_tensor::Dtype;

use crate::device::{NAME, Queue};
use crate::memory::{share, zeros};

/// Elements of one type.
#[derive(Debug)]
pub(crate) enum Elements {
    /// F32.
    F32(Vec<f32>),
    /// Codes of BF16.
    Bf16(Vec<u16>),
    /// I32.
    I32(Vec<i32>),
    /// Codes of F8_E4M3.
    E4m3(Vec<u8>),
}

/// Runs an expression on the elements, whatever they are.
macro_rules! with_elements {
    ($elements:expr, $found:ident => $run:expr) => {
        match $elements {
            Elements::F32($found) => $run,
            Elements::Bf16($found) => $run,
            Elements::I32($found) => $run,
            Elements::E4m3($found) => $run,
        }
    };
}

impl Elements {
    pub(crate) fn is_empty(&self) -> bool {
        with_elements!(self, found => found.is_empty())
    }

    /// Writes bytes that lie inside, from a byte on.
    pub(crate) fn write_bytes(&mut self, begin: usize, bytes: &[u8]) {
        with_elements!(self, found => write(found, begin, bytes));
    }

    /// Reads bytes that lie inside, from a byte on.
    pub(crate) fn read_bytes(&self, begin: usize, bytes: &mut [u8]) {
        with_elements!(self, found => read(found, begin, bytes));
    }
}

/// An element as its little-endian bytes.
trait Stored: Copy + Default {
    type Bytes: AsRef<[u8]> + AsMut<[u8]>;

    fn to_bytes(self) -> Self::Bytes;
    fn from_bytes(bytes: Self::Bytes) -> Self;
}

macro_rules! stored {
    ($($element:ty)*) => {$(
        impl Stored for $element {
            type Bytes = [u8; size_of::<$element>()];

            fn to_bytes(self) -> Self::Bytes {
                self.to_le_bytes()
            }

            fn from_bytes(bytes: Self::Bytes) -> Self {
                <$element>::from_le_bytes(bytes)
            }
        }
    )*};
}

stored! { f32 u16 i32 u8 }

/// The bytes of the first element that are not meant, and the elements that are.
fn touched<T>(begin: usize, length: usize) -> (usize, std::ops::Range<usize>) {
    let size = size_of::<T>();
    let (first, end) = (begin / size, (begin + length).div_ceil(size));
    (begin % size, first..end.max(first))
}

fn write<T: Stored>(elements: &mut [T], begin: usize, mut bytes: &[u8]) {
    let (mut skipped, range) = touched::<T>(begin, bytes.len());
    for element in &mut elements[range] {
        let mut stored = element.to_bytes();
        // Of an element that the range begins or ends inside of, the other bytes stay.
        let part = &mut stored.as_mut()[std::mem::take(&mut skipped)..];
        let part_length = part.len().min(bytes.len());
        let (now, later) = bytes.split_at(part_length);
        part[..part_length].copy_from_slice(now);
        bytes = later;
        *element = T::from_bytes(stored);
    }
}

fn read<T: Stored>(elements: &[T], begin: usize, bytes: &mut [u8]) {
    let (mut skipped, range) = touched::<T>(begin, bytes.len());
    let mut done = 0;
    for element in &elements[range] {
        let stored = element.to_bytes();
        let part = &stored.as_ref()[std::mem::take(&mut skipped)..];
        let part_length = part.len().min(bytes.len() - done);
        bytes[done..done + part_length].copy_from_slice(&part[..part_length]);
        done += part_length;
    }
}

/// What a buffer of this backend has behind it.
pub(crate) struct Storage {
    elements: RwLock<Elements>,
    queue: Arc<Queue>,
    /// Of the memory of the device, given back when it ends.
    _share: Share,
}

impl Storage {
    /// Zeros of a type. Errors: [`Error::UnsupportedElement`], [`Error::BufferSize`], [`Error::Memory`].
    pub(crate) fn allocate(
        tensor: &TensorType,
        queue: &Arc<Queue>,
        device: &str,
    ) -> Result<Storage, Error> {
        let bytes = tensor.size_bytes()?;
        let count = bytes / tensor.dtype.size_bytes();
        let elements = match tensor.dtype {
            Dtype::F32 => zeros(count).map(Elements::F32),
            Dtype::Bf16 => zeros(count).map(Elements::Bf16),
            Dtype::I32 => zeros(count).map(Elements::I32),
            Dtype::F8E4m3 => zeros(count).map(Elements::E4m3),
            other => {
                return Err(Error::UnsupportedElement {
                    backend: NAME.to_owned(),
                    what: format!("elements of {other}"),
                });
            }
        };
        // Nothing is written yet: pages that are refused now were never there.
        let (Some(elements), Some(share)) = (elements, share(&queue.memory, bytes)) else {
            return Err(Error::Memory {
                device: device.to_owned(),
                bytes,
                used_bytes: Some(queue.memory.held()),
                most_bytes: queue.memory.most(),
            });
        };
        Ok(Storage {
            elements: RwLock::new(elements),
            queue: Arc::clone(queue),
            _share: share,
        })
    }

    /// That of a buffer of the device with this queue. Errors: [`Error::ForeignBuffer`] for another's.
    pub(crate) fn of(buffer: &Buffer, queue: &Arc<Queue>) -> Result<Arc<Storage>, Error> {
        let storage: Arc<Storage> = buffer.storage()?;
        match Arc::ptr_eq(&storage.queue, queue) {
            true => Ok(storage),
            false => Err(Error::ForeignBuffer {
                tensor: buffer.tensor().clone(),
            }),
        }
    }

    /// To be read, in the queue's turn: then nobody waits, and one thread may do it twice.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Elements> {
        self.elements.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be written, in the queue's turn.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Elements> {
        self.elements
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
