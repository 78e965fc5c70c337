//! How fast this machine reads a checkpoint and writes another: a short measurement, for an estimate before hours of work.

use std::time::{Duration, Instant};

use rialto_checkpoint::store::{Source, Store, Target};
use serde::Serialize;

use crate::Error;

/// Most bytes that a measurement moves in each direction.
const MOST_BYTES: u64 = 256 << 20;

/// When a measurement ends, however little it has moved.
const LONGEST: Duration = Duration::from_secs(2);

/// Bytes moved at a time.
const BAND: usize = 8 << 20;

/// The file that is written and removed.
const FILE: &str = "probe";

/// What a measurement found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Bytes a second read; none if there was nothing to read.
    pub read_bytes_per_second: Option<f64>,
    /// Bytes a second written and made durable.
    pub write_bytes_per_second: f64,
}

impl Rates {
    /// How long so many bytes take, read and written one after the other, as a conversion does. What is not known of
    /// reading is left out.
    #[must_use]
    pub fn estimate(&self, read_bytes: u64, written_bytes: u64) -> Duration {
        let seconds = |bytes: u64, rate: f64| bytes as f64 / rate;
        let read = self
            .read_bytes_per_second
            .map_or(0.0, |rate| seconds(read_bytes, rate));
        Duration::from_secs_f64(read + seconds(written_bytes, self.write_bytes_per_second))
    }
}

/// Reads a little of the largest files of `source`, if there is any, writes a little into `target` and lets that go. Bytes
/// of the source that the system keeps in memory count as fast as they come.
///
/// Errors: what the stores say.
pub fn probe(source: Option<&dyn Store>, target: Box<dyn Target>) -> Result<Rates, Error> {
    measure(source, target.as_ref(), MOST_BYTES)
}

fn measure(source: Option<&dyn Store>, target: &dyn Target, most: u64) -> Result<Rates, Error> {
    Ok(Rates {
        read_bytes_per_second: match source {
            Some(source) => read_rate(source, most)?,
            None => None,
        },
        write_bytes_per_second: write_rate(target, most)?,
    })
}

fn read_rate(store: &dyn Store, most: u64) -> Result<Option<f64>, Error> {
    let mut files = store.files()?;
    files.sort_by(|a, b| b.len.cmp(&a.len).then_with(|| a.name.cmp(&b.name)));
    let mut buffer = vec![0; BAND];
    let (mut moved, begin) = (0u64, Instant::now());
    for file in files {
        let source = store.open(&file.name)?;
        moved += read_some(source.as_ref(), most - moved, begin, &mut buffer)?;
        if moved >= most || begin.elapsed() >= LONGEST {
            break;
        }
    }
    Ok((moved > 0).then(|| rate(moved, begin)))
}

fn read_some(
    source: &dyn Source,
    most: u64,
    begin: Instant,
    buffer: &mut [u8],
) -> Result<u64, Error> {
    let end = source.len().min(most);
    let mut at = 0;
    while at < end && begin.elapsed() < LONGEST {
        let band = usize::try_from(end - at).map_or(buffer.len(), |rest| rest.min(buffer.len()));
        source.read_at(at, &mut buffer[..band])?;
        at += band as u64;
    }
    Ok(at)
}

fn write_rate(target: &dyn Target, most: u64) -> Result<f64, Error> {
    let band = noise();
    let begin = Instant::now();
    let sink = target.create(FILE)?;
    let mut moved = 0;
    while moved < most && begin.elapsed() < LONGEST {
        sink.write_at(moved, &band)?;
        moved += band.len() as u64;
    }
    sink.sync()?;
    Ok(rate(moved, begin))
}

fn rate(bytes: u64, begin: Instant) -> f64 {
    bytes as f64 / begin.elapsed().as_secs_f64().max(f64::MIN_POSITIVE)
}

/// Bytes that no file system stores in less room. Source: xorshift64 of Marsaglia, "Xorshift RNGs" (2003).
fn noise() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(BAND / 8).flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rialto_checkpoint::store::faulty::Call;
    use rialto_checkpoint::store::memory::MemorySlot;
    use rialto_checkpoint::store::{
        Fault, Faults, FaultyStore, FaultyTarget, MemoryStore, MemoryTarget,
    };

    use super::*;

    const MOST: u64 = 20 << 20;

    fn source(sizes: &[usize]) -> Arc<MemoryStore> {
        let store = MemoryStore::new("source");
        for (number, &size) in sizes.iter().enumerate() {
            store
                .insert(&format!("file-{number}"), vec![1; size])
                .unwrap();
        }
        Arc::new(store)
    }

    fn target(slot: &MemorySlot) -> Box<dyn Target> {
        Box::new(MemoryTarget::new("target", slot.clone()))
    }

    #[test]
    fn both_directions_are_measured_and_nothing_is_left_behind() {
        let slot = MemorySlot::default();
        for sizes in [&[9 << 20, 3, 0, 30 << 20][..], &[1]] {
            let rates =
                measure(Some(source(sizes).as_ref()), target(&slot).as_ref(), MOST).unwrap();
            assert!(rates.read_bytes_per_second.unwrap() > 0.0);
            assert!(rates.write_bytes_per_second > 0.0);
        }
        assert!(slot.lock().unwrap().is_none());
    }

    #[test]
    fn a_source_without_a_byte_has_no_rate() {
        for sizes in [&[][..], &[0]] {
            let slot = MemorySlot::default();
            let rates =
                measure(Some(source(sizes).as_ref()), target(&slot).as_ref(), MOST).unwrap();
            assert_eq!(rates.read_bytes_per_second, None);
        }
    }

    #[test]
    fn whatever_fails_is_an_error() {
        let source = source(&[100]);
        let run = |reads: Faults, writes: Faults| {
            let source = FaultyStore::new(Arc::clone(&source) as _, reads);
            let target = FaultyTarget::new(target(&MemorySlot::default()), writes);
            measure(Some(&source), &target, MOST)
        };
        let (reads, writes) = (Faults::none(), Faults::none());
        run(reads.clone(), writes.clone()).unwrap();
        assert_eq!(reads.calls(), [Call::List, Call::Open, Call::Read]);
        // Made durable, and let go: no commit.
        let most = [
            Call::Create,
            Call::Write,
            Call::Write,
            Call::Write,
            Call::Sync,
        ];
        assert_eq!(writes.calls(), most);
        for call in 0..reads.calls().len() {
            assert!(run(Faults::at(call, Fault::Vanish), Faults::none()).is_err());
        }
        for call in 0..writes.calls().len() {
            assert!(run(Faults::none(), Faults::at(call, Fault::Vanish)).is_err());
        }
    }

    #[test]
    fn an_estimate_adds_reading_and_writing() {
        let rates = Rates {
            read_bytes_per_second: Some(100.0),
            write_bytes_per_second: 50.0,
        };
        assert_eq!(rates.estimate(1_000, 1_000), Duration::from_secs(30));
        let unread = Rates {
            read_bytes_per_second: None,
            ..rates
        };
        assert_eq!(unread.estimate(1_000, 1_000), Duration::from_secs(20));
    }
}
