//! A rectangle of a tensor, and the question whether rectangles tile it.
//!
//! PyTorch's distributed checkpoints call it a chunk (`offsets`, `sizes`); the weight map calls it a box. It is the one
//! shape in which rialto speaks about parts of tensors.

use std::fmt;

use crate::shape::fmt_list;
use crate::{Error, Shape};

/// A rectangle: for every axis a first index and an extent, in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Region {
    offsets: Vec<u64>,
    sizes: Vec<u64>,
}

impl Region {
    /// A rectangle of `sizes` elements that begins at `offsets`.
    ///
    /// # Panics
    /// If the two have different lengths: a rectangle has one rank.
    pub fn new(offsets: impl Into<Vec<u64>>, sizes: impl Into<Vec<u64>>) -> Region {
        let (offsets, sizes) = (offsets.into(), sizes.into());
        assert_eq!(
            offsets.len(),
            sizes.len(),
            "offsets and sizes of a region must have the same rank"
        );
        Region { offsets, sizes }
    }

    /// The whole of a tensor.
    #[must_use]
    pub fn whole(shape: &Shape) -> Region {
        Region {
            offsets: vec![0; shape.rank()],
            sizes: shape.extents().to_vec(),
        }
    }

    /// First index on every axis.
    #[must_use]
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// Extent on every axis.
    #[must_use]
    pub fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// How many axes there are.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// The extents as a shape.
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape::new(self.sizes.clone())
    }

    /// The index, in the whole, of element number `position` of the rectangle.
    #[must_use]
    pub fn index_of(&self, position: u64) -> Vec<u64> {
        let mut rest = position;
        let mut index = vec![0; self.rank()];
        for axis in (0..self.rank()).rev() {
            let size = self.sizes()[axis].max(1);
            index[axis] = self.offsets()[axis] + rest % size;
            rest /= size;
        }
        index
    }

    /// How many elements are inside. Errors: [`Error::ShapeOverflow`].
    pub fn elements(&self) -> Result<u64, Error> {
        self.shape().elements()
    }

    /// Whether every index inside is an index of `shape`. An overflowing end is outside.
    #[must_use]
    pub fn is_inside(&self, shape: &Shape) -> bool {
        self.rank() == shape.rank()
            && self
                .axes()
                .zip(shape.extents())
                .all(|((offset, size), &extent)| {
                    offset.checked_add(size).is_some_and(|end| end <= extent)
                })
    }

    /// Whether an element is in both; the ranks must be equal.
    fn meets(&self, other: &Region) -> bool {
        self.axes()
            .zip(other.axes())
            .all(|((a, a_size), (b, b_size))| {
                a.max(b) < a.saturating_add(a_size).min(b.saturating_add(b_size))
            })
    }

    /// The common part of two rectangles, `None` if no element is in both or the ranks differ.
    #[must_use]
    pub fn intersection(&self, other: &Region) -> Option<Region> {
        if self.rank() != other.rank() || !self.meets(other) {
            return None;
        }
        let mut offsets = Vec::with_capacity(self.rank());
        let mut sizes = Vec::with_capacity(self.rank());
        for ((a, a_size), (b, b_size)) in self.axes().zip(other.axes()) {
            let start = a.max(b);
            let end = a.saturating_add(a_size).min(b.saturating_add(b_size));
            offsets.push(start);
            sizes.push(end - start);
        }
        Some(Region { offsets, sizes })
    }

    /// The same rectangle with its offsets counted from the beginning of `outer`.
    ///
    /// # Panics
    /// If it begins before `outer` on some axis.
    #[must_use]
    pub fn relative_to(&self, outer: &Region) -> Region {
        let offsets = self.offsets.iter().zip(&outer.offsets);
        let offsets = offsets.map(|(offset, start)| {
            offset
                .checked_sub(*start)
                .expect("a region begins inside the one that its offsets are counted from")
        });
        Region::new(offsets.collect::<Vec<u64>>(), self.sizes.as_slice())
    }

    /// The rectangle of `to` that corresponds to `part` of `from`, where `from` and `to` hold the same elements in row-major
    /// order. Axes of extent 1 do not matter: the other ones are matched one by one, and have the same extents.
    ///
    /// So a row of a matrix that became expert 3 of a stack is found in the stack:
    ///
    /// ```
    /// use rialto_tensor::Region;
    ///
    /// let (matrix, expert) = (Region::new([0, 0], [4, 5]), Region::new([3, 0, 0], [1, 4, 5]));
    /// let row = Region::new([2, 0], [1, 5]);
    /// assert_eq!(Region::corresponding(&row, &matrix, &expert), Region::new([3, 2, 0], [1, 1, 5]));
    /// ```
    ///
    /// # Panics
    /// If `part` begins before `from` on some axis.
    #[must_use]
    pub fn corresponding(part: &Region, from: &Region, to: &Region) -> Region {
        let proper = |region: &Region| {
            let axes = 0..region.rank();
            axes.filter(|&axis| region.sizes[axis] != 1)
                .collect::<Vec<_>>()
        };
        let part = part.relative_to(from);
        let mut corresponding = to.clone();
        for (axis, to_axis) in proper(from).into_iter().zip(proper(to)) {
            corresponding.offsets[to_axis] += part.offsets[axis];
            corresponding.sizes[to_axis] = part.sizes[axis];
        }
        corresponding
    }

    /// Whether neither `other` nor any region that follows it in order of offsets can reach it.
    ///
    /// So it is if it ends before `other` on the first axis; or if its last index there is where `other` begins, so that
    /// a region which begins further in misses it, and the same holds for the axes that are left.
    fn is_passed_by(&self, other: &Region) -> bool {
        for ((offset, size), &next) in self.axes().zip(&other.offsets) {
            match (offset + size).checked_sub(next) {
                None | Some(0) => return true,
                Some(1) => {}
                Some(_) => return false,
            }
        }
        false
    }

    /// The same rectangle with its axes in another order: `axes` has the old axis for every new one.
    fn permuted(&self, axes: &[usize]) -> Region {
        Region {
            offsets: axes.iter().map(|&axis| self.offsets[axis]).collect(),
            sizes: axes.iter().map(|&axis| self.sizes[axis]).collect(),
        }
    }

    fn axes(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.offsets.iter().copied().zip(self.sizes.iter().copied())
    }

    /// What is left of `self` without `cut`, which must lie inside it: at most two slabs an axis.
    fn without(&self, cut: &Region, left: &mut Vec<Region>) {
        let mut rest = self.clone();
        for axis in 0..self.rank() {
            let (start, end) = (rest.offsets[axis], rest.offsets[axis] + rest.sizes[axis]);
            let (cut_start, cut_end) = (cut.offsets[axis], cut.offsets[axis] + cut.sizes[axis]);
            if start < cut_start {
                let mut slab = rest.clone();
                slab.sizes[axis] = cut_start - start;
                left.push(slab);
            }
            if cut_end < end {
                let mut slab = rest.clone();
                slab.offsets[axis] = cut_end;
                slab.sizes[axis] = end - cut_end;
                left.push(slab);
            }
            rest.offsets[axis] = cut_start;
            rest.sizes[axis] = cut_end - cut_start;
        }
    }
}

