//! The files that hold no tensors: configs, metadata, side files.

use rialto_checkpoint::store::{FileEntry, Store, Target};
use serde::{Deserialize, Serialize};

use super::digest::hex;
use crate::{Error, Progress};

/// Bytes of a side file held in memory at a time.
const BLOCK_BYTES: u64 = 1 << 20;

/// A file that holds no tensors, as the manifest has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileDigest {
    /// Its name in the result.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// BLAKE3 of it, in hexadecimal digits.
    pub blake3: String,
}

/// Writes small files and keeps their digests.
pub(crate) struct SmallFiles<'a> {
    target: &'a dyn Target,
    progress: &'a dyn Progress,
    pub(crate) written: Vec<FileDigest>,
}

impl<'a> SmallFiles<'a> {
    pub(crate) fn new(target: &'a dyn Target, progress: &'a dyn Progress) -> SmallFiles<'a> {
        SmallFiles {
            target,
            progress,
            written: Vec::new(),
        }
    }

    /// Writes a file whole.
    pub(crate) fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let sink = self.target.create(name)?;
        sink.write_at(0, bytes)?;
        sink.sync()?;
        self.note(name, bytes.len() as u64, &blake3::hash(bytes));
        Ok(())
    }

    /// Copies files of a store, each under `prefix`.
    pub(crate) fn copy(
        &mut self,
        store: &dyn Store,
        files: &[FileEntry],
        prefix: &str,
    ) -> Result<(), Error> {
        let mut block = Vec::new();
        for file in files {
            let source = store.open(&file.name)?;
            let name = format!("{prefix}{}", file.name);
            let sink = self.target.create(&name)?;
            let mut hasher = blake3::Hasher::new();
            let mut offset = 0;
            while offset < source.len() {
                if self.progress.is_cancelled() {
                    return Err(Error::Cancelled);
                }
                let length = BLOCK_BYTES.min(source.len() - offset);
                block.resize(usize::try_from(length).expect("a block fits in memory"), 0);
                source.read_at(offset, &mut block)?;
                hasher.update(&block);
                sink.write_at(offset, &block)?;
                offset += length;
            }
            sink.sync()?;
            self.note(&name, offset, &hasher.finalize());
        }
        Ok(())
    }

    fn note(&mut self, name: &str, bytes: u64, digest: &blake3::Hash) {
        self.written.push(FileDigest {
            name: name.to_owned(),
            bytes,
            blake3: hex(digest.as_bytes()),
        });
    }
}
