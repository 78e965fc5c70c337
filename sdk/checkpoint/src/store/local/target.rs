//! A directory that appears under its name whole, or not at all.
//!
//! `NAME` is built beside itself, on the same file system:
//!
//! ```text
//! NAME.partial/
//!   .rialto-partial   the marker: says that rialto made this, and is locked while somebody builds
//!   tree/             what will become NAME
//!   old/              only without an atomic exchange: the NAME that was there before
//! ```
//!
//! [`Target::commit`] syncs every file and directory of `tree`, then publishes it in one step: a rename if nothing is in
//! the way, an exchange (`RENAME_EXCHANGE`) if an older result is, which then lies in `NAME.partial/tree` and is deleted.
//! So at any moment `NAME` is absent, the complete old result, or the complete new one. The marker stays until all the rest
//! of `NAME.partial` is gone, so whatever a killed run leaves is known as ours, and the next run for the same target clears
//! it away. What is in it without a marker is never deleted.
//!
//! Where the file system has no exchange there are two renames: `NAME` to `NAME.partial/old`, then `tree` to `NAME`. A run
//! killed between the two leaves `NAME` absent; the next run for the same target first moves `old` back.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rialto_tensor::Location;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::direct::Access;
use super::is_unsupported;
use super::sink::LocalSink;
use crate::Error;
use crate::store::{Sink, Target, check_name};

const MARKER: &str = ".rialto-partial";
const TREE: &str = "tree";
const OLD: &str = "old";

/// How often a place to build in is tried for while others come and go in it.
const CLAIM_ATTEMPTS: usize = 16;

/// What to do about an older result under the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// Refuse anything but an empty directory.
    Refuse,
    /// Replace a directory, as a whole and only once the new one is complete.
    Replace,
}

/// A directory of the file system under construction; see the [module](self) for how it appears.
///
/// Sinks must not be written to after the commit: their files are then those of the finished directory.
#[derive(Debug)]
pub struct LocalTarget {
    /// The final path as the user typed it.
    name: String,
    /// The final path without links.
    place: PathBuf,
    /// Where it is built.
    partial: PathBuf,
    overwrite: Overwrite,
    access: Access,
    /// Whether `partial` is gone, and its name free for somebody else.
    is_removed: bool,
    // Dropped in this order, after the partial directory is gone.
    /// The open marker, whose lock ends with it.
    _lock: File,
    parents: MadeParents,
}

impl LocalTarget {
    /// Begins a directory that will be called `path`; directories above it are created.
    ///
    /// Errors: [`Error::TargetExists`] and [`Error::NotDirectory`] if what is there must stay, [`Error::TargetBusy`] and
    /// [`Error::ForeignPartial`] if `NAME.partial` cannot be had, [`Error::UnsafeName`] if the path has no last part,
    /// [`Error::NotFound`] if it is a link that leads nowhere, [`Error::Write`].
    pub fn create(path: impl AsRef<Path>, overwrite: Overwrite) -> Result<LocalTarget, Error> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let (place, parents) = resolve(path, &name)?;
        occupant(&place, &name, overwrite)?;
        let partial = partial_path(&place);
        let lock = claim(&partial)?;
        let target = LocalTarget {
            name,
            place,
            partial,
            overwrite,
            access: Access::default(),
            is_removed: false,
            _lock: lock,
            parents,
        };
        // From here on dropping the target cleans up.
        target.clear()?;
        occupant(&target.place, &target.name, overwrite)?;
        let tree = target.tree();
        fs::create_dir(&tree).map_err(|source| write_error(&tree, source))?;
        Ok(target)
    }

    /// The same target, its files written in another way from now on.
    #[must_use]
    pub fn with_access(mut self, access: Access) -> LocalTarget {
        self.access = access;
        self
    }

    /// Bytes that may still be written to the file system of the target, as it says.
    pub fn available_bytes(&self) -> Result<u64, Error> {
        let state = rustix::fs::statvfs(&self.partial)
            .map_err(|errno| write_error(&self.partial, errno.into()))?;
        Ok(state.f_bavail.saturating_mul(state.f_frsize))
    }

    fn tree(&self) -> PathBuf {
        self.partial.join(TREE)
    }

    /// Removes everything but the marker, after moving back an old result that a killed run had moved away.
    fn clear(&self) -> Result<(), Error> {
        let old = self.partial.join(OLD);
        if is_there(&old) && !is_there(&self.place) {
            // If this fails, `old` is the only copy: it must not be deleted below.
            fs::rename(&old, &self.place).map_err(|source| write_error(&old, source))?;
        }
        let refuse = |source| write_error(&self.partial, source);
        for entry in fs::read_dir(&self.partial).map_err(refuse)? {
            let entry = entry.map_err(refuse)?;
            let path = entry.path();
            if entry.file_name() == MARKER {
                continue;
            }
            let removed = match entry.file_type().map_err(refuse)?.is_dir() {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
            removed.map_err(|source| write_error(&path, source))?;
        }
        Ok(())
    }

    /// Removes the directory under construction. The marker goes last, so that a killed removal is continued later.
    fn remove(&mut self) -> Result<(), Error> {
        self.clear()?;
        let marker = self.partial.join(MARKER);
        fs::remove_file(&marker).map_err(|source| write_error(&marker, source))?;
        self.is_removed = true;
        // Fails only if somebody else has begun to build here since, who now owns the directory.
        let _ = fs::remove_dir(&self.partial);
        Ok(())
    }

    /// Syncs `tree` and puts it under the final name, with `exchange` to swap it with an older result.
    fn publish(&self, exchange: impl Fn(&Path, &Path) -> io::Result<()>) -> Result<(), Error> {
        let tree = self.tree();
        sync_tree(&tree)?;
        let refuse = |source| write_error(Path::new(&self.name), source);
        match occupant(&self.place, &self.name, self.overwrite)? {
            Occupant::Nothing => fs::rename(&tree, &self.place).map_err(refuse)?,
            Occupant::Directory => match exchange(&tree, &self.place) {
                Err(error) if is_unsupported(&error) => {
                    let old = self.partial.join(OLD);
                    fs::rename(&self.place, &old).map_err(refuse)?;
                    // If this fails, `clear` moves the old result back.
                    fs::rename(&tree, &self.place).map_err(refuse)?;
                }
                exchanged => exchanged.map_err(refuse)?,
            },
        }
        sync_directory(&self.partial)?;
        for parent in self.place.parent().into_iter().chain(self.parents.above()) {
            sync_directory(parent)?;
        }
        Ok(())
    }
}