impl fmt::Display for Region {
    /// Prints `[0, 0]+[4, 8]`: offsets, then sizes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_list(f, &self.offsets)?;
        f.write_str("+")?;
        fmt_list(f, &self.sizes)
    }
}

/// One way in which rectangles fail to cover every element of a tensor exactly once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TilingFault {
    /// A rectangle of another rank, or one that reaches outside the tensor.
    Outside(Region),
    /// Elements that an earlier rectangle had covered already.
    Overlap(Region),
    /// Elements that no rectangle covers.
    Gap(Region),
    /// The first rectangle that was not looked at: with those before it, it cuts the tensor into more fragments than
    /// rectangles that fit together do.
    Fragments(Region),
}

impl fmt::Display for TilingFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TilingFault::Outside(region) => write!(f, "{region} reaches outside"),
            TilingFault::Overlap(region) => write!(f, "{region} is covered twice"),
            TilingFault::Gap(region) => write!(f, "{region} is not covered"),
            TilingFault::Fragments(region) => {
                write!(
                    f,
                    "the regions before {region} leave too many fragments to go on"
                )
            }
        }
    }
}

/// All faults of a tiling: none means that every element of `shape` is in exactly one region.
///
/// Empty regions cover nothing and are ignored. Regions are taken in order of their offsets, and what no later one can reach
/// is set aside, so the work grows with how much lies open at a time. The axis on which most regions begin apart comes
/// first: then little lies open, whether rows, columns or stacks of experts are tiled, and also where regions leave gaps.
///
/// Regions that cross each other so often that the work or the list would grow without measure end in
/// [`TilingFault::Fragments`]: what lies behind it is not looked at.
#[must_use]
pub fn tiling_faults(shape: &Shape, regions: &[Region]) -> Vec<TilingFault> {
    let mut faults = Vec::new();
    let mut inside: Vec<&Region> = Vec::with_capacity(regions.len());
    for region in regions {
        if !region.is_inside(shape) {
            faults.push(TilingFault::Outside(region.clone()));
        } else if !region.sizes.contains(&0) {
            inside.push(region);
        }
    }
    let axes = axes_by_cuts(shape.rank(), &inside);
    let mut back = vec![0; axes.len()];
    for (new, &old) in axes.iter().enumerate() {
        back[old] = new;
    }
    let mut ordered: Vec<Region> = inside.iter().map(|region| region.permuted(&axes)).collect();
    ordered.sort_unstable();

    let mut sweep = Sweep::new(regions.len());
    if !shape.extents().contains(&0) {
        sweep.open.push(Region::whole(shape).permuted(&axes));
    }
    let stopped = ordered
        .into_iter()
        .find(|region| sweep.cover(region).is_none());
    let overlaps = sweep.overlaps.iter().map(|piece| piece.permuted(&back));
    faults.extend(overlaps.map(TilingFault::Overlap));
    if let Some(region) = stopped {
        faults.push(TilingFault::Fragments(region.permuted(&back)));
        return faults;
    }
    let gaps = sweep.gaps.iter().chain(&sweep.open);
    let mut gaps: Vec<Region> = gaps.map(|piece| piece.permuted(&back)).collect();
    gaps.sort();
    faults.extend(gaps.into_iter().map(TilingFault::Gap));
    faults
}

