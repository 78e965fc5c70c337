//! What replays and reads ask of a device, counted; and tables of such counts that are part of the tree.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rialto_backend::{
    Backend, Buffer, Capabilities, Counts, DeviceInfo, Error, OpCall, Recording, TensorType,
};

/// What was asked of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Recorded lists that were run.
    pub replays: u64,
    /// What these are.
    pub counts: Counts,
    /// Bytes that were copied from the device.
    pub read_bytes: u64,
}

/// A device that counts what it is asked.
pub struct Counting {
    inner: Arc<dyn Backend>,
    asked: Arc<Mutex<Asked>>,
}

impl Counting {
    /// Counts what `inner` is asked.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>) -> Counting {
        Counting {
            inner,
            asked: Arc::default(),
        }
    }

    /// What it was asked since the last time.
    #[must_use]
    pub fn take(&self) -> Asked {
        std::mem::take(&mut self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Backend for Counting {
    fn device(&self) -> &DeviceInfo {
        self.inner.device()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn allocate(&self, tensor: &TensorType) -> Result<Buffer, Error> {
        self.inner.allocate(tensor)
    }

    fn write(&self, buffer: &Buffer, offset_bytes: u64, bytes: &[u8]) -> Result<(), Error> {
        self.inner.write(buffer, offset_bytes, bytes)
    }

    fn read(&self, buffer: &Buffer, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.read_bytes += bytes.len() as u64;
        drop(asked);
        self.inner.read(buffer, offset_bytes, bytes)
    }

    fn record(&self, calls: Vec<OpCall>) -> Result<Box<dyn Recording>, Error> {
        Ok(Box::new(Counted {
            inner: self.inner.record(calls)?,
            asked: Arc::clone(&self.asked),
        }))
    }
}

struct Counted {
    inner: Box<dyn Recording>,
    asked: Arc<Mutex<Asked>>,
}

impl Recording for Counted {
    fn replay(&mut self) -> Result<(), Error> {
        let counts = self.inner.counts();
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.replays += 1;
        asked.counts = sum(asked.counts, counts);
        drop(asked);
        self.inner.replay()
    }

    fn counts(&self) -> Counts {
        self.inner.counts()
    }
}

/// Both together.
#[must_use]
pub fn sum(a: Counts, b: Counts) -> Counts {
    Counts {
        dispatches: a.dispatches + b.dispatches,
        submits: a.submits + b.submits,
        bound_bytes: a.bound_bytes + b.bound_bytes,
    }
}

/// A line of a table: what was counted, how often it was run, and what all of that asked.
pub type Line = (String, u64, Counts);

const HEAD: &str = "what\truns\tdispatches\tsubmits\tbound bytes\n";

/// The table as it is kept.
#[must_use]
pub fn table(lines: &[Line]) -> String {
    let mut text = HEAD.to_owned();
    for (what, runs, counts) in lines {
        let _ = writeln!(
            text,
            "{what}\t{runs}\t{}\t{}\t{}",
            counts.dispatches, counts.submits, counts.bound_bytes
        );
    }
    text
}

/// What is wrong with counts, in words, if a table is that of another state. More is a fault. Less is none, but the table has to say so:
/// else a later rise would not be seen. It is written anew where the environment variable `RIALTO_COUNTS` is `write`.
///
/// # Panics
///
/// If the table cannot be read or written.
#[must_use]
pub fn differences(file: &Path, lines: &[Line]) -> Vec<String> {
    let found = table(lines);
    if std::env::var("RIALTO_COUNTS").is_ok_and(|value| value == "write") {
        let written = std::fs::write(file, found);
        written.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        return Vec::new();
    }
    let kept = std::fs::read_to_string(file);
    let kept = kept.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    compare(&kept, &found)
}

fn compare(kept: &str, found: &str) -> Vec<String> {
    let numbers = |line: &str| -> Vec<u64> {
        let fields = line.split('\t').skip(1);
        fields.map_while(|field| field.parse().ok()).collect()
    };
    let name = |line: &str| line.split('\t').next().unwrap_or_default().to_owned();
    let mut differences = Vec::new();
    for line in found.lines().skip(1) {
        let Some(known) = kept.lines().find(|known| name(known) == name(line)) else {
            differences.push(format!("{}: not in the table", name(line)));
            continue;
        };
        let (was, is) = (numbers(known), numbers(line));
        for (number, column) in HEAD.trim_end().split('\t').skip(1).enumerate() {
            let (Some(was), Some(is)) = (was.get(number), is.get(number)) else {
                differences.push(format!("{}: no {column}", name(line)));
                continue;
            };
            let says = match is.cmp(was) {
                std::cmp::Ordering::Equal => continue,
                std::cmp::Ordering::Greater => "more than",
                std::cmp::Ordering::Less => "less than (write the table anew)",
            };
            differences.push(format!("{}: {is} {column}, {says} {was}", name(line)));
        }
    }
    for line in kept.lines().skip(1) {
        if !found.lines().any(|known| name(known) == name(line)) {
            differences.push(format!("{}: in the table, and not counted", name(line)));
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(dispatches: u64, submits: u64, bound_bytes: u64) -> String {
        let counts = Counts {
            dispatches,
            submits,
            bound_bytes,
        };
        table(&[("a step".to_owned(), 1, counts)])
    }

    #[test]
    fn a_rise_of_any_count_is_found_and_a_fall_has_to_be_written_down() {
        let kept = line(5, 1, 100);
        assert_eq!(compare(&kept, &kept), [] as [String; 0]);
        for (found, says) in [
            (line(6, 1, 100), "a step: 6 dispatches, more than 5"),
            (line(5, 2, 100), "a step: 2 submits, more than 1"),
            (line(5, 1, 101), "a step: 101 bound bytes, more than 100"),
            (
                line(4, 1, 100),
                "a step: 4 dispatches, less than (write the table anew) 5",
            ),
        ] {
            assert_eq!(compare(&kept, &found), [says]);
        }
    }

    #[test]
    fn what_is_in_one_of_both_is_found() {
        let both = [
            compare(HEAD, &line(5, 1, 100)),
            compare(&line(5, 1, 100), HEAD),
        ];
        assert_eq!(
            both,
            [
                ["a step: not in the table"],
                ["a step: in the table, and not counted"]
            ]
        );
    }
}
