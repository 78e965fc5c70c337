//! The processes of one run: which files each writes.

use std::cmp::Reverse;

/// One process among those that do a run together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// Its number, from 0.
    pub rank: u64,
    /// How many there are.
    pub size: u64,
}

impl World {
    /// A process alone.
    pub const ALONE: World = World { rank: 0, size: 1 };

    /// For each file whether this process writes it: files of these lengths, the longest first, go to whoever has the least so
    /// far. It depends on nothing else, so processes need not talk about it.
    pub(crate) fn owned(&self, lengths: &[u64]) -> Vec<bool> {
        let mut loads: Vec<(u64, u64)> = (0..self.size.min(lengths.len() as u64))
            .map(|rank| (0, rank))
            .collect();
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by_key(|&file| Reverse(lengths[file]));
        let mut owned = vec![false; lengths.len()];
        for file in order {
            let least = loads
                .iter_mut()
                .min()
                .expect("no more ranks than files, and there is a file");
            owned[file] = least.1 == self.rank;
            least.0 = least.0.saturating_add(lengths[file]);
        }
        owned
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_files_go_to_who_has_least() {
        let lengths = [1, 9, 4, 4, 1];
        let owned = |rank| World { rank, size: 2 }.owned(&lengths);
        assert_eq!(owned(0), [false, true, false, false, true]);
        assert_eq!(owned(1), [true, false, true, true, false]);
    }

    proptest! {
        #[test]
        fn every_file_has_one_owner(lengths in proptest::collection::vec(0u64..1000, 0..20), size in 1u64..9) {
            let mut owners = vec![0; lengths.len()];
            for rank in 0..size {
                for (count, owned) in owners.iter_mut().zip(World { rank, size }.owned(&lengths)) {
                    *count += u64::from(owned);
                }
            }
            prop_assert!(owners.iter().all(|&count| count == 1));
        }
    }
}
