//! Memory behind a buffer: elements in one buffer of the device, or in several where one may not have them all.

use std::ops::Range;
use std::sync::Arc;

use rialto_backend::{Buffer, Error, TensorType};
use rialto_tensor::Dtype;

use crate::allocation::Allocation;
use crate::shared::{Limits, Shared};

/// Bytes that a binding begins at a multiple of, on any device.
const ALIGNMENT: u64 = 256;

/// Elements in buffers of the device.
pub(crate) struct Memory {
    segments: Vec<Arc<Allocation>>,
    /// Elements of each segment; the last may have fewer. A segment begins with a word, and with a row.
    each: u64,
    elements: u64,
    /// Of an element.
    bits: u64,
    tensor: TensorType,
    limits: Limits,
}

/// A part of a memory that a shader sees.
pub(crate) struct Bound<'a> {
    pub(crate) buffer: &'a Arc<Allocation>,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    /// What is added to the number of an element, or of a word, for its place in the binding: modulo 2^32, as shaders add.
    pub(crate) base: u32,
}

/// What a shader counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Elements,
    /// Of 32 bits.
    Words,
}

impl Memory {
    /// For a tensor. Errors: [`Error::Memory`]; [`Error::BufferSize`] for a row that no buffer holds, and for more elements than shaders
    /// have numbers.
    pub(crate) fn new(
        shared: &Shared,
        tensor: &TensorType,
        usage: wgpu::BufferUsages,
    ) -> Result<Memory, Error> {
        let too_large = |most_bytes| Error::BufferSize {
            tensor: tensor.clone(),
            most_bytes,
        };
        tensor.size_bytes()?;
        let shape = tensor.shape.extents();
        let elements: u64 = shape.iter().product();
        let bits = 8 * tensor.dtype.size_bytes();
        // The last workgroups of a dispatch may count beyond them.
        let most = u64::from(u32::MAX) - (1 << 24);
        if elements > most {
            return Err(too_large(most * bits / 8));
        }
        let limits = shared.limits;
        let each = segment_elements(&limits, shape, bits);
        let each = each.ok_or_else(|| too_large(limits.buffer_bytes))?;
        let counts = (0..elements.max(1)).step_by(each as usize);
        let counts = counts.map(|begin| each.min(elements - begin.min(elements)));
        let segments = counts.map(|count| {
            let allocation = shared.allocate((count * bits).div_ceil(8), usage)?;
            Ok(Arc::new(allocation))
        });
        Ok(Memory {
            segments: segments.collect::<Result<_, Error>>()?,
            each,
            elements,
            bits,
            tensor: tensor.clone(),
            limits,
        })
    }

    pub(crate) fn elements(&self) -> u64 {
        self.elements
    }

    /// Whether all of it is in one buffer.
    pub(crate) fn is_one(&self) -> bool {
        self.segments.len() == 1
    }

    /// The end of the elements that can be bound together with that at `begin`, and all between them.
    pub(crate) fn reach(&self, begin: u64) -> u64 {
        let segment = begin / self.each;
        let first = segment * self.each;
        let end = (first + self.each).min(self.elements);
        if self.bytes(end - first) <= self.limits.binding_bytes {
            return end;
        }
        let offset = self.offset(begin - first);
        end.min(first + (offset + self.limits.binding_bytes) * 8 / self.bits)
    }

    /// Elements to be bound. Errors: [`Error::BufferSize`] if they cannot be.
    pub(crate) fn bind(&self, range: &Range<u64>, unit: Unit) -> Result<Bound<'_>, Error> {
        let end = range.end.min(self.elements);
        let begin = range.start.min(end);
        let at = begin.min(self.elements.saturating_sub(1));
        if end > self.reach(at) {
            return Err(self.too_large());
        }
        let segment = at / self.each;
        let first = segment * self.each;
        let last = (first + self.each).min(self.elements);
        let buffer = &self.segments[segment as usize];
        let (offset, size) = match self.bytes(last - first) <= self.limits.binding_bytes {
            true => (0, buffer.size()),
            false => {
                let offset = self.offset(at - first);
                let size = self.bytes(end - first).next_multiple_of(4) - offset;
                // A shader's view has an element at least, of 16 bytes at most.
                (offset, size.max(16).min(buffer.size() - offset))
            }
        };
        let before = first + offset * 8 / self.bits;
        let before = match unit {
            Unit::Elements => before,
            Unit::Words => before * self.bits / 32,
        };
        Ok(Bound {
            buffer,
            offset,
            size,
            base: (before as u32).wrapping_neg(),
        })
    }

    /// A row, or what else has to be bound in one piece, is larger than what may be.
    pub(crate) fn too_large(&self) -> Error {
        Error::BufferSize {
            tensor: self.tensor.clone(),
            most_bytes: self.limits.binding_bytes,
        }
    }

    /// The parts of bytes that are in one buffer each: that buffer, the first byte there, and how many bytes of `bytes`.
    pub(crate) fn spans(&self, bytes: Range<u64>) -> Vec<(&wgpu::Buffer, u64, u64)> {
        let each = self.bytes(self.each).max(1);
        let mut spans = Vec::new();
        let mut begin = bytes.start;
        while begin < bytes.end {
            let segment = begin / each;
            let end = bytes.end.min((segment + 1) * each);
            let buffer: &wgpu::Buffer = &self.segments[segment as usize];
            spans.push((buffer, begin - segment * each, end - begin));
            begin = end;
        }
        spans
    }

    fn bytes(&self, elements: u64) -> u64 {
        (elements * self.bits).div_ceil(8)
    }

    /// Where a binding with an element may begin.
    fn offset(&self, element: u64) -> u64 {
        element * self.bits / 8 / ALIGNMENT * ALIGNMENT
    }
}