/// The axes, the one with the most different offsets first; axes with equally many keep their order.
fn axes_by_cuts(rank: usize, regions: &[&Region]) -> Vec<usize> {
    let cuts = |axis: usize| {
        let mut offsets: Vec<u64> = regions.iter().map(|region| region.offsets[axis]).collect();
        offsets.sort_unstable();
        offsets.dedup();
        offsets.len()
    };
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.sort_by_cached_key(|&axis| std::cmp::Reverse(cuts(axis)));
    axes
}

/// Fragments that may lie open or be gaps, and overlaps, for every region and beside them.
const FRAGMENTS: (usize, usize) = (4, 4096);
/// Fragments that are looked at for every region and beside them.
const STEPS: (usize, usize) = (4096, 1 << 20);
/// Steps that it takes to cut a fragment: looking at one takes some nanoseconds, cutting it a microsecond.
const CUT_STEPS: usize = 64;

/// Regions that are taken out of a tensor in order, and what is left of the work that they are worth: a file of a few
/// kilobytes may describe regions that cross each other in millions of places.
struct Sweep {
    /// What no region has covered yet and one may still reach.
    open: Vec<Region>,
    /// What no region covers.
    gaps: Vec<Region>,
    /// What more than one region covers.
    overlaps: Vec<Region>,
    max_fragments: usize,
    steps: usize,
}

impl Sweep {
    fn new(regions: usize) -> Sweep {
        let sum = |(each, beside): (usize, usize)| regions.saturating_mul(each) + beside;
        Sweep {
            open: Vec::new(),
            gaps: Vec::new(),
            overlaps: Vec::new(),
            max_fragments: sum(FRAGMENTS),
            steps: sum(STEPS),
        }
    }

