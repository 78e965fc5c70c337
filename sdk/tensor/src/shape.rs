//! The extents of a tensor, outermost first, in elements.

use std::fmt;

use crate::{Dtype, Error};

/// Extents in elements, row-major, outermost first. A scalar has no extents and one element.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape(Vec<u64>);

impl Shape {
    /// Takes the extents as they are; arithmetic on them is checked later, where it happens.
    pub fn new(extents: impl Into<Vec<u64>>) -> Shape {
        Shape(extents.into())
    }

    /// The extents, outermost first.
    #[must_use]
    pub fn extents(&self) -> &[u64] {
        &self.0
    }

    /// How many axes there are.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// How many elements there are. Errors: [`Error::ShapeOverflow`].
    pub fn elements(&self) -> Result<u64, Error> {
        // A zero extent makes the tensor empty, whatever the other extents multiply to.
        if self.0.contains(&0) {
            return Ok(0);
        }
        self.0
            .iter()
            .try_fold(1u64, |product, &extent| product.checked_mul(extent))
            .ok_or_else(|| self.overflow())
    }

    /// How many bytes the elements take when stored densely. Errors: [`Error::ShapeOverflow`].
    pub fn size_bytes(&self, dtype: Dtype) -> Result<u64, Error> {
        self.elements()?
            .checked_mul(dtype.size_bytes())
            .ok_or_else(|| self.overflow())
    }

    fn overflow(&self) -> Error {
        Error::ShapeOverflow {
            shape: self.clone(),
        }
    }
}

impl<const N: usize> From<[u64; N]> for Shape {
    fn from(extents: [u64; N]) -> Shape {
        Shape(extents.to_vec())
    }
}

impl From<Vec<u64>> for Shape {
    fn from(extents: Vec<u64>) -> Shape {
        Shape(extents)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_list(f, &self.0)
    }
}

/// Writes `[2, 3]`: the one way extents and offsets are printed.
pub(crate) fn fmt_list(f: &mut fmt::Formatter<'_>, values: &[u64]) -> fmt::Result {
    f.write_str("[")?;
    for (position, value) in values.iter().enumerate() {
        if position > 0 {
            f.write_str(", ")?;
        }
        write!(f, "{value}")?;
    }
    f.write_str("]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scalar_has_one_element() {
        assert_eq!(Shape::new([]).elements(), Ok(1));
        assert_eq!(Shape::new([]).to_string(), "[]");
    }

    #[test]
    fn a_zero_extent_wins_over_an_overflow() {
        assert_eq!(Shape::new([u64::MAX, 0, u64::MAX]).elements(), Ok(0));
    }

    #[test]
    fn overflow_is_an_error_in_elements_and_in_bytes() {
        assert!(Shape::new([1 << 40, 1 << 40]).elements().is_err());
        assert!(Shape::new([1 << 62]).elements().is_ok());
        assert!(Shape::new([1 << 62]).size_bytes(Dtype::F32).is_err());
    }
}
