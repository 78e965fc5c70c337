//! Encodings of a stored tensor: a tensor, its companions, and the dense values they stand for.
//!
//! A tensor is encoded when it is stored in one of a codec's dtypes and the companions lie beside it. That is decided tensor
//! by tensor from what is stored, never from a list in a config.

use rialto_tensor::{Dtype, Region, Shape, TensorView};
use serde::{Deserialize, Serialize};

use crate::rule::{dtype_name, dtype_names};

/// One encoding that a family can decode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Codec {
    /// Its name, with its block or a version: `block_fp8/128x128`.
    pub name: String,
    /// The stored dtypes that mark an encoded tensor.
    #[serde(with = "dtype_names")]
    pub stored: Vec<Dtype>,
    /// The dtype of the decoded values.
    #[serde(with = "dtype_name")]
    pub decoded: Dtype,
    /// Extents of what is decoded together, on the tensor's last axes, 0 for a whole axis; axes before them are a batch.
    /// The host cuts a tensor only between such blocks.
    pub block: Vec<u64>,
    /// The companions. They belong to the tensor: they are claimed with it and never mapped alone.
    pub companions: Vec<Companion>,
}

/// A tensor that lies beside an encoded one, with one element for each of its blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Companion {
    /// Suffixes that make its name from the tensor's. The first is the published one; the others are taken if the shape
    /// proves that they mean the same, and reported.
    pub suffixes: Vec<String>,
    /// Its dtype.
    #[serde(with = "dtype_name")]
    pub dtype: Dtype,
    /// Extents of the block that one element speaks of, as in [`Codec::block`], which they divide. All 0: one element
    /// speaks of the whole tensor, and the companion may have any shape of one element.
    pub block: Vec<u64>,
}

impl Companion {
    /// The shape that it has beside a tensor of this shape: the blocks, counted on every axis, the last one ragged or not.
    /// `None` if the tensor has fewer axes than a block.
    #[must_use]
    pub fn grid(&self, shape: &Shape) -> Option<Shape> {
        let counts = extents_of_blocks(&self.block, shape)?
            .into_iter()
            .zip(shape.extents())
            .map(|(block, &extent)| extent.div_ceil(block));
        Some(Shape::new(counts.collect::<Vec<_>>()))
    }

    /// Whether `found` is the shape of a companion beside a tensor of shape `shape`.
    #[must_use]
    pub fn fits(&self, found: &Shape, shape: &Shape) -> bool {
        let is_whole = self.block.iter().all(|&extent| extent == 0);
        self.grid(shape).is_some_and(|grid| grid == *found)
            || is_whole && found.elements().is_ok_and(|elements| elements == 1)
    }

    /// The rectangle of the companion, whose shape is `found`, that speaks of a rectangle of whole blocks of a tensor of
    /// shape `shape`. `None` as for [`Companion::grid`].
    #[must_use]
    pub fn region(&self, blocks: &Region, shape: &Shape, found: &Shape) -> Option<Region> {
        if self.block.iter().all(|&extent| extent == 0) {
            return Some(Region::whole(found));
        }
        let extents = extents_of_blocks(&self.block, shape)?;
        let axes = blocks.offsets().iter().zip(blocks.sizes()).zip(extents);
        let (offsets, sizes): (Vec<u64>, Vec<u64>) = axes
            .map(|((&offset, &size), block)| {
                let first = offset / block;
                (first, (offset + size).div_ceil(block) - first)
            })
            .unzip();
        Some(Region::new(offsets, sizes))
    }
}

impl Codec {
    /// The smallest rectangle of whole blocks around a rectangle of a tensor of this shape. `None` if the tensor has fewer
    /// axes than a block.
    #[must_use]
    pub fn blocks_around(&self, region: &Region, shape: &Shape) -> Option<Region> {
        let extents = extents_of_blocks(&self.block, shape)?;
        let axes = region.offsets().iter().zip(region.sizes()).zip(extents);
        let axes = axes.zip(shape.extents());
        let (offsets, sizes): (Vec<u64>, Vec<u64>) = axes
            .map(|(((&offset, &size), block), &extent)| {
                let first = offset / block * block;
                let end = (offset + size).div_ceil(block).saturating_mul(block);
                (first, end.min(extent) - first)
            })
            .unzip();
        Some(Region::new(offsets, sizes))
    }
}

