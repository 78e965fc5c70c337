//! Things in a given order, spread over so many files.

use std::num::NonZeroU64;

/// How many things each file holds: as many files as asked for if there are as many things, and about equal bytes in each.
/// Things stay in their order. At least one file, which may be empty.
pub(crate) fn spread(sizes: &[u64], files: NonZeroU64) -> Vec<usize> {
    let mut counts = Vec::new();
    let mut rest: u128 = sizes.iter().map(|&size| u128::from(size)).sum();
    let mut start = 0;
    let mut files_left = files.get().min(sizes.len() as u64).max(1);
    while files_left > 0 {
        let quota = rest / u128::from(files_left);
        let (mut held, mut count) = (0u128, 0);
        // One thing at least for each file that is to come.
        let room = sizes.len() - start - (files_left as usize - 1).min(sizes.len() - start);
        while count < room {
            let size = u128::from(sizes[start + count]);
            // Nearer to its share with the thing than without.
            let is_nearer = 2 * held + size <= 2 * quota;
            if files_left > 1 && count > 0 && !is_nearer {
                break;
            }
            held += size;
            count += 1;
        }
        counts.push(count);
        start += count;
        rest -= held;
        files_left -= 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(sizes: &[u64], files: u64) -> Vec<usize> {
        spread(sizes, NonZeroU64::new(files).unwrap())
    }

    #[test]
    fn files_are_about_equal_and_as_many_as_asked_for() {
        assert_eq!(of(&[1; 12], 4), [3, 3, 3, 3]);
        assert_eq!(of(&[100, 1, 1, 1, 1, 1, 1], 3), [1, 3, 3]);
        assert_eq!(of(&[1, 1, 1, 100], 3), [2, 1, 1]);
        assert_eq!(of(&[5, 5], 7), [1, 1]);
        assert_eq!(of(&[0, 0, 0], 2), [2, 1]);
        assert_eq!(of(&[], 3), [0]);
        assert_eq!(of(&[u64::MAX; 3], 1), [3]);
    }

    proptest! {
        #[test]
        fn everything_is_in_one_file_and_none_is_much_longer_than_its_share(
            sizes in proptest::collection::vec(1u64..50, 1..60),
            files in 1u64..20,
        ) {
            let counts = of(&sizes, files);
            prop_assert_eq!(counts.iter().sum::<usize>(), sizes.len());
            prop_assert_eq!(counts.len() as u64, files.min(sizes.len() as u64));
            prop_assert!(counts.iter().all(|&count| count > 0));
            let share = sizes.iter().sum::<u64>() / counts.len() as u64;
            let mut start = 0;
            for count in counts {
                let held: u64 = sizes[start..start + count].iter().sum();
                start += count;
                prop_assert!(held <= share + 2 * 50 || count == 1, "{held} of {share}");
            }
        }
    }
}
