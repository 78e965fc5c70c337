//! `.metadata`: which tensors and objects a checkpoint holds, in which chunks, and where the chunks lie.
//!
//! The file is a pickle of `torch.distributed.checkpoint.metadata.Metadata`. Its object graph is:
//!
//! ```text
//! Metadata
//!   state_dict_metadata  {name: TensorStorageMetadata(properties, size, chunks) | BytesStorageMetadata}
//!   storage_data         {MetadataIndex(fqn, offset): _StorageInfo(relative_path, offset, length)}
//!   planner_data, storage_meta, version, all_local_plans, …     not needed, not read
//! ```
//!
//! The two tables are joined here: a [`Chunk`] carries its place. Whatever this module returns has been checked as far as
//! the file alone allows: chunks tile their tensors, each has one place, numbers fit, file names stay in the directory.
//! Source: `torch/distributed/checkpoint/{metadata,filesystem}.py` of PyTorch 2.4 to 2.15.

mod read;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use rialto_tensor::held::{Held, allocated};
use rialto_tensor::{Dtype, Location, Region, Shape, tiling_faults};

use crate::Error;
use crate::error::TensorTilingFault;

/// When this many faults are found, the tensors that follow are not looked at: a hostile file has thousands in each.
const MAX_FAULTS: usize = 1 << 14;

const METADATA_MODULE: &str = "torch.distributed.checkpoint.metadata";
const FILESYSTEM_MODULE: &str = "torch.distributed.checkpoint.filesystem";

/// The contents of a checkpoint, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The tensors.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// The objects: pickles of something that is no tensor.
    pub objects: BTreeMap<String, ObjectEntry>,
    /// Tensors that Megatron-Core 0.8 to 0.15 stored in another shape than their own (flattened optimizer state), with
    /// their own shape. They cannot be read as tensors and are not among `tensors`.
    pub reformulated: BTreeMap<String, Shape>,
}

/// One tensor, whole and in chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Element type of every chunk.
    pub dtype: Dtype,
    /// Extents of the whole, in elements.
    pub shape: Shape,
    /// The parts, which tile the whole.
    pub chunks: Vec<Chunk>,
}

/// A rectangle of a tensor, and the item that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The part of the whole tensor, in elements.
    pub region: Arc<Region>,
    /// The data file, relative to the checkpoint.
    pub file: Arc<str>,
    /// Where the item begins in the file, in bytes.
    pub offset: u64,
    /// Bytes of the item: a whole `torch.save` stream, not only the elements.
    pub len: u64,
}

/// The item that holds an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectEntry {
    /// The data file, relative to the checkpoint.
    pub file: Arc<str>,
    /// Where the item begins in the file, in bytes.
    pub offset: u64,
    /// Bytes of the item.
    pub len: u64,
}

impl Held for Chunk {
    /// With its region, which an item may share, and without the name of its file, which is that of many.
    fn held_bytes(&self) -> u64 {
        let counts = 2 * size_of::<usize>();
        allocated((size_of::<Region>() + counts) as u64) + self.region.held_bytes()
    }
}

impl Held for TensorEntry {
    fn held_bytes(&self) -> u64 {
        self.shape.held_bytes() + self.chunks.held_bytes()
    }
}

impl Held for ObjectEntry {
    fn held_bytes(&self) -> u64 {
        0
    }
}

impl Held for Metadata {
    fn held_bytes(&self) -> u64 {
        self.tensors.held_bytes() + self.objects.held_bytes() + self.reformulated.held_bytes()
    }
}

impl Metadata {
    /// Decodes the file `.metadata`, executing nothing; `location` is what errors speak of.
    ///
    /// Errors: the `Pickle…` variants of [`Error`]; [`Error::MetadataMalformed`]; [`Error::Tensor`] for an unknown dtype
    /// or an overflow; [`Error::UnsafeName`] for a data file outside the directory; [`Error::Tiling`] with the faults of
    /// every tensor; [`Error::StoragePlaces`], [`Error::StorageStray`], [`Error::Transformed`].
    pub fn decode(bytes: &[u8], location: &Location) -> Result<Metadata, Error> {
        let metadata = Metadata::decode_part(bytes, location)?;
        metadata.check_tiling(location)?;
        Ok(metadata)
    }

    /// Decodes a file that may hold only some chunks of its tensors: everything is checked but the tiling.
    pub(crate) fn decode_part(bytes: &[u8], location: &Location) -> Result<Metadata, Error> {
        read::decode(bytes, location)
    }

    /// Encodes the file `.metadata`: the same bytes for the same contents, loadable by PyTorch 2.4 to 2.15 and by
    /// Megatron-Core. [`Metadata::reformulated`] is not written.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        write::encode(self)
    }

    /// The chunk faults of all tensors, as far as anybody reads on. Errors: [`Error::Tiling`].
    pub(crate) fn check_tiling(&self, location: &Location) -> Result<(), Error> {
        let mut faults = Vec::new();
        for (name, entry) in &self.tensors {
            if faults.len() >= MAX_FAULTS {
                break;
            }
            let regions: Vec<Region> = entry
                .chunks
                .iter()
                .map(|c| c.region.as_ref().clone())
                .collect();
            faults.extend(
                tiling_faults(&entry.shape, &regions)
                    .into_iter()
                    .map(|fault| TensorTilingFault {
                        tensor: name.clone(),
                        shape: entry.shape.clone(),
                        fault,
                    }),
            );
        }
        if faults.is_empty() {
            Ok(())
        } else {
            Err(Error::Tiling {
                faults,
                location: location.clone(),
            })
        }
    }
}

#[cfg(test)]
mod tests;
