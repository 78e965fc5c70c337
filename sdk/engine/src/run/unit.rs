//! What a conversion writes of tensors, cut into units that can be done in any order, by anybody, and are done or not.
//!
//! An **output** is a dense run of bytes in one file: a chunk of a param, or a tensor of a shard. Outputs that differ only in
//! the columns they hold of one subject form a **group**: their rows are read once. A group is cut into **units** of about
//! [`UNIT_BYTES`] along its first axis, between codec blocks and between the grains of the digest. All of that follows from
//! the plan alone, never from threads, ranks or memory, so a unit has one name in every attempt: the position of its group's
//! first output, and its number in the group.

use std::sync::Arc;

use rialto_checkpoint::torch_dist::TensorItem;
use rialto_tensor::{ByteRange, Dtype, Region};

use super::digest::GRAIN_BYTES;

/// Bytes of a unit, about: as much as is lost of a killed run's work under way.
pub(crate) const UNIT_BYTES: u64 = 8 << 20;

/// A dense run of bytes in one file.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    /// The file, by its number.
    pub(crate) file: usize,
    /// The param or tensor whose elements it has, by its position in the mapping.
    pub(crate) subject: usize,
    /// Which of them, in row-major order.
    pub(crate) region: Region,
    pub(crate) dtype: Dtype,
    /// Where they lie in the file.
    pub(crate) data: ByteRange,
    /// What stands before and after them, if anything.
    pub(crate) frame: Option<Frame>,
}

/// The stream around a chunk: its tail has the checksum of the data.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// Where the stream begins in the file.
    pub(crate) offset: u64,
    pub(crate) item: Arc<TensorItem>,
}

/// Outputs that are made of the same rows.
#[derive(Debug)]
pub(crate) struct Group {
    /// Position of the first output among all.
    pub(crate) first: usize,
    pub(crate) outputs: Vec<Output>,
    /// The rectangle of the subject around all of them.
    region: Region,
    /// The axis along which it is cut; axes before it have one index.
    axis: usize,
    /// Indices of that axis in a unit; the last unit may have fewer.
    step: u64,
    units: u64,
}

/// The name of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct UnitId {
    /// Position of the first output of its group.
    pub(crate) group: usize,
    /// Its number in the group.
    pub(crate) number: u64,
}

impl Group {
    /// The group that begins at output `first`: that and those after it which hold other columns of its rows, as `output` gives
    /// them, `None` beyond the last. `granule` is how many indices of a subject's axis are decoded together, of the axis with so
    /// many behind it.
    pub(crate) fn at(
        first: usize,
        output: impl Fn(usize) -> Option<Output>,
        granule: impl Fn(usize, usize) -> u64,
    ) -> Option<Group> {
        let leader = output(first)?;
        let (mut region, mut outputs) = (leader.region.clone(), vec![leader]);
        let axis = cut_axis(&region);
        // Columns are an axis behind the one that is cut.
        if axis + 1 < region.rank() {
            while let Some(next) = output(first + outputs.len()) {
                let Some(wider) = widened(&region, &outputs[0], &next) else {
                    break;
                };
                region = wider;
                outputs.push(next);
            }
        }
        let behind = region.rank().saturating_sub(axis + 1);
        let granule = granule(outputs[0].subject, behind);
        Some(Group::new(first, outputs, region, axis, granule))
    }

    fn new(first: usize, outputs: Vec<Output>, region: Region, axis: usize, granule: u64) -> Group {
        let length = region.sizes().get(axis).copied().unwrap_or(1);
        let width = outputs[0].dtype.size_bytes();
        let index_bytes = |region: &Region| {
            let behind = region.sizes().iter().skip(axis + 1);
            behind.product::<u64>() * width
        };
        // So many indices make whole blocks, and whole grains of every output.
        let mut least = granule.max(1);
        for output in &outputs {
            let bytes = index_bytes(&output.region).max(1);
            least = lcm(least, GRAIN_BYTES / gcd(GRAIN_BYTES, bytes));
        }
        let fits = UNIT_BYTES / index_bytes(&region).max(1);
        let step = (fits - fits % least).max(least).min(length.max(1));
        let units = length.div_ceil(step).max(1);
        Group {
            first,
            outputs,
            region,
            axis,
            step,
            units,
        }
    }

    /// Whether nothing stands around its outputs.
    pub(crate) fn has_no_frames(&self) -> bool {
        self.outputs.iter().all(|output| output.frame.is_none())
    }

    /// How many units it has, at least one.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// The rectangle of the subject that a unit is.
    pub(crate) fn unit(&self, number: u64) -> Region {
        if self.region.rank() == 0 {
            return self.region.clone();
        }
        let (mut offsets, mut sizes) =
            (self.region.offsets().to_vec(), self.region.sizes().to_vec());
        let start = number * self.step;
        offsets[self.axis] += start;
        sizes[self.axis] = self.step.min(sizes[self.axis] - start);
        Region::new(offsets, sizes)
    }

    /// The bytes of an output that a unit has, counted from the beginning of its data.
    pub(crate) fn bytes_of(&self, output: &Output, number: u64) -> ByteRange {
        let unit = self.unit(number);
        let sizes = output.region.sizes();
        let behind: u64 = sizes.iter().skip(self.axis + 1).product();
        let index_bytes = behind * output.dtype.size_bytes();
        let indices = unit.sizes().get(self.axis).copied().unwrap_or(1);
        let start = number * self.step * index_bytes;
        ByteRange::new(start, start + indices * index_bytes)
    }

    /// The names of its units.
    pub(crate) fn ids(&self) -> impl Iterator<Item = UnitId> + use<> {
        let group = self.first;
        (0..self.units).map(move |number| UnitId { group, number })
    }
}

