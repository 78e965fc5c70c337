//! An allocator that counts, so that no input makes a parser take memory without bounds.
//!
//! The one place of this workspace with `unsafe` in it: an allocator cannot be had without.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::abort;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A parser may hold this many times the bytes of its input,
pub const FACTOR: usize = 10;
/// and this many bytes beside them.
pub const SLACK_BYTES: usize = 64 << 20;

#[global_allocator]
static HEAP: Counting = Counting;

/// Bytes allocated now.
static LIVE: AtomicUsize = AtomicUsize::new(0);
/// Bytes that may be allocated at most; written by [`bounded`] alone.
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Runs a parser on `input_len` bytes, and ends the process if it holds more than [`FACTOR`] times them and
/// [`SLACK_BYTES`], counted from now.
///
/// Not to be nested, and for one thread at a time: that is how libFuzzer calls a target.
pub fn bounded<T>(input_len: usize, parse: impl FnOnce() -> T) -> T {
    let allowed = input_len.saturating_mul(FACTOR).saturating_add(SLACK_BYTES);
    LIMIT.store(LIVE.load(Relaxed).saturating_add(allowed), Relaxed);
    let parsed = parse();
    LIMIT.store(usize::MAX, Relaxed);
    parsed
}

struct Counting;

impl Counting {
    fn take(&self, bytes: usize) {
        let live = LIVE.fetch_add(bytes, Relaxed).saturating_add(bytes);
        let limit = LIMIT.load(Relaxed);
        if live > limit {
            // Printing must not come here again.
            LIMIT.store(usize::MAX, Relaxed);
            eprintln!(
                "a parser wanted {bytes} bytes more, which is {} beyond what its input allows",
                live - limit
            );
            // libFuzzer catches the signal and writes the input to a file.
            abort();
        }
    }

    fn give(&self, bytes: usize) {
        LIVE.fetch_sub(bytes, Relaxed);
    }
}

// SAFETY: every call is handed to `System`, unchanged; counting allocates nothing and does not unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.take(layout.size());
        // SAFETY: the caller of `alloc` has promised what `System::alloc` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.take(layout.size());
        // SAFETY: the caller of `alloc_zeroed` has promised what `System::alloc_zeroed` asks for.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // While the contents move, both are there.
        self.take(new_size);
        // SAFETY: the caller of `realloc` has promised what `System::realloc` asks for, and the block came from `System`.
        let moved = unsafe { System.realloc(pointer, layout, new_size) };
        self.give(layout.size());
        moved
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.give(layout.size());
        // SAFETY: the caller of `dealloc` has promised what `System::dealloc` asks for, and the block came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
