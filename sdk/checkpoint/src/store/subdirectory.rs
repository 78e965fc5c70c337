//! A part of a store, seen as a store of its own.

use std::sync::Arc;

use rialto_tensor::Location;

use super::{FileEntry, Source, Stamp, Store, check_name};
use crate::Error;

/// The files of another store whose names begin with a directory, under names relative to that directory.
///
/// Whether the directory exists is not asked: a missing one lists no file. As in the store behind it, directories whose
/// name begins with a dot are not listed, and that holds for this directory too.
#[derive(Debug)]
pub struct Subdirectory {
    store: Arc<dyn Store>,
    /// The directory with a `/` at its end.
    prefix: String,
    name: String,
}

impl Subdirectory {
    /// The part of `store` below `directory`, which may have several parts (`a/b`). Errors: [`Error::UnsafeName`].
    pub fn new(store: Arc<dyn Store>, directory: &str) -> Result<Subdirectory, Error> {
        check_name(directory, &Location::file(store.name()))?;
        Ok(Subdirectory {
            prefix: format!("{directory}/"),
            name: format!("{}/{directory}", store.name()),
            store,
        })
    }

    /// The name that a file has in the store behind. Errors: [`Error::UnsafeName`].
    fn outer(&self, name: &str) -> Result<String, Error> {
        // Checked here, because `../x` after the prefix would still be inside the store behind.
        check_name(name, &Location::file(self.name()))?;
        Ok(format!("{}{name}", self.prefix))
    }
}

impl Store for Subdirectory {
    fn name(&self) -> &str {
        &self.name
    }

    fn files(&self) -> Result<Vec<FileEntry>, Error> {
        let files = self.store.files()?.into_iter();
        // Order is kept: names that share a prefix compare as their rests do.
        Ok(files
            .filter_map(|file| {
                let name = file.name.strip_prefix(&self.prefix)?.to_owned();
                Some(FileEntry { name, ..file })
            })
            .collect())
    }

    fn open(&self, name: &str) -> Result<Box<dyn Source>, Error> {
        self.store.open(&self.outer(name)?)
    }

    fn stamp(&self, name: &str) -> Result<Stamp, Error> {
        self.store.stamp(&self.outer(name)?)
    }
}
