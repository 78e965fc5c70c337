//! Which pages of the caches belong to which sequence. All caches of a model share one division: position `p` of a sequence lies in
//! row `p % page` of its page `p / page`, in each of them. Nothing here touches a device: pages are numbers, and only the table of
//! them goes there.

use crate::Error;

/// The pages of a sequence, in the order of its positions. It gives them back when it ends: [`PagePool::release`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SequencePages {
    pages: Vec<u32>,
    positions: u64,
}

impl SequencePages {
    /// The pages, in order.
    #[must_use]
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Positions that are in use.
    #[must_use]
    pub fn positions(&self) -> u64 {
        self.positions
    }
}

/// The pages of all caches.
#[derive(Debug)]
pub struct PagePool {
    page_positions: u64,
    all: u32,
    /// Those that nobody has, the next one last.
    free: Vec<u32>,
}

impl PagePool {
    /// So many pages of so many positions each, all free.
    #[must_use]
    pub fn new(pages: u32, page_positions: u64) -> PagePool {
        PagePool {
            page_positions: page_positions.max(1),
            all: pages,
            free: (0..pages).rev().collect(),
        }
    }

    /// Positions of a page.
    #[must_use]
    pub fn page_positions(&self) -> u64 {
        self.page_positions
    }

    /// All pages.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.all
    }

    /// Pages that nobody has.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Appends positions to a sequence, with the pages that they need. Errors: [`Error::Pages`], and then nothing has changed.
    pub fn append(&mut self, sequence: &mut SequencePages, positions: u64) -> Result<(), Error> {
        let after = sequence.positions.saturating_add(positions);
        let needed = after.div_ceil(self.page_positions) - sequence.pages.len() as u64;
        let free = self.free.len() as u64;
        if needed > free {
            return Err(Error::Pages {
                needed,
                free,
                all: self.all.into(),
                page_positions: self.page_positions,
                positions: after,
            });
        }
        let taken = self.free.len() - needed as usize;
        sequence.pages.extend(self.free.drain(taken..).rev());
        sequence.positions = after;
        Ok(())
    }

    /// Forgets the positions of a sequence from `positions` on, and gives back the pages that it no longer needs. What is left stays
    /// where it is.
    pub fn truncate(&mut self, sequence: &mut SequencePages, positions: u64) {
        if positions >= sequence.positions {
            return;
        }
        let kept = positions.div_ceil(self.page_positions) as usize;
        self.free.extend(sequence.pages.drain(kept..).rev());
        sequence.positions = positions;
    }

    /// Ends a sequence.
    pub fn release(&mut self, mut sequence: SequencePages) {
        self.truncate(&mut sequence, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_when_a_position_needs_them_and_given_back_when_none_does() {
        let mut pool = PagePool::new(4, 16);
        let (mut a, mut b) = (SequencePages::default(), SequencePages::default());
        pool.append(&mut a, 16).unwrap();
        pool.append(&mut b, 1).unwrap();
        pool.append(&mut a, 1).unwrap();
        assert_eq!(
            (a.pages(), b.pages(), pool.free()),
            (&[0, 2][..], &[1][..], 1)
        );
        pool.append(&mut b, 15).unwrap();
        assert_eq!((b.pages(), b.positions()), (&[1][..], 16));
        pool.truncate(&mut a, 17);
        pool.truncate(&mut a, 16);
        assert_eq!((a.pages(), a.positions(), pool.free()), (&[0][..], 16, 2));
        pool.truncate(&mut a, 1);
        assert_eq!((a.pages(), a.positions()), (&[0][..], 1));
        pool.release(a);
        pool.release(b);
        assert_eq!(pool.free(), 4);
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let mut pool = PagePool::new(2, 8);
        let mut sequence = SequencePages::default();
        pool.append(&mut sequence, 9).unwrap();
        let error = pool.append(&mut sequence, 8).unwrap_err();
        assert_eq!(error.slug(), "backend/pages");
        assert_eq!(error.code(), 6);
        assert_eq!((sequence.positions(), pool.free()), (9, 0));
        pool.append(&mut sequence, 7).unwrap();
        assert_eq!(sequence.positions(), 16);
    }

    proptest::proptest! {
        /// Whatever sequences do, no page has two owners and none is lost.
        #[test]
        fn a_page_has_one_owner(steps in proptest::collection::vec((0usize..3, 0u64..40, proptest::bool::ANY), 0..60)) {
            let mut pool = PagePool::new(12, 7);
            let mut sequences = [SequencePages::default(), SequencePages::default(), SequencePages::default()];
            for (which, positions, appends) in steps {
                let sequence = &mut sequences[which];
                let before = sequence.pages().to_vec();
                if appends {
                    let _ = pool.append(sequence, positions);
                } else {
                    pool.truncate(sequence, positions);
                }
                let kept = before.len().min(sequence.pages().len());
                proptest::prop_assert_eq!(&before[..kept], &sequence.pages()[..kept]);
                let mut owned: Vec<u32> = sequences.iter().flat_map(|sequence| sequence.pages()).copied().collect();
                for sequence in &sequences {
                    proptest::prop_assert_eq!(sequence.pages().len() as u64, sequence.positions().div_ceil(7));
                }
                let count = owned.len();
                owned.sort_unstable();
                owned.dedup();
                proptest::prop_assert_eq!(owned.len(), count);
                proptest::prop_assert_eq!(count + pool.free(), 12);
            }
        }
    }
}