    /// Takes the next region out of what is open. `None`, with everything half done, if that is too much work.
    fn cover(&mut self, region: &Region) -> Option<()> {
        let mut next = Vec::with_capacity(self.open.len() + 1);
        // What of this region was still open; the rest of it has been covered before.
        let mut fresh = Vec::new();
        for piece in std::mem::take(&mut self.open) {
            self.spend(1, self.gaps.len() + next.len())?;
            if piece.is_passed_by(region) {
                self.gaps.push(piece);
                continue;
            }
            match piece.intersection(region) {
                None => next.push(piece),
                Some(common) => {
                    self.spend(CUT_STEPS, self.gaps.len() + next.len())?;
                    piece.without(&common, &mut next);
                    fresh.push(common);
                }
            }
        }
        self.open = next;
        let mut doubled = vec![region.clone()];
        for part in &fresh {
            let mut rest = Vec::new();
            for piece in doubled {
                self.spend(1, self.overlaps.len() + rest.len())?;
                match piece.intersection(part) {
                    None => rest.push(piece),
                    Some(common) => {
                        self.spend(CUT_STEPS, self.overlaps.len() + rest.len())?;
                        piece.without(&common, &mut rest);
                    }
                }
            }
            doubled = rest;
        }
        self.overlaps.append(&mut doubled);
        Some(())
    }

