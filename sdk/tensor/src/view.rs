//! Borrowed bytes that are known to be as many as their dtype and shape need.

use crate::{Dtype, Error, Shape};

/// Dense, row-major tensor bytes borrowed from somebody else.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    dtype: Dtype,
    shape: &'a Shape,
    bytes: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// Checks the length once, so that no reader has to. Errors: [`Error::ViewLength`], [`Error::ShapeOverflow`].
    pub fn new(dtype: Dtype, shape: &'a Shape, bytes: &'a [u8]) -> Result<TensorView<'a>, Error> {
        let expected = shape.size_bytes(dtype)?;
        let found = bytes.len() as u64;
        if expected != found {
            return Err(Error::ViewLength {
                dtype,
                shape: shape.clone(),
                expected,
                found,
            });
        }
        Ok(TensorView {
            dtype,
            shape,
            bytes,
        })
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Extents.
    #[must_use]
    pub fn shape(&self) -> &'a Shape {
        self.shape
    }

    /// The bytes, exactly `shape.size_bytes(dtype)` of them.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_refuses_a_length_that_is_not_its_shapes() {
        let shape = Shape::new([3]);
        assert!(TensorView::new(Dtype::Bf16, &shape, &[0; 6]).is_ok());
        let error = TensorView::new(Dtype::Bf16, &shape, &[0; 5]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "BF16 tensor of shape [3] needs 6 bytes, found 5"
        );
    }
}
