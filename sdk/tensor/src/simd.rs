//! Which instructions the loops of this crate use: every loop is written once, in safe code, and compiled once for each tier.
//!
//! | tier | needs | stores past the caches |
//! |---|---|---|
//! | `scalar` | nothing: what the target is compiled for, SSE2 on x86-64 | no |
//! | `avx2` | AVX2 | 32 bytes at a time |
//! | `avx512` | AVX-512 F, BW, DQ, VL | 64 bytes at a time |
//!
//! The best tier of the processor is found once, when the first loop runs. The environment variable [`VARIABLE`] names
//! another one: what it asks for is run, or refused, and never replaced. Every tier gives the same bits; they differ in time
//! alone. On other processors than x86-64 only `scalar` exists, and the compiler makes of it what the target has.
//!
//! How a loop gets to its tier: it is a `Work`, whose `run` and all that it calls are inlined into one function for each tier
//! that enables the tier's instructions, where the compiler vectorizes it. What the compiler does not do is store past the
//! caches: a line that is stored as usual is read first, for nothing if all of it is written, and drives out another one.
//!
//! This module has all unsafe code of the crate, in its file `x86`: calls of functions that need more than the target has,
//! which the values `Avx2` and `Avx512` prove to be there; and those stores.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::sync::OnceLock;

use crate::Error;

#[cfg(target_arch = "x86_64")]
#[allow(
    unsafe_code,
    reason = "what a processor has more than its target is known at run time only"
)]
mod x86;

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

/// The environment variable that names a tier.
pub const VARIABLE: &str = "RIALTO_SIMD";

/// Results of more bytes than this are stored past the caches; smaller ones are read again before they would leave them.
pub const STREAM_BYTES: usize = 8 << 20;

/// A set of instructions, and with it the proof that this processor has them.
///
/// ```
/// use rialto_tensor::simd::{self, Tier};
///
/// let names: Vec<String> = Tier::available().iter().map(Tier::to_string).collect();
/// assert_eq!(names[0], "scalar");
/// # if std::env::var_os(simd::VARIABLE).is_none() {
/// assert_eq!(simd::check()?.to_string(), names[names.len() - 1]);
/// # }
/// # Ok::<(), rialto_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tier {
    /// What the target is compiled for.
    Scalar,
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Tier {
    /// The tiers of this processor, the best last.
    #[must_use]
    pub fn available() -> Vec<Tier> {
        let tiers = [
            Some(Tier::Scalar),
            #[cfg(target_arch = "x86_64")]
            Avx2::probe().map(Tier::Avx2),
            #[cfg(target_arch = "x86_64")]
            Avx512::probe().map(Tier::Avx512),
        ];
        tiers.into_iter().flatten().collect()
    }

    const fn name(self) -> &'static str {
        match self {
            Tier::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512(_) => "avx512",
        }
    }

    /// Does a piece of work with the instructions of the tier. What it stored past the caches is seen by all threads afterwards.
    pub(crate) fn run<W: Work>(self, work: W) -> W::Output {
        match self {
            Tier::Scalar => work.run(Portable),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2(avx2) => avx2.run(work),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512(avx512) => avx512.run(work),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The tier that the loops of this process run in: the one that [`VARIABLE`] names, or the best of the processor.
///
/// An application asks before it begins, so that a wrong name ends it there; a loop that is run nonetheless fails in the same
/// way. The first call decides for the whole process; a library that is loaded with a copy of this crate decides for itself.
///
/// Errors: [`Error::NoTier`] if the name is none, or that of a tier that the processor lacks.
pub fn check() -> Result<Tier, Error> {
    static TIER: OnceLock<Result<Tier, Error>> = OnceLock::new();
    let tier = TIER.get_or_init(|| choose(env::var_os(VARIABLE).as_deref(), &Tier::available()));
    tier.clone()
}

/// The tier of that name, or without one the last.
fn choose(name: Option<&OsStr>, available: &[Tier]) -> Result<Tier, Error> {
    let tier = match name {
        None => available.last(),
        Some(name) => available.iter().find(|tier| name == tier.name()),
    };
    tier.copied().ok_or_else(|| Error::NoTier {
        found: name.unwrap_or_default().to_string_lossy().into_owned(),
        available: available.iter().map(|tier| tier.name()).collect(),
    })
}

/// A loop that is compiled for each tier.
pub(crate) trait Work {
    /// What comes out.
    type Output;

    /// Everything at once. To be vectorized for the tier it must be inlined, and so must all that it calls.
    fn run<M: Machine>(self, machine: M) -> Self::Output;
}

/// What a loop may ask of its tier.
pub(crate) trait Machine: Copy {
    /// The whole lines of some bytes that are to be written, with what lies before and behind them. None, and all bytes before
    /// them, if the tier does not store past the caches.
    fn lines(self, bytes: &mut [u8]) -> (&mut [u8], &mut [Line], &mut [u8]);

    /// Stores a line past the caches.
    fn stream(self, value: &[u8; Line::BYTES], target: &mut Line);
}

/// A line of the caches: 64 bytes at a multiple of 64.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u8; Line::BYTES]);

impl Line {
    pub(crate) const BYTES: usize = 64;
}

/// The instructions that the target has.
#[derive(Clone, Copy, Debug)]
struct Portable;

impl Machine for Portable {
    fn lines(self, bytes: &mut [u8]) -> (&mut [u8], &mut [Line], &mut [u8]) {
        (bytes, &mut [], &mut [])
    }

    fn stream(self, value: &[u8; Line::BYTES], target: &mut Line) {
        target.0 = *value;
    }
}

/// Casts elements of `N` bytes to as many of `M`, each by itself.
pub(crate) struct Map<'a, const N: usize, const M: usize, F> {
    /// Whole elements.
    pub(crate) source: &'a [u8],
    /// As many.
    pub(crate) target: &'a mut [u8],
    /// One element; always inlined.
    pub(crate) cast: F,
    /// Larger targets are stored past the caches.
    pub(crate) stream_bytes: usize,
}

impl<const N: usize, const M: usize, F: Fn([u8; N]) -> [u8; M]> Map<'_, N, M, F> {
    #[inline(always)]
    fn each(&self, source: &[u8], target: &mut [u8]) {
        let elements = source.as_chunks().0.iter();
        for (target, &element) in target.as_chunks_mut().0.iter_mut().zip(elements) {
            *target = (self.cast)(element);
        }
    }
}

