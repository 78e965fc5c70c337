//! A conversion as the runner sees it: files of outputs, and where their elements come from.

use std::collections::BTreeMap;
use std::ops::Range;

use rialto_checkpoint::store::Stamp;
use rialto_tensor::{Dtype, Region, Shape};

use super::small::SmallFiles;
use super::unit::{Group, Output};
use crate::assemble::Part;
use crate::{DeviceReport, Direction, Error, Progress};

/// Takes bytes that go to an offset of a file.
pub(crate) type WriteAt<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), Error>;

/// Both directions.
pub(crate) trait Conversion: Sync {
    fn direction(&self) -> Direction;

    /// The files that hold tensors, in the order of their outputs.
    fn files(&self) -> &[DataFile];

    /// The output at a position, below the end of the last file's.
    fn output(&self, position: usize) -> Output;

    /// What the output at a position is called in the result.
    fn entry(&self, position: usize) -> Entry;

    /// How the elements of a subject are stored.
    fn reading(&self, subject: usize) -> Reading;

    /// What a rectangle of a subject is made of.
    fn parts(&self, subject: usize, region: &Region) -> Result<Vec<Part<'_>>, Error>;

    /// Gives all bytes of a file that are no tensor data and no frame around it: headers and objects.
    fn fixed(&self, file: usize, write: WriteAt<'_>) -> Result<(), Error>;

    /// Compares what is to be compared before anything is written.
    fn check_before(&self, progress: &dyn Progress) -> Result<(), Error>;

    /// Tries what is worked with on so many lanes, before anything of this attempt is written and only if there is something to do.
    fn prepare(&self, lanes: usize, progress: &dyn Progress) -> Result<(), Error> {
        let _ = (lanes, progress);
        Ok(())
    }

    /// What a device has done, if there is one.
    fn device(&self) -> Option<DeviceReport> {
        None
    }

    /// Most bytes that a device takes on top of a budget, with so many lanes; 0 without one.
    fn device_bytes(&self, lanes: usize, budget_bytes: u64) -> u64 {
        let _ = (lanes, budget_bytes);
        0
    }

    /// Compares what can be compared only once all has been read.
    fn check_after(&self, progress: &dyn Progress) -> Result<(), Error>;

    /// Writes the files that hold no tensors, those last that readers take for the sign that the rest is there.
    fn write_small(&self, small: &mut SmallFiles<'_>) -> Result<(), Error>;

    /// Bytes of those files, about.
    fn small_bytes(&self) -> u64;

    /// What every file of the source looked like before anything of it was read.
    fn planned_stamps(&self) -> &BTreeMap<String, Stamp>;

    /// What every file of the source looks like now.
    fn stamps(&self) -> Result<BTreeMap<String, Stamp>, Error>;

    /// Hashes all that decides what is written but for the source's bytes, and that files and outputs do not say.
    fn identify(&self, hasher: &mut blake3::Hasher);
}

/// A file that holds tensors.
#[derive(Clone, Debug)]
pub(crate) struct DataFile {
    /// Its name in the target.
    pub(crate) name: String,
    pub(crate) len: u64,
    /// Its outputs, by position.
    pub(crate) outputs: Range<usize>,
}

/// What an output is called.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Shape of the whole tensor.
    pub(crate) shape: Shape,
    /// Which of it the output is.
    pub(crate) region: Region,
}

/// How the elements of a subject are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Their dtype once decoded.
    pub(crate) dtype: Dtype,
    /// Bytes of an element as stored, if it is decoded.
    pub(crate) code_bytes: u64,
    /// Indices of the last axis but one, and of the last, that are decoded together.
    pub(crate) block: [u64; 2],
}

impl Reading {
    /// Of elements that are stored as they are.
    pub(crate) fn plain(dtype: Dtype) -> Reading {
        Reading {
            dtype,
            code_bytes: 0,
            block: [1, 1],
        }
    }

    /// How many indices are decoded together of the axis that has so many behind it.
    pub(crate) fn granule(&self, behind: usize) -> u64 {
        match behind {
            0 => self.block[1],
            1 => self.block[0],
            _ => 1,
        }
    }

    /// Most bytes that a lane holds for a group with bands of so many bytes, of whole blocks or not.
    pub(crate) fn lane_bytes(&self, group: &Group, band_bytes: u64, has_whole_blocks: bool) -> u64 {
        let unit = group.unit(0);
        let row = unit.sizes().last().copied().unwrap_or(1);
        let all = unit.sizes().iter().product::<u64>();
        let stored = self.dtype.size_bytes();
        let block = self.block[0].saturating_mul(row);
        let mut elements = band_bytes / stored;
        if has_whole_blocks && self.code_bytes > 0 {
            elements = elements.max(block);
        }
        let elements = elements.min(all);
        let written = group.outputs[0].dtype.size_bytes();
        let mut widths = stored;
        if written != stored {
            widths += written;
        }
        if group.outputs.len() > 1 {
            widths += written;
        }
        let mut bytes = elements.saturating_mul(widths);
        if self.code_bytes > 0 {
            // A band lies in at most one block more than it fills at each of its ends.
            let around = elements.saturating_add(block.saturating_mul(2));
            bytes = bytes.saturating_add(around.saturating_mul(self.code_bytes + stored));
        }
        bytes
    }
}
