//! Side files: opaque bytes that travel with the weights and come back as they were.

use rialto_checkpoint::store::{FileEntry, Store, Target};

use crate::{Error, Progress};

/// Directory of an iteration that keeps what the Hugging Face side brought besides weights.
pub(crate) const SOURCE_DIRECTORY: &str = "rialto/source/";

/// Bytes of a side file held in memory at a time.
const BLOCK_BYTES: u64 = 1 << 20;

/// Bytes of all of them.
pub(crate) fn total_bytes(files: &[FileEntry]) -> u64 {
    files.iter().map(|file| file.len).sum()
}

/// Copies files from a store into a target, each under `prefix`.
pub(crate) fn copy(
    store: &dyn Store,
    files: &[FileEntry],
    target: &dyn Target,
    prefix: &str,
    progress: &dyn Progress,
) -> Result<(), Error> {
    for file in files {
        let source = store.open(&file.name)?;
        let sink = target.create(&format!("{prefix}{}", file.name))?;
        let mut offset = 0;
        while offset < source.len() {
            if progress.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let length = BLOCK_BYTES.min(source.len() - offset);
            let mut block = vec![0; usize::try_from(length).expect("a block fits in memory")];
            source.read_at(offset, &mut block)?;
            sink.write_at(offset, &block)?;
            offset += length;
        }
        sink.sync()?;
    }
    Ok(())
}

/// Writes a small file whole.
pub(crate) fn write(target: &dyn Target, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let sink = target.create(name)?;
    sink.write_at(0, bytes)?;
    Ok(sink.sync()?)
}