/// Elements of each buffer of a tensor. `None` if one of its rows is larger than a buffer.
fn segment_elements(limits: &Limits, shape: &[u64], bits: u64) -> Option<u64> {
    let elements: u64 = shape.iter().product();
    let fit = limits.buffer_bytes * 8 / bits;
    if elements <= fit {
        return Some(elements.max(1));
    }
    let inner = shape.last().copied().unwrap_or(1);
    let outer: u64 = shape.iter().skip(1).product();
    // Rows of the outermost axis stay whole if they can be bound, else those of the innermost.
    let rows_of = |row: u64| {
        let rows = fit / row.max(1);
        // Whole words at every seam, whatever elements are packed in them.
        let rows = match row.is_multiple_of(4) {
            true => rows,
            false => rows / 4 * 4,
        };
        (rows > 0).then_some(rows * row)
    };
    // Halves, quarters and so on, if that comes out even: where rows belong to heads, these mostly stay whole, too.
    let rows = shape.first().copied().unwrap_or(1);
    let even_of = |row: u64| {
        let mut parts = (1..u64::BITS).map(|times| 1 << times);
        let rows = parts.find_map(|parts: u64| {
            let is_even = rows.is_multiple_of(parts) && (rows / parts * row).is_multiple_of(4);
            let is_enough = is_even && rows / parts * row <= fit;
            (is_enough || !is_even).then(|| is_enough.then_some(rows / parts))
        });
        rows.flatten().map(|rows| rows * row)
    };
    let can_be_bound = outer * bits <= limits.binding_bytes * 8;
    let of_outer = can_be_bound.then(|| even_of(outer).or_else(|| rows_of(outer)));
    of_outer.flatten().or_else(|| rows_of(inner))
}

/// What a buffer of this backend has behind it.
pub(crate) struct Storage {
    memory: Arc<Memory>,
    shared: Arc<Shared>,
}

impl Storage {
    pub(crate) fn new(memory: Memory, shared: &Arc<Shared>) -> Storage {
        Storage {
            memory: Arc::new(memory),
            shared: Arc::clone(shared),
        }
    }

    /// That of a buffer of this device. Errors: [`Error::ForeignBuffer`] for another's.
    pub(crate) fn of(buffer: &Buffer, shared: &Arc<Shared>) -> Result<Arc<Memory>, Error> {
        let storage: Arc<Storage> = buffer.storage()?;
        match Arc::ptr_eq(&storage.shared, shared) {
            true => Ok(Arc::clone(&storage.memory)),
            false => Err(Error::ForeignBuffer {
                tensor: buffer.tensor().clone(),
            }),
        }
    }
}

/// F32 memory of a shape.
pub(crate) fn f32s(shape: impl Into<Vec<u64>>) -> TensorType {
    TensorType::new(Dtype::F32, shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(binding_bytes: u64, buffer_bytes: u64) -> Limits {
        Limits {
            binding_bytes,
            buffer_bytes,
            invocations: 256,
            work: 1 << 30,
            loops: 60_000,
        }
    }

    #[test]
    fn seams_are_between_rows_and_between_words() {
        let of = |shape: &[u64], bits, binding, buffer| {
            segment_elements(&limits(binding, buffer), shape, bits)
        };
        // All in one.
        assert_eq!(of(&[4, 8], 32, 128, 128), Some(32));
        assert_eq!(of(&[0, 8], 32, 128, 128), Some(1));
        // Two matrices of 16 elements and 64 bytes; their rows, where they cannot be bound.
        assert_eq!(of(&[9, 4, 4], 32, 64, 140), Some(32));
        assert_eq!(of(&[9, 4, 4], 32, 60, 140), Some(32));
        assert_eq!(of(&[9, 4, 4], 32, 60, 90), Some(20));
        // Rows of 3 halves, of 7 quarters: four of them are whole words.
        assert_eq!(of(&[99, 3], 16, 64, 64), Some(24));
        assert_eq!(of(&[99, 7], 8, 64, 64), Some(56));
        assert_eq!(of(&[99, 17], 32, 64, 64), None);
        // Eight heads of 56 rows, of which three would fit: two.
        assert_eq!(of(&[448, 4], 32, 1024, 3 * 56 * 16), Some(2 * 56 * 4));
        // Three matrices would fit, four would be whole words: rows.
        assert_eq!(of(&[9, 5, 3], 32, 64, 180), Some(36));
    }
}
