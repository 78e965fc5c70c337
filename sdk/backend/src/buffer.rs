//! Memory of a device, with the type of what lies in it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use rialto_program::{Element, ValueType};
use rialto_tensor::{Dtype, Shape};

use crate::Error;

/// Dtype and extents of a buffer: dense, row-major, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The elements.
    pub dtype: Dtype,
    /// The extents.
    pub shape: Shape,
}

impl TensorType {
    /// Elements of a shape.
    pub fn new(dtype: Dtype, shape: impl Into<Vec<u64>>) -> TensorType {
        TensorType {
            dtype,
            shape: Shape::new(shape),
        }
    }

    /// Bytes that it takes. Errors: [`Error::BufferSize`] if that is beyond `u64`.
    pub fn size_bytes(&self) -> Result<u64, Error> {
        let bytes = self.shape.size_bytes(self.dtype);
        bytes.map_err(|_| Error::BufferSize {
            tensor: self.clone(),
            most_bytes: u64::MAX,
        })
    }

    /// The same as operations see it.
    #[must_use]
    pub fn value_type(&self) -> ValueType {
        ValueType::new(
            Element::Of(self.dtype),
            self.shape.extents().iter().copied(),
        )
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.dtype, self.shape)
    }
}

/// Memory of a device. Clones share it; it is freed with the last of them and of the recordings that use it.
#[derive(Clone)]
pub struct Buffer {
    tensor: Arc<TensorType>,
    storage: Arc<dyn Any + Send + Sync>,
}

impl Buffer {
    /// For a backend: its own storage behind the type.
    #[must_use]
    pub fn new(tensor: TensorType, storage: Arc<dyn Any + Send + Sync>) -> Buffer {
        Buffer {
            tensor: Arc::new(tensor),
            storage,
        }
    }

    /// What lies in it.
    #[must_use]
    pub fn tensor(&self) -> &TensorType {
        &self.tensor
    }

    /// For a backend: its own storage. Errors: [`Error::ForeignBuffer`] for another backend's.
    pub fn storage<T: Any + Send + Sync>(&self) -> Result<Arc<T>, Error> {
        Arc::clone(&self.storage)
            .downcast()
            .map_err(|_| Error::ForeignBuffer {
                tensor: self.tensor().clone(),
            })
    }

    /// Whether both are the same memory.
    #[must_use]
    pub fn is_same(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({})", self.tensor)
    }
}
