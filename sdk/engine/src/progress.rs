//! How a run tells the outside where it is, and asks whether it should stop.

use crate::Error;

/// Told by the engine while it works, from the threads that work: one that converts, several that verify. All methods may
/// do nothing.
pub trait Progress: Send + Sync {
    /// A run begins that will write, or compare, this many bytes of tensors. One may follow another: copies are compared before
    /// anything is written.
    fn begin(&self, what: &str, total_bytes: u64) {
        let _ = (what, total_bytes);
    }

    /// So many more bytes of tensors are written, or compared.
    fn advance(&self, bytes: u64) {
        let _ = bytes;
    }

    /// The run is over, done or not.
    fn end(&self) {}

    /// Whether the run should stop; asked between bands. It then removes what it wrote and returns
    /// [`Error::Cancelled`].
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Writes a band unless the run should stop, and tells that it is written.
pub(crate) fn step(
    progress: &dyn Progress,
    band: &[u8],
    write: impl FnOnce(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    if progress.is_cancelled() {
        return Err(Error::Cancelled);
    }
    write(band)?;
    progress.advance(band.len() as u64);
    Ok(())
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {}
