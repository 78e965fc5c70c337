//! The params of a Megatron checkpoint as values, whatever keys and chunks they are stored in.

use std::ops::Range;

use rialto_bridge::binding::FoundParams;
use rialto_bridge::{Mapping, StoredTensor};
use rialto_checkpoint::torch_dist::TorchDistCheckpoint;
use rialto_tensor::Region;

use crate::Error;
use crate::array::{Array, Bytes, Extent, Handle};

/// A checkpoint bound to a mapping.
#[derive(Debug)]
pub(crate) struct Params {
    binding: ParamBinding,
    /// For each param, the range of its keys in [`Mapping::keys`].
    keys: Vec<Range<usize>>,
    inventory: Vec<StoredTensor>,
}

/// What a checkpoint holds of weights, in the words of the mapping.
pub(crate) fn inventory(checkpoint: &TorchDistCheckpoint) -> Vec<StoredTensor> {
    let weights = checkpoint.metadata().tensors.iter();
    let stored = weights.map(|(name, entry)| StoredTensor {
        name: name.clone(),
        dtype: entry.dtype,
        shape: entry.shape.clone(),
        place: entry
            .chunks
            .first()
            .map(|chunk| chunk.file.clone())
            .unwrap_or_default(),
    });
    stored.collect()
}

impl Params {
    /// Errors: those of [`Mapping::bind_params`].
    pub(crate) fn bind(mapping: &Mapping, inventory: Vec<StoredTensor>) -> Result<Params, Error> {
        let binding = mapping.bind_params(&inventory)?;
        let mut keys = vec![0..0; mapping.params().len()];
        for (position, key) in mapping.keys().iter().enumerate() {
            let range = &mut keys[key.param];
            if range.start == range.end {
                *range = position..position;
            }
            range.end = position + 1;
        }
        Ok(Params {
            binding,
            keys,
            inventory,
        })
    }

    /// The dtype that each param is stored in.
    pub(crate) fn dtypes(&self) -> &[rialto_tensor::Dtype] {
        &self.binding.param_dtypes
    }

    /// What is stored under each key.
    pub(crate) fn stored(&self) -> impl Iterator<Item = &StoredTensor> {
        self.binding
            .keys
            .iter()
            .map(|&position| &self.inventory[position])
    }

    /// The chunks of a param that a rectangle of it touches; `verifies` compares the checksums that their writer recorded.
    pub(crate) fn array<'a>(
        &self,
        mapping: &Mapping,
        checkpoint: &'a TorchDistCheckpoint,
        param: usize,
        region: &Region,
        verifies: bool,
    ) -> Result<Array<'a>, Error> {
        let mut extents = Vec::new();
        for position in self.keys[param].clone() {
            let key = &mapping.keys()[position];
            if !overlaps(&key.region, region) {
                continue;
            }
            let stored = &self.inventory[self.binding.keys[position]];
            let whole = Region::whole(&key.shape);
            for chunk in &checkpoint.metadata().tensors[&stored.name].chunks {
                let is_own = key.region == whole;
                if is_own && !overlaps(&chunk.region, region) {
                    continue;
                }
                let in_param = if is_own {
                    chunk.region.clone()
                } else {
                    Region::corresponding(&chunk.region, &whole, &key.region)
                };
                if in_param.intersection(region).is_none() {
                    continue;
                }
                let located = checkpoint.locate(&stored.name, chunk)?;
                let source = checkpoint.source(&chunk.file)?;
                // The bytes are read again right after, from the page cache: a chunk is a matrix, not a checkpoint.
                if verifies {
                    located.verify(source.as_ref(), &stored.name)?;
                }
                let bytes = match located.dense_bytes() {
                    Some(range) => Bytes::File {
                        source: Handle::Shared(source),
                        offset: range.start,
                    },
                    None => Bytes::Memory(located.read(source.as_ref())?),
                };
                extents.push(Extent {
                    region: in_param,
                    bytes,
                });
            }
        }
        Ok(Array {
            dtype: self.binding.param_dtypes[param],
            extents,
        })
    }
}

/// Whether two rectangles can share an element, as far as their first axes tell: a stack has many that cannot, and asking
/// for their intersection would cost more than all else.
pub(crate) fn overlaps(a: &Region, b: &Region) -> bool {
    let bounds = |region: &Region| {
        let (first, size) = (region.offsets().first(), region.sizes().first());
        first
            .zip(size)
            .map(|(&first, &size)| (first, first.saturating_add(size)))
    };
    match (bounds(a), bounds(b)) {
        (Some((a, a_end)), Some((b, b_end))) => a < b_end && b < a_end,
        _ => true,
    }
}
