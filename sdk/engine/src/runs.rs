//! Rectangles as runs of consecutive elements, and rectangles cut into bands.
//!
//! Two rectangles that hold the same elements in the same row-major order may lie differently in their tensors: a stack of
//! experts is one run, a slice of columns is one run a row. Copying between them is walking both lists of runs at once.

use rialto_tensor::{Region, Shape};

/// The runs of consecutive elements that a region makes in a dense tensor of `shape`, in row-major order, as
/// `(first element, elements)`. The region must lie inside the shape; an empty region has no run.
pub(crate) fn runs(region: &Region, shape: &Shape) -> impl Iterator<Item = (u64, u64)> + use<> {
    let (offsets, sizes, extents) = (
        region.offsets().to_vec(),
        region.sizes().to_vec(),
        shape.extents().to_vec(),
    );
    let rank = sizes.len();
    let mut strides = vec![1u64; rank];
    for axis in (1..rank).rev() {
        strides[axis - 1] = strides[axis] * extents[axis];
    }
    // Axes from `inner` on are consecutive in memory: all but the first of them are taken whole.
    let mut inner = rank;
    let mut length = 1;
    while inner > 0 {
        inner -= 1;
        length *= sizes[inner];
        if sizes[inner] != extents[inner] {
            break;
        }
    }
    let start: u64 = offsets
        .iter()
        .zip(&strides)
        .map(|(offset, stride)| offset * stride)
        .sum();
    let count: u64 = if length == 0 {
        0
    } else {
        sizes[..inner].iter().product()
    };
    (0..count).map(move |position| {
        let mut rest = position;
        let mut element = start;
        for axis in (0..inner).rev() {
            element += rest % sizes[axis] * strides[axis];
            rest /= sizes[axis];
        }
        (element, length)
    })
}

/// Walks two lists of runs that hold the same elements and yields `(element in a, element in b, elements)`.
pub(crate) fn joint_runs(
    a: impl Iterator<Item = (u64, u64)>,
    b: impl Iterator<Item = (u64, u64)>,
) -> impl Iterator<Item = (u64, u64, u64)> {
    let (mut a, mut b) = (a, b);
    let (mut left, mut right) = ((0, 0), (0, 0));
    std::iter::from_fn(move || {
        if left.1 == 0 {
            left = a.next()?;
        }
        if right.1 == 0 {
            right = b.next()?;
        }
        let length = left.1.min(right.1);
        let step = (left.0, right.0, length);
        left = (left.0 + length, left.1 - length);
        right = (right.0 + length, right.1 - length);
        Some(step)
    })
}

/// Cuts a region into bands of at most `limit` elements that follow each other in its row-major order. Where a band holds
/// more than `granule` indices of an axis it holds a multiple of it, so that blocks that are decoded together are cut apart
/// as seldom as the limit allows.
pub(crate) fn bands(region: &Region, limit: u64, granule: u64) -> Vec<Region> {
    let mut bands = Vec::new();
    cut(region.clone(), limit.max(1), granule.max(1), &mut bands);
    bands
}

fn cut(region: Region, limit: u64, granule: u64, bands: &mut Vec<Region>) {
    let sizes = region.sizes();
    let elements: u64 = sizes.iter().product();
    let Some(axis) = sizes
        .iter()
        .position(|&size| size > 1)
        .filter(|_| elements > limit)
    else {
        bands.push(region);
        return;
    };
    let per_index = elements / sizes[axis];
    let step = (limit / per_index).max(1);
    let step = if step > granule {
        step - step % granule
    } else {
        step
    };
    let (first, end) = (region.offsets()[axis], region.offsets()[axis] + sizes[axis]);
    let mut start = first;
    while start < end {
        let (mut offsets, mut extents) = (region.offsets().to_vec(), sizes.to_vec());
        offsets[axis] = start;
        extents[axis] = step.min(end - start);
        start += extents[axis];
        cut(Region::new(offsets, extents), limit, granule, bands);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Element numbers of a region, one by one.
    fn elements(region: &Region, shape: &Shape) -> Vec<u64> {
        let mut all = vec![0u64];
        for ((offset, size), extent) in region
            .offsets()
            .iter()
            .zip(region.sizes())
            .zip(shape.extents())
        {
            let along = |element: &u64| {
                let element = *element;
                (*offset..offset + size).map(move |index| element * extent + index)
            };
            all = all.iter().flat_map(along).collect();
        }
        all
    }

    fn region_and_shape() -> impl Strategy<Value = (Region, Shape)> {
        proptest::collection::vec((0u64..3, 1u64..4, 0u64..3), 0..4).prop_map(|axes| {
            let offsets: Vec<u64> = axes.iter().map(|axis| axis.0).collect();
            let sizes: Vec<u64> = axes.iter().map(|axis| axis.1).collect();
            let extents: Vec<u64> = axes.iter().map(|axis| axis.0 + axis.1 + axis.2).collect();
            (Region::new(offsets, sizes), Shape::new(extents))
        })
    }

    #[test]
    fn a_whole_tensor_is_one_run_and_a_slice_of_columns_one_a_row() {
        let shape = Shape::new([4, 6]);
        assert_eq!(
            runs(&Region::whole(&shape), &shape).collect::<Vec<_>>(),
            [(0, 24)]
        );
        assert_eq!(
            runs(&Region::new([1, 2], [2, 3]), &shape).collect::<Vec<_>>(),
            [(8, 3), (14, 3)]
        );
        assert_eq!(
            runs(&Region::new([], []), &Shape::new([])).collect::<Vec<_>>(),
            [(0, 1)]
        );
        assert_eq!(runs(&Region::new([0, 0], [0, 6]), &shape).count(), 0);
    }

    proptest! {
        #[test]
        fn runs_are_the_elements_in_row_major_order((region, shape) in region_and_shape()) {
            let found: Vec<u64> = runs(&region, &shape).flat_map(|(first, length)| first..first + length).collect();
            prop_assert_eq!(found, elements(&region, &shape));
        }

        #[test]
        fn bands_follow_each_other_and_obey_the_limit(
            (region, shape) in region_and_shape(),
            limit in 1u64..10,
            granule in 1u64..4,
        ) {
            let bands = bands(&region, limit, granule);
            let joined: Vec<u64> = bands.iter().flat_map(|band| elements(band, &shape)).collect();
            prop_assert_eq!(joined, elements(&region, &shape));
            prop_assert!(bands.iter().all(|band| band.elements().unwrap() <= limit));
        }

        #[test]
        fn joint_runs_pair_every_element((region, shape) in region_and_shape()) {
            let dense = region.shape();
            let pairs: Vec<(u64, u64)> = joint_runs(runs(&region, &shape), runs(&Region::whole(&dense), &dense))
                .flat_map(|(a, b, length)| (0..length).map(move |step| (a + step, b + step)))
                .collect();
            let expected: Vec<(u64, u64)> = elements(&region, &shape).into_iter().zip(0..).collect();
            prop_assert_eq!(pairs, expected);
        }
    }
}
