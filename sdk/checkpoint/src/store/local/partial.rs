//! The directory `NAME.partial`: who may build in it, and what is left of it.
//!
//! Whoever [begins](Partial::begin) or [resumes](Partial::resume) locks the marker; others may [join](Partial::join)
//! without a lock, before or after. Nothing but the marker is ever made in a directory without one, and a directory is
//! never without one while something else is in it: it is moved away before its marker is removed.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread;

use rialto_tensor::Location;
use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use super::journal::JournalDirectory;
use super::tree::Tree;
use super::{PAUSE, RACES, has_no_locks, is_at, is_there, read_error, sync_directory, write_error};
use crate::Error;

pub(super) const MARKER: &str = ".rialto-partial";
/// What an older result is renamed to where the file system has no exchange.
pub(super) const OLD: &str = "old";
/// What the tree is called from the moment at which it is complete.
pub(super) const DONE: &str = "done";
/// What the journals are called once nothing is to be continued.
pub(super) const SPENT: &str = "spent";
/// How directories of plans begin.
const PLAN: &str = "plan-";
const TREE: &str = "tree";
const JOURNAL: &str = "journal";

/// Where a target called `place` is built.
pub(super) fn partial_path(place: &Path) -> PathBuf {
    let mut name = place.as_os_str().to_owned();
    name.push(".partial");
    PathBuf::from(name)
}

/// Where [`partial_path`] is moved to be removed.
fn removed_path(place: &Path) -> PathBuf {
    let mut name = partial_path(place).into_os_string();
    name.push("-removed");
    PathBuf::from(name)
}

/// A directory under construction.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) path: PathBuf,
    /// Where its tree will appear.
    place: PathBuf,
    hold: Hold,
    /// The directory inside that is built in, if not the whole.
    plan: Option<String>,
}

/// What makes sure of a directory.
#[derive(Debug)]
enum Hold {
    /// The open marker, whose lock ends with it.
    Locked { _marker: File },
    /// The open directory of one who joined.
    Joined { directory: File },
}

impl Partial {
    /// Takes the directory for a target called `place`, with all that is in it, for one who will clear it.
    ///
    /// Errors: [`Error::TargetBusy`] if another builds there, or holds a journal there.
    pub(super) fn begin(place: &Path) -> Result<Partial, Error> {
        let partial = Partial::claimed(place, false)?;
        for journals in partial.all_journals()? {
            if journals.is_any_held()? {
                return Err(busy(&partial.path));
            }
        }
        Ok(partial)
    }

    /// Takes the directory for one who will continue what is in it; others may have joined already.
    ///
    /// Errors: [`Error::TargetBusy`] if another has begun or resumed, where the file system has locks.
    pub(super) fn resume(place: &Path) -> Result<Partial, Error> {
        Partial::claimed(place, true)
    }

    fn claimed(place: &Path, is_continued: bool) -> Result<Partial, Error> {
        let path = partial_path(place);
        let lock = claim(&path, is_continued)?;
        Ok(Partial {
            path,
            place: place.to_owned(),
            hold: Hold::Locked { _marker: lock },
            plan: None,
        })
    }

    /// Makes or enters the directory beside whoever has it or will have it.
    pub(super) fn join(place: &Path) -> Result<Partial, Error> {
        let path = partial_path(place);
        for _ in 0..RACES {
            if mark(&path)?.is_none() {
                continue;
            }
            match enter(&path) {
                // Whoever had it removed it a moment ago.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(write_error(&path, error)),
                Ok(directory) if is_at(&directory, &path) => {
                    return Ok(Partial {
                        path,
                        place: place.to_owned(),
                        hold: Hold::Joined { directory },
                        plan: None,
                    });
                }
                Ok(_) => {}
            }
        }
        Err(busy(&path))
    }

    /// Refuses to go on if the directory is not the one that was joined: its owner has ended, and another may have begun.
    pub(super) fn check(&self) -> io::Result<()> {
        match &self.hold {
            Hold::Joined { directory } if !is_at(directory, &self.path) => {
                Err(io::ErrorKind::NotFound.into())
            }
            _ => Ok(()),
        }
    }

    /// What is built in: all of it, or the directory of one plan.
    fn room(&self) -> PathBuf {
        match &self.plan {
            Some(plan) => self.path.join(plan),
            None => self.path.clone(),
        }
    }

    pub(super) fn tree(&self) -> Tree {
        Tree(self.room().join(TREE))
    }

    pub(super) fn journals(&self) -> JournalDirectory {
        JournalDirectory(self.room().join(JOURNAL))
    }

    /// Makes the directories for the tree and for the journals, if they are not there.
    pub(super) fn make_rooms(&self) -> io::Result<()> {
        make_rooms(&File::open(self.room())?)
    }

