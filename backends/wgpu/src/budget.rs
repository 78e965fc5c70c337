//! Memory that the buffers of a device share: counted here, since no driver says how much is left.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many bytes the buffers of a device have, and may have.
#[derive(Debug)]
pub(crate) struct Budget {
    held: AtomicU64,
    /// Without, only the driver knows a bound.
    most: Option<u64>,
}

impl Budget {
    pub(crate) fn new(most: Option<u64>) -> Arc<Budget> {
        Arc::new(Budget {
            held: AtomicU64::new(0),
            most,
        })
    }

    /// A share of so many bytes. `None` if all shares would be more than there may be.
    pub(crate) fn share(self: &Arc<Budget>, bytes: u64) -> Option<Share> {
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
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Bytes that all shares may have.
    pub(crate) fn most(&self) -> Option<u64> {
        self.most
    }
}

/// Bytes of one buffer, which count as long as this lives.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A buffer and its share of the budget. A clone of the buffer alone would not count: recordings keep the allocation.
pub(crate) struct Allocation {
    buffer: wgpu::Buffer,
    _share: Share,
}

impl Allocation {
    pub(crate) fn new(buffer: wgpu::Buffer, share: Share) -> Allocation {
        Allocation {
            buffer,
            _share: share,
        }
    }
}

impl Deref for Allocation {
    type Target = wgpu::Buffer;

    fn deref(&self) -> &wgpu::Buffer {
        &self.buffer
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
        drop(first);
        assert_eq!((budget.held(), budget.most()), (40, Some(100)));
        assert!(budget.share(61).is_none());
        drop(second);
        assert!(budget.share(100).is_some());
        assert!(Budget::new(None).share(u64::MAX).is_some());
    }
}
