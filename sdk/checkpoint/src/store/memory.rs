//! A store and a target in memory: for tests, and for whoever has the bytes already.
//!
//! | module | noun |
//! |---|---|
//! | [`target`] | a directory in memory under construction |

pub mod target;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rialto_tensor::Location;

use super::{FileEntry, Source, Store, Target, check_name};
use crate::Error;

pub use target::{MemoryPartial, MemorySlot, MemoryTarget};

type Files = BTreeMap<String, Vec<u8>>;

/// Files shared by a store, its clones and its open sources. Whoever panics while holding the lock leaves whole files
/// behind, so a poisoned lock is taken as it is.
#[derive(Clone, Debug, Default)]
struct SharedFiles(Arc<RwLock<Files>>);

impl SharedFiles {
    fn read(&self) -> RwLockReadGuard<'_, Files> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Files> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A directory of files in memory. Clones share the files.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    name: String,
    files: SharedFiles,
}

impl MemoryStore {
    /// An empty directory that errors call `name`.
    pub fn new(name: impl Into<String>) -> MemoryStore {
        MemoryStore {
            name: name.into(),
            files: SharedFiles::default(),
        }
    }

    /// What a run writes into a new target called `name` and commits. Errors: the run's.
    ///
    /// # Panics
    ///
    /// If the run succeeds without a commit.
    pub fn written_by<E>(
        name: &str,
        run: impl FnOnce(Box<dyn Target>) -> Result<(), E>,
    ) -> Result<MemoryStore, E> {
        let slot = MemorySlot::default();
        run(Box::new(MemoryTarget::new(name, Arc::clone(&slot))))?;
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(slot.take().expect("a run that succeeds has committed"))
    }

    /// Adds a file, or gives an existing one new contents; open sources see them. Errors: [`Error::UnsafeName`].
    pub fn insert(&self, name: &str, bytes: impl Into<Vec<u8>>) -> Result<(), Error> {
        check_name(name, &Location::file(&self.name))?;
        self.files.write().insert(name.to_owned(), bytes.into());
        Ok(())
    }

    /// Removes a file and returns its contents.
    pub fn remove(&self, name: &str) -> Option<Vec<u8>> {
        self.files.write().remove(name)
    }

    /// The contents of a file.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        self.files.read().get(name).cloned()
    }
}

impl Store for MemoryStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn files(&self) -> Result<Vec<FileEntry>, Error> {
        let is_listed = |name: &str| {
            let (directories, _) = name.rsplit_once('/').unwrap_or(("", name));
            !directories.split('/').any(|part| part.starts_with('.'))
        };
        let files = self.files.read();
        Ok(files
            .iter()
            .filter(|(name, _)| is_listed(name))
            .map(|(name, bytes)| FileEntry {
                name: name.clone(),
                len: bytes.len() as u64,
            })
            .collect())
    }

    fn open(&self, name: &str) -> Result<Box<dyn Source>, Error> {
        check_name(name, &Location::file(&self.name))?;
        let shown = format!("{}/{name}", self.name);
        let len = self.files.read().get(name).map(|bytes| bytes.len() as u64);
        let Some(len) = len else {
            return Err(Error::NotFound {
                location: Location::file(shown),
            });
        };
        Ok(Box::new(MemorySource {
            files: self.files.clone(),
            key: name.to_owned(),
            name: shown,
            len,
        }))
    }
}

#[derive(Debug)]
struct MemorySource {
    files: SharedFiles,
    key: String,
    name: String,
    len: u64,
}

impl Source for MemorySource {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let files = self.files.read();
        let bytes = files.get(&self.key).map_or(&[][..], Vec::as_slice);
        // What was appended after opening is not part of the file that was opened.
        let end = offset.saturating_add(buffer.len() as u64);
        let wanted = match (usize::try_from(offset), usize::try_from(end)) {
            (Ok(start), Ok(stop)) if end <= self.len => bytes.get(start..stop),
            _ => None,
        };
        let Some(wanted) = wanted else {
            return Err(Error::ShortRead {
                location: Location::file(&self.name).with_bytes(offset, end),
                len: self.len.min(bytes.len() as u64),
            });
        };
        buffer.copy_from_slice(wanted);
        Ok(())
    }
}