impl Target for LocalTarget {
    fn name(&self) -> &str {
        &self.name
    }

    fn create(&self, name: &str) -> Result<Box<dyn Sink>, Error> {
        check_name(name, &Location::file(&self.name))?;
        let path = self.tree().join(name);
        let shown = format!("{}/{name}", self.name);
        let refuse = |source| write_error(Path::new(&shown), source);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(refuse)?;
        }
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.map_err(refuse)?;
        Ok(Box::new(LocalSink::new(file, path, shown, self.access)))
    }

    fn require_bytes(&self, needed: u64) -> Result<(), Error> {
        let available = self.available_bytes()?;
        if available >= needed {
            return Ok(());
        }
        let location = self.name.clone();
        Err(Error::NoSpace {
            location,
            needed,
            available,
        })
    }

    fn commit(mut self: Box<Self>) -> Result<(), Error> {
        self.publish(|from, to| {
            renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE).map_err(io::Error::from)
        })?;
        // Here rather than only on drop, so that an old result that cannot be deleted is told.
        self.remove()
    }
}

impl Drop for LocalTarget {
    fn drop(&mut self) {
        // Without a commit an error is on its way already, and what cannot be removed carries the marker: the next run
        // for this target will remove it.
        if !self.is_removed {
            let _ = self.remove();
        }
    }
}

/// Where a target called `place` is built.
pub(super) fn partial_path(place: &Path) -> PathBuf {
    let mut name = place.as_os_str().to_owned();
    name.push(".partial");
    PathBuf::from(name)
}

/// Directories above the target that were not there before, innermost first. Removed on drop if they are empty.
#[derive(Debug)]
struct MadeParents(Vec<PathBuf>);

impl MadeParents {
    /// The directories in which entries were made.
    fn above(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().filter_map(|made| made.parent())
    }
}

