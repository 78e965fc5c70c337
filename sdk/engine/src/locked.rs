//! A lock that outlives a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock. For values that are whole at every moment: whoever panicked with the lock has left one.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
