//! A target in which calls fail.

use std::collections::BTreeSet;

use rialto_tensor::Location;

use super::{Call, Fault, Faults, read_error, write_error};
use crate::Error;
use crate::store::{Journal, Sink, Target};

/// A target whose calls, and those to its sinks and journals, fail as told. A commit that fails suspends the target behind if it
/// has journals; else, and after a suspension that fails, it is dropped as it was.
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

    fn at(&self, name: &str) -> Location {
        Location::file(format!("{}/{name}", self.name()))
    }

    /// Counts a call that writes; fails if it is to fail.
    fn write(&self, call: Call, location: impl FnOnce() -> Location) -> Result<(), Error> {
        match self.faults.record(call) {
            None => Ok(()),
            Some(fault) => Err(write_error(fault, location())),
        }
    }

    /// Counts a call that reads; fails if it is to fail.
    fn read(&self, call: Call, location: impl FnOnce() -> Location) -> Result<(), Error> {
        match self.faults.record(call) {
            None => Ok(()),
            Some(fault) => Err(read_error(fault, location())),
        }
    }

    fn sink(&self, sink: Box<dyn Sink>) -> Box<dyn Sink> {
        Box::new(FaultySink {
            sink,
            faults: self.faults.clone(),
        })
    }
}

impl Target for FaultyTarget {
    fn name(&self) -> &str {
        self.target.name()
    }

    fn create(&self, name: &str) -> Result<Box<dyn Sink>, Error> {
        self.write(Call::Create, || self.at(name))?;
        Ok(self.sink(self.target.create(name)?))
    }

    fn reopen(&self, name: &str) -> Result<Box<dyn Sink>, Error> {
        self.write(Call::Reopen, || self.at(name))?;
        Ok(self.sink(self.target.reopen(name)?))
    }

    fn retain(&self, names: &BTreeSet<String>) -> Result<(), Error> {
        self.write(Call::Retain, || Location::file(self.name()))?;
        self.target.retain(names)
    }

    fn journal(&self, name: &str) -> Result<Box<dyn Journal>, Error> {
        self.write(Call::Journal, || self.at(name))?;
        Ok(Box::new(FaultyJournal {
            journal: self.target.journal(name)?,
            location: self.at(name),
            faults: self.faults.clone(),
        }))
    }

    fn journals(&self) -> Result<Vec<String>, Error> {
        self.read(Call::Journals, || Location::file(self.name()))?;
        self.target.journals()
    }

    fn read_journal(&self, name: &str) -> Result<Vec<u8>, Error> {
        let fault = self.faults.record(Call::ReadJournal);
        let mut bytes = self.target.read_journal(name)?;
        match fault {
            None => {}
            Some(Fault::Short) => bytes.truncate(bytes.len() / 2),
            Some(fault) => return Err(read_error(fault, self.at(name))),
        }
        Ok(bytes)
    }

    fn is_held(&self, name: &str) -> Result<Option<bool>, Error> {
        self.read(Call::IsHeld, || self.at(name))?;
        self.target.is_held(name)
    }

    fn require_bytes(&self, needed: u64) -> Result<(), Error> {
        self.target.require_bytes(needed)
    }

    fn enter(&mut self, plan: &str) -> Result<(), Error> {
        self.write(Call::Enter, || Location::file(self.name()))?;
        self.target.enter(plan)
    }

    fn other_plans(&self) -> Result<Vec<String>, Error> {
        self.read(Call::OtherPlans, || Location::file(self.name()))?;
        self.target.other_plans()
    }

    fn remove_other_plans(&self) -> Result<(), Error> {
        self.write(Call::RemoveOtherPlans, || Location::file(self.name()))?;
        self.target.remove_other_plans()
    }

    fn length(&self, name: &str) -> Result<Option<u64>, Error> {
        self.read(Call::Length, || self.at(name))?;
        self.target.length(name)
    }

    fn discard(self: Box<Self>) -> Result<(), Error> {
        self.write(Call::Discard, || Location::file(self.name()))?;
        self.target.discard()
    }

    fn suspend(self: Box<Self>) -> Result<(), Error> {
        self.write(Call::Suspend, || Location::file(self.name()))?;
        self.target.suspend()
    }

    fn commit(self: Box<Self>) -> Result<(), Error> {
        match self.write(Call::Commit, || Location::file(self.name())) {
            Ok(()) => self.target.commit(),
            Err(error) => {
                if !self.target.journals()?.is_empty() {
                    self.target.suspend()?;
                }
                Err(error)
            }
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

    fn reserve(&self, len: u64) -> Result<(), Error> {
        match self.faults.record(Call::Reserve) {
            None => self.sink.reserve(len),
            Some(fault) => Err(write_error(fault, Location::file(self.name()))),
        }
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

#[derive(Debug)]
struct FaultyJournal {
    journal: Box<dyn Journal>,
    location: Location,
    faults: Faults,
}

impl Journal for FaultyJournal {
    fn append(&self, bytes: &[u8]) -> Result<(), Error> {
        let Some(fault) = self.faults.record(Call::Append) else {
            return self.journal.append(bytes);
        };
        if fault == Fault::Short {
            self.journal.append(&bytes[..bytes.len() / 2])?;
        }
        Err(write_error(fault, self.location.clone()))
    }

    fn sync(&self) -> Result<(), Error> {
        match self.faults.record(Call::JournalSync) {
            None => self.journal.sync(),
            Some(fault) => Err(write_error(fault, self.location.clone())),
        }
    }

    fn clear(&self) -> Result<(), Error> {
        match self.faults.record(Call::Clear) {
            None => self.journal.clear(),
            Some(fault) => Err(write_error(fault, self.location.clone())),
        }
    }
}
