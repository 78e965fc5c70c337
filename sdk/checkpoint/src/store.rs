//! The one way in and out of files: directories to read, and directories that appear whole.
//!
//! Everything that rialto reads goes through [`Store`] and [`Source`], everything that it writes through [`Target`] and
//! [`Sink`]. The traits are object-safe, blocking, `Send + Sync`, and speak in offsets, so that a format knows nothing of
//! the place its bytes lie in. There is no memory map: a file that shrinks while it is read is an error, never a signal.
//!
//! Names inside a store are relative, use `/`, and never hold `.`, `..`, an empty part, a NUL or a leading `/`
//! ([`check_name`]).
//!
//! | module | noun |
//! |---|---|
//! | [`buffer`] | memory that lies in pages as a part of a file does |
//! | [`local`] | a directory of the file system, and one that appears there whole |
//! | [`memory`] | the same in memory |
//! | [`subdirectory`] | a part of a store, seen as a store |
//! | [`faulty`] | a store or target in which the n-th call fails, for tests |

pub mod buffer;
pub mod faulty;
pub mod local;
pub mod memory;
pub mod subdirectory;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt::Debug;

use rialto_tensor::Location;
use serde::{Deserialize, Serialize};

use crate::Error;

pub use buffer::{PAGE, PageBuffer};
pub use faulty::{Fault, Faults, FaultyStore, FaultyTarget};
pub use local::{
    Access, DIRECT_BLOCK, DIRECT_MIN, LocalStore, LocalTarget, Overwrite, refuse_overlap,
};
pub use memory::{MemoryPartial, MemoryStore, MemoryTarget};
pub use subdirectory::Subdirectory;

/// One file, open for reading at any offset.
pub trait Source: Debug + Send + Sync {
    /// The name errors show: the path of the file as the user would type it.
    fn name(&self) -> &str;

    /// The length in bytes when it was opened.
    fn len(&self) -> u64;

    /// Whether the file held no byte when it was opened.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buffer` with the bytes from `offset` on, all of them.
    ///
    /// Errors: [`Error::ShortRead`] if the file ends before, [`Error::Read`] if the system refuses.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error>;
}

/// One file under construction, open for writing at any offset.
pub trait Sink: Debug + Send + Sync {
    /// The name errors show.
    fn name(&self) -> &str;

    /// Takes room for a file of `len` bytes, which is its length from then on: what was not written reads as zero. Asked
    /// before writing, it tells a full disk early and lets the file lie in one piece. A store that grows as it is written
    /// need do nothing.
    ///
    /// Errors: [`Error::Write`], with the system's reason (disk full, say).
    fn reserve(&self, len: u64) -> Result<(), Error> {
        let _ = len;
        Ok(())
    }

    /// Writes all of `bytes` from `offset` on; bytes between written ranges read as zero.
    ///
    /// Errors: [`Error::Write`], with the system's reason (disk full, say).
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Returns once the bytes written so far would survive a power loss.
    fn sync(&self) -> Result<(), Error>;
}

/// A file in a [`Store`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileEntry {
    /// Name relative to the store, with `/` between the parts.
    pub name: String,
    /// Length in bytes.
    pub len: u64,
}

/// What tells a file from what it was when somebody looked last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Length in bytes.
    pub len: u64,
    /// When it was last written, in nanoseconds since 1970, where the store keeps times.
    pub modified_ns: Option<u64>,
}

/// A directory to read from; nothing in it is ever written, locked or created.
pub trait Store: Debug + Send + Sync {
    /// The name errors show: the directory as the user would type it.
    fn name(&self) -> &str;

    /// Every regular file below, in order of name. Directories whose name begins with a dot are left out (`.git`, download
    /// caches), and so are directories reached by a symbolic link; a link to a regular file counts as one.
    fn files(&self) -> Result<Vec<FileEntry>, Error>;

    /// Directories below that are links: what lies in them is not listed. In order of name; a store without links has none.
    fn linked_directories(&self) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    /// Opens a file by its name in the store. Errors: [`Error::NotFound`], [`Error::UnsafeName`], [`Error::Read`].
    fn open(&self, name: &str) -> Result<Box<dyn Source>, Error>;

    /// What tells whether a file has changed. Errors: as [`Store::open`].
    fn stamp(&self, name: &str) -> Result<Stamp, Error> {
        Ok(Stamp {
            len: self.open(name)?.len(),
            modified_ns: None,
        })
    }
}

/// A directory under construction, invisible under its final name until [`Target::commit`].
///
/// Dropping it without trying to commit it removes what was written and leaves an older target as it was; one that was continued stays
/// for the next attempt, and only [`Target::discard`] removes it.
///
/// A target that may be continued outlives an attempt that is killed or [suspended](Target::suspend): its files under
/// construction, and beside them journals, in which an attempt writes down what of the files can be kept. One that cannot need
/// not say a word about it: what it does by itself is to keep no journal and to leave nothing.
pub trait Target: Debug + Send + Sync {
    /// The final name, as the user would type it.
    fn name(&self) -> &str;

    /// Creates a file, and the directories above it. What an earlier attempt left under the name is replaced.
    ///
    /// Errors: [`Error::UnsafeName`], [`Error::Write`] if this run made or opened it already.
    fn create(&self, name: &str) -> Result<Box<dyn Sink>, Error>;

    /// Opens a file that an earlier attempt may have begun, with the bytes that it has, or creates it.
    ///
    /// Errors: [`Error::UnsafeName`], [`Error::Write`].
    fn reopen(&self, name: &str) -> Result<Box<dyn Sink>, Error>;