impl Drop for MadeParents {
    fn drop(&mut self) {
        for directory in &self.0 {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// The final path without links, and the directories that had to be created above it.
fn resolve(path: &Path, name: &str) -> Result<(PathBuf, MadeParents), Error> {
    let location = || Location::file(name);
    let refuse = |source| write_error(path, source);
    let unsafe_name = || Error::UnsafeName {
        name: name.to_owned(),
        location: Location::default(),
    };
    match fs::canonicalize(path) {
        Ok(place) if place.file_name().is_none() => return Err(unsafe_name()),
        Ok(place) => return Ok((place, MadeParents(Vec::new()))),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refuse(error)),
        Err(_) if is_there(path) => {
            return Err(Error::NotFound {
                location: location(),
            });
        }
        Err(_) => {}
    }
    let absolute = std::path::absolute(path).map_err(|_| unsafe_name())?;
    let (Some(parent), Some(last)) = (absolute.parent(), absolute.file_name()) else {
        return Err(unsafe_name());
    };
    let missing = parent.ancestors().take_while(|above| !is_there(above));
    let parents = MadeParents(missing.map(Path::to_path_buf).collect());
    fs::create_dir_all(parent).map_err(refuse)?;
    let place = fs::canonicalize(parent).map_err(refuse)?.join(last);
    Ok((place, parents))
}

/// What a new result may take the place of.
#[derive(Debug, PartialEq, Eq)]
enum Occupant {
    /// Nothing, or an empty directory: a rename is enough.
    Nothing,
    /// A directory with something in it, which may be replaced.
    Directory,
}

fn occupant(place: &Path, name: &str, overwrite: Overwrite) -> Result<Occupant, Error> {
    let location = Location::file(name);
    let refuse = |source| write_error(place, source);
    let metadata = match fs::symlink_metadata(place) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Occupant::Nothing),
        Err(error) => return Err(refuse(error)),
    };
    match (metadata.is_dir(), overwrite) {
        (true, _) if fs::read_dir(place).map_err(refuse)?.next().is_none() => Ok(Occupant::Nothing),
        (true, Overwrite::Replace) => Ok(Occupant::Directory),
        (false, _) => Err(Error::NotDirectory { location }),
        (true, Overwrite::Refuse) => Err(Error::TargetExists { location }),
    }
}

/// Makes the directory `partial` ours, be it new or left by a killed run, and returns its locked marker.
///
/// Only ever one of several processes gets it: the lock on the marker decides.
fn claim(partial: &Path) -> Result<File, Error> {
    let location = || Location::file(partial.display().to_string());
    let refuse = |source| write_error(partial, source);
    for _ in 0..CLAIM_ATTEMPTS {
        let is_new = match fs::create_dir(partial) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(refuse(error)),
        };
        match is_ours(partial) {
            Ok(true) => {}
            Ok(false) => {
                return Err(Error::ForeignPartial {
                    location: location(),
                });
            }
            // Its owner removed it a moment ago.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(refuse(error)),
        }
        let path = partial.join(MARKER);
        let mut options = OpenOptions::new();
        let mut marker = match options.write(true).create(true).truncate(false).open(&path) {
            Ok(marker) => marker,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                // Removes only an empty directory.
                let _ = fs::remove_dir(partial);
                return Err(refuse(error));
            }
        };
        match marker.try_lock() {
            Ok(()) => {}
            // Without locks, making the directory is what only one process can do.
            Err(TryLockError::Error(error)) if is_unsupported(&error) && is_new => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::TargetBusy {
                    location: location(),
                });
            }
            Err(TryLockError::Error(error)) if is_unsupported(&error) => {
                return Err(Error::TargetBusy {
                    location: location(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(refuse(error)),
        }
        // The lock may be on a marker that its owner has removed since we opened it; then it guards nothing.
        let locked = marker.metadata().map_err(refuse)?;
        match fs::symlink_metadata(&path) {
            Ok(named) if (named.dev(), named.ino()) == (locked.dev(), locked.ino()) => {}
            _ => continue,
        }
        marker
            .write_all(b"rialto builds a checkpoint here; it removes this directory itself\n")
            .map_err(refuse)?;
        return Ok(marker);
    }
    Err(Error::TargetBusy {
        location: location(),
    })
}

/// Whether a directory carries our marker, or nothing at all (a run killed before it could mark it).
fn is_ours(partial: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(partial)?.is_dir() {
        return Ok(false);
    }
    let mut is_empty = true;
    for entry in fs::read_dir(partial)? {
        let entry = entry?;
        if entry.file_name() == MARKER {
            return Ok(entry.file_type()?.is_file());
        }
        is_empty = false;
    }
    Ok(is_empty)
}

/// Whether the name is taken, if only by a link that leads nowhere.
fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Syncs every file and directory below, and the directory itself.
fn sync_tree(root: &Path) -> Result<(), Error> {
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        let refuse = |source| write_error(&directory, source);
        for entry in fs::read_dir(&directory).map_err(refuse)? {
            let entry = entry.map_err(refuse)?;
            let path = entry.path();
            if entry.file_type().map_err(refuse)?.is_dir() {
                directories.push(path);
                continue;
            }
            File::open(&path)
                .and_then(|file| file.sync_all())
                .map_err(|source| write_error(&path, source))?;
        }
        sync_directory(&directory)?;
    }
    Ok(())
}

fn sync_directory(directory: &Path) -> Result<(), Error> {
    match File::open(directory).and_then(|file| file.sync_all()) {
        // Some file systems have nothing to sync in a directory and say so.
        Err(error) if !is_unsupported(&error) => Err(write_error(directory, error)),
        _ => Ok(()),
    }
}

fn write_error(path: &Path, source: io::Error) -> Error {
    Error::Write {
        location: Location::file(path.display().to_string()),
        source,
    }
}

#[cfg(test)]
mod tests;
