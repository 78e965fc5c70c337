//! Memory that the buffers of a device share.
//!
//! The system gives pages when they are first written and not when they are asked for, so that caches that are never filled cost
//! nothing. What it then does not have, it takes by ending the process: so what cannot be there is refused when it is asked for.

use std::hint::black_box;
use std::sync::Arc;

use rialto_backend::{Budget, Share};

use crate::facts;

/// Bytes from which on what the system has left is looked at.
const LARGE: u64 = 64 << 20;

/// A share of so many bytes. `None` if the system has not as many left, or all shares would be more than there may be.
pub(crate) fn share(budget: &Arc<Budget>, bytes: u64) -> Option<Share> {
    match fits(bytes, facts::available_bytes) {
        true => budget.share(bytes),
        false => None,
    }
}

/// Zeros whose pages come when they are written. `None` if the addresses cannot be had.
pub(crate) fn zeros<T: Clone + Default>(count: u64) -> Option<Vec<T>> {
    let count = usize::try_from(count).ok()?;
    // What gives such pages ends the process where there is nothing to give: so it is asked for in another way before.
    let mut probe = Vec::<T>::new();
    probe.try_reserve_exact(count).ok()?;
    // Memory that nobody sees is none that the compiler asks for.
    drop(black_box(probe));
    Some(vec![T::default(); count])
}

/// Whether so many bytes are there, as far as the system says.
fn fits(bytes: u64, available: impl FnOnce() -> Option<u64>) -> bool {
    bytes < LARGE || available().is_none_or(|available| bytes <= available)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_buffers_have_is_bounded_and_what_one_had_can_be_had_again() {
        let memory = Budget::new(Some(100));
        let first = share(&memory, 60).unwrap();
        assert!(share(&memory, 41).is_none());
        let second = share(&memory, 40).unwrap();
        assert!(share(&memory, 1).is_none());
        assert!(share(&memory, 0).is_some());
        drop(first);
        assert!(share(&memory, 61).is_none());
        assert!(share(&memory, 60).is_some());
        drop(second);
        assert!(share(&memory, 100).is_some());
    }

    #[test]
    fn without_a_bound_only_what_cannot_be_counted_is_refused() {
        let memory = Budget::new(None);
        let _first = share(&memory, LARGE - 1).unwrap();
        assert!(share(&memory, LARGE - 1).is_some());
        assert!(share(&memory, u64::MAX).is_none());
    }

    #[test]
    fn addresses_that_no_process_has_are_refused_and_end_nothing() {
        assert!(zeros::<u8>(1 << 62).is_none());
        assert!(zeros::<f32>(u64::MAX).is_none());
    }

    #[test]
    fn a_large_buffer_is_compared_with_what_the_system_has_left() {
        assert!(fits(LARGE, || Some(LARGE)));
        assert!(!fits(LARGE + 1, || Some(LARGE)));
        assert!(fits(u64::MAX, || None));
        // A small one is had or not: the system is not asked.
        assert!(fits(LARGE - 1, || unreachable!()));
    }

    #[test]
    fn pages_that_are_not_written_are_not_there() {
        // Where the system does not say, nothing can be seen.
        let Some(before) = facts::resident_bytes() else {
            return;
        };
        let bytes = 256 << 20;
        let zeros = zeros::<u16>(bytes / 2).unwrap();
        let after = facts::resident_bytes().unwrap();
        assert!(after < before + bytes / 2, "{before} and then {after}");
        assert_eq!(zeros.iter().step_by(4 << 20).max(), Some(&0));
    }
}
