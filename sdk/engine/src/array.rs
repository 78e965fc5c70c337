//! A stored tensor of either format, as rectangles of dense bytes in files, and whatever else gives elements.

use std::sync::Arc;

use rialto_checkpoint::store::Source;
use rialto_tensor::{Dtype, Region, Shape};

use crate::Error;
use crate::runs::{joint_runs, runs};

/// A tensor whose elements can be read rectangle by rectangle.
pub(crate) trait Values {
    /// What the elements are as they are read.
    fn dtype(&self) -> Dtype;

    /// Reads a rectangle into `out`, where it takes the place `place` of a dense tensor of shape `out_shape`. `region` and
    /// `place` hold the same elements in the same order.
    fn read(
        &self,
        region: &Region,
        place: &Region,
        out_shape: &Shape,
        out: &mut [u8],
    ) -> Result<(), Error>;

    /// How many indices of an axis are best read together, because they are decoded together.
    fn granule(&self) -> u64 {
        1
    }
}

/// An open file, borrowed from its checkpoint or shared with it.
#[derive(Debug)]
pub(crate) enum Handle<'a> {
    Borrowed(&'a dyn Source),
    Shared(Arc<dyn Source>),
}

impl Handle<'_> {
    fn source(&self) -> &dyn Source {
        match self {
            Handle::Borrowed(source) => *source,
            Handle::Shared(source) => source.as_ref(),
        }
    }
}

/// Bytes that are dense and row-major in some place.
#[derive(Debug)]
pub(crate) enum Bytes<'a> {
    /// In a file, from an offset on.
    File { source: Handle<'a>, offset: u64 },
    /// In memory: elements that had to be gathered or decoded first.
    Memory(Vec<u8>),
}

/// One rectangle of a tensor and where its bytes are.
#[derive(Debug)]
pub(crate) struct Extent<'a> {
    pub(crate) region: Region,
    pub(crate) bytes: Bytes<'a>,
}

/// A tensor whose rectangles tile it: one for a safetensors tensor, one a chunk for a torch_dist one.
#[derive(Debug)]
pub(crate) struct Array<'a> {
    pub(crate) dtype: Dtype,
    pub(crate) extents: Vec<Extent<'a>>,
}

impl Values for Array<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Every element of `region` is read exactly once, because the extents tile the tensor.
    fn read(
        &self,
        region: &Region,
        place: &Region,
        out_shape: &Shape,
        out: &mut [u8],
    ) -> Result<(), Error> {
        for extent in &self.extents {
            let Some(common) = region.intersection(&extent.region) else {
                continue;
            };
            let in_extent = common.relative_to(&extent.region);
            let placed = Region::corresponding(&common, region, place);
            let width = self.dtype.size_bytes();
            let stored = runs(&in_extent, &extent.region.shape());
            for (from, to, length) in joint_runs(stored, runs(&placed, out_shape)) {
                let range = usize_range(to * width, length * width);
                extent.bytes.read(from * width, &mut out[range])?;
            }
        }
        Ok(())
    }
}

impl Bytes<'_> {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Error> {
        match self {
            Bytes::File { source, offset } => Ok(source.source().read_at(offset + at, out)?),
            Bytes::Memory(bytes) => {
                out.copy_from_slice(&bytes[usize_range(at, out.len() as u64)]);
                Ok(())
            }
        }
    }
}

/// A range of a buffer in memory, whose length is a `usize` already.
pub(crate) fn usize_range(start: u64, length: u64) -> std::ops::Range<usize> {
    let start = usize::try_from(start).expect("an offset inside a buffer fits the address space");
    let length = usize::try_from(length).expect("a length inside a buffer fits the address space");
    start..start + length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(elements: impl IntoIterator<Item = u8>) -> Bytes<'static> {
        Bytes::Memory(elements.into_iter().collect())
    }

    /// A 4 x 4 tensor of element numbers, stored as two halves of columns.
    fn halves() -> Array<'static> {
        let half = |first: u8| {
            (0..4u8).flat_map(move |row| (0..2u8).map(move |column| 4 * row + first + column))
        };
        Array {
            dtype: Dtype::U8,
            extents: vec![
                Extent {
                    region: Region::new([0, 0], [4, 2]),
                    bytes: bytes(half(0)),
                },
                Extent {
                    region: Region::new([0, 2], [4, 2]),
                    bytes: bytes(half(2)),
                },
            ],
        }
    }

    #[test]
    fn a_rectangle_over_two_chunks_lands_in_its_place() {
        let mut out = [0xff; 12];
        let (region, place) = (
            Region::new([1, 1], [2, 2]),
            Region::new([1, 0, 0], [1, 2, 2]),
        );
        halves()
            .read(&region, &place, &Shape::new([2, 2, 3]), &mut out)
            .unwrap();
        assert_eq!(out, [255, 255, 255, 255, 255, 255, 5, 6, 255, 9, 10, 255]);
    }
}
