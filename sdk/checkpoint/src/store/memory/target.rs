//! A directory in memory under construction, which may outlive an attempt at it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rialto_tensor::Location;

use super::{MemoryStore, SharedFiles};
use crate::Error;
use crate::store::{Journal, Sink, Target, check_name, check_part};

/// Where a [`MemoryTarget`] puts the finished store.
pub type MemorySlot = Arc<Mutex<Option<MemoryStore>>>;

/// What attempts at a target have made so far: it outlives each of them. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct MemoryPartial(Arc<Mutex<BTreeMap<String, Attempts>>>);

/// What attempts at one plan have made. Clones are the same.
#[derive(Clone, Debug, Default)]
struct Attempts {
    files: SharedFiles,
    journals: Arc<Mutex<BTreeMap<String, Log>>>,
}

/// A journal, be it open or not.
#[derive(Debug, Default)]
struct Log {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Alive as long as somebody holds it.
    holder: Weak<()>,
}

impl Attempts {
    fn journals(&self) -> MutexGuard<'_, BTreeMap<String, Log>> {
        locked(&self.journals)
    }

    fn is_held(&self) -> bool {
        let journals = self.journals();
        journals.values().any(|log| log.holder.strong_count() > 0)
    }
}

impl MemoryPartial {
    /// What attempts at a plan have made; at none by the empty name.
    fn of(&self, plan: &str) -> Attempts {
        locked(&self.0).entry(plan.to_owned()).or_default().clone()
    }

    fn clear(&self) {
        locked(&self.0).clear();
    }
}

/// Whoever panics while holding one of these locks leaves whole bytes behind, so a poisoned one is taken as it is.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A target in memory: its files appear in the slot when it is committed, and nowhere otherwise.
///
/// One that was resumed leaves what it made in its [`MemoryPartial`], however it ends but by [`Target::discard`].
#[derive(Debug)]
pub struct MemoryTarget {
    name: String,
    partial: MemoryPartial,
    /// The plan that was entered, and what is made of it.
    plan: String,
    made_of_it: Attempts,
    /// `None` for who only joined.
    slot: Option<MemorySlot>,
    is_continued: bool,
    /// Names of the files that this run made or opened.
    made: Mutex<BTreeSet<String>>,
    /// Whether dropping this removes nothing.
    is_left: bool,
}

impl MemoryTarget {
    /// A target called `name` that will replace what the slot holds.
    pub fn new(name: impl Into<String>, slot: MemorySlot) -> MemoryTarget {
        MemoryTarget {
            name: name.into(),
            partial: MemoryPartial::default(),
            plan: String::new(),
            made_of_it: Attempts::default(),
            slot: Some(slot),
            is_continued: false,
            made: Mutex::default(),
            is_left: false,
        }
    }

    /// The same, with what earlier attempts left in `partial`, and with that left to later ones.
    pub fn resume(
        name: impl Into<String>,
        slot: MemorySlot,
        partial: &MemoryPartial,
    ) -> MemoryTarget {
        let mut target = MemoryTarget::new(name, slot);
        target.partial = partial.clone();
        target.made_of_it = partial.of("");
        target.is_continued = true;
        target.is_left = true;
        target
    }

    /// A further process at a target that another has resumed or will resume. Dropping or suspending it removes nothing,
    /// and it cannot be committed.
    pub fn join(name: impl Into<String>, partial: &MemoryPartial) -> MemoryTarget {
        let mut target = MemoryTarget::resume(name, MemorySlot::default(), partial);
        target.slot = None;
        target
    }

    fn shown(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }

    fn refuse(&self, name: &str, kind: io::ErrorKind) -> Error {
        Error::Write {
            location: Location::file(self.shown(name)),
            source: kind.into(),
        }
    }

    fn sink(&self, name: &str) -> Box<dyn Sink> {
        Box::new(MemorySink {
            files: self.made_of_it.files.clone(),
            key: name.to_owned(),
            name: self.shown(name),
        })
    }

    /// Looks at a journal that is there.
    fn with_log<T>(&self, name: &str, look: impl FnOnce(&Log) -> T) -> Result<T, Error> {
        check_part(name, &Location::file(&self.name))?;
        match self.made_of_it.journals().get(name) {
            Some(log) => Ok(look(log)),
            None => Err(Error::NotFound {
                location: Location::file(self.shown(name)),
            }),
        }
    }
}

