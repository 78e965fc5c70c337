//! How a run tells the outside where it is, and asks whether it should stop.

/// Told by the engine while it works, from all the threads that work. All methods may do nothing.
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

    /// A line that a person should see now rather than in the report afterwards, such as that a device slows an import down.
    fn note(&self, text: &str) {
        let _ = text;
    }

    /// The run is over, done or not.
    fn end(&self) {}

    /// Whether the run should stop; asked between bands. It then ends with [`Error::Cancelled`](crate::Error::Cancelled), and
    /// keeps what is done for another attempt if there is any of it.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {}
