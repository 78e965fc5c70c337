//! Side files: opaque bytes that travel with the weights and come back as they were.

use std::collections::BTreeMap;

use rialto_checkpoint::store::{FileEntry, Stamp, Store};

use crate::Error;

/// Directory of an iteration that keeps what the Hugging Face side brought besides weights.
pub(crate) const SOURCE_DIRECTORY: &str = "rialto/source/";

/// Bytes of all of them.
pub(crate) fn total_bytes(files: &[FileEntry]) -> u64 {
    files.iter().map(|file| file.len).sum()
}

/// What every file of a store looks like now, each under `prefix`.
pub(crate) fn stamps(store: &dyn Store, prefix: &str) -> Result<BTreeMap<String, Stamp>, Error> {
    let mut stamps = BTreeMap::new();
    for file in store.files()? {
        let stamp = store.stamp(&file.name)?;
        stamps.insert(format!("{prefix}{}", file.name), stamp);
    }
    Ok(stamps)
}