/// An axis without an index, else the first with more than one, else the last.
fn cut_axis(region: &Region) -> usize {
    let sizes = region.sizes();
    let empty = sizes.iter().position(|&size| size == 0);
    let axis = empty.or_else(|| sizes.iter().position(|&size| size > 1));
    axis.unwrap_or(sizes.len().saturating_sub(1))
}

/// The rectangle around `region` and an output that continues it to the right; `None` if it does not.
fn widened(region: &Region, leader: &Output, next: &Output) -> Option<Region> {
    let last = region.rank().checked_sub(1)?;
    let is_same = next.file == leader.file
        && next.subject == leader.subject
        && next.dtype == leader.dtype
        && next.region.rank() == region.rank()
        && next.region.offsets()[..last] == region.offsets()[..last]
        && next.region.sizes()[..last] == region.sizes()[..last]
        && next.region.offsets()[last] == region.offsets()[last] + region.sizes()[last];
    if !is_same {
        return None;
    }
    let mut sizes = region.sizes().to_vec();
    sizes[last] += next.region.sizes()[last];
    Some(Region::new(region.offsets(), sizes))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: u64, b: u64) -> u64 {
    a / gcd(a, b) * b
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn output(file: usize, subject: usize, offsets: &[u64], sizes: &[u64]) -> Output {
        Output {
            file,
            subject,
            region: Region::new(offsets, sizes),
            dtype: Dtype::Bf16,
            data: ByteRange::new(0, 2 * sizes.iter().product::<u64>()),
            frame: None,
        }
    }

    fn groups(outputs: &[Output], granule: u64) -> Vec<Group> {
        let (mut groups, mut at) = (Vec::new(), 0);
        while let Some(group) = Group::at(
            at,
            |at| outputs.get(at).cloned(),
            |_, behind| if behind < 2 { granule } else { 1 },
        ) {
            at += group.outputs.len();
            groups.push(group);
        }
        groups
    }

    #[test]
    fn columns_of_the_same_rows_form_a_group_and_nothing_else_does() {
        let outputs = [
            output(0, 0, &[0, 0], &[8, 4]),
            output(0, 0, &[0, 4], &[8, 3]),
            output(0, 0, &[8, 0], &[8, 4]), // other rows
            output(1, 0, &[8, 4], &[8, 3]), // another file
            output(1, 1, &[8, 7], &[8, 3]), // another subject
            output(1, 2, &[0], &[4]),
            output(1, 2, &[4], &[4]), // has no rows
            output(1, 3, &[0, 0, 0], &[1, 4, 2]),
            output(1, 3, &[0, 0, 2], &[1, 4, 2]),
            output(1, 3, &[1, 0, 0], &[1, 4, 2]), // another expert
            output(1, 4, &[0, 0], &[1, 4]),
            output(1, 4, &[0, 4], &[1, 4]), // one row is cut along its columns
            output(1, 5, &[], &[]),
        ];
        let found: Vec<(usize, usize)> = groups(&outputs, 1)
            .iter()
            .map(|group| (group.first, group.outputs.len()))
            .collect();
        let expected = [
            (0, 2),
            (2, 1),
            (3, 1),
            (4, 1),
            (5, 1),
            (6, 1),
            (7, 2),
            (9, 1),
            (10, 1),
            (11, 1),
            (12, 1),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_unit_has_whole_codec_blocks_whole_grains_and_about_its_size() {
        // 576 KiB a granule of 128 rows; 14 of them are 7.9 MiB.
        let group = &groups(&[output(0, 0, &[0, 0], &[20_000, 2304])], 128)[0];
        assert_eq!(group.unit(1), Region::new([14 * 128, 0], [14 * 128, 2304]));
        // Rows of 10 bytes: 512 of them make whole grains.
        let group = &groups(&[output(0, 0, &[0, 0], &[2_000_000, 5])], 1)[0];
        assert!((group.unit(0).sizes()[0] * 10).is_multiple_of(GRAIN_BYTES));
        // A stack of experts that are larger than a unit: one each, for experts are not decoded together.
        let group = &groups(&[output(0, 0, &[0, 0, 0], &[4, 4096, 2048])], 128)[0];
        assert_eq!((group.units(), group.unit(2).sizes()[0]), (4, 1));
        // Nothing at all is one unit of no bytes.
        let empty = output(0, 0, &[0, 0], &[0, 4]);
        let group = &groups(std::slice::from_ref(&empty), 128)[0];
        assert_eq!((group.units(), group.bytes_of(&empty, 0).len()), (1, 0));
    }

    proptest! {
        #[test]
        fn units_tile_every_output_and_begin_between_grains(
            rows in 1u64..3_000_000,
            columns in proptest::collection::vec(1u64..40, 1..4),
            granule in 1u64..200,
        ) {
            let mut at = 0;
            let outputs: Vec<Output> = columns.iter().map(|&width| {
                let output = output(0, 0, &[5, at], &[rows, width]);
                at += width;
                output
            }).collect();
            for group in groups(&outputs, granule) {
                for output in &group.outputs {
                    let mut end = 0;
                    for id in group.ids() {
                        let bytes = group.bytes_of(output, id.number);
                        prop_assert_eq!(bytes.start, end);
                        prop_assert!(bytes.start.is_multiple_of(GRAIN_BYTES));
                        end = bytes.end;
                    }
                    prop_assert_eq!(end, output.data.len());
                }
                prop_assert!(group.unit(0).shape().size_bytes(Dtype::Bf16).unwrap() <= UNIT_BYTES.max(2 * 1024 * 200 * 3 * 40));
            }
        }
    }
}
