//! The checksum that a chunk's writer recorded, compared as the chunk's bytes pass by on their way elsewhere.
//!
//! Nothing is read for it alone: every stretch that is read adds its CRC-32, in any order, and neighbors combine. What a run
//! has read of a chunk only in part, [`Checks::finish`] reads whole.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use rialto_checkpoint::torch_dist::{Chunk, StoredTensor, TorchDistCheckpoint};
use rialto_tensor::Location;

use crate::locked::locked;
use crate::{Error, Progress};

/// The chunks of a checkpoint that a run has touched.
#[derive(Debug, Default)]
pub(crate) struct Checks(Mutex<HashMap<Place, Arc<Check>>>);

/// File and offset of a chunk.
type Place = (Arc<str>, u64);

impl Checks {
    /// The check of a chunk; none if its writer recorded nothing, or if it has agreed already.
    pub(crate) fn of(
        &self,
        name: &str,
        chunk: &Chunk,
        located: &StoredTensor,
    ) -> Option<Arc<Check>> {
        if located.crc32 == 0 || located.data.is_empty() {
            return None;
        }
        let mut checks = locked(&self.0);
        let place = (Arc::clone(&chunk.file), chunk.offset);
        let check = checks.entry(place).or_insert_with(|| {
            Arc::new(Check {
                tensor: name.to_owned(),
                located: located.clone(),
                state: Mutex::new(State::default()),
            })
        });
        (!locked(&check.state).has_agreed).then(|| Arc::clone(check))
    }

    /// Reads the chunks that were read only in part. Errors: those of [`StoredTensor::verify`], [`Error::Cancelled`].
    pub(crate) fn finish(
        &self,
        checkpoint: &TorchDistCheckpoint,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let checks = locked(&self.0);
        let mut open: Vec<_> = checks
            .iter()
            .filter(|(_, check)| !locked(&check.state).has_agreed)
            .collect();
        open.sort_by_key(|(place, _)| *place);
        for ((file, _), check) in open {
            if progress.is_cancelled() {
                return Err(Error::Cancelled);
            }
            check.read_whole(checkpoint.source(file)?.as_ref())?;
        }
        Ok(())
    }
}

/// One chunk: what of it has passed.
#[derive(Debug)]
pub(crate) struct Check {
    tensor: String,
    located: StoredTensor,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Stretches of the file, by their beginning: end and CRC-32. No two touch.
    passed: BTreeMap<u64, (u64, u32)>,
    has_agreed: bool,
}

impl Check {
    /// Whether all of the chunk has passed and is as recorded.
    pub(crate) fn has_agreed(&self) -> bool {
        locked(&self.state).has_agreed
    }

    /// Reads and compares the whole chunk, for who does not read it in stretches.
    pub(crate) fn read_whole(
        &self,
        source: &dyn rialto_checkpoint::store::Source,
    ) -> Result<(), Error> {
        self.located.verify(source, &self.tensor)?;
        locked(&self.state).has_agreed = true;
        Ok(())
    }

    /// Counts the bytes from `at` of the file on in. What has passed before is not counted twice.
    ///
    /// Errors: a checksum that is another than recorded, with the stretch that completes the chunk.
    pub(crate) fn note(&self, file: &str, at: u64, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() || locked(&self.state).has_agreed {
            return Ok(());
        }
        let (mut start, mut end) = (at, at + bytes.len() as u64);
        let mut crc32 = crc32fast::hash(bytes);
        let mut state = locked(&self.state);
        let before = state.passed.range(..=start).next_back();
        let before = before.map(|(&start, &(end, crc32))| (start, end, crc32));
        let after = state.passed.range(start..).next();
        let after = after.map(|(&start, &(end, crc32))| (start, end, crc32));
        if before.is_some_and(|before| before.1 > start) || after.is_some_and(|after| after.0 < end)
        {
            return Ok(());
        }
        if let Some((first, _, earlier)) = before.filter(|before| before.1 == start) {
            crc32 = combined((earlier, start - first), (crc32, end - start));
            start = first;
        }
        if let Some((next, last, later)) = after.filter(|after| after.0 == end) {
            crc32 = combined((crc32, end - start), (later, last - next));
            state.passed.remove(&next);
            end = last;
        }
        state.passed.insert(start, (end, crc32));
        let data = self.located.data;
        if (start, end) != (data.start, data.end) {
            return Ok(());
        }
        if crc32 != self.located.crc32 {
            let place = Location::file(file).with_tensor(&self.tensor);
            return Err(Error::Checkpoint(rialto_checkpoint::Error::Checksum {
                location: place.with_bytes(start, end),
                expected: self.located.crc32,
                found: crc32,
            }));
        }
        state.has_agreed = true;
        state.passed = BTreeMap::new();
        Ok(())
    }
}

