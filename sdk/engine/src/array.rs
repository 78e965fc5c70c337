//! A stored tensor of either format, as rectangles of dense bytes in files, and whatever else gives elements.

use std::sync::Arc;

use rialto_checkpoint::store::{PageBuffer, Source};
use rialto_tensor::{Dtype, Region, Shape};

use crate::Error;
use crate::checks::Check;
use crate::encoded::Stored;
use crate::runs::{joint_runs, runs};

/// Runs that are shorter are read together with their neighbors.
const LONG_BYTES: u64 = 256 << 10;

/// Bytes that are read together at most.
pub(crate) const WINDOW_BYTES: u64 = 1 << 20;

/// Bytes between two runs that are read along rather than passed over: about what a call costs.
const GAP_BYTES: u64 = 32 << 10;

/// Memory that reads pass through, kept from one to the next so that nothing is allocated on the way.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Runs that were read together.
    window: PageBuffer,
    /// Blocks of an encoded tensor, and what was decoded from them.
    pub(crate) stored: Stored,
    pub(crate) decoded: PageBuffer,
}

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
        scratch: &mut Scratch,
    ) -> Result<(), Error>;

    /// How many indices of an axis are best read together, because they are decoded together.
    fn granule(&self) -> u64 {
        1
    }

    /// What compares the bytes that are read, and has agreed only once all of a chunk has passed.
    fn checks(&self) -> Vec<Arc<Check>> {
        Vec::new()
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
    File {
        source: Handle<'a>,
        offset: u64,
        /// What compares them on the way, if anything does.
        check: Option<Arc<Check>>,
    },
    /// In memory: elements that had to be gathered first.
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

impl Array<'_> {
    /// Where in its file a rectangle begins, for memory that shall lie alike.
    pub(crate) fn place_of(&self, region: &Region) -> u64 {
        let mut extents = self.extents.iter();
        let place = extents.find_map(|extent| {
            let common = region.intersection(&extent.region)?;
            let in_extent = common.relative_to(&extent.region);
            let (first, _) = runs(&in_extent, &extent.region.shape()).next()?;
            match &extent.bytes {
                Bytes::File { offset, .. } => Some(offset + first * self.dtype.size_bytes()),
                Bytes::Memory(_) => None,
            }
        });
        place.unwrap_or_default()
    }
}

impl Values for Array<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn checks(&self) -> Vec<Arc<Check>> {
        let checks = self
            .extents
            .iter()
            .filter_map(|extent| match &extent.bytes {
                Bytes::File { check, .. } => check.clone(),
                Bytes::Memory(_) => None,
            });
        checks.collect()
    }

    /// Every element of `region` is read exactly once, because the extents tile the tensor.
    fn read(
        &self,
        region: &Region,
        place: &Region,
        out_shape: &Shape,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        for extent in &self.extents {
            let Some(common) = region.intersection(&extent.region) else {
                continue;
            };
            let in_extent = common.relative_to(&extent.region);
            let placed = Region::corresponding(&common, region, place);
            let width = self.dtype.size_bytes();
            let stored = runs(&in_extent, &extent.region.shape());
            let runs = joint_runs(stored, runs(&placed, out_shape));
            let runs = runs.map(|(from, to, length)| Run {
                from: from * width,
                to: to * width,
                len: length * width,
            });
            extent.bytes.read(runs, out, scratch)?;
        }
        Ok(())
    }
}

/// Bytes that lie together on both sides, in bytes from the beginning of each.
#[derive(Clone, Copy, Debug)]
struct Run {
    from: u64,
    to: u64,
    len: u64,
}

impl Bytes<'_> {
    fn read(
        &self,
        runs: impl Iterator<Item = Run>,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        let (source, offset, check) = match self {
            Bytes::Memory(bytes) => {
                for Run { from, to, len } in runs {
                    out[usize_range(to, len)].copy_from_slice(&bytes[usize_range(from, len)]);
                }
                return Ok(());
            }
            Bytes::File {
                source,
                offset,
                check,
            } => (source.source(), *offset, check.as_deref()),
        };
        let mut window = Window {
            source,
            offset,
            check,
            runs: Vec::new(),
        };
        for run in runs {
            if !window.takes(&run) {
                window.read(out, &mut scratch.window)?;
            }
            window.runs.push(run);
        }
        window.read(out, &mut scratch.window)
    }
}

/// Runs of a file that are read with one call.
struct Window<'a> {
    source: &'a dyn Source,
    /// Where the bytes begin in the file.
    offset: u64,
    check: Option<&'a Check>,
    runs: Vec<Run>,
}

impl Window<'_> {
    /// Whether a run is near enough to those there are.
    fn takes(&self, run: &Run) -> bool {
        let (Some(first), Some(last)) = (self.runs.first(), self.runs.last()) else {
            return true;
        };
        let end = last.from + last.len;
        first.len < LONG_BYTES
            && run.len < LONG_BYTES
            && run.from >= end
            && run.from - end <= GAP_BYTES
            && run.from + run.len - first.from <= WINDOW_BYTES
    }

    /// Reads the runs into their places and forgets them.
    fn read(&mut self, out: &mut [u8], buffer: &mut PageBuffer) -> Result<(), Error> {
        let (Some(&first), Some(last)) = (self.runs.first(), self.runs.last()) else {
            return Ok(());
        };
        let start = self.offset + first.from;
        if self.runs.len() == 1 {
            let out = &mut out[usize_range(first.to, first.len)];
            self.source.read_at(start, out)?;
            self.note(start, out)?;
        } else {
            let len = usize_range(0, last.from + last.len - first.from).end;
            let bytes = buffer.at(start, len);
            self.source.read_at(start, bytes)?;
            // Of what lies between two runs somebody else takes note.
            for stretch in self.runs.chunk_by(|a, b| a.from + a.len == b.from) {
                let (begin, end) = (stretch[0], stretch[stretch.len() - 1]);
                let range = usize_range(begin.from - first.from, end.from + end.len - begin.from);
                self.note(self.offset + begin.from, &bytes[range])?;
            }
            for run in &self.runs {
                let from = usize_range(run.from - first.from, run.len);
                out[usize_range(run.to, run.len)].copy_from_slice(&bytes[from]);
            }
        }
        self.runs.clear();
        Ok(())
    }

    fn note(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        match self.check {
            Some(check) => check.note(self.source.name(), at, bytes),
            None => Ok(()),
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
            .read(
                &region,
                &place,
                &Shape::new([2, 2, 3]),
                &mut out,
                &mut Scratch::default(),
            )
            .unwrap();
        assert_eq!(out, [255, 255, 255, 255, 255, 255, 5, 6, 255, 9, 10, 255]);
    }
}
