//! The directories a command reads, and the one it creates.

use std::path::Path;
use std::sync::Arc;

use rialto_checkpoint::store::{Access, LocalStore, LocalTarget, Overwrite, Store};
use rialto_engine::World;

use crate::arguments::RunFlags;
use crate::failure::Failure;

/// A directory to read.
pub(crate) fn open(path: &Path) -> Result<Arc<dyn Store>, Failure> {
    open_with(path, Access::Auto)
}

/// A directory to read in this way.
pub(crate) fn open_with(path: &Path, access: Access) -> Result<Arc<dyn Store>, Failure> {
    Ok(Arc::new(LocalStore::open(path)?.with_access(access)))
}

/// The reference directory, if one is given.
pub(crate) fn open_reference(path: Option<&Path>) -> Result<Option<Arc<dyn Store>>, Failure> {
    path.map(open).transpose()
}

/// The directory to create; one that is there already is replaced only by force. What an earlier attempt has left is taken up
/// if that is asked for, and by each of several processes: they cannot know who comes first.
pub(crate) fn create(
    path: &Path,
    flags: &RunFlags,
    world: World,
) -> Result<Box<LocalTarget>, Failure> {
    let overwrite = if flags.force {
        Overwrite::Replace
    } else {
        Overwrite::Refuse
    };
    let target = match world {
        World { rank: 1.., .. } => LocalTarget::join(path, overwrite)?,
        World { size: 2.., .. } => LocalTarget::resume(path, overwrite)?,
        _ if flags.resume => LocalTarget::resume(path, overwrite)?,
        _ => LocalTarget::create(path, overwrite)?,
    };
    Ok(Box::new(target.with_access(flags.access())))
}

/// A directory beside where `path` would be, for trying out how fast it is there. Nothing that lies at `path`, or was begun
/// there, is touched.
pub(crate) fn create_beside(path: &Path) -> Result<Box<LocalTarget>, Failure> {
    let mut name = path.as_os_str().to_owned();
    name.push(".probe");
    Ok(Box::new(LocalTarget::create(&name, Overwrite::Refuse)?))
}
