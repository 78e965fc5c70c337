//! How fast this machine reads a checkpoint and writes another: a short measurement, for an estimate before hours of work.

use std::time::{Duration, Instant};

use rialto_checkpoint::store::{Store, Target};
use serde::Serialize;

use crate::{Error, Progress};

/// Most bytes that a measurement moves in each direction.
const MOST_BYTES: u64 = 256 << 20;

/// When a measurement ends, however little it has moved.
const LONGEST: Duration = Duration::from_secs(2);

/// Bytes moved at a time.
const BAND: usize = 1 << 20;

/// A measurement takes at most one part in so many of the room.
const SHARE: u64 = 8;

/// Where a measurement ends in each direction, whichever comes first.
#[derive(Clone, Copy)]
struct Bounds {
    bytes: u64,
    time: Duration,
}

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
        let all = read + seconds(written_bytes, self.write_bytes_per_second);
        // A device that took nothing would take for ever.
        Duration::try_from_secs_f64(all).unwrap_or(Duration::MAX)
    }
}

/// Reads a little of the largest files of `source`, if there is any, writes a little into `target` and lets that go. Bytes
/// of the source that the system keeps in memory count as fast as they come, and so do holes.
///
/// Errors: what the stores say, [`Error::Cancelled`].
pub fn probe(
    source: Option<&dyn Store>,
    target: Box<dyn Target>,
    progress: &dyn Progress,
) -> Result<Rates, Error> {
    let bounds = Bounds {
        bytes: most_for(target.as_ref()),
        time: LONGEST,
    };
    measure(source, target.as_ref(), bounds, progress)
}

/// How much is moved: less where what is written would take more than a small part of the room.
fn most_for(target: &dyn Target) -> u64 {
    let mut most = MOST_BYTES;
    while most > BAND as u64 && target.require_bytes(SHARE * most).is_err() {
        most /= 2;
    }
    most
}

fn measure(
    source: Option<&dyn Store>,
    target: &dyn Target,
    bounds: Bounds,
    progress: &dyn Progress,
) -> Result<Rates, Error> {
    Ok(Rates {
        read_bytes_per_second: match source {
            Some(source) => read_rate(source, bounds, progress)?,
            None => None,
        },
        write_bytes_per_second: write_rate(target, bounds, progress)?,
    })
}

fn read_rate(
    store: &dyn Store,
    bounds: Bounds,
    progress: &dyn Progress,
) -> Result<Option<f64>, Error> {
    let mut files = store.files()?;
    files.sort_by(|a, b| b.len.cmp(&a.len).then_with(|| a.name.cmp(&b.name)));
    let mut buffer = vec![0; BAND];
    let (mut moved, begin) = (0u64, Instant::now());
    'files: for file in files {
        let source = store.open(&file.name)?;
        let mut at = 0;
        while at < source.len() {
            if moved >= bounds.bytes || begin.elapsed() >= bounds.time {
                break 'files;
            }
            check(progress)?;
            let rest = (source.len() - at).min(bounds.bytes - moved);
            let band = usize::try_from(rest).map_or(BAND, |rest| rest.min(BAND));
            source.read_at(at, &mut buffer[..band])?;
            at += band as u64;
            moved += band as u64;
        }
    }
    Ok((moved > 0).then(|| rate(moved, begin)))
}

fn write_rate(target: &dyn Target, bounds: Bounds, progress: &dyn Progress) -> Result<f64, Error> {
    let band = noise();
    let sink = target.create(FILE)?;
    let (mut moved, begin) = (0, Instant::now());
    // Something is written however slow it is: a rate of nothing says nothing.
    while moved == 0 || moved < bounds.bytes && begin.elapsed() < bounds.time {
        check(progress)?;
        sink.write_at(moved, &band)?;
        moved += band.len() as u64;
    }
    sink.sync()?;
    Ok(rate(moved, begin))
}

