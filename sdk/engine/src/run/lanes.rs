//! Units at work: read, transformed, hashed and written by as many lanes as memory allows, each at its own.
//!
//! ```text
//! cursor ── unit ──> lane: read a band -> decode, cast, pad, cut -> checksum, digest -> write   (again until the unit is done)
//!                      │
//!                      └─ record ──> pending ──(every so often)──> sync the files, append to the journal
//! ```
//!
//! While one lane waits for a read and another for a write, a third computes: that is the pipeline, and what lies in it is at
//! most a band a lane. Which lane does what changes nothing of the result.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rialto_checkpoint::store::{Journal, PageBuffer, Sink, Target};
use rialto_tensor::Region;

use super::allot::Allotment;
use super::conversion::{Conversion, DataFile};
use super::digest::{Digest, PartDigest, PartHasher, Wanted, join};
use super::journal::{Past, Record, line};
use super::unit::{Group, Output, UnitId};
use crate::array::usize_range;
use crate::assemble::{Buffers, bands_of};
use crate::checks::Check;
use crate::locked::locked;
use crate::runs::runs;
use crate::{Error, Progress};

/// Bytes after which what is done is made durable, however soon.
const SYNC_BYTES: u64 = 1 << 30;

/// What all lanes share.
pub(crate) struct Lanes<'a> {
    around: Surroundings<'a>,
    allotment: Allotment,
    hashes: bool,
    /// How often what is done is made durable.
    sync_every: Duration,
    cursor: Mutex<Cursor>,
    pending: Mutex<Pending>,
    /// Digest of each output that is done, by position.
    digests: Mutex<Vec<Option<Digest>>>,
    /// What went wrong first.
    failure: Mutex<Option<Error>>,
    must_stop: AtomicBool,
}

/// A file being written. It closes when nobody has work in it and its last sync is done.
#[derive(Debug)]
struct OpenFile {
    number: usize,
    sink: Box<dyn Sink>,
    /// Whether a write or a sync has failed. The system tells of bytes that it could not keep only once: a sync that succeeds
    /// afterwards speaks of others.
    has_failed: AtomicBool,
}

impl OpenFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.noted(self.sink.write_at(offset, bytes))
    }

    /// Errors: the sync's; [`Error::Journal`] if bytes were lost before.
    fn sync(&self) -> Result<(), Error> {
        if self.has_failed.load(Ordering::Relaxed) {
            return Err(Error::journal("a file has lost bytes that were written"));
        }
        self.noted(self.sink.sync())
    }

    fn noted(&self, done: Result<(), rialto_checkpoint::Error>) -> Result<(), Error> {
        if done.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        Ok(done?)
    }
}

/// A group being written.
struct Work {
    group: Group,
    file: Arc<OpenFile>,
    state: Mutex<State>,
}

struct State {
    /// Of each unit, the parts of the outputs.
    parts: Vec<Option<Vec<PartDigest>>>,
    missing: usize,
}

/// What a lane takes.
enum Task {
    Unit(Arc<Work>, u64),
    /// The frames of a group whose units are all done.
    Frames(Arc<Work>),
    Fixed(Arc<OpenFile>),
}

/// Where the next task is. The lane that advances it is the one that changes it.
#[derive(Default)]
struct Cursor {
    file: usize,
    /// The next output of that file, once it has been looked at.
    position: Option<usize>,
    open: Option<Arc<OpenFile>>,
    group: Option<(Arc<Work>, u64)>,
}

/// What is done and not durable.
struct Pending {
    /// Lines of units whose bytes have agreed with the checksums of their sources.
    records: String,
    /// Lines of units of whose sources not all has been read.
    unproven: Vec<Unproven>,
    files: Vec<Arc<OpenFile>>,
    bytes: u64,
    since: Instant,
}

/// A line, its file, and what has to agree before it counts.
struct Unproven {
    line: String,
    file: Arc<OpenFile>,
    checks: Vec<Arc<Check>>,
}

impl Pending {
    fn empty() -> Pending {
        Pending {
            records: String::new(),
            unproven: Vec::new(),
            files: Vec::new(),
            bytes: 0,
            since: Instant::now(),
        }
    }

    /// All that may be made durable; what is unproven stays.
    fn take(&mut self) -> Pending {
        let mut batch = std::mem::replace(self, Pending::empty());
        for record in std::mem::take(&mut batch.unproven) {
            if record.checks.iter().all(|check| check.has_agreed()) {
                batch.records.push_str(&record.line);
                let is_new = |open: &Arc<OpenFile>| !Arc::ptr_eq(open, &record.file);
                if batch.files.iter().all(is_new) {
                    batch.files.push(record.file);
                }
            } else {
                self.unproven.push(record);
            }
        }
        batch
    }
}