    /// Goes to the directory of a plan, and makes it if it is not there.
    pub(super) fn enter_plan(&mut self, plan: &str) -> io::Result<()> {
        self.check()?;
        self.plan = Some(format!("{PLAN}{plan}"));
        match fs::create_dir(self.room()) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        self.make_rooms()
    }

    /// The names of all plans but the one that was entered, in order.
    pub(super) fn other_plans(&self) -> Result<Vec<String>, Error> {
        let refuse = |source| read_error(&self.path.display().to_string(), source);
        let mut plans = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(refuse)? {
            let name = entry.map_err(refuse)?.file_name();
            let name = name
                .to_str()
                .filter(|name| Some(*name) != self.plan.as_deref());
            plans.extend(
                name.and_then(|name| name.strip_prefix(PLAN))
                    .map(str::to_owned),
            );
        }
        plans.sort();
        Ok(plans)
    }

    /// The journals of every plan, and those of none.
    fn all_journals(&self) -> Result<Vec<JournalDirectory>, Error> {
        let mut all = vec![self.journals()];
        for plan in self.other_plans()? {
            let room = self.path.join(format!("{PLAN}{plan}"));
            all.push(JournalDirectory(room.join(JOURNAL)));
        }
        Ok(all)
    }

    /// Removes the directories of other plans. Errors: [`Error::TargetBusy`] if anybody is at work in one.
    pub(super) fn remove_other_plans(&self) -> Result<(), Error> {
        for plan in self.other_plans()? {
            let room = self.path.join(format!("{PLAN}{plan}"));
            if JournalDirectory(room.join(JOURNAL)).is_any_held()? {
                return Err(busy(&self.path));
            }
            fs::remove_dir_all(&room).map_err(|source| write_error(&room, source))?;
        }
        Ok(())
    }

    /// Takes the journals away before the tree moves: after an exchange they would speak of the older result.
    pub(super) fn retire_journals(&self) -> io::Result<()> {
        fs::rename(self.journals().0, self.path.join(SPENT))?;
        match sync_directory(&self.path) {
            Err(Error::Write { source, .. }) => Err(source),
            _ => Ok(()),
        }
    }

    /// Takes back the steps of a commit that did not come to its end, the last one first: whatever is kept of it, a journal is
    /// never there without the tree that it speaks of.
    pub(super) fn undo_commit(&self) -> io::Result<()> {
        let inside = |name| self.path.join(name);
        for (from, to) in [
            (inside(OLD), self.place.clone()),
            (inside(DONE), self.tree().0),
            (inside(SPENT), self.journals().0),
        ] {
            if is_there(&from) && !is_there(&to) {
                fs::rename(from, to)?;
            }
        }
        Ok(())
    }

    /// Removes everything but the marker, after moving back an old result that a killed run had moved away.
    pub(super) fn clear(&self) -> Result<(), Error> {
        self.remove_all_but(&[MARKER])
    }

    /// Removes what a killed commit left, and leaves what can be continued.
    pub(super) fn clear_commit(&self) -> Result<(), Error> {
        self.remove_all_but(&[MARKER, TREE, JOURNAL])
    }

    fn remove_all_but(&self, kept: &[&str]) -> Result<(), Error> {
        let old = self.path.join(OLD);
        if is_there(&old) && !is_there(&self.place) {
            // If this fails, `old` is the only copy: it must not be deleted below.
            fs::rename(&old, &self.place).map_err(|source| write_error(&old, source))?;
        }
        let refuse = |source| write_error(&self.path, source);
        for entry in fs::read_dir(&self.path).map_err(refuse)? {
            let entry = entry.map_err(refuse)?;
            let path = entry.path();
            let name = entry.file_name();
            let is_plan = name.as_encoded_bytes().starts_with(PLAN.as_bytes());
            // Whoever keeps a tree keeps those of plans.
            if kept.iter().any(|kept| name == *kept) || is_plan && kept.contains(&TREE) {
                continue;
            }
            let removed = match entry.file_type().map_err(refuse)?.is_dir() {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
            removed.map_err(|source| write_error(&path, source))?;
        }
        Ok(())
    }

    /// Removes the directory. The marker goes last, so that a killed removal is continued later.
    pub(super) fn remove(&self) -> Result<(), Error> {
        self.clear()?;
        let refuse = |source| write_error(&self.path, source);
        let directory = File::open(&self.path).map_err(refuse)?;
        let removed = removed_path(&self.place);
        for _ in 0..RACES {
            // In one step for those who join, who could otherwise build in it when the marker is gone already.
            match fs::rename(&self.path, &removed) {
                Ok(()) => {
                    // Again, because one who joins may be making rooms in it yet; until it is gone, or another has the name.
                    for _ in 0..RACES {
                        if is_at(&directory, &removed) {
                            let _ = sweep(&removed);
                        }
                    }
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                    sweep_dead(&removed);
                    thread::sleep(PAUSE);
                }
                Err(error) => return Err(refuse(error)),
            }
        }
        // Something that is not ours has the name.
        sweep(&self.path).map_err(refuse)
    }
}

/// Removes what a killed removal left, unless it is not ours, or its owner is at it still.
fn sweep_dead(directory: &Path) {
    let marker = directory.join(MARKER);
    // To write, because NFS locks nothing else exclusively.
    let Ok(file) = OpenOptions::new().write(true).open(&marker) else {
        return;
    };
    let is_dead = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(error)) => has_no_locks(&error),
    };
    if is_dead && is_at(&file, &marker) {
        let _ = sweep(directory);
    }
}

