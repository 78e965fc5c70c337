//! A sample of a checkpoint, decoded by the device and by the processor before anything is written: whether the bytes are the same,
//! and who is faster.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::Instant;

use rialto_bridge::Bridge;
use rialto_tensor::Region;

use super::together::together;
use super::{Decoder, DecodingRates, Rectangle};
use crate::encoded::{Encoded, Stored};
use crate::{Error, Progress};

/// Bytes of codes in a sample, about, if there are as many.
pub(crate) const SAMPLE_BYTES: u64 = 8 << 20;

/// How often either is timed; the best counts, since everything else a machine does makes it only slower.
const ROUNDS: usize = 3;

/// How often a small sample is decoded in a round at most, so that there is something to time.
const MOST_REPEATS: usize = 8;

/// Whole blocks of a tensor as they are stored.
pub(crate) struct Sampled<'a> {
    pub(crate) encoded: &'a Encoded<'a>,
    pub(crate) blocks: Region,
    pub(crate) stored: Stored,
}

impl Sampled<'_> {
    fn rectangle(&self) -> Result<Rectangle<'_>, Error> {
        self.encoded.rectangle(&self.blocks, &self.stored)
    }

    /// Bytes of BF16 that it is decoded to: it was read, so there are not too many.
    fn decoded_bytes(&self) -> usize {
        self.blocks.elements().unwrap_or_default() as usize * 2
    }
}

impl Decoder {
    /// Compares what both make of a sample and says which of them is faster on so many threads.
    ///
    /// Errors: [`Error::Device`], [`Error::DeviceDiffers`], [`Error::Cancelled`]; those of the family.
    pub(crate) fn sample(
        &self,
        family: &dyn Bridge,
        sample: &[Sampled<'_>],
        threads: usize,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let device = |rectangle: &Rectangle<'_>, out: &mut [u8]| self.decode_alone(rectangle, out);
        let processor = |rectangle: &Rectangle<'_>, out: &mut [u8]| {
            Ok(family.dequantize(&rectangle.encoded, out)?)
        };
        // It also makes what later rounds find ready: buffers, recordings, shaders.
        let compared = |rectangle: &Rectangle<'_>, out: &mut [u8]| {
            device(rectangle, out)?;
            let mut expected = vec![0; out.len()];
            processor(rectangle, &mut expected)?;
            self.compare(rectangle, out, &expected)
        };
        timed(sample, 1, threads, progress, &compared)?;
        let sample_bytes: usize = sample.iter().map(Sampled::decoded_bytes).sum();
        if sample_bytes == 0 {
            return Ok(());
        }
        let repeats = (2 * SAMPLE_BYTES as usize / sample_bytes).clamp(1, MOST_REPEATS);
        let mut seconds = [f64::INFINITY; 2];
        for _ in 0..ROUNDS {
            let took = [
                timed(sample, repeats, threads, progress, &device)?,
                timed(sample, repeats, threads, progress, &processor)?,
            ];
            seconds = [0, 1].map(|who| took[who].min(seconds[who]));
        }
        let rates = seconds.map(|took| (repeats * sample_bytes) as f64 / took.max(1e-9));
        self.note(
            DecodingRates {
                sample_bytes: sample_bytes as u64,
                device_bytes_per_second: rates[0],
                processor_bytes_per_second: rates[1],
            },
            progress,
        );
        Ok(())
    }
}

/// What decodes a rectangle into BF16.
type Decode<'a> = dyn Fn(&Rectangle<'_>, &mut [u8]) -> Result<(), Error> + Sync + 'a;

/// Decodes a sample so often, on so many threads; how long it took in seconds.
fn timed(
    sample: &[Sampled<'_>],
    repeats: usize,
    threads: usize,
    progress: &dyn Progress,
    decode: &Decode<'_>,
) -> Result<f64, Error> {
    let threads = threads.clamp(1, sample.len().max(1));
    let longest = sample.iter().map(Sampled::decoded_bytes).max();
    let next = AtomicUsize::new(0);
    // Written to, so that no page of it is the first time's.
    let room = || vec![0xff; longest.unwrap_or_default()];
    let work = |mut out: Vec<u8>| {
        let begin = Instant::now();
        loop {
            let turn = next.fetch_add(1, Ordering::Relaxed);
            if turn >= repeats * sample.len() {
                return Ok(begin);
            }
            if progress.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let sampled = &sample[turn % sample.len()];
            let out = &mut out[..sampled.decoded_bytes()];
            decode(&sampled.rectangle()?, out)?;
        }
    };
    // Starting threads is no part of it.
    let begins = together(threads, Builder::new, room, work);
    let begins: Vec<Instant> = begins.into_iter().collect::<Result<_, _>>()?;
    // The others may have done it all before this thread had its first turn.
    let first = begins.into_iter().min().unwrap_or_else(Instant::now);
    Ok(first.elapsed().as_secs_f64())
}