    /// Removes every file under construction that is not named, and every directory that holds none: what other attempts
    /// left. Errors: [`Error::Write`].
    fn retain(&self, names: &BTreeSet<String>) -> Result<(), Error> {
        let _ = names;
        Ok(())
    }

    /// Opens a journal for appending, or creates it, and holds it as long as the journal lives. Its name has one part.
    ///
    /// Errors: [`Error::UnsafeName`], [`Error::TargetBusy`] if it is held already, [`Error::Write`].
    fn journal(&self, name: &str) -> Result<Box<dyn Journal>, Error> {
        check_part(name, &Location::file(self.name()))?;
        Ok(Box::new(Forgetful))
    }

    /// The names of the journals there are, in order. Errors: [`Error::Read`].
    fn journals(&self) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    /// All bytes of a journal; if it is held, perhaps a part of what is being appended.
    ///
    /// Errors: [`Error::UnsafeName`], [`Error::NotFound`], [`Error::Read`].
    fn read_journal(&self, name: &str) -> Result<Vec<u8>, Error> {
        Err(Error::NotFound {
            location: Location::file(format!("{}/{name}", self.name())),
        })
    }

    /// Whether a process that lives holds a journal; `None` where the file system cannot say.
    ///
    /// Errors: as [`Target::read_journal`].
    fn is_held(&self, name: &str) -> Result<Option<bool>, Error> {
        let _ = name;
        Ok(None)
    }

    /// Asks for room before anything is written; a store that cannot know has enough.
    ///
    /// Errors: [`Error::NoSpace`] if there is less than `needed` bytes.
    fn require_bytes(&self, needed: u64) -> Result<(), Error> {
        let _ = needed;
        Ok(())
    }

    /// Goes to what attempts at one plan have made, and leaves that of other plans alone: files and journals of two plans lie
    /// apart, so that neither is ever taken for the other's. For before anything else is asked of a target that is continued;
    /// `plan` has one part. A target that cannot be continued has nothing to tell apart.
    ///
    /// Errors: [`Error::UnsafeName`], [`Error::Write`].
    fn enter(&mut self, plan: &str) -> Result<(), Error> {
        check_part(plan, &Location::file(self.name()))
    }

    /// Other plans that attempts at this target have left something of, in order. Errors: [`Error::Read`].
    fn other_plans(&self) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    /// Removes what attempts at other plans have left. Errors: [`Error::TargetBusy`] if a process holds a journal of one,
    /// [`Error::Write`].
    fn remove_other_plans(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The length that a file under construction has; nothing if it is not there. Errors: [`Error::UnsafeName`],
    /// [`Error::Read`].
    fn length(&self, name: &str) -> Result<Option<u64>, Error> {
        check_name(name, &Location::file(self.name()))?;
        Ok(None)
    }

    /// Ends this attempt without a commit, and leaves nothing of it nor of earlier ones.
    fn discard(self: Box<Self>) -> Result<(), Error> {
        drop(self);
        Ok(())
    }

    /// Ends this attempt without a commit, and leaves everything for a later one to continue.
    fn suspend(self: Box<Self>) -> Result<(), Error> {
        drop(self);
        Ok(())
    }

    /// Makes everything durable, then makes it appear under the final name in one step. The journals go.
    ///
    /// Errors: [`Error::Unsettled`] once it has appeared. Before, [`Error::TargetJoined`] in a process that only joined,
    /// [`Error::TargetExists`], [`Error::Write`]: where there are journals, they and the files are then left for a later
    /// attempt, as by [`Target::suspend`].
    fn commit(self: Box<Self>) -> Result<(), Error>;
}

/// The log of one process's attempts at a [`Target`], held until it is dropped.
pub trait Journal: Debug + Send + Sync {
    /// Adds bytes at the end. If it fails, a part of them may be there. Errors: [`Error::Write`].
    fn append(&self, bytes: &[u8]) -> Result<(), Error>;

    /// Returns once what was appended so far would survive a power loss. Errors: [`Error::Write`].
    fn sync(&self) -> Result<(), Error>;

    /// Removes all bytes. Errors: [`Error::Write`].
    fn clear(&self) -> Result<(), Error>;
}

/// The journal of a target that cannot be continued.
#[derive(Debug)]
struct Forgetful;

impl Journal for Forgetful {
    fn append(&self, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    fn clear(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Refuses a name that is not a relative path inside a directory: the one check for every store, target and index.
///
/// `named_by` is the file or directory that gave the name, for the message. Errors: [`Error::UnsafeName`].
pub fn check_name(name: &str, named_by: &Location) -> Result<(), Error> {
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    if name.contains('\0') || !name.split('/').all(is_part) {
        return Err(Error::UnsafeName {
            name: name.to_owned(),
            location: named_by.clone(),
        });
    }
    Ok(())
}

/// Refuses a name that is not one part of a path.
fn check_part(name: &str, named_by: &Location) -> Result<(), Error> {
    if name.contains('/') {
        return Err(Error::UnsafeName {
            name: name.to_owned(),
            location: named_by.clone(),
        });
    }
    check_name(name, named_by)
}

/// Reads a whole file of at most `limit` bytes.
///
/// Errors: [`Error::FileTooLarge`] before anything is allocated, and those of [`Store::open`] and [`Source::read_at`].
pub fn read_whole(store: &dyn Store, name: &str, limit: u64) -> Result<Vec<u8>, Error> {
    let source = store.open(name)?;
    let len = source.len();
    let size = usize::try_from(len).ok().filter(|_| len <= limit);
    let Some(size) = size else {
        return Err(Error::FileTooLarge {
            location: Location::file(source.name()),
            len,
            limit,
        });
    };
    let mut bytes = vec![0; size];
    source.read_at(0, &mut bytes)?;
    Ok(bytes)
}
