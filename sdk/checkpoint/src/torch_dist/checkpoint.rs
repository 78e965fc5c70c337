//! An iteration directory, open for reading: everything that can be checked without reading tensors has been.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use rialto_tensor::{ByteRange, Location};
use serde_json::Value as Json;

use super::integrity::Integrity;
use super::metadata::{Chunk, Metadata};
use super::object::{Object, read_object};
use super::pickle::Limits;
use super::ranks::{ChunkCopy, Ranks, rank_files};
use super::state::COMMON_STATE_OBJECT;
use super::stored::{StoredTensor, read_tensor_item};
use super::{COMMON_FILE, DESCRIPTION_FILE, INTEGRITY_FILE, METADATA_FILE};
use crate::Error;
use crate::error::{DataFileFault, first};
use crate::store::{Source, Store, read_whole};

/// `metadata.json` holds four short fields.
const MAX_DESCRIPTION_BYTES: u64 = 1 << 20;
/// Room for the digests of a hundred thousand files.
const MAX_INTEGRITY_BYTES: u64 = 16 << 20;
/// Data files kept open at once. A thousand ranks write thousands of files, more than a process may open.
const MAX_OPEN_FILES: usize = 128;

/// A torch_dist checkpoint of one iteration.
///
/// May be used from any thread. It holds no tensor data; reading goes through [`TorchDistCheckpoint::source`].
#[derive(Debug)]
pub struct TorchDistCheckpoint {
    store: Arc<dyn Store>,
    metadata: Metadata,
    common: Option<Object>,
    integrity: Option<Integrity>,
    notes: Vec<String>,
    /// The files opened last, newest at the back.
    open_files: Mutex<VecDeque<(String, Arc<dyn Source>)>>,
}

impl TorchDistCheckpoint {
    /// Opens an iteration directory: `iter_0000042` of a Megatron run, or any directory of a plain PyTorch checkpoint.
    ///
    /// Errors: [`Error::ShardedBackend`] and [`Error::ShardedDescription`] for what `metadata.json` says;
    /// [`Error::IncompleteCheckpoint`] without `.metadata`; those of [`Metadata::decode`]; [`Error::RanksMissing`] and
    /// [`Error::RanksDisagree`] for a save without collectives; [`Error::DataFiles`] with every data file that is absent or
    /// short; [`Error::ItemOverlap`]; those of decoding the common state; those of [`Integrity::parse`], and
    /// [`Error::IntegrityFiles`].
    pub fn open(store: Arc<dyn Store>) -> Result<TorchDistCheckpoint, Error> {
        let lens: BTreeMap<String, u64> = store
            .files()?
            .into_iter()
            .map(|file| (file.name, file.len))
            .collect();
        let mut notes = Vec::new();
        let is_megatron = lens.contains_key(DESCRIPTION_FILE);
        if is_megatron {
            check_description(store.as_ref())?;
        } else {
            notes.push(format!(
                "no {DESCRIPTION_FILE}: a plain PyTorch checkpoint, which Megatron-Core would refuse"
            ));
        }
        let ranks = rank_files(lens.keys());
        let (metadata, copies) = if lens.contains_key(METADATA_FILE) {
            if !ranks.is_empty() {
                notes.push(format!(
                    "{} metadata files of single ranks are left aside, as {METADATA_FILE} is there",
                    ranks.len()
                ));
            }
            let bytes = read_whole(store.as_ref(), METADATA_FILE, Limits::METADATA.bytes)?;
            let location = Location::file(format!("{}/{METADATA_FILE}", store.name()));
            (Metadata::decode(&bytes, &location)?, Vec::new())
        } else if ranks.is_empty() {
            return Err(Error::IncompleteCheckpoint {
                location: Location::file(store.name()),
            });
        } else {
            let joined = Ranks::read(store.as_ref(), &ranks)?;
            notes.push(format!(
                "saved without collectives: {} metadata files are read as one; copies of {} chunks and {} objects by \
                 higher ranks are left aside",
                ranks.len(),
                joined.copies.len(),
                joined.objects
            ));
            (joined.metadata, joined.copies)
        };
        if !metadata.reformulated.is_empty() {
            notes.push(format!(
                "flattened optimizer state of an old Megatron-Core is left out: {}",
                first(metadata.reformulated.keys())
            ));
        }
        check_data_files(store.as_ref(), &metadata, &lens)?;
        let integrity = read_integrity(store.as_ref(), &lens)?;
        let mut checkpoint = TorchDistCheckpoint {
            store,
            metadata,
            common: None,
            integrity,
            notes,
            open_files: Mutex::default(),
        };
        checkpoint.check_copies(&copies)?;
        checkpoint.common = checkpoint.read_common(lens.get(COMMON_FILE).copied())?;
        if checkpoint.common.is_none() && is_megatron {
            checkpoint
                .notes
                .push("no common state, without which Megatron-Core would refuse it".to_owned());
        }
        Ok(checkpoint)
    }

