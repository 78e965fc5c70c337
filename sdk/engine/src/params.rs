//! The params of a Megatron checkpoint as values, whatever keys and chunks they are stored in.

use std::collections::HashSet;
use std::ops::Range;

use rialto_bridge::binding::FoundParams;
use rialto_bridge::{Mapping, StoredTensor};
use rialto_checkpoint::torch_dist::TorchDistCheckpoint;
use rialto_tensor::held::Held;
use rialto_tensor::{Dtype, Region};

use crate::array::{Array, Bytes, Extent, Handle, usize_range};
use crate::beside::{BESIDE_FILE, Beside};
use crate::checks::Checks;
use crate::{Error, Progress};

/// A checkpoint bound to a mapping.
#[derive(Debug)]
pub(crate) struct Params {
    /// For each key, its position in the inventory.
    positions: Vec<Option<usize>>,
    /// For each param, the range of its keys in [`Mapping::keys`].
    keys: Vec<Range<usize>>,
    dtypes: Vec<Dtype>,
    inventory: Vec<StoredTensor>,
    checks: Checks,
}

impl Held for Params {
    /// As far as it is there before anything is read.
    fn held_bytes(&self) -> u64 {
        let found = self.positions.held_bytes() + self.inventory.held_bytes();
        found + size_of_val(self.keys.as_slice()) as u64 + self.dtypes.held_bytes()
    }
}

/// What a checkpoint holds of weights, in the words of the mapping, and a line on what else it holds.
pub(crate) fn inventory(
    checkpoint: &TorchDistCheckpoint,
    beside: Option<&Beside>,
) -> (Vec<StoredTensor>, Option<String>) {
    let training = checkpoint.metadata().training_state();
    let tensors = checkpoint.metadata().tensors.iter();
    let weights = tensors.filter(|(name, _)| !training.contains(name));
    let stored = weights.map(|(name, entry)| StoredTensor {
        name: name.clone(),
        dtype: entry.dtype,
        shape: entry.shape.clone(),
        place: entry
            .chunks
            .first()
            .map(|chunk| chunk.file.as_ref().to_owned())
            .unwrap_or_default(),
    });
    let note = (!training.is_empty()).then(|| format!("training state is ignored: {training}"));
    let kept = beside.into_iter().flat_map(Beside::inventory);
    (stored.chain(kept).collect(), note)
}

/// Holds the checkpoint's files against the digests beside them, if there are any.
pub(crate) fn verify_digests(
    checkpoint: &TorchDistCheckpoint,
    progress: &dyn Progress,
) -> Result<(), Error> {
    let Some(integrity) = checkpoint.integrity() else {
        return Ok(());
    };
    for (name, _) in integrity.files() {
        integrity.verify::<Error>(checkpoint.store().as_ref(), name, &mut |_| match progress
            .is_cancelled()
        {
            true => Err(Error::Cancelled),
            false => Ok(()),
        })?;
        tracing::debug!(target: "rialto::engine", file = name, "digest agrees");
    }
    Ok(())
}

impl Params {
    /// Errors: those of [`Mapping::bind_params`].
    pub(crate) fn bind(mapping: &Mapping, inventory: Vec<StoredTensor>) -> Result<Params, Error> {
        let bound = mapping.bind_params(&inventory)?;
        let found = FoundParams {
            keys: bound.keys.into_iter().map(Some).collect(),
            param_dtypes: bound.param_dtypes,
            violations: Vec::new(),
        };
        Ok(Params::new(mapping, inventory, found))
    }

    /// What was found, whether or not it is all.
    pub(crate) fn new(
        mapping: &Mapping,
        inventory: Vec<StoredTensor>,
        found: FoundParams,
    ) -> Params {
        let mut keys = vec![0..0; mapping.params().len()];
        for (position, key) in mapping.keys().iter().enumerate() {
            let range = &mut keys[key.param];
            if range.start == range.end {
                *range = position..position;
            }
            range.end = position + 1;
        }
        Params {
            positions: found.keys,
            keys,
            dtypes: found.param_dtypes,
            inventory,
            checks: Checks::default(),
        }
    }

    /// The dtype that each param is stored in.
    pub(crate) fn dtypes(&self) -> &[Dtype] {
        &self.dtypes
    }

    /// Whether all of a param was found.
    pub(crate) fn is_whole(&self, param: usize) -> bool {
        let mut positions = self.positions[self.keys[param].clone()].iter();
        positions.all(Option::is_some)
    }

