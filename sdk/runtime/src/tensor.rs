//! Elements in the host's memory.

use rialto_tensor::format::bf16;
use rialto_tensor::{Dtype, Shape};

use crate::Error;

/// A tensor in the host's memory: dense, row-major, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    dtype: Dtype,
    shape: Shape,
    bytes: Vec<u8>,
}

impl Tensor {
    /// Bytes that are as many as dtype and shape need. Errors: [`rialto_tensor::Error::ViewLength`].
    pub fn new(dtype: Dtype, shape: Shape, bytes: Vec<u8>) -> Result<Tensor, Error> {
        rialto_tensor::TensorView::new(dtype, &shape, &bytes)?;
        Ok(Tensor {
            dtype,
            shape,
            bytes,
        })
    }

    /// The elements' type.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The extents.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The elements.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// F32 and BF16 elements as `f32`, exactly; integers as the nearest.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        match self.dtype {
            Dtype::Bf16 => {
                let codes = self.bytes.as_chunks().0.iter();
                codes
                    .map(|&code| bf16::decode(u16::from_le_bytes(code)))
                    .collect()
            }
            Dtype::I32 => self
                .to_i32()
                .into_iter()
                .map(|value| value as f32)
                .collect(),
            _ => {
                let values = self.bytes.as_chunks().0.iter();
                values.map(|&value| f32::from_le_bytes(value)).collect()
            }
        }
    }

    /// I32 elements.
    #[must_use]
    pub fn to_i32(&self) -> Vec<i32> {
        let values = self.bytes.as_chunks().0.iter();
        values.map(|&value| i32::from_le_bytes(value)).collect()
    }

    /// The same with another element type: BF16 to F32 exactly, F32 to BF16 rounded once. Errors: a pair that has no cast.
    pub fn cast(&self, dtype: Dtype) -> Result<Tensor, Error> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        let length = usize::try_from(self.shape.size_bytes(dtype)?).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length];
        rialto_tensor::cast::cast_into(self.dtype, dtype, &self.bytes, &mut bytes)?;
        Tensor::new(dtype, self.shape.clone(), bytes)
    }
}
