//! All unsafe code of the crate: the tiers of x86-64, and stores past the caches.
//!
//! Two things have to be true, and each is proven by a value. That the processor has a tier's instructions: [`Avx2`] and
//! [`Avx512`] come out of a look at it alone. That a store is aligned: a [`Line`] always is.
//!
//! Such stores are ordered with nothing. A `sfence` behind every piece of work, be it ended by a panic, makes them visible
//! before whoever holds the bytes can look at them, or hand them to another thread.

use std::arch::x86_64::{
    __m256i, __m512i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512,
    _mm512_stream_si512,
};

use super::{Line, Machine, Work};

/// Orders what was stored past the caches before all that follows.
struct Fence;

impl Drop for Fence {
    fn drop(&mut self) {
        // SAFETY: SSE, which every target of x86-64 establishes.
        unsafe { _mm_sfence() };
    }
}

macro_rules! tiers {
    ($($name:ident $title:literal [$($feature:tt)*] $enable:literal $stream:ident;)*) => {$(
        #[doc = concat!("The proof that this processor has ", $title, ".")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(());

        impl $name {
            /// Looks at the processor; `None` if it lacks an instruction of the tier.
            #[must_use]
            pub fn probe() -> Option<$name> {
                let is_there = $(is_x86_feature_detected!($feature))&&*;
                is_there.then_some($name(()))
            }

            pub(super) fn run<W: Work>(self, work: W) -> W::Output {
                #[target_feature(enable = $enable)]
                fn enabled<W: Work>(work: W, machine: $name) -> W::Output {
                    work.run(machine)
                }
                let _fence = Fence;
                // SAFETY: the processor has the features, which `probe` established, without which there is no `self`.
                unsafe { enabled(work, self) }
            }
        }

        impl Machine for $name {
            #[inline(always)]
            fn lines(self, bytes: &mut [u8]) -> (&mut [u8], &mut [Line], &mut [u8]) {
                // SAFETY: any 64 bytes are a `Line`, which its declaration establishes, and any `Line` is 64 bytes.
                unsafe { bytes.align_to_mut() }
            }

            #[inline(always)]
            fn stream(self, value: &[u8; Line::BYTES], target: &mut Line) {
                // SAFETY: as in `run`.
                unsafe { $stream(value, target) }
            }
        }
    )*};
}

tiers! {
    Avx2 "AVX2" ["avx2"] "avx2" stream_256;
    Avx512 "AVX-512 F, BW, DQ and VL" ["avx512f" "avx512bw" "avx512dq" "avx512vl"] "avx512f,avx512bw,avx512dq,avx512vl" stream_512;
}

#[target_feature(enable = "avx2")]
#[inline]
fn stream_256(value: &[u8; Line::BYTES], target: &mut Line) {
    let values = value.as_chunks::<32>().0.iter();
    for (target, value) in target.0.as_chunks_mut::<32>().0.iter_mut().zip(values) {
        // SAFETY: 32 bytes, which their type establishes.
        let value = unsafe { _mm256_loadu_si256(value.as_ptr().cast::<__m256i>()) };
        // SAFETY: 32 bytes at a multiple of 32, which the alignment of `Line` establishes, and borrowed for writing; every
        // `run` ends with a fence.
        unsafe { _mm256_stream_si256(target.as_mut_ptr().cast::<__m256i>(), value) };
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn stream_512(value: &[u8; Line::BYTES], target: &mut Line) {
    // SAFETY: 64 bytes, which their type establishes.
    let value = unsafe { _mm512_loadu_si512(value.as_ptr().cast::<__m512i>()) };
    // SAFETY: 64 bytes at a multiple of 64, which the alignment of `Line` establishes, and borrowed for writing; every `run`
    // ends with a fence.
    unsafe { _mm512_stream_si512(target.0.as_mut_ptr().cast::<__m512i>(), value) };
}
