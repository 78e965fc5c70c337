//! What the function of an operation reads and writes: elements with their extents. A call's types were checked when it was made
//! ([`OpCall::new`](rialto_backend::OpCall::new)), so that asking for another type than there is would be a fault of this crate.

use std::borrow::Cow;

use rayon::prelude::*;
use rialto_tensor::format::bf16;

use crate::storage::Elements;

/// Elements of which one piece of work is made where rows are none of its concern.
pub(crate) const CHUNK: usize = 4096;

/// What is read.
#[derive(Clone, Copy)]
pub(crate) struct Tensor<'a> {
    /// The elements, or the codes.
    pub(crate) elements: &'a Elements,
    /// The extents.
    pub(crate) shape: &'a [usize],
    /// The scales of codes, and the rows and columns of a block.
    pub(crate) blocks: Option<(&'a [f32], [usize; 2])>,
}

impl<'a> Tensor<'a> {
    /// F32 or BF16.
    pub(crate) fn floats(self) -> Floats<'a> {
        match self.elements {
            Elements::F32(found) => Floats::F32(found),
            Elements::Bf16(found) => Floats::Bf16(found),
            _ => unreachable!("the call has floats here"),
        }
    }

    /// F32.
    pub(crate) fn f32s(self) -> &'a [f32] {
        match self.elements {
            Elements::F32(found) => found,
            _ => unreachable!("the call has F32 here"),
        }
    }

    /// I32.
    pub(crate) fn ints(self) -> &'a [i32] {
        match self.elements {
            Elements::I32(found) => found,
            _ => unreachable!("the call has I32 here"),
        }
    }

    /// Codes of E4M3.
    pub(crate) fn codes(self) -> &'a [u8] {
        match self.elements {
            Elements::E4m3(found) => found,
            _ => unreachable!("the call has F8_E4M3 here"),
        }
    }

    /// The extents, which the operation has so many of.
    pub(crate) fn axes<const N: usize>(self) -> [usize; N] {
        match self.shape.try_into() {
            Ok(axes) => axes,
            Err(_) => unreachable!("the call has {N} axes here"),
        }
    }

    /// The last extent.
    pub(crate) fn last(self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Elements of each place of the first axis.
    pub(crate) fn row(self) -> usize {
        self.shape.iter().skip(1).product()
    }
}

/// What is written.
pub(crate) struct TensorMut<'a> {
    /// The elements.
    pub(crate) elements: &'a mut Elements,
    /// The extents.
    pub(crate) shape: &'a [usize],
}

impl TensorMut<'_> {
    /// F32 or BF16.
    pub(crate) fn floats(&mut self) -> FloatsMut<'_> {
        match self.elements {
            Elements::F32(found) => FloatsMut::F32(found),
            Elements::Bf16(found) => FloatsMut::Bf16(found),
            _ => unreachable!("the call has floats here"),
        }
    }

    /// F32.
    pub(crate) fn f32s(&mut self) -> &mut [f32] {
        match self.elements {
            Elements::F32(found) => found,
            _ => unreachable!("the call has F32 here"),
        }
    }

    /// I32.
    pub(crate) fn ints(&mut self) -> &mut [i32] {
        match self.elements {
            Elements::I32(found) => found,
            _ => unreachable!("the call has I32 here"),
        }
    }

    /// Codes of E4M3.
    pub(crate) fn codes(&mut self) -> &mut [u8] {
        match self.elements {
            Elements::E4m3(found) => found,
            _ => unreachable!("the call has F8_E4M3 here"),
        }
    }

    /// The last extent.
    pub(crate) fn last(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

/// Floats as they are stored.
#[derive(Clone, Copy)]
pub(crate) enum Floats<'a> {
    /// F32.
    F32(&'a [f32]),
    /// Codes of BF16.
    Bf16(&'a [u16]),
}

impl<'a> Floats<'a> {
    /// How many.
    pub(crate) fn len(self) -> usize {
        match self {
            Floats::F32(found) => found.len(),
            Floats::Bf16(found) => found.len(),
        }
    }

    /// Some of them.
    pub(crate) fn part(self, begin: usize, length: usize) -> Floats<'a> {
        match self {
            Floats::F32(found) => Floats::F32(&found[begin..begin + length]),
            Floats::Bf16(found) => Floats::Bf16(&found[begin..begin + length]),
        }
    }

    /// As many of them as there is room for, from one on, in F32.
    pub(crate) fn widen(self, begin: usize, out: &mut [f32]) {
        let from = self.part(begin, out.len());
        FloatsMut::F32(out).copy(from);
    }

    /// All of them in F32.
    pub(crate) fn widened(self) -> Cow<'a, [f32]> {
        match self {
            Floats::F32(found) => Cow::Borrowed(found),
            Floats::Bf16(found) => {
                Cow::Owned(found.par_iter().map(|&code| bf16::decode(code)).collect())
            }
        }
    }

    /// Rounds numbers to the type of these.
    pub(crate) fn round(self, numbers: &mut [f32]) {
        if let Floats::Bf16(_) = self {
            for number in numbers {
                *number = bf16::decode(bf16::round(*number));
            }
        }
    }
}