impl<const N: usize, const M: usize, F: Fn([u8; N]) -> [u8; M]> Work for Map<'_, N, M, F> {
    type Output = ();

    #[inline(always)]
    fn run<T: Machine>(mut self, machine: T) {
        let target = std::mem::take(&mut self.target);
        if target.len() <= self.stream_bytes {
            return self.each(self.source, target);
        }
        let (head, lines, tail) = machine.lines(target);
        if !head.len().is_multiple_of(M) {
            // Elements lie across the ends of lines.
            return self.each(self.source, target);
        }
        let (source, rest) = self.source.split_at(head.len() / M * N);
        self.each(source, head);
        let per_line = Line::BYTES / M * N;
        let (sources, source) = rest.split_at(lines.len() * per_line);
        for (target, source) in lines.iter_mut().zip(sources.chunks_exact(per_line)) {
            let mut line = [0; Line::BYTES];
            self.each(source, &mut line);
            machine.stream(&line, target);
        }
        self.each(source, tail);
    }
}

/// Counts elements of `N` bytes.
pub(crate) struct Count<'a, const N: usize, F> {
    /// Whole elements.
    pub(crate) source: &'a [u8],
    /// Whether one counts; always inlined.
    pub(crate) counts: F,
}

impl<const N: usize, F: Fn([u8; N]) -> bool> Work for Count<'_, N, F> {
    type Output = u64;

    #[inline(always)]
    fn run<T: Machine>(self, _: T) -> u64 {
        // In lanes of 32 bits, which a run of elements does not fill.
        const RUN: usize = 1 << 16;
        let mut count = 0;
        for run in self.source.as_chunks().0.chunks(RUN) {
            let mut of_run = 0u32;
            for &element in run {
                of_run += u32::from((self.counts)(element));
            }
            count += u64::from(of_run);
        }
        count
    }
}

#[cfg(test)]
mod tests;