/// Whether one of two names is the other or a directory above it: a name is a file or a directory, never both, as in a
/// file system.
fn is_in_the_way(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() < other.len() {
        (one, other)
    } else {
        (other, one)
    };
    long.strip_prefix(short)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Target for MemoryTarget {
    fn name(&self) -> &str {
        &self.name
    }

    fn create(&self, name: &str) -> Result<Box<dyn Sink>, Error> {
        check_name(name, &Location::file(&self.name))?;
        let mut made = locked(&self.made);
        let mut files = self.made_of_it.files.write();
        let may_stay = |other: &str| self.is_continued && other == name && !made.contains(name);
        let mut others = files.keys().filter(|other| is_in_the_way(other, name));
        if others.any(|other| !may_stay(other)) {
            return Err(self.refuse(name, io::ErrorKind::AlreadyExists));
        }
        files.insert(name.to_owned(), Vec::new());
        made.insert(name.to_owned());
        Ok(self.sink(name))
    }

    fn reopen(&self, name: &str) -> Result<Box<dyn Sink>, Error> {
        check_name(name, &Location::file(&self.name))?;
        let mut made = locked(&self.made);
        let mut files = self.made_of_it.files.write();
        let mut others = files.keys().filter(|other| is_in_the_way(other, name));
        if others.any(|other| other != name) {
            return Err(self.refuse(name, io::ErrorKind::AlreadyExists));
        }
        files.entry(name.to_owned()).or_default();
        made.insert(name.to_owned());
        Ok(self.sink(name))
    }

    fn retain(&self, names: &BTreeSet<String>) -> Result<(), Error> {
        locked(&self.made).retain(|name| names.contains(name));
        let mut files = self.made_of_it.files.write();
        files.retain(|name, _| names.contains(name));
        Ok(())
    }

    fn journal(&self, name: &str) -> Result<Box<dyn Journal>, Error> {
        check_part(name, &Location::file(&self.name))?;
        let mut journals = self.made_of_it.journals();
        let log = journals.entry(name.to_owned()).or_default();
        if log.holder.strong_count() > 0 {
            return Err(Error::TargetBusy {
                location: Location::file(self.shown(name)),
            });
        }
        let holder = Arc::new(());
        log.holder = Arc::downgrade(&holder);
        Ok(Box::new(MemoryJournal {
            bytes: Arc::clone(&log.bytes),
            _holder: holder,
        }))
    }

    fn journals(&self) -> Result<Vec<String>, Error> {
        Ok(self.made_of_it.journals().keys().cloned().collect())
    }

    fn read_journal(&self, name: &str) -> Result<Vec<u8>, Error> {
        self.with_log(name, |log| locked(&log.bytes).clone())
    }

    fn is_held(&self, name: &str) -> Result<Option<bool>, Error> {
        self.with_log(name, |log| Some(log.holder.strong_count() > 0))
    }

    fn enter(&mut self, plan: &str) -> Result<(), Error> {
        check_part(plan, &Location::file(&self.name))?;
        plan.clone_into(&mut self.plan);
        self.made_of_it = self.partial.of(plan);
        Ok(())
    }

    fn other_plans(&self) -> Result<Vec<String>, Error> {
        let plans = locked(&self.partial.0);
        let others = plans
            .keys()
            .filter(|plan| !plan.is_empty() && **plan != self.plan);
        Ok(others.cloned().collect())
    }

    fn remove_other_plans(&self) -> Result<(), Error> {
        let mut plans = locked(&self.partial.0);
        let is_other = |plan: &str| !plan.is_empty() && plan != self.plan;
        if plans
            .iter()
            .any(|(plan, attempts)| is_other(plan) && attempts.is_held())
        {
            return Err(Error::TargetBusy {
                location: Location::file(&self.name),
            });
        }
        plans.retain(|plan, _| !is_other(plan));
        Ok(())
    }

    fn length(&self, name: &str) -> Result<Option<u64>, Error> {
        check_name(name, &Location::file(&self.name))?;
        let files = self.made_of_it.files.read();
        Ok(files.get(name).map(|bytes| bytes.len() as u64))
    }

    fn discard(self: Box<Self>) -> Result<(), Error> {
        if self.slot.is_some() {
            self.partial.clear();
        }
        Ok(())
    }

    fn suspend(mut self: Box<Self>) -> Result<(), Error> {
        self.is_left = true;
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), Error> {
        let Some(slot) = &self.slot else {
            return Err(Error::TargetJoined {
                location: Location::file(&self.name),
            });
        };
        // Taken out, so that a sink which outlives the commit cannot change the finished store.
        let files = std::mem::take(&mut *self.made_of_it.files.write());
        let finished = MemoryStore::new(self.name.as_str());
        *finished.files.write() = files;
        *locked(slot) = Some(finished);
        // What attempts have left of it is done with.
        self.partial.clear();
        Ok(())
    }
}

impl Drop for MemoryTarget {
    fn drop(&mut self) {
        if !self.is_left {
            self.partial.clear();
        }
    }
}

#[derive(Debug)]
struct MemorySink {
    files: SharedFiles,
    key: String,
    name: String,
}

impl MemorySink {
    /// Changes the file, which is at least `end` bytes long by then; `location` is for errors.
    fn with_len(
        &self,
        end: u64,
        location: Location,
        change: impl FnOnce(&mut Vec<u8>, usize),
    ) -> Result<(), Error> {
        let refuse = |kind: io::ErrorKind| Error::Write {
            location: location.clone(),
            source: kind.into(),
        };
        let end = usize::try_from(end).map_err(|_| refuse(io::ErrorKind::OutOfMemory))?;
        let mut files = self.files.write();
        let file = files
            .get_mut(&self.key)
            .ok_or_else(|| refuse(io::ErrorKind::NotFound))?;
        if file.len() < end {
            file.try_reserve(end - file.len())
                .map_err(|_| refuse(io::ErrorKind::OutOfMemory))?;
            file.resize(end, 0);
        }
        change(file, end);
        Ok(())
    }
}

impl Sink for MemorySink {
    fn name(&self) -> &str {
        &self.name
    }

    fn reserve(&self, len: u64) -> Result<(), Error> {
        self.with_len(len, Location::file(&self.name), Vec::truncate)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let end = offset.saturating_add(bytes.len() as u64);
        let location = Location::file(&self.name).with_bytes(offset, end);
        self.with_len(end, location, |file, end| {
            file[end - bytes.len()..end].copy_from_slice(bytes);
        })
    }

    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }
}

#[derive(Debug)]
struct MemoryJournal {
    bytes: Arc<Mutex<Vec<u8>>>,
    _holder: Arc<()>,
}

impl Journal for MemoryJournal {
    fn append(&self, bytes: &[u8]) -> Result<(), Error> {
        locked(&self.bytes).extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    fn clear(&self) -> Result<(), Error> {
        locked(&self.bytes).clear();
        Ok(())
    }
}
