//! A tiny checkpoint of the family, in memory.

use std::sync::Arc;

use rialto_bridge::RawConfig;
use rialto_checkpoint::hf;
use rialto_checkpoint::store::{MemoryStore, Store, read_whole};

use crate::error::Error;
use crate::tensors::{self, LIMIT, Tensors};

/// A Hugging Face directory, and what an independent reader finds in it.
pub(crate) struct Fixture {
    /// How findings call it.
    pub(crate) name: String,
    pub(crate) files: MemoryStore,
    pub(crate) config: RawConfig,
    pub(crate) tensors: Tensors,
}

impl Fixture {
    pub(crate) fn read(name: &str, directory: &dyn Store) -> Result<Fixture, Error> {
        let files = MemoryStore::new(name);
        for file in directory.files()? {
            files.insert(&file.name, read_whole(directory, &file.name, LIMIT)?)?;
        }
        Ok(Fixture {
            name: name.to_owned(),
            config: RawConfig::parse(&hf::read_config(&files)?)?,
            tensors: tensors::read(&files)?,
            files,
        })
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.files.clone())
    }
}
