//! The one way in and out of files: directories to read, and directories that appear whole.
//!
//! Everything that rialto reads goes through [`Store`] and [`Source`], everything that it writes through [`Target`] and
//! [`Sink`]. The traits are object-safe, blocking, `Send + Sync`, and speak in offsets, so that a format knows nothing of
//! the place its bytes lie in. There is no memory map: a file that shrinks while it is read is an error, never a signal.
//!
//! Names inside a store are relative, use `/`, and never hold `..`, an empty part or a leading `/`.

use std::fmt::Debug;

use crate::Error;

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

/// A directory to read from; nothing in it is ever written, locked or created.
pub trait Store: Debug + Send + Sync {
    /// The name errors show: the directory as the user would type it.
    fn name(&self) -> &str;

    /// Every regular file below, in order of name. Directories whose name begins with a dot are left out (`.git`, download
    /// caches), and so are directories reached by a symbolic link; a link to a regular file counts as one.
    fn files(&self) -> Result<Vec<FileEntry>, Error>;

    /// Opens a file by its name in the store. Errors: [`Error::NotFound`], [`Error::UnsafeName`], [`Error::Read`].
    fn open(&self, name: &str) -> Result<Box<dyn Source>, Error>;
}

/// A directory under construction, invisible under its final name until [`Target::commit`].
///
/// Dropping it without a commit removes what was written and leaves an older target as it was.
pub trait Target: Debug + Send + Sync {
    /// The final name, as the user would type it.
    fn name(&self) -> &str;

    /// Creates a file, and the directories above it. Errors: [`Error::UnsafeName`], [`Error::Write`] if it exists already.
    fn create(&self, name: &str) -> Result<Box<dyn Sink>, Error>;

    /// Makes everything durable, then makes it appear under the final name in one step.
    fn commit(self: Box<Self>) -> Result<(), Error>;
}