    /// The name errors show.
    #[must_use]
    pub fn name(&self) -> &str {
        self.store.name()
    }

    /// What the checkpoint holds, and where.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The state that is not sharded, a dict: the iteration, training arguments, and so on.
    ///
    /// From `common.pt`, or from the object `common_state/shard_0_1` if there is no such file, as Megatron-Core takes it.
    #[must_use]
    pub fn common(&self) -> Option<&Object> {
        self.common.as_ref()
    }

    /// The digests that the checkpoint's writer left, if it did. Opening has compared no file with its digest; whoever is
    /// about to use a file's bytes may, with [`Integrity::verify`].
    #[must_use]
    pub fn integrity(&self) -> Option<&Integrity> {
        self.integrity.as_ref()
    }

    /// The directory it was opened from.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// What a user should know about the checkpoint, a sentence each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Opens a data file, or returns it as opened before. Errors: those of [`Store::open`].
    pub fn source(&self, file: &str) -> Result<Arc<dyn Source>, Error> {
        // Whoever panicked with the lock left a list of open files, which cannot be half-written.
        let lock = || {
            self.open_files
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        let find = |files: &VecDeque<(String, Arc<dyn Source>)>| {
            let known = files.iter().find(|(name, _)| name == file);
            known.map(|(_, source)| Arc::clone(source))
        };
        if let Some(source) = find(&lock()) {
            return Ok(source);
        }
        // Opened outside the lock: a slow file system must not hold up other files.
        let source: Arc<dyn Source> = Arc::from(self.store.open(file)?);
        let mut files = lock();
        if let Some(source) = find(&files) {
            return Ok(source);
        }
        if files.len() >= MAX_OPEN_FILES {
            files.pop_front();
        }
        files.push_back((file.to_owned(), Arc::clone(&source)));
        Ok(source)
    }

    /// Finds the elements of a chunk of tensor `name` in its data file.
    ///
    /// Errors: [`Error::NoSuchItem`]; [`Error::ItemMismatch`] if the item holds another dtype or shape than the metadata
    /// says; those of [`read_tensor_item`].
    pub fn locate(&self, name: &str, chunk: &Chunk) -> Result<StoredTensor, Error> {
        let entry = self.metadata.tensors.get(name);
        let dtype = entry.ok_or_else(|| self.no_such_item(name))?.dtype;
        let (source, item, location) = self.item(name, &chunk.file, chunk.offset, chunk.len)?;
        let stored = read_tensor_item(source.as_ref(), item, &location)?;
        if stored.dtype != dtype || stored.size.extents() != chunk.region.sizes() {
            return Err(Error::ItemMismatch {
                expected: format!("{dtype} {}", chunk.region.shape()),
                found: format!("{} {}", stored.dtype, stored.size),
                location,
            });
        }
        Ok(stored)
    }

    /// Decodes an object. Errors: [`Error::NoSuchItem`], and those of [`read_object`].
    pub fn object(&self, name: &str) -> Result<Object, Error> {
        let entry = self.metadata.objects.get(name);
        let entry = entry.ok_or_else(|| self.no_such_item(name))?;
        let (source, item, location) = self.item(name, &entry.file, entry.offset, entry.len)?;
        read_object(source.as_ref(), item, &location)
    }

    fn item(
        &self,
        name: &str,
        file: &str,
        offset: u64,
        len: u64,
    ) -> Result<(Arc<dyn Source>, ByteRange, Location), Error> {
        let source = self.source(file)?;
        let item = ByteRange::new(offset, offset.saturating_add(len));
        let location = Location::file(source.name())
            .with_tensor(name)
            .with_bytes(item.start, item.end);
        Ok((source, item, location))
    }

    /// Refuses chunks that several ranks stored with different contents, as far as their checksums tell.
    fn check_copies(&self, copies: &[ChunkCopy]) -> Result<(), Error> {
        for copy in copies {
            let locate = |(rank, chunk): &(u64, Chunk)| {
                let stored = self.locate(&copy.tensor, chunk)?;
                // Bytes in another order have another checksum for the same elements, and 0 stands for none.
                let is_comparable = stored.crc32 != 0 && stored.dense_bytes() == Some(stored.data);
                let what = format!(
                    "rank {rank} stores bytes with checksum {:08x}",
                    stored.crc32
                );
                Ok::<_, Error>((is_comparable.then_some(stored.crc32), what))
            };
            let (kept, before) = locate(&copy.kept)?;
            let (other, after) = locate(&copy.other)?;
            if kept.zip(other).is_some_and(|(kept, other)| kept != other) {
                let location = Location::file(self.store.name()).with_tensor(&copy.tensor);
                return Err(Error::RanksDisagree {
                    before,
                    after,
                    location,
                });
            }
        }
        Ok(())
    }

    fn read_common(&mut self, file_len: Option<u64>) -> Result<Option<Object>, Error> {
        let has_object = self.metadata.objects.contains_key(COMMON_STATE_OBJECT);
        let (common, file) = if let Some(len) = file_len {
            if has_object {
                self.notes.push(format!(
                    "common state taken from {COMMON_FILE}, not from {COMMON_STATE_OBJECT}"
                ));
            }
            let source = self.store.open(COMMON_FILE)?;
            let location = Location::file(source.name());
            (
                read_object(source.as_ref(), ByteRange::new(0, len), &location)?,
                location,
            )
        } else if has_object {
            let location = Location::file(self.store.name()).with_tensor(COMMON_STATE_OBJECT);
            match self.object(COMMON_STATE_OBJECT)? {
                Object::List(mut elements) if elements.len() == 1 => (elements.remove(0), location),
                other => (other, location),
            }
        } else {
            return Ok(None);
        };
        match common {
            Object::Dict(_) => Ok(Some(common)),
            _ => Err(Error::ItemMalformed {
                what: "the common state is no dict",
                location: file,
            }),
        }
    }

    fn no_such_item(&self, name: &str) -> Error {
        Error::NoSuchItem {
            location: Location::file(self.store.name()).with_tensor(name),
        }
    }
}

/// Refuses a `metadata.json` of another format. Newer Megatron-Core versions leave out the two `common_` fields.
fn check_description(store: &dyn Store) -> Result<(), Error> {
    let bytes = read_whole(store, DESCRIPTION_FILE, MAX_DESCRIPTION_BYTES)?;
    let location = Location::file(format!("{}/{DESCRIPTION_FILE}", store.name()));
    let description: Json = match serde_json::from_slice(&bytes) {
        Ok(description) => description,
        Err(error) => {
            return Err(Error::ShardedDescription {
                reason: error.to_string(),
                location,
            });
        }
    };
    let Some(backend) = description.get("sharded_backend").and_then(Json::as_str) else {
        return Err(Error::ShardedDescription {
            reason: "it names no sharded_backend".to_owned(),
            location,
        });
    };
    let version = description.get("sharded_backend_version");
    if backend != "torch_dist" || version.and_then(Json::as_u64) != Some(1) {
        return Err(Error::ShardedBackend {
            backend: backend.to_owned(),
            version: version.map_or("unknown".to_owned(), Json::to_string),
            location,
        });
    }
    Ok(())
}

/// The length of a file, `None` if it is not there. A store does not list what lies in hidden directories, so whatever is
/// not listed is asked for.
fn len_of(
    store: &dyn Store,
    lens: &BTreeMap<String, u64>,
    name: &str,
) -> Result<Option<u64>, Error> {
    match lens.get(name) {
        Some(len) => Ok(Some(*len)),
        None => match store.open(name) {
            Ok(source) => Ok(Some(source.len())),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        },
    }
}

/// Reads the digests, and refuses a list of files that are not all there.
fn read_integrity(
    store: &dyn Store,
    lens: &BTreeMap<String, u64>,
) -> Result<Option<Integrity>, Error> {
    if !lens.contains_key(INTEGRITY_FILE) {
        return Ok(None);
    }
    let bytes = read_whole(store, INTEGRITY_FILE, MAX_INTEGRITY_BYTES)?;
    let location = Location::file(format!("{}/{INTEGRITY_FILE}", store.name()));
    let integrity = Integrity::parse(&bytes, &location)?;
    let mut absent = Vec::new();
    for (name, _) in integrity.files() {
        if len_of(store, lens, name)?.is_none() {
            absent.push(name.to_owned());
        }
    }
    if absent.is_empty() {
        return Ok(Some(integrity));
    }
    Err(Error::IntegrityFiles {
        files: absent,
        location,
    })
}

/// Refuses data files that are absent or too short for their items, and items that share bytes.
fn check_data_files(
    store: &dyn Store,
    metadata: &Metadata,
    lens: &BTreeMap<String, u64>,
) -> Result<(), Error> {
    let directory = store.name();
    let mut items: Vec<(&str, ByteRange, &str)> = Vec::new();
    for (name, entry) in &metadata.tensors {
        for chunk in &entry.chunks {
            items.push((&chunk.file, range(chunk.offset, chunk.len), name));
        }
    }
    for (name, entry) in &metadata.objects {
        items.push((&entry.file, range(entry.offset, entry.len), name));
    }
    items.sort_unstable();

    let mut faults = Vec::new();
    for group in items.chunk_by(|a, b| a.0 == b.0) {
        let (file, _, name) = group[0];
        let found = len_of(store, lens, file)?;
        let needed = group
            .iter()
            .map(|(_, range, _)| range.end)
            .max()
            .unwrap_or(0);
        if found.is_none_or(|found| found < needed) {
            let beyond = |range: &ByteRange| found.is_some_and(|found| range.end > found);
            let affected = group.iter().find(|(_, range, _)| beyond(range));
            faults.push(DataFileFault {
                file: file.to_owned(),
                found,
                needed,
                item: affected.map_or(name, |(_, _, name)| name).to_owned(),
            });
        }
    }
    if !faults.is_empty() {
        return Err(Error::DataFiles {
            faults,
            location: Location::file(directory),
        });
    }
    for pair in items.windows(2) {
        let [(file, before, other), (next_file, after, name)] = pair else {
            continue;
        };
        if file == next_file && after.start < before.end {
            return Err(Error::ItemOverlap {
                other: (*other).to_owned(),
                location: Location::file(format!("{directory}/{file}"))
                    .with_tensor(*name)
                    .with_bytes(after.start, after.end),
            });
        }
    }
    Ok(())
}

/// The bytes of an item, whose end was checked when the metadata was decoded.
fn range(offset: u64, len: u64) -> ByteRange {
    ByteRange::new(offset, offset.saturating_add(len))
}

#[cfg(test)]
mod tests;