    /// What is stored of the params that are kept, each tensor once, however many params it stacks.
    pub(crate) fn stored(
        &self,
        mapping: &Mapping,
        kept: &[bool],
    ) -> impl Iterator<Item = &StoredTensor> {
        let mut earlier = HashSet::new();
        let keys = self.positions.iter().zip(mapping.keys());
        let positions = keys.filter_map(|(position, key)| position.filter(|_| kept[key.param]));
        let once = positions.filter(move |position| earlier.insert(*position));
        once.map(|position| &self.inventory[position])
    }

    /// The chunks of a param that a rectangle of it touches; `verifies` compares the checksums that their writer recorded.
    pub(crate) fn array<'a>(
        &self,
        mapping: &Mapping,
        checkpoint: &'a TorchDistCheckpoint,
        beside: Option<&'a Beside>,
        param: usize,
        region: &Region,
        verifies: bool,
    ) -> Result<Array<'a>, Error> {
        let mut extents = Vec::new();
        let mut dtype = self.dtypes[param];
        for position in self.keys[param].clone() {
            let key = &mapping.keys()[position];
            if key.region.intersection(region).is_none() {
                continue;
            }
            let Some(stored) = self.positions[position].map(|at| &self.inventory[at]) else {
                continue;
            };
            dtype = stored.dtype;
            let whole = Region::whole(&key.shape);
            // The inventory says where each tensor stands, whatever its name promises.
            let is_kept = stored.place == BESIDE_FILE;
            if let Some(kept) = beside
                .filter(|_| is_kept)
                .and_then(|beside| beside.array(&stored.name))
            {
                extents.extend(kept.extents.into_iter().map(|extent| Extent {
                    region: Region::corresponding(&extent.region, &whole, &key.region),
                    bytes: extent.bytes,
                }));
                continue;
            }
            let entry = checkpoint.metadata().tensors.get(&stored.name);
            for chunk in entry.iter().flat_map(|entry| &entry.chunks) {
                let is_own = key.region == whole;
                if is_own && !overlaps(&chunk.region, region) {
                    continue;
                }
                let in_param = if is_own || key.slot.is_some() {
                    key.in_param(&chunk.region)
                } else {
                    Some(Region::corresponding(&chunk.region, &whole, &key.region))
                };
                let Some(in_param) = in_param else {
                    continue;
                };
                if in_param.intersection(region).is_none() {
                    continue;
                }
                // The layers of a chunk lie one after the other.
                let before = key.layers_before(&chunk.region).unwrap_or_default();
                let layer_bytes = in_param.shape().size_bytes(stored.dtype)?;
                let skipped = before * layer_bytes;
                let located = checkpoint.locate(&stored.name, chunk)?;
                let source = checkpoint.source(&chunk.file)?;
                let check = match verifies {
                    true => self.checks.of(&stored.name, chunk, &located),
                    false => None,
                };
                let bytes = match located.dense_bytes() {
                    Some(range) => Bytes::File {
                        source: Handle::Shared(source),
                        offset: range.start + skipped,
                        check,
                    },
                    None => {
                        if let Some(check) = check {
                            check.read_whole(source.as_ref())?;
                        }
                        let bytes = located.read(source.as_ref())?;
                        Bytes::Memory(bytes[usize_range(skipped, layer_bytes)].to_vec())
                    }
                };
                extents.push(Extent {
                    region: in_param,
                    bytes,
                });
            }
        }
        Ok(Array { dtype, extents })
    }

    /// The dtypes in which a rectangle of a param is stored: one, unless its keys differ. One without elements has those of
    /// the param.
    pub(crate) fn dtypes_of(&self, mapping: &Mapping, param: usize, region: &Region) -> Vec<Dtype> {
        let mut dtypes = Vec::new();
        for position in self.keys[param].clone() {
            let touches = touches(&mapping.keys()[position].region, region);
            if let Some(at) = self.positions[position].filter(|_| touches) {
                dtypes.push(self.inventory[at].dtype);
            }
        }
        dtypes.sort();
        dtypes.dedup();
        dtypes
    }

    /// Compares the checksums of chunks that were read only in part. Errors: those of [`Checks::finish`].
    pub(crate) fn finish_checks(
        &self,
        checkpoint: &TorchDistCheckpoint,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        self.checks.finish(checkpoint, progress)
    }
}

/// Whether a part of a param has a say in a rectangle of it: it shares an element, or there is none to share.
pub(crate) fn touches(part: &Region, region: &Region) -> bool {
    region.sizes().contains(&0) || (overlaps(part, region) && part.intersection(region).is_some())
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
