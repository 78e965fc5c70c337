//! A checkpoint that was saved without collectives: no `.metadata`, but one such file of every rank.
//!
//! No rank knew of the others then. Each lists its own chunks, and everything that is not sharded is stored once a rank.
//! Put together, the lists must describe one checkpoint: equal dtypes and shapes, chunks that tile, and copies of a chunk
//! that hold the same bytes. Of copies the lowest rank's counts. Source: `use_collectives=False` of
//! `torch.distributed.checkpoint.save`, since PyTorch 2.9.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rialto_tensor::{Location, Region};

use super::METADATA_FILE;
use super::metadata::{Chunk, Metadata, TensorEntry};
use super::pickle::Limits;
use crate::Error;
use crate::store::{Store, read_whole};

/// The metadata files of a directory by rank, given the names of its files.
pub(super) fn rank_files<'n>(
    names: impl IntoIterator<Item = &'n String>,
) -> BTreeMap<u64, &'n str> {
    let rank_of = |name: &str| {
        let digits = name.strip_prefix("__")?.strip_suffix(METADATA_FILE)?;
        let rank: u64 = digits.parse().ok()?;
        // `+1` and `01` are no ranks: torch writes `__1.metadata`.
        (rank.to_string() == digits).then_some(rank)
    };
    let named = names.into_iter();
    named
        .filter_map(|name| Some((rank_of(name)?, name.as_str())))
        .collect()
}

/// What all ranks wrote together.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    pub(super) metadata: Metadata,
    /// Chunks that several ranks stored, in pairs of the one that counts and another.
    pub(super) copies: Vec<ChunkCopy>,
    /// How many objects of higher ranks are left aside. They need not equal the one that counts.
    pub(super) objects: usize,
    /// By tensor and region, the chunk's position in its entry and the rank that stored it.
    seen: HashMap<String, HashMap<Arc<Region>, (usize, u64)>>,
    /// The rank that named a tensor first.
    named_by: HashMap<String, u64>,
}

/// A chunk that two ranks stored.
#[derive(Debug)]
pub(super) struct ChunkCopy {
    pub(super) tensor: String,
    pub(super) kept: (u64, Chunk),
    pub(super) other: (u64, Chunk),
}

impl Ranks {
    /// Reads and joins the metadata files of all ranks.
    ///
    /// Errors: [`Error::RanksMissing`] for a rank without a file below one that has one; [`Error::RanksDisagree`];
    /// [`Error::DuplicateName`] for a name that is a tensor's and an object's; those of [`Metadata::decode`].
    pub(super) fn read(store: &dyn Store, files: &BTreeMap<u64, &str>) -> Result<Ranks, Error> {
        let directory = Location::file(store.name());
        let count = files.keys().last().map_or(0, |last| last.saturating_add(1));
        if count != files.len() as u64 {
            // As many as are shown; a file called after a huge number must not make a huge list.
            let missing = (0..count)
                .filter(|rank| !files.contains_key(rank))
                .take(1000);
            return Err(Error::RanksMissing {
                files: missing
                    .map(|rank| format!("__{rank}{METADATA_FILE}"))
                    .collect(),
                location: directory,
            });
        }
        let mut ranks = Ranks::default();
        for (&rank, name) in files {
            let bytes = read_whole(store, name, Limits::METADATA.bytes)?;
            let location = Location::file(format!("{}/{name}", store.name()));
            let part = Metadata::decode_part(&bytes, &location)?;
            ranks.add(rank, part, &directory)?;
        }
        ranks.metadata.check_tiling(&directory)?;
        Ok(ranks)
    }

    fn add(&mut self, rank: u64, part: Metadata, directory: &Location) -> Result<(), Error> {
        let Metadata {
            tensors,
            objects,
            reformulated,
        } = &mut self.metadata;
        let both_kinds = |name: &str| Error::DuplicateName {
            location: directory.clone(),
            name: name.to_owned(),
        };
        for (name, entry) in part.tensors {
            if objects.contains_key(&name) {
                return Err(both_kinds(&name));
            }
            let first_rank = *self.named_by.entry(name.clone()).or_insert(rank);
            let seen = self.seen.entry(name.clone()).or_default();
            let known = tensors.entry(name.clone()).or_insert_with(|| TensorEntry {
                dtype: entry.dtype,
                shape: entry.shape.clone(),
                chunks: Vec::new(),
            });
            if (known.dtype, &known.shape) != (entry.dtype, &entry.shape) {
                let says = |rank: u64, dtype, shape| format!("rank {rank} says {dtype} {shape}");
                return Err(Error::RanksDisagree {
                    before: says(first_rank, known.dtype, &known.shape),
                    after: says(rank, entry.dtype, &entry.shape),
                    location: directory.clone().with_tensor(name),
                });
            }
            for chunk in entry.chunks {
                match seen.get(&chunk.region) {
                    // Twice by one rank: the tiling will tell.
                    Some(&(position, before)) if before != rank => self.copies.push(ChunkCopy {
                        tensor: name.clone(),
                        kept: (before, known.chunks[position].clone()),
                        other: (rank, chunk),
                    }),
                    _ => {
                        seen.insert(Arc::clone(&chunk.region), (known.chunks.len(), rank));
                        known.chunks.push(chunk);
                    }
                }
            }
        }
        for (name, entry) in part.objects {
            if tensors.contains_key(&name) {
                return Err(both_kinds(&name));
            }
            match objects.entry(name) {
                Entry::Vacant(slot) => {
                    slot.insert(entry);
                }
                Entry::Occupied(_) => self.objects += 1,
            }
        }
        reformulated.extend(part.reformulated);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
