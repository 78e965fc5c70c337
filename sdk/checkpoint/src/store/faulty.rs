//! A store or target in which one chosen call fails, so that a test can break every call in turn.
//!
//! First run the work with [`Faults::none`] and ask [`Faults::calls`] what it did, then run it once for every call with
//! [`Faults::at`]:
//!
//! ```
//! use std::io::ErrorKind;
//! use std::sync::Arc;
//! use rialto_checkpoint::store::{Fault, Faults, FaultyStore, MemoryStore, Store};
//!
//! # fn main() -> Result<(), rialto_checkpoint::Error> {
//! let memory = MemoryStore::new("ckpt");
//! memory.insert("config.json", "{}")?;
//! let work = |faults: &Faults| {
//!     let store = FaultyStore::new(Arc::new(memory.clone()), faults.clone());
//!     store.open("config.json")?.read_at(0, &mut [0; 2])
//! };
//! let clean = Faults::none();
//! work(&clean)?;
//! for call in 0..clean.calls().len() {
//!     assert!(work(&Faults::at(call, Fault::Error(ErrorKind::Other))).is_err());
//! }
//! # Ok(())
//! # }
//! ```

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rialto_tensor::Location;

use super::{FileEntry, Sink, Source, Store, Target};
use crate::Error;

/// What a caller asked a store, target, source or sink for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// [`Store::files`].
    List,
    /// [`Store::open`].
    Open,
    /// [`Source::read_at`].
    Read,
    /// [`Target::create`].
    Create,
    /// [`Sink::write_at`].
    Write,
    /// [`Sink::sync`].
    Sync,
    /// [`Target::commit`].
    Commit,
}

/// How the chosen call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The system refuses, for this reason, and nothing happens.
    Error(io::ErrorKind),
    /// Half of it happens. An opened file has half its length from then on, a read fills half the buffer and fails with
    /// [`Error::ShortRead`], a write writes half the bytes and fails with a full disk. Other calls fail as a whole.
    Short,
    /// The file or directory is gone.
    Vanish,
}

/// Which call fails and how, and the calls made so far. Clones share both, so one value can serve a store and a target.
#[derive(Clone, Debug)]
pub struct Faults(Arc<Mutex<Script>>);

#[derive(Debug)]
struct Script {
    planned: Option<(Trigger, Fault)>,
    calls: Vec<Call>,
}

#[derive(Debug)]
enum Trigger {
    /// The n-th call of any kind, from 0.
    Any(usize),
    /// The n-th call of one kind, from 0.
    Of(Call, usize),
}

impl Faults {
    fn planned(planned: Option<(Trigger, Fault)>) -> Faults {
        Faults(Arc::new(Mutex::new(Script {
            planned,
            calls: Vec::new(),
        })))
    }

    /// Nothing fails; calls are only recorded.
    #[must_use]
    pub fn none() -> Faults {
        Faults::planned(None)
    }

    /// The call number `call` fails, counted from 0 over calls of every kind.
    #[must_use]
    pub fn at(call: usize, fault: Fault) -> Faults {
        Faults::planned(Some((Trigger::Any(call), fault)))
    }

    /// The call number `nth` of one kind fails, counted from 0.
    #[must_use]
    pub fn at_nth(kind: Call, nth: usize, fault: Fault) -> Faults {
        Faults::planned(Some((Trigger::Of(kind, nth), fault)))
    }

    /// The calls made so far, in order; with several threads, in the order in which they were counted.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.script().calls.clone()
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call and says how it is to fail.
    fn record(&self, call: Call) -> Option<Fault> {
        let mut script = self.script();
        let overall = script.calls.len();
        let of_kind = script.calls.iter().filter(|&&made| made == call).count();
        script.calls.push(call);
        match &script.planned {
            Some((Trigger::Any(nth), fault)) if *nth == overall => Some(*fault),
            Some((Trigger::Of(kind, nth), fault)) if *kind == call && *nth == of_kind => {
                Some(*fault)
            }
            _ => None,
        }
    }
}

fn read_error(fault: Fault, location: Location) -> Error {
    match fault {
        Fault::Vanish => Error::NotFound { location },
        Fault::Error(kind) => Error::Read {
            location,
            source: kind.into(),
        },
        Fault::Short => Error::Read {
            location,
            source: io::ErrorKind::UnexpectedEof.into(),
        },
    }
}