/// What a lane keeps from one unit to the next.
#[derive(Default)]
struct Memory {
    buffers: Buffers,
    columns: PageBuffer,
}

/// What a run needs of its surroundings.
pub(crate) struct Surroundings<'a> {
    pub(crate) conversion: &'a dyn Conversion,
    pub(crate) target: &'a dyn Target,
    pub(crate) journal: &'a dyn Journal,
    pub(crate) progress: &'a dyn Progress,
    pub(crate) past: &'a Past,
    pub(crate) owned: &'a [bool],
    /// Called every so often while the lanes work.
    pub(crate) watch: &'a (dyn Fn() + Sync),
}

impl<'a> Lanes<'a> {
    pub(crate) fn new(
        around: Surroundings<'a>,
        allotment: Allotment,
        hashes: bool,
        sync_every: Duration,
    ) -> Lanes<'a> {
        let files = around.conversion.files();
        let outputs = files.last().map_or(0, |file| file.outputs.end);
        Lanes {
            around,
            allotment,
            hashes,
            sync_every,
            cursor: Mutex::default(),
            pending: Mutex::new(Pending::empty()),
            digests: Mutex::new(vec![None; outputs]),
            failure: Mutex::new(None),
            must_stop: AtomicBool::new(false),
        }
    }

    /// Does all that is not done in the owned files. What was done by then is in the journal also after an error.
    ///
    /// Errors: what went wrong first. Returns the digest of each output of those files.
    pub(crate) fn run(self) -> Result<Vec<Option<Digest>>, Error> {
        std::thread::scope(|scope| {
            for _ in 1..self.allotment.lanes {
                scope.spawn(|| self.lane());
            }
            self.lane();
        });
        let failure = self
            .failure
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        // What is left to compare is compared only if there is a result to be had.
        let compared = match failure {
            Some(error) => Err(error),
            None => self.around.conversion.check_after(self.around.progress),
        };
        let last = locked(&self.pending).take();
        let synced = sync(self.around.journal, last);
        compared.and(synced)?;
        Ok(self
            .digests
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner))
    }

    fn lane(&self) {
        /// A lane that panics lets the others stop, for nothing comes of it any more.
        struct Guard<'a>(&'a AtomicBool);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
        }
        let _guard = Guard(&self.must_stop);
        let mut memory = Memory::default();
        while !self.must_stop.load(Ordering::Relaxed) {
            let done = match self.next() {
                Ok(None) => return,
                Ok(Some(Task::Fixed(file))) => self.write_fixed(file),
                Ok(Some(Task::Unit(work, number))) => self.write_unit(&work, number, &mut memory),
                Ok(Some(Task::Frames(work))) => self.write_frames(&work),
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                self.must_stop.store(true, Ordering::Relaxed);
                locked(&self.failure).get_or_insert(error);
            }
        }
    }

    /// The next task, if there is any left.
    fn next(&self) -> Result<Option<Task>, Error> {
        let mut cursor = locked(&self.cursor);
        loop {
            if let Some((work, number)) = &mut cursor.group {
                let work = Arc::clone(work);
                let id = |number| UnitId {
                    group: work.group.first,
                    number,
                };
                while *number < work.group.units() {
                    let this = *number;
                    *number += 1;
                    if !self.around.past.units.contains_key(&id(this)) {
                        return Ok(Some(Task::Unit(work, this)));
                    }
                }
                cursor.group = None;
            }
            let Some(file) = self.around.conversion.files().get(cursor.file) else {
                return Ok(None);
            };
            if !self.around.owned[cursor.file] {
                cursor.file += 1;
                continue;
            }
            let Some(position) = cursor.position else {
                cursor.position = Some(file.outputs.start);
                if !self.around.past.fixed.contains(&cursor.file) {
                    let file = self.open(&mut cursor, file)?;
                    return Ok(Some(Task::Fixed(file)));
                }
                continue;
            };
            let Some(group) = group_at(self.around.conversion, position, file) else {
                cursor.file += 1;
                cursor.position = None;
                cursor.open = None;
                continue;
            };
            cursor.position = Some(position + group.outputs.len());
            let parts = group
                .ids()
                .map(|id| self.around.past.units.get(&id).cloned());
            let parts: Vec<Option<Vec<PartDigest>>> = parts.collect();
            let missing = parts.iter().filter(|part| part.is_none()).count();
            let is_framed = group.has_no_frames() || self.around.past.framed.contains(&group.first);
            if missing == 0 && is_framed {
                self.join(&group, &parts)?;
                continue;
            }
            let file = self.open(&mut cursor, file)?;
            let state = Mutex::new(State { parts, missing });
            let work = Arc::new(Work { group, file, state });
            if missing == 0 {
                return Ok(Some(Task::Frames(work)));
            }
            cursor.group = Some((work, 0));
        }
    }

    fn open(&self, cursor: &mut Cursor, file: &DataFile) -> Result<Arc<OpenFile>, Error> {
        if let Some(open) = &cursor.open {
            return Ok(Arc::clone(open));
        }
        let open = Arc::new(OpenFile {
            number: cursor.file,
            sink: self.around.target.reopen(&file.name)?,
            has_failed: AtomicBool::new(false),
        });
        cursor.open = Some(Arc::clone(&open));
        Ok(open)
    }

    fn write_fixed(&self, file: Arc<OpenFile>) -> Result<(), Error> {
        let mut bytes = 0;
        self.around
            .conversion
            .fixed(file.number, &mut |offset, part| {
                self.check_cancelled()?;
                bytes += part.len() as u64;
                file.write_at(offset, part)
            })?;
        let record = Record::Fixed { file: file.number };
        self.push(&record, file, bytes, Vec::new())
    }

    fn check_cancelled(&self) -> Result<(), Error> {
        match self.around.progress.is_cancelled() {
            true => Err(Error::Cancelled),
            false => Ok(()),
        }
    }

    fn write_unit(&self, work: &Arc<Work>, number: u64, memory: &mut Memory) -> Result<(), Error> {
        let group = &work.group;
        let unit = group.unit(number);
        let leader = &group.outputs[0];
        let parts = self.around.conversion.parts(leader.subject, &unit)?;
        let checks = parts.iter().flat_map(|part| part.values.checks()).collect();
        let mut streams: Vec<Stream> = group
            .outputs
            .iter()
            .map(|output| {
                let bytes = group.bytes_of(output, number);
                let total = output.data.len();
                Stream {
                    hasher: PartHasher::new(
                        bytes.start,
                        bytes.end,
                        total,
                        wanted(output, self.hashes),
                    ),
                    at: output.data.start + bytes.start,
                }
            })
            .collect();
        let mut limit = self.allotment.band_bytes;
        let reading = self.around.conversion.reading(leader.subject);
        if self.allotment.has_whole_blocks && reading.code_bytes > 0 {
            let row = unit.sizes().last().copied().unwrap_or(1);
            limit = limit.max(reading.block[0] * row * reading.dtype.size_bytes());
        }
        let mut written = 0;
        for band in bands_of(limit, &unit, leader.dtype, &parts) {
            if self.must_stop.load(Ordering::Relaxed) {
                // Somebody else has said why.
                return Ok(());
            }
            self.check_cancelled()?;
            let place = match streams.as_slice() {
                [stream] => stream.at,
                _ => 0,
            };
            let bytes = memory.buffers.fill(&band, leader.dtype, &parts, place)?;
            if let [stream] = streams.as_mut_slice() {
                stream.write(&work.file, bytes)?;
            } else {
                for (output, stream) in group.outputs.iter().zip(&mut streams) {
                    let columns = columns(output, &band, bytes, stream.at, &mut memory.columns);
                    stream.write(&work.file, columns)?;
                }
            }
            written += bytes.len() as u64;
            self.around.progress.advance(bytes.len() as u64);
        }
        let digests = streams.into_iter().map(|stream| stream.hasher.finish());
        let digests: Vec<PartDigest> = digests.collect();
        let record = Record::Unit {
            group: group.first,
            number,
            parts: digests.clone(),
        };
        self.complete(work, number, digests)?;
        self.push(&record, Arc::clone(&work.file), written, checks)
    }

    /// Notes that a unit is written; the last one of a group writes what stands around its outputs.
    fn complete(&self, work: &Arc<Work>, number: u64, parts: Vec<PartDigest>) -> Result<(), Error> {
        {
            let mut state = locked(&work.state);
            state.parts[usize_range(0, number).end] = Some(parts);
            state.missing -= 1;
            if state.missing > 0 {
                return Ok(());
            }
        }
        self.write_frames(work)
    }

    /// Writes what stands around the outputs of a group.
    fn write_frames(&self, work: &Arc<Work>) -> Result<(), Error> {
        let parts = std::mem::take(&mut locked(&work.state).parts);
        let checksums = self.join(&work.group, &parts)?;
        if work.group.has_no_frames() {
            return Ok(());
        }
        let mut written = 0;
        for (output, crc32) in work.group.outputs.iter().zip(checksums) {
            if let Some(frame) = &output.frame {
                let (head, tail) = (frame.item.prefix(), frame.item.suffix(crc32));
                let file = &work.file;
                file.write_at(frame.offset, &head)?;
                file.write_at(output.data.end, &tail)?;
                written += (head.len() + tail.len()) as u64;
            }
        }
        let group = work.group.first;
        self.push(
            &Record::Framed { group },
            Arc::clone(&work.file),
            written,
            Vec::new(),
        )
    }

    /// Checksums of a group's outputs; keeps their digests.
    fn join(&self, group: &Group, parts: &[Option<Vec<PartDigest>>]) -> Result<Vec<u32>, Error> {
        let joined = joined(group, parts, self.hashes)?;
        let mut digests = locked(&self.digests);
        for (position, (_, digest)) in (group.first..).zip(&joined) {
            digests[position] = *digest;
        }
        Ok(joined.into_iter().map(|(crc32, _)| crc32).collect())
    }

    /// Takes a record that becomes durable with the next sync, which may be now. One whose bytes come from a chunk that has not
    /// been compared whole waits for that: a later attempt would not read these bytes again.
    fn push(
        &self,
        record: &Record,
        file: Arc<OpenFile>,
        bytes: u64,
        checks: Vec<Arc<Check>>,
    ) -> Result<(), Error> {
        let line = line(record)?;
        let batch = {
            let mut pending = locked(&self.pending);
            pending.unproven.push(Unproven { line, file, checks });
            pending.bytes += bytes;
            if pending.bytes < SYNC_BYTES && pending.since.elapsed() < self.sync_every {
                return Ok(());
            }
            pending.take()
        };
        self.sync(batch)
    }

    /// Makes a batch durable, and lets whoever watches the others look at them.
    fn sync(&self, batch: Pending) -> Result<(), Error> {
        (self.around.watch)();
        sync(self.around.journal, batch)
    }
}

