//! The logs of attempts at a target: each is one process's own while that lives.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;

use rialto_tensor::Location;

use super::{PAUSE, RACES, has_no_locks, is_at, read_error, sync_directory, write_error};
use crate::Error;
use crate::store::Journal;

/// The directory that journals lie in. It is never made here, for the reason that a tree is not.
#[derive(Debug)]
pub(super) struct JournalDirectory(pub(super) PathBuf);

impl JournalDirectory {
    /// Opens a journal for appending, and makes it if it is not there; `name` has one part.
    ///
    /// Errors: [`Error::TargetBusy`] if another holds it, [`Error::Write`].
    pub(super) fn open(&self, name: &str) -> Result<LocalJournal, Error> {
        let path = self.0.join(name);
        let refuse = |source| write_error(&path, source);
        for _ in 0..RACES {
            let mut options = OpenOptions::new();
            let file = options.append(true).create(true).open(&path);
            let file = file.map_err(refuse)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    // One who asks whether it is held holds it for a moment.
                    thread::sleep(PAUSE);
                    continue;
                }
                Err(TryLockError::Error(error)) if has_no_locks(&error) => {}
                Err(TryLockError::Error(error)) => return Err(refuse(error)),
            }
            // The lock may be on a file that somebody has removed since; then nobody will read it.
            if !is_at(&file, &path) {
                continue;
            }
            // A journal that survives a power loss is of no use where its name does not.
            for directory in self.0.ancestors().take(4) {
                sync_directory(directory)?;
            }
            return Ok(LocalJournal {
                file: Mutex::new(file),
                path,
            });
        }
        Err(Error::TargetBusy {
            location: Location::file(path.display().to_string()),
        })
    }

    /// The names of those there are, in order.
    pub(super) fn names(&self) -> Result<Vec<String>, Error> {
        let refuse = |source| read_error(&self.0.display().to_string(), source);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.0).map_err(refuse)? {
            let entry = entry.map_err(refuse)?;
            let is_file = entry.file_type().map_err(refuse)?.is_file();
            names.extend(entry.file_name().into_string().ok().filter(|_| is_file));
        }
        names.sort();
        Ok(names)
    }

    /// All bytes of a journal.
    pub(super) fn read(&self, name: &str) -> Result<Vec<u8>, Error> {
        let path = self.0.join(name);
        fs::read(&path).map_err(|source| read_error(&path.display().to_string(), source))
    }

    /// Whether somebody has a journal open now; nothing where there are no locks.
    pub(super) fn is_held(&self, name: &str) -> Result<Option<bool>, Error> {
        is_locked(&self.0.join(name))
    }

    /// Whether somebody has any journal open. A directory that is not there has none.
    pub(super) fn is_any_held(&self) -> Result<bool, Error> {
        let names = match self.names() {
            Err(Error::NotFound { .. }) => return Ok(false),
            names => names?,
        };
        for name in names {
            match self.is_held(&name) {
                Ok(Some(true)) => return Ok(true),
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

fn is_locked(path: &Path) -> Result<Option<bool>, Error> {
    let refuse = |source| read_error(&path.display().to_string(), source);
    let file = File::open(path).map_err(refuse)?;
    // Shared, so that several may ask at once; it ends with `file`.
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(false)),
        Err(TryLockError::WouldBlock) => Ok(Some(true)),
        Err(TryLockError::Error(error)) if has_no_locks(&error) => Ok(None),
        Err(TryLockError::Error(error)) => Err(refuse(error)),
    }
}

/// A journal that this process holds until it is dropped.
#[derive(Debug)]
pub(super) struct LocalJournal {
    /// Locked while something is appended, so that what two threads append does not mix.
    file: Mutex<File>,
    path: PathBuf,
}

impl LocalJournal {
    fn with_file(&self, act: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), Error> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut file).map_err(|source| write_error(&self.path, source))
    }
}

impl Journal for LocalJournal {
    fn append(&self, bytes: &[u8]) -> Result<(), Error> {
        self.with_file(|file| file.write_all(bytes))
    }

    fn sync(&self) -> Result<(), Error> {
        self.with_file(|file| file.sync_data())
    }

    fn clear(&self) -> Result<(), Error> {
        self.with_file(|file| file.set_len(0))
    }
}