/// The extents of a block on every axis of a tensor of this shape, at least 1 each.
fn extents_of_blocks(block: &[u64], shape: &Shape) -> Option<Vec<u64>> {
    let batch = shape.rank().checked_sub(block.len())?;
    let extent = |(axis, &whole): (usize, &u64)| match axis.checked_sub(batch).map(|at| block[at]) {
        None => 1,
        Some(0) => whole.max(1),
        Some(extent) => extent,
    };
    Some(shape.extents().iter().enumerate().map(extent).collect())
}

/// A tensor as stored, or a rectangle of whole blocks of it, with the companions of those blocks in the order of
/// [`Codec::companions`].
#[derive(Clone, Debug)]
pub struct EncodedTensor<'a> {
    /// Name of the codec.
    pub codec: &'a str,
    /// The stored elements, in one of the codec's stored dtypes.
    pub tensor: TensorView<'a>,
    /// One element a block each: [`Companion::grid`] of the tensor.
    pub companions: Vec<TensorView<'a>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn companion(block: impl Into<Vec<u64>>) -> Companion {
        Companion {
            suffixes: vec!["_scale".to_owned()],
            dtype: Dtype::F32,
            block: block.into(),
        }
    }

    #[test]
    fn the_grid_counts_ragged_blocks_and_leaves_the_batch() {
        let grid = |block: &[u64], shape: &[u64]| companion(block).grid(&Shape::new(shape));
        assert_eq!(grid(&[128, 128], &[576, 6144]), Some(Shape::new([5, 48])));
        assert_eq!(
            grid(&[128, 128], &[8, 40, 136]),
            Some(Shape::new([8, 1, 2]))
        );
        assert_eq!(grid(&[1, 0], &[7, 9]), Some(Shape::new([7, 1])));
        assert_eq!(grid(&[128, 128], &[0, 9]), Some(Shape::new([0, 1])));
        assert_eq!(grid(&[128, 128], &[7]), None);
    }

    #[test]
    fn one_scale_for_a_tensor_may_have_any_shape_of_one_element() {
        let (whole, shape) = (companion([0, 0]), Shape::new([7, 9]));
        for found in [&[][..], &[1], &[1, 1]] {
            let found = Shape::new(found);
            assert!(whole.fits(&found, &shape), "{found}");
            let region = whole.region(&Region::new([1, 2], [3, 4]), &shape, &found);
            assert_eq!(region, Some(Region::whole(&found)));
        }
        assert!(!whole.fits(&Shape::new([2]), &shape));
        assert!(!companion([4, 4]).fits(&Shape::new([1]), &shape));
    }

    proptest! {
        #[test]
        fn blocks_around_a_rectangle_hold_it_and_begin_and_end_between_blocks(
            axes in proptest::collection::vec((0u64..9, 1u64..9, 0u64..9, 0u64..5), 2),
        ) {
            let extents: Vec<u64> = axes.iter().map(|axis| axis.0 + axis.1 + axis.2).collect();
            let offsets: Vec<u64> = axes.iter().map(|axis| axis.0).collect();
            let sizes: Vec<u64> = axes.iter().map(|axis| axis.1).collect();
            let block: Vec<u64> = axes.iter().map(|axis| axis.3).collect();
            let companion = companion(block.clone());
            let codec = Codec {
                name: "block/1".to_owned(),
                stored: vec![Dtype::F8E4m3],
                decoded: Dtype::Bf16,
                block: block.clone(),
                companions: vec![companion.clone()],
            };
            let (shape, region) = (Shape::new(extents), Region::new(offsets, sizes));
            let whole = codec.blocks_around(&region, &shape).unwrap();
            let grid = companion.grid(&shape).unwrap();
            let part = companion.region(&whole, &shape, &grid).unwrap();
            prop_assert_eq!(whole.intersection(&region), Some(region));
            prop_assert!(whole.is_inside(&shape) && part.is_inside(&grid));
            if block.iter().any(|&extent| extent > 0) {
                prop_assert_eq!(companion.grid(&whole.shape()).unwrap(), part.shape());
            }
            for (axis, &extent) in shape.extents().iter().enumerate() {
                let block = if block[axis] == 0 { extent } else { block[axis] };
                let end = whole.offsets()[axis] + whole.sizes()[axis];
                prop_assert_eq!(whole.offsets()[axis], part.offsets()[axis] * block);
                prop_assert!(end == extent || end.is_multiple_of(block));
            }
        }
    }
}