/// Makes what is pending durable, then says so in the journal.
fn sync(journal: &dyn Journal, batch: Pending) -> Result<(), Error> {
    if batch.records.is_empty() {
        return Ok(());
    }
    for file in &batch.files {
        file.sync()?;
    }
    journal.append(batch.records.as_bytes())?;
    Ok(journal.sync()?)
}

/// An output being written.
struct Stream {
    hasher: PartHasher,
    /// Where its next byte goes in the file.
    at: u64,
}

impl Stream {
    fn write(&mut self, file: &OpenFile, bytes: &[u8]) -> Result<(), Error> {
        self.hasher.update(bytes);
        file.write_at(self.at, bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}

/// The bytes of a band that an output has.
fn columns<'a>(
    output: &Output,
    band: &Region,
    bytes: &[u8],
    place: u64,
    buffer: &'a mut PageBuffer,
) -> &'a [u8] {
    let Some(common) = band.intersection(&output.region) else {
        return &[];
    };
    let width = output.dtype.size_bytes();
    let runs = runs(&common.relative_to(band), &band.shape());
    let elements: u64 = common.sizes().iter().product();
    let out = buffer.at(place, usize_range(0, elements * width).end);
    let mut at = 0;
    for (from, length) in runs {
        let from = usize_range(from * width, length * width);
        let to = at..at + from.len();
        at = to.end;
        out[to].copy_from_slice(&bytes[from]);
    }
    buffer.bytes()
}

