//! The directories a command reads, and the one it creates.

use std::path::Path;
use std::sync::Arc;

use rialto_checkpoint::store::{LocalStore, LocalTarget, Overwrite, Store};

use crate::failure::Failure;

/// A directory to read.
pub(crate) fn open(path: &Path) -> Result<Arc<dyn Store>, Failure> {
    Ok(Arc::new(LocalStore::open(path)?))
}

/// The reference directory, if one is given.
pub(crate) fn open_reference(path: Option<&Path>) -> Result<Option<Arc<dyn Store>>, Failure> {
    path.map(open).transpose()
}

/// The directory to create; one that is there already is replaced only by force.
pub(crate) fn create(path: &Path, force: bool) -> Result<Box<LocalTarget>, Failure> {
    let overwrite = if force {
        Overwrite::Replace
    } else {
        Overwrite::Refuse
    };
    Ok(Box::new(LocalTarget::create(path, overwrite)?))
}
