//! The one error type of this crate, grouped by theme.

use std::io;

use rialto_tensor::Location;
use thiserror::Error as ThisError;

/// What can be wrong with a checkpoint or with the place it lies in.
///
/// Messages say what, then where, then what was expected and found, in one line; [`Error::help`] says what to do.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    // --- store: files and directories ---
    /// No file or directory of that name.
    #[error("no such file or directory{location}")]
    NotFound {
        /// What was looked for.
        location: Location,
    },
    /// The operating system refused to read.
    #[error("cannot read{location}: {source}")]
    Read {
        /// What was being read.
        location: Location,
        /// The system's reason.
        source: io::Error,
    },
    /// The operating system refused to write.
    #[error("cannot write{location}: {source}")]
    Write {
        /// What was being written.
        location: Location,
        /// The system's reason.
        source: io::Error,
    },
    /// A file ended before the bytes asked for.
    #[error("file ends at byte {len}, before the bytes wanted{location}")]
    ShortRead {
        /// The bytes wanted.
        location: Location,
        /// Where the file ended.
        len: u64,
    },
    /// A name that would leave the directory it is meant for.
    #[error("name {name:?} is not a relative path inside the directory{location}")]
    UnsafeName {
        /// The name as found.
        name: String,
        /// Who named it.
        location: Location,
    },
}
