//! Threads that begin at once.

use std::sync::{Mutex, mpsc};
use std::thread::{self, Builder};

use crate::locked::locked;

/// Does work on so many threads at once, this one among them, and gives what each made. Before any of it begins, all have what `prepare`
/// makes. A thread that cannot be started leaves its work to the others: there are then fewer.
///
/// No wait in here is without end: threads wait for this one, which lets go of them whatever happens to it, and this one for
/// threads that were started and prepare.
pub(super) fn together<S, T: Send>(
    threads: usize,
    builder: impl Fn() -> Builder,
    prepare: impl Fn() -> S + Sync,
    work: impl Fn(S) -> T + Sync,
) -> Vec<T> {
    let start = Mutex::new(());
    let (prepare, work, started) = (&prepare, &work, &start);
    thread::scope(|scope| {
        let held = locked(&start);
        // Nothing is sent: receiving ends when every thread has let go of its end.
        let (ready, all_ready) = mpsc::channel::<()>();
        let other = |ready: mpsc::Sender<()>| {
            move || {
                let prepared = prepare();
                drop(ready);
                drop(locked(started));
                work(prepared)
            }
        };
        let others = (1..threads).map_while(|_| {
            let thread = builder().spawn_scoped(scope, other(ready.clone()));
            thread.ok()
        });
        let others: Vec<_> = others.collect();
        let prepared = prepare();
        drop(ready);
        let _ = all_ready.recv();
        drop(held);
        let mut made = vec![work(prepared)];
        made.extend(others.into_iter().map(|other| {
            let other = other.join();
            other.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        }));
        made
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn nobody_begins_before_all_are_prepared() {
        let prepared = AtomicUsize::new(0);
        let prepare = || prepared.fetch_add(1, Ordering::SeqCst);
        let work = |_| prepared.load(Ordering::SeqCst);
        for threads in [1, 2, 7] {
            prepared.store(0, Ordering::SeqCst);
            let found = together(threads, Builder::new, prepare, work);
            assert_eq!(found, vec![threads; threads]);
        }
    }

    #[test]
    fn threads_that_cannot_be_started_leave_the_work_to_those_that_were() {
        let asked = Cell::new(0);
        // No machine has room for the third's stack.
        let builder = || {
            asked.set(asked.get() + 1);
            match asked.get() {
                3 => Builder::new().stack_size(1 << 60),
                _ => Builder::new(),
            }
        };
        let found = together(5, builder, || 7, |seven| seven);
        assert_eq!((found, asked.get()), (vec![7; 3], 3));
    }

    #[test]
    fn a_panic_while_threads_prepare_or_work_ends_them_all() {
        let turn = AtomicUsize::new(0);
        let panics = || assert_ne!(turn.fetch_add(1, Ordering::SeqCst), 2, "the third");
        for is_early in [true, false] {
            turn.store(0, Ordering::SeqCst);
            let prepare = || is_early.then(panics).unwrap_or_default();
            let work = |()| (!is_early).then(panics).unwrap_or_default();
            let made = catch_unwind(AssertUnwindSafe(|| {
                together(4, Builder::new, prepare, work)
            }));
            assert!(made.is_err());
        }
    }
}