/// Floats to be written.
pub(crate) enum FloatsMut<'a> {
    /// F32.
    F32(&'a mut [f32]),
    /// Codes of BF16.
    Bf16(&'a mut [u16]),
}

impl FloatsMut<'_> {
    /// How many.
    pub(crate) fn len(&self) -> usize {
        match self {
            FloatsMut::F32(found) => found.len(),
            FloatsMut::Bf16(found) => found.len(),
        }
    }

    /// Some of them.
    pub(crate) fn part(&mut self, begin: usize, length: usize) -> FloatsMut<'_> {
        match self {
            FloatsMut::F32(found) => FloatsMut::F32(&mut found[begin..begin + length]),
            FloatsMut::Bf16(found) => FloatsMut::Bf16(&mut found[begin..begin + length]),
        }
    }

    /// Zeros.
    pub(crate) fn zero(self) {
        match self {
            FloatsMut::F32(found) => found.fill(0.0),
            FloatsMut::Bf16(found) => found.fill(0),
        }
    }

    /// As many others. Those of the same type are copied bit for bit.
    pub(crate) fn copy(self, from: Floats<'_>) {
        match (self, from) {
            (FloatsMut::F32(out), Floats::F32(from)) => out.copy_from_slice(from),
            (FloatsMut::Bf16(out), Floats::Bf16(from)) => out.copy_from_slice(from),
            (FloatsMut::F32(out), Floats::Bf16(from)) => {
                for (out, &code) in out.iter_mut().zip(from) {
                    *out = bf16::decode(code);
                }
            }
            (FloatsMut::Bf16(out), Floats::F32(from)) => {
                for (out, &number) in out.iter_mut().zip(from) {
                    *out = bf16::round(number);
                }
            }
        }
    }

    /// Computes rows of so many elements in F32, each on some thread, and rounds them once. The last may be shorter.
    pub(crate) fn compute_rows(self, width: usize, row: impl Fn(usize, &mut [f32]) + Sync + Send) {
        if width == 0 {
            return;
        }
        match self {
            FloatsMut::F32(found) => {
                let rows = found.par_chunks_mut(width).enumerate();
                rows.for_each(|(index, out)| row(index, out));
            }
            FloatsMut::Bf16(found) => {
                let rows = found.par_chunks_mut(width).enumerate();
                rows.for_each_init(Vec::new, |scratch, (index, out)| {
                    scratch.resize(out.len(), 0.0);
                    row(index, scratch);
                    FloatsMut::Bf16(out).copy(Floats::F32(scratch));
                });
            }
        }
    }

    /// Writes rows of so many elements as they are stored, each on some thread. The last may be shorter.
    pub(crate) fn store_rows(self, width: usize, row: impl Fn(usize, FloatsMut<'_>) + Sync + Send) {
        if width == 0 {
            return;
        }
        match self {
            FloatsMut::F32(found) => {
                let rows = found.par_chunks_mut(width).enumerate();
                rows.for_each(|(index, out)| row(index, FloatsMut::F32(out)));
            }
            FloatsMut::Bf16(found) => {
                let rows = found.par_chunks_mut(width).enumerate();
                rows.for_each(|(index, out)| row(index, FloatsMut::Bf16(out)));
            }
        }
    }
}

/// An index that a device value is, if it is one of so many.
pub(crate) fn index(value: i32, count: usize) -> Option<usize> {
    usize::try_from(value).ok().filter(|&index| index < count)
}
