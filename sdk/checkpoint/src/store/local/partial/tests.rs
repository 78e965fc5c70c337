use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

#[test]
fn the_place_to_build_in_belongs_to_one_at_a_time() {
    let scratch = tempfile::tempdir().unwrap();
    let partial = scratch.path().join("out.partial");
    let owners = AtomicUsize::new(0);
    let contend = || {
        for _ in 0..500 {
            // The directory may go away at any time here, which no claim may mistake for its own.
            let Ok(lock) = claim(&partial, false) else {
                continue;
            };
            assert_eq!(owners.fetch_add(1, Ordering::SeqCst), 0);
            assert!(partial.join(MARKER).exists());
            owners.fetch_sub(1, Ordering::SeqCst);
            fs::remove_file(partial.join(MARKER)).unwrap();
            let _ = fs::remove_dir(&partial);
            drop(lock);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(contend);
        }
    });
}