fn write_error(fault: Fault, location: Location) -> Error {
    let kind = match fault {
        Fault::Vanish => io::ErrorKind::NotFound,
        Fault::Error(kind) => kind,
        Fault::Short => io::ErrorKind::StorageFull,
    };
    Error::Write {
        location,
        source: kind.into(),
    }
}

/// A store whose listing, opening and reading fail as told.
#[derive(Debug)]
pub struct FaultyStore {
    store: Arc<dyn Store>,
    faults: Faults,
}

impl FaultyStore {
    /// Wraps a store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, faults: Faults) -> FaultyStore {
        FaultyStore { store, faults }
    }
}

impl Store for FaultyStore {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn files(&self) -> Result<Vec<FileEntry>, Error> {
        match self.faults.record(Call::List) {
            None => self.store.files(),
            Some(fault) => Err(read_error(fault, Location::file(self.name()))),
        }
    }

    fn open(&self, name: &str) -> Result<Box<dyn Source>, Error> {
        let fault = self.faults.record(Call::Open);
        let source = self.store.open(name)?;
        let len = match fault {
            None => source.len(),
            Some(Fault::Short) => source.len() / 2,
            Some(fault) => return Err(read_error(fault, Location::file(source.name()))),
        };
        Ok(Box::new(FaultySource {
            source,
            len,
            faults: self.faults.clone(),
        }))
    }
}

#[derive(Debug)]
struct FaultySource {
    source: Box<dyn Source>,
    len: u64,
    faults: Faults,
}

impl Source for FaultySource {
    fn name(&self) -> &str {
        self.source.name()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let end = offset.saturating_add(buffer.len() as u64);
        let location = Location::file(self.name()).with_bytes(offset, end);
        match self.faults.record(Call::Read) {
            None if end <= self.len => self.source.read_at(offset, buffer),
            None => Err(Error::ShortRead {
                location,
                len: self.len,
            }),
            Some(Fault::Short) => {
                let half = buffer.len() / 2;
                self.source.read_at(offset, &mut buffer[..half])?;
                Err(Error::ShortRead {
                    location,
                    len: offset + half as u64,
                })
            }
            Some(fault) => Err(read_error(fault, location)),
        }
    }
}

/// A target whose creating, writing, syncing and committing fail as told. A commit that fails leaves the target behind
/// uncommitted, which is then dropped as after any failure.
#[derive(Debug)]
pub struct FaultyTarget {
    target: Box<dyn Target>,
    faults: Faults,
}

impl FaultyTarget {
    /// Wraps a target.
    #[must_use]
    pub fn new(target: Box<dyn Target>, faults: Faults) -> FaultyTarget {
        FaultyTarget { target, faults }
    }
}

impl Target for FaultyTarget {
    fn name(&self) -> &str {
        self.target.name()
    }

    fn create(&self, name: &str) -> Result<Box<dyn Sink>, Error> {
        if let Some(fault) = self.faults.record(Call::Create) {
            let location = Location::file(format!("{}/{name}", self.name()));
            return Err(write_error(fault, location));
        }
        Ok(Box::new(FaultySink {
            sink: self.target.create(name)?,
            faults: self.faults.clone(),
        }))
    }

    fn require_bytes(&self, needed: u64) -> Result<(), Error> {
        self.target.require_bytes(needed)
    }

    fn commit(self: Box<Self>) -> Result<(), Error> {
        match self.faults.record(Call::Commit) {
            None => self.target.commit(),
            Some(fault) => Err(write_error(fault, Location::file(self.name()))),
        }
    }
}

#[derive(Debug)]
struct FaultySink {
    sink: Box<dyn Sink>,
    faults: Faults,
}

impl Sink for FaultySink {
    fn name(&self) -> &str {
        self.sink.name()
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let Some(fault) = self.faults.record(Call::Write) else {
            return self.sink.write_at(offset, bytes);
        };
        if fault == Fault::Short {
            self.sink.write_at(offset, &bytes[..bytes.len() / 2])?;
        }
        let end = offset.saturating_add(bytes.len() as u64);
        let location = Location::file(self.name()).with_bytes(offset, end);
        Err(write_error(fault, location))
    }

    fn sync(&self) -> Result<(), Error> {
        match self.faults.record(Call::Sync) {
            None => self.sink.sync(),
            Some(fault) => Err(write_error(fault, Location::file(self.name()))),
        }
    }
}
