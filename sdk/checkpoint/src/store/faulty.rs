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
//!
//! | module | noun |
//! |---|---|
//! | `store` | what is read so |
//! | `target` | what is written so |

mod store;
mod target;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rialto_tensor::Location;

use crate::Error;

pub use store::FaultyStore;
pub use target::FaultyTarget;

/// What a caller asked a store, target, source, sink or journal for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// [`Store::files`](super::Store::files).
    List,
    /// [`Store::open`](super::Store::open).
    Open,
    /// [`Store::stamp`](super::Store::stamp).
    Stamp,
    /// [`Source::read_at`](super::Source::read_at).
    Read,
    /// [`Target::create`](super::Target::create).
    Create,
    /// [`Target::reopen`](super::Target::reopen).
    Reopen,
    /// [`Target::retain`](super::Target::retain).
    Retain,
    /// [`Target::journal`](super::Target::journal).
    Journal,
    /// [`Target::journals`](super::Target::journals).
    Journals,
    /// [`Target::read_journal`](super::Target::read_journal).
    ReadJournal,
    /// [`Target::is_held`](super::Target::is_held).
    IsHeld,
    /// [`Sink::reserve`](super::Sink::reserve).
    Reserve,
    /// [`Sink::write_at`](super::Sink::write_at).
    Write,
    /// [`Sink::sync`](super::Sink::sync).
    Sync,
    /// [`Journal::append`](super::Journal::append).
    Append,
    /// [`Journal::sync`](super::Journal::sync).
    JournalSync,
    /// [`Journal::clear`](super::Journal::clear).
    Clear,
    /// [`Target::suspend`](super::Target::suspend).
    Suspend,
    /// [`Target::enter`](super::Target::enter).
    Enter,
    /// [`Target::other_plans`](super::Target::other_plans).
    OtherPlans,
    /// [`Target::remove_other_plans`](super::Target::remove_other_plans).
    RemoveOtherPlans,
    /// [`Target::length`](super::Target::length).
    Length,
    /// [`Target::discard`](super::Target::discard).
    Discard,
    /// [`Target::commit`](super::Target::commit).
    Commit,
}

/// How the chosen call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The system refuses, for this reason, and nothing happens.
    Error(io::ErrorKind),
    /// Half of it happens. An opened file has half its length from then on, and so it has in its stamp; a journal has half
    /// its bytes. A read fills half the buffer and fails with [`Error::ShortRead`], a write and what is appended to a journal
    /// is half written and fails with a full disk. Other calls fail as a whole.
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
