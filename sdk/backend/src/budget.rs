//! Memory that the buffers of a device share, counted by who has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many bytes the buffers of a device have, and may have.
#[derive(Debug)]
pub struct Budget {
    held: AtomicU64,
    /// Without, no bound is known.
    most: Option<u64>,
}

impl Budget {
    /// Nothing is held. `most`: bytes that all shares may have.
    #[must_use]
    pub fn new(most: Option<u64>) -> Arc<Budget> {
        Arc::new(Budget {
            held: AtomicU64::new(0),
            most,
        })
    }

    /// A share of so many bytes. `None` if all shares would be more than there may be.
    #[must_use]
    pub fn share(self: &Arc<Budget>, bytes: u64) -> Option<Share> {
        let more = |held: u64| {
            let all = held.checked_add(bytes)?;
            (all <= self.most.unwrap_or(u64::MAX)).then_some(all)
        };
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.held.fetch_update(set, fetch, more).ok()?;
        Some(Share {
            budget: Arc::clone(self),
            bytes,
        })
    }

    /// Bytes of all shares that there are.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Bytes that all shares may have.
    #[must_use]
    pub fn most(&self) -> Option<u64> {
        self.most
    }
}

/// Bytes of one buffer, which count as long as this lives.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_buffers_have_is_bounded_and_what_one_had_can_be_had_again() {
        let budget = Budget::new(Some(100));
        let first = budget.share(60).unwrap();
        assert!(budget.share(41).is_none());
        let second = budget.share(40).unwrap();
        assert!(budget.share(1).is_none());
        assert!(budget.share(0).is_some());
        drop(first);
        assert_eq!((budget.held(), budget.most()), (40, Some(100)));
        assert!(budget.share(61).is_none());
        assert!(budget.share(60).is_some());
        drop(second);
        assert!(budget.share(100).is_some());
        assert!(Budget::new(None).share(u64::MAX).is_some());
    }
}