    /// Takes some steps, with so many fragments in hand. `None` if that is too much.
    fn spend(&mut self, steps: usize, fragments: usize) -> Option<()> {
        self.steps = self.steps.checked_sub(steps)?;
        (fragments <= self.max_fragments).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_element_of_a_rectangle_has_its_index_in_the_whole() {
        let region = Region::new([4, 0, 10], [2, 3, 5]);
        assert_eq!(region.index_of(0), [4, 0, 10]);
        assert_eq!(region.index_of(22), [5, 1, 12]);
        assert_eq!(Region::new([], []).index_of(0), [0u64; 0]);
    }

    #[test]
    fn a_missing_half_is_a_gap_that_is_named() {
        let faults = tiling_faults(&Shape::new([8, 4]), &[Region::new([4, 0], [4, 4])]);
        assert_eq!(faults, [TilingFault::Gap(Region::new([0, 0], [4, 4]))]);
        assert_eq!(faults[0].to_string(), "[0, 0]+[4, 4] is not covered");
    }

    #[test]
    fn a_doubled_row_is_an_overlap_that_is_named() {
        let faults = tiling_faults(
            &Shape::new([4, 4]),
            &[Region::new([0, 0], [3, 4]), Region::new([2, 0], [2, 4])],
        );
        assert_eq!(faults, [TilingFault::Overlap(Region::new([2, 0], [1, 4]))]);
    }

    #[test]
    fn a_region_outside_or_of_another_rank_is_named_and_covers_nothing() {
        let outside = Region::new([0, u64::MAX], [4, 4]);
        let flat = Region::new([0], [4]);
        let faults = tiling_faults(&Shape::new([4, 4]), &[outside.clone(), flat.clone()]);
        assert_eq!(
            faults[..2],
            [TilingFault::Outside(outside), TilingFault::Outside(flat)]
        );
        assert_eq!(
            faults[2..],
            [TilingFault::Gap(Region::whole(&Shape::new([4, 4])))]
        );
    }

    #[test]
    fn a_scalar_needs_one_region_and_an_empty_tensor_none() {
        assert!(tiling_faults(&Shape::new([]), &[Region::new([], [])]).is_empty());
        assert_eq!(tiling_faults(&Shape::new([]), &[]).len(), 1);
        assert!(tiling_faults(&Shape::new([0, 4]), &[]).is_empty());
        assert!(
            tiling_faults(
                &Shape::new([5, 6]),
                &[Region::new([0, 0], [5, 6]), Region::new([5, 0], [0, 6])]
            )
            .is_empty()
        );
    }

    #[test]
    fn regions_that_cross_each_other_without_measure_are_refused_soon() {
        // Bars of two directions: a million crossings in a thousand lines of a file.
        let bars = |count: u64| -> Vec<Region> {
            let rows = (0..count).map(|i| Region::new([2 * i, 0], [1, 2 * count]));
            let columns = (0..count).map(|i| Region::new([0, 2 * i], [2 * count, 1]));
            rows.chain(columns).collect()
        };
        let faults = tiling_faults(&Shape::new([2000, 2000]), &bars(1000));
        assert!(matches!(faults.last(), Some(TilingFault::Fragments(_))));
        assert!(faults.len() < 20_000, "{} faults", faults.len());
        let few = tiling_faults(&Shape::new([16, 16]), &bars(8));
        assert!(
            few.iter()
                .all(|fault| !matches!(fault, TilingFault::Fragments(_)))
        );

        // Corners of a box with many axes: every one of them leaves a fragment on each side of each axis.
        let corner = |i: u64| {
            (0..60)
                .map(|axis| i >> (axis % 10) & 1)
                .collect::<Vec<u64>>()
        };
        let corners = (0..1000).map(|i| Region::new(corner(i), vec![1; 60]));
        let faults = tiling_faults(&Shape::new(vec![2; 60]), &corners.collect::<Vec<_>>());
        assert!(matches!(faults.last(), Some(TilingFault::Fragments(_))));
        assert!(faults.len() < 20_000, "{} faults", faults.len());
    }

    #[test]
    fn a_grid_of_many_regions_is_no_matter_of_fragments() {
        let grid = (0..32u64.pow(3)).map(|i| Region::new([i / 1024, i / 32 % 32, i % 32], [1; 3]));
        let faults = tiling_faults(&Shape::new([32; 3]), &grid.collect::<Vec<_>>());
        assert_eq!(faults, []);
    }

    /// Where regions of height 1 begin: at every second place of `count`, on the axis given.
    fn checkered(shape: &[u64], axis: usize) -> Vec<Region> {
        let places = (0..shape[axis]).step_by(2);
        let region = |place| {
            let (mut offsets, mut sizes) = (vec![0; shape.len()], shape.to_vec());
            (offsets[axis], sizes[axis]) = (place, 1);
            Region::new(offsets, sizes)
        };
        places.map(region).collect()
    }

    #[test]
    fn many_gaps_cost_no_more_than_they_are_many() {
        // A time that grows with the square of the regions would be minutes.
        for (shape, axis) in [
            (vec![100_000, 2], 0),
            (vec![1, 100_000], 1),
            (vec![2, 100_000], 1),
            (vec![1, 100_000, 1], 1),
            (vec![3, 100_000, 2], 1),
            (vec![2, 2, 100_000], 2),
        ] {
            let regions = checkered(&shape, axis);
            let faults = tiling_faults(&Shape::new(shape.clone()), &regions);
            assert_eq!(faults.len(), 50_000, "{shape:?}");
            let is_gap = |fault: &TilingFault| matches!(fault, TilingFault::Gap(gap) if gap.sizes()[axis] == 1);
            assert!(faults.iter().all(is_gap), "{shape:?}");
        }
        // Dots on every second row and column.
        let dots: Vec<Region> = (0..200u64)
            .flat_map(|row| {
                (0..200u64).map(move |column| Region::new([2 * row, 2 * column], [1, 1]))
            })
            .collect();
        let faults = tiling_faults(&Shape::new([400, 400]), &dots);
        let covered: u64 = faults
            .iter()
            .map(|fault| match fault {
                TilingFault::Gap(gap) => gap.elements().unwrap(),
                other => panic!("{other}"),
            })
            .sum();
        assert_eq!(covered, 400 * 400 - 200 * 200);
    }

    #[test]
    fn corresponding_rectangles_skip_axes_of_one() {
        let (from, to) = (
            Region::new([3, 4, 0], [1, 4, 5]),
            Region::new([10, 0], [4, 5]),
        );
        let part = Region::new([3, 6, 0], [1, 2, 5]);
        let in_to = Region::new([12, 0], [2, 5]);
        assert_eq!(Region::corresponding(&part, &from, &to), in_to);
        assert_eq!(Region::corresponding(&in_to, &to, &from), part);
    }

    #[test]
    fn a_part_of_extent_one_stays_on_its_axis() {
        let (from, to) = (
            Region::new([0, 0], [4, 5]),
            Region::new([7, 2, 0], [4, 1, 5]),
        );
        let part = Region::new([3, 1], [1, 2]);
        assert_eq!(
            Region::corresponding(&part, &from, &to),
            Region::new([10, 2, 1], [1, 1, 2])
        );
    }

    #[test]
    fn offsets_are_counted_from_the_beginning_of_another_region() {
        let outer = Region::new([3, 4], [5, 6]);
        let inner = Region::new([3, 9], [2, 1]);
        assert_eq!(inner.relative_to(&outer), Region::new([0, 5], [2, 1]));
        assert_eq!(
            Region::new([], []).relative_to(&Region::new([], [])),
            Region::new([], [])
        );
    }

    /// Counts how often each element is covered, one by one.
    fn covers_once_by_counting(shape: &Shape, regions: &[Region]) -> bool {
        let [rows, columns] = shape.extents() else {
            panic!("two axes")
        };
        (0..*rows).all(|row| {
            (0..*columns).all(|column| {
                let point = Region::new([row, column], [1, 1]);
                regions
                    .iter()
                    .filter(|region| region.intersection(&point).is_some())
                    .count()
                    == 1
            })
        })
    }

    proptest! {
        #[test]
        fn three_axes_agree_with_counting_too(
            cuts in proptest::collection::vec((0u64..3, 0u64..4, 0u64..3, 1u64..3, 1u64..4, 1u64..3), 0..6),
        ) {
            let shape = Shape::new([3, 4, 3]);
            let regions: Vec<Region> = cuts
                .into_iter()
                .map(|(a, b, c, x, y, z)| Region::new([a, b, c], [x, y, z]))
                .filter(|region| region.is_inside(&shape))
                .collect();
            let mut uncovered = 0;
            let mut doubled = 0;
            for index in 0..36 {
                let point = Region::new([index / 12, index / 3 % 4, index % 3], [1, 1, 1]);
                let count = regions.iter().filter(|region| region.intersection(&point).is_some()).count() as u64;
                uncovered += u64::from(count == 0);
                doubled += count.saturating_sub(1);
            }
            let (mut gaps, mut overlaps) = (0, 0);
            for fault in tiling_faults(&shape, &regions) {
                match fault {
                    TilingFault::Gap(region) => gaps += region.elements().unwrap(),
                    TilingFault::Overlap(region) => overlaps += region.elements().unwrap(),
                    TilingFault::Outside(_) | TilingFault::Fragments(_) => panic!("few and inside"),
                }
            }
            prop_assert_eq!((gaps, overlaps), (uncovered, doubled));
        }

        #[test]
        fn agrees_with_counting_every_element(
            rows in 1u64..6, columns in 1u64..6,
            cuts in proptest::collection::vec((0u64..6, 0u64..6, 1u64..4, 1u64..4), 0..5),
        ) {
            let shape = Shape::new([rows, columns]);
            let mut regions: Vec<Region> = cuts
                .into_iter()
                .map(|(row, column, height, width)| Region::new([row % rows, column % columns], [height, width]))
                .filter(|region| region.is_inside(&shape))
                .collect();
            prop_assert_eq!(tiling_faults(&shape, &regions).is_empty(), covers_once_by_counting(&shape, &regions));
            // The gaps complete what overlaps did not spoil: filling them leaves no gap.
            for fault in tiling_faults(&shape, &regions) {
                if let TilingFault::Gap(gap) = fault {
                    regions.push(gap);
                }
            }
            prop_assert!(!tiling_faults(&shape, &regions).iter().any(|fault| matches!(fault, TilingFault::Gap(_))));
        }
    }
}