/// Removes a directory that is ours, the marker last.
fn sweep(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name() == MARKER {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    match fs::remove_file(directory.join(MARKER)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::remove_dir(directory)
}

/// Makes the marker and the rooms of one directory, whatever it is called by then.
fn enter(path: &Path) -> io::Result<File> {
    let directory = File::open(path)?;
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    sign(&mut File::from(openat(&directory, MARKER, flags, mode)?))?;
    make_rooms(&directory)?;
    Ok(directory)
}

fn make_rooms(directory: &File) -> io::Result<()> {
    for room in [TREE, JOURNAL] {
        match mkdirat(directory, room, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Makes the directory `partial` ours, be it new or left by a killed run, and returns its locked marker.
///
/// Only ever one of several processes gets it: the lock on the marker decides. Where there are no locks, one who begins
/// gets it only if it is new, and one who continues always.
fn claim(partial: &Path, is_continued: bool) -> Result<File, Error> {
    let refuse = |source| write_error(partial, source);
    for _ in 0..RACES {
        let Some((mut marker, is_new)) = mark(partial)? else {
            continue;
        };
        match marker.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(busy(partial)),
            // Making the directory is what only one process can do.
            Err(TryLockError::Error(error)) if has_no_locks(&error) => {
                if !is_new && !is_continued {
                    return Err(busy(partial));
                }
            }
            Err(TryLockError::Error(error)) => return Err(refuse(error)),
        }
        // The lock may be on a marker that its owner has removed since we opened it; then it guards nothing.
        if is_at(&marker, &partial.join(MARKER)) {
            sign(&mut marker).map_err(refuse)?;
            return Ok(marker);
        }
    }
    Err(busy(partial))
}

/// Makes the directory if it is not there, and its marker. Returns the marker, and whether the directory is new; nothing if
/// whoever had it removed it a moment ago. Errors: [`Error::ForeignPartial`], [`Error::Write`].
fn mark(partial: &Path) -> Result<Option<(File, bool)>, Error> {
    let refuse = |source| write_error(partial, source);
    let is_new = match fs::create_dir(partial) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(refuse(error)),
    };
    match is_ours(partial) {
        Ok(true) => {}
        Ok(false) => {
            return Err(Error::ForeignPartial {
                location: Location::file(partial.display().to_string()),
            });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refuse(error)),
    }
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false);
    match options.open(partial.join(MARKER)) {
        Ok(marker) => Ok(Some((marker, is_new))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            // Removes only an empty directory.
            let _ = fs::remove_dir(partial);
            Err(refuse(error))
        }
    }
}

fn sign(marker: &mut File) -> io::Result<()> {
    marker.write_all(
        b"rialto builds a checkpoint here; it continues or removes this directory itself\n",
    )
}

/// Whether a directory carries our marker, or nothing at all (a run killed before it could mark it).
fn is_ours(partial: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(partial)?.is_dir() {
        return Ok(false);
    }
    let directory = File::open(partial)?;
    let mut is_empty = true;
    for entry in fs::read_dir(partial)? {
        let entry = entry?;
        if entry.file_name() == MARKER {
            return Ok(entry.file_type()?.is_file());
        }
        is_empty = false;
    }
    if !is_at(&directory, partial) {
        // It was being removed elsewhere while it was listed.
        return Err(io::ErrorKind::NotFound.into());
    }
    if is_empty {
        return Ok(true);
    }
    // It may have been marked, and built in, since the listing began.
    let marker = fs::symlink_metadata(partial.join(MARKER));
    Ok(marker.is_ok_and(|marker| marker.is_file()))
}

fn busy(partial: &Path) -> Error {
    Error::TargetBusy {
        location: Location::file(partial.display().to_string()),
    }
}

#[cfg(test)]
mod tests;