/// The group at a position of a file, `None` beyond its last output.
pub(crate) fn group_at(
    conversion: &dyn Conversion,
    position: usize,
    file: &DataFile,
) -> Option<Group> {
    Group::at(
        position,
        |position| {
            let is_inside = file.outputs.contains(&position);
            is_inside.then(|| conversion.output(position))
        },
        |subject, behind| conversion.reading(subject).granule(behind),
    )
}

/// Checksum and digest of each output of a group whose units are all done.
pub(crate) fn joined(
    group: &Group,
    parts: &[Option<Vec<PartDigest>>],
    hashes: bool,
) -> Result<Vec<(u32, Option<Digest>)>, Error> {
    let outputs = group.outputs.iter().enumerate();
    let joined = outputs.map(|(at, output)| {
        let parts = group.ids().zip(parts).map(|(id, parts)| {
            let part = parts.as_ref().and_then(|parts| parts.get(at));
            let part = part.ok_or_else(|| {
                Error::journal("a record has another number of outputs than its group")
            })?;
            Ok((group.bytes_of(output, id.number).len(), part))
        });
        let parts = parts.collect::<Result<Vec<_>, Error>>()?;
        join(&parts, wanted(output, hashes))
    });
    joined.collect()
}

/// A frame has the checksum of what it stands around.
fn wanted(output: &Output, hashes: bool) -> Wanted {
    Wanted {
        crc32: output.frame.is_some(),
        digest: hashes,
    }
}
