//! Memory behind a buffer.

use std::sync::Arc;

use rialto_backend::{Buffer, Error};

use crate::shared::Shared;

/// What a buffer of this backend has behind it.
pub(crate) struct Storage {
    pub(crate) buffer: wgpu::Buffer,
    shared: Arc<Shared>,
}

impl Storage {
    pub(crate) fn new(buffer: wgpu::Buffer, shared: &Arc<Shared>) -> Storage {
        Storage {
            buffer,
            shared: Arc::clone(shared),
        }
    }

    /// That of a buffer of this device. Errors: [`Error::ForeignBuffer`] for another's.
    pub(crate) fn of(buffer: &Buffer, shared: &Arc<Shared>) -> Result<Arc<Storage>, Error> {
        let storage: Arc<Storage> = buffer.storage()?;
        match Arc::ptr_eq(&storage.shared, shared) {
            true => Ok(storage),
            false => Err(Error::ForeignBuffer {
                tensor: buffer.tensor().clone(),
            }),
        }
    }
}