/// The CRC-32 of two neighbors, each given with its length.
fn combined(first: (u32, u64), second: (u32, u64)) -> u32 {
    let mut all = crc32fast::Hasher::new_with_initial_len(first.0, first.1);
    all.combine(&crc32fast::Hasher::new_with_initial_len(second.0, second.1));
    all.finalize()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rialto_tensor::{ByteRange, Dtype, Shape};

    use super::*;

    const START: u64 = 40;

    fn check(bytes: &[u8], crc32: u32) -> Check {
        Check {
            tensor: "w".to_owned(),
            located: StoredTensor {
                dtype: Dtype::U8,
                size: Shape::new([bytes.len() as u64]),
                strides: vec![1],
                storage_offset: 0,
                data: ByteRange::new(START, START + bytes.len() as u64),
                big_endian: false,
                crc32,
            },
            state: Mutex::default(),
        }
    }

    fn note(check: &Check, bytes: &[u8], range: std::ops::Range<usize>) -> Result<(), Error> {
        check.note("f", START + range.start as u64, &bytes[range])
    }

    #[test]
    fn what_was_read_twice_counts_once_and_the_last_stretch_decides() {
        let bytes: Vec<u8> = (0..90).collect();
        let good = check(&bytes, crc32fast::hash(&bytes));
        for range in [50..90, 0..10, 5..20, 0..10, 10..49] {
            note(&good, &bytes, range).unwrap();
        }
        assert!(!locked(&good.state).has_agreed);
        note(&good, &bytes, 49..50).unwrap();
        assert!(locked(&good.state).has_agreed);

        let mut other = bytes.clone();
        other[70] ^= 4;
        let bad = check(&bytes, crc32fast::hash(&bytes));
        note(&bad, &other, 0..89).unwrap();
        let error = note(&bad, &other, 89..90).unwrap_err();
        assert_eq!(error.slug(), "torch_dist/checksum");
        let said = error.to_string();
        assert!(said.contains('w') && said.contains("40..130"), "{said}");
    }

    proptest! {
        #[test]
        fn stretches_in_any_order_make_the_checksum_of_the_whole(
            cuts in proptest::collection::btree_set(1usize..200, 0..12),
            order in proptest::collection::vec(0usize..100, 13),
            flipped in proptest::option::of(0usize..200),
        ) {
            let bytes: Vec<u8> = (0..200).map(|at| (at * 7) as u8).collect();
            let check = check(&bytes, crc32fast::hash(&bytes));
            let mut read = bytes.clone();
            if let Some(at) = flipped {
                read[at] ^= 1;
            }
            let ends: Vec<usize> = cuts.into_iter().chain([200]).collect();
            let starts = [0].into_iter().chain(ends.iter().copied());
            let mut parts: Vec<_> = starts.zip(ends.clone()).map(|(start, end)| start..end).collect();
            parts.sort_by_key(|part| order[part.start % order.len()]);
            let last = parts.pop().unwrap();
            for part in parts {
                prop_assert!(note(&check, &read, part).is_ok());
            }
            prop_assert_eq!(note(&check, &read, last).is_err(), flipped.is_some());
        }
    }
}