fn check(progress: &dyn Progress) -> Result<(), Error> {
    match progress.is_cancelled() {
        true => Err(Error::Cancelled),
        false => Ok(()),
    }
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rialto_checkpoint::store::faulty::Call;
    use rialto_checkpoint::store::memory::MemorySlot;
    use rialto_checkpoint::store::{
        Fault, Faults, FaultyStore, FaultyTarget, MemoryStore, MemoryTarget, Sink,
    };

    use super::*;
    use crate::Silent;

    const MOST: Bounds = Bounds {
        bytes: 5 << 19,
        time: LONGEST,
    };

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

    /// What is measured with a source of these files.
    fn rates_of(sizes: &[usize], slot: &MemorySlot) -> Rates {
        let (source, target) = (source(sizes), target(slot));
        measure(Some(source.as_ref()), target.as_ref(), MOST, &Silent).unwrap()
    }

    #[test]
    fn both_directions_are_measured_and_nothing_is_left_behind() {
        let slot = MemorySlot::default();
        for sizes in [&[1 << 20, 3, 0, 2 << 20][..], &[1]] {
            let rates = rates_of(sizes, &slot);
            assert!(rates.read_bytes_per_second.unwrap() > 0.0);
            assert!(rates.write_bytes_per_second > 0.0);
        }
        assert!(slot.lock().unwrap().is_none());
    }

    #[test]
    fn a_source_without_a_byte_has_no_rate() {
        for sizes in [&[][..], &[0]] {
            let slot = MemorySlot::default();
            let rates = rates_of(sizes, &slot);
            assert_eq!(rates.read_bytes_per_second, None);
        }
    }

    #[test]
    fn whatever_fails_is_an_error() {
        let source = source(&[100]);
        let run = |reads: Faults, writes: Faults| {
            let source = FaultyStore::new(Arc::clone(&source) as _, reads);
            let target = FaultyTarget::new(target(&MemorySlot::default()), writes);
            measure(Some(&source), &target, MOST, &Silent)
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
    fn a_measurement_stops_when_asked() {
        struct Stop(AtomicUsize);

        impl Progress for Stop {
            fn is_cancelled(&self) -> bool {
                self.0.fetch_sub(1, Ordering::Relaxed) == 0
            }
        }

        // Three bands are read and three written, and each may be the last.
        let source = source(&[5 << 20]);
        for steps in 0..6 {
            let target = target(&MemorySlot::default());
            let stop = Stop(AtomicUsize::new(steps));
            let result = measure(Some(source.as_ref()), target.as_ref(), MOST, &stop);
            assert!(matches!(result, Err(Error::Cancelled)), "{steps}");
        }
        let target = target(&MemorySlot::default());
        let stop = Stop(AtomicUsize::new(6));
        measure(Some(source.as_ref()), target.as_ref(), MOST, &stop).unwrap();
    }

    /// Room for so many bytes, and none for more.
    #[derive(Debug)]
    struct Room(u64, Box<dyn Target>);

    impl Target for Room {
        fn name(&self) -> &str {
            self.1.name()
        }

        fn create(&self, name: &str) -> Result<Box<dyn Sink>, rialto_checkpoint::Error> {
            self.1.create(name)
        }

        fn reopen(&self, name: &str) -> Result<Box<dyn Sink>, rialto_checkpoint::Error> {
            self.1.reopen(name)
        }

        fn require_bytes(&self, needed: u64) -> Result<(), rialto_checkpoint::Error> {
            match needed <= self.0 {
                true => Ok(()),
                false => Err(rialto_checkpoint::Error::NoSpace {
                    location: self.name().to_owned(),
                    needed,
                    available: self.0,
                }),
            }
        }

        fn commit(self: Box<Self>) -> Result<(), rialto_checkpoint::Error> {
            self.1.commit()
        }
    }

    #[test]
    fn a_small_part_of_the_room_is_taken() {
        for (room, expected) in [
            (u64::MAX, MOST_BYTES),
            (SHARE * MOST_BYTES, MOST_BYTES),
            (SHARE * MOST_BYTES - 1, MOST_BYTES / 2),
            (20 << 20, 2 << 20),
            (0, BAND as u64),
        ] {
            let target = Room(room, target(&MemorySlot::default()));
            assert_eq!(most_for(&target), expected, "{room}");
        }
    }

    /// As if opening the file alone had taken all the time.
    #[test]
    fn something_is_written_however_slow_it_is() {
        let bounds = Bounds {
            time: Duration::ZERO,
            ..MOST
        };
        let (source, target) = (source(&[1]), target(&MemorySlot::default()));
        let rates = measure(Some(source.as_ref()), target.as_ref(), bounds, &Silent).unwrap();
        assert_eq!(rates.read_bytes_per_second, None);
        assert!(rates.write_bytes_per_second > 0.0);
    }

    #[test]
    fn a_device_that_takes_nothing_takes_for_ever() {
        let stuck = Rates {
            read_bytes_per_second: None,
            write_bytes_per_second: 0.0,
        };
        assert_eq!(stuck.estimate(1, 1), Duration::MAX);
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
