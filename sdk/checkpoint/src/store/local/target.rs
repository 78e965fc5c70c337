//! A directory that appears under its name whole, or not at all.
//!
//! `NAME` is built beside itself, on the same file system:
//!
//! ```text
//! NAME.partial/
//!   .rialto-partial   the marker: says that rialto made this, and is locked while somebody builds
//!   tree/             what will become NAME
//!   journal/          the logs by which a later attempt knows what it can keep of the tree
//!   done/             the tree once it is complete, on its way to NAME
//!   spent/            the journals from then on
//!   old/              only without an atomic exchange: the NAME that was there before
//! ```
//!
//! [`Target::commit`] syncs every file and directory of `tree`, then publishes it in one step: a rename if nothing is in
//! the way, an exchange (`RENAME_EXCHANGE`) if an older result is, which then lies in `NAME.partial/done` and is deleted.
//! So at any moment `NAME` is absent, the complete old result, or the complete new one. The marker stays until all the rest
//! of `NAME.partial` is gone, so whatever a killed run leaves is known as ours, and the next run for the same target clears
//! it away. What is in it without a marker is never deleted.
//!
//! Where the file system has no exchange there are two renames: `NAME` to `NAME.partial/old`, then `done` to `NAME`. A run
//! killed between the two leaves `NAME` absent; the next run for the same target first moves `old` back.
//!
//! A commit that the system refuses, or that finds `NAME` taken by somebody else, undoes its steps: tree and journals are then
//! where they were, for a later attempt to publish without making anything again.
//!
//! # Several attempts, several processes
//!
//! [`LocalTarget::create`] begins anew. [`LocalTarget::resume`] keeps the tree and the journals of an attempt that was
//! killed or [suspended](Target::suspend). Only one process at a time has created or resumed a target; more may
//! [join](LocalTarget::join) it, before or after, on any machine that sees the file system. Before a commit moves the tree,
//! it retires the journals: a journal that is found tells of the tree beside it, never of an older result.
//!
//! What is in the tree without a journal that says so is not to be trusted: it may be a part of anything.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rialto_tensor::Location;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::direct::Access;
use super::partial::{DONE, OLD, Partial};
use super::place::{MadeParents, Occupant, occupant, resolve};
use super::sink::LocalSink;
use super::{is_unsupported, sync_directory, write_error};
use crate::Error;
use crate::store::{Journal, Sink, Target, check_name, check_part};

/// What to do about an older result under the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// Refuse anything but an empty directory.
    Refuse,
    /// Replace a directory, as a whole and only once the new one is complete.
    Replace,
}

/// A directory of the file system under construction; see the [module](self) for how it appears.
///
/// Sinks must not be written to after the commit: their files are then those of the finished directory.
#[derive(Debug)]
pub struct LocalTarget {
    /// The final path as the user typed it.
    name: String,
    /// The final path without links.
    place: PathBuf,
    overwrite: Overwrite,
    access: Access,
    role: Role,
    /// Names of the files that this run made or opened.
    made: Mutex<BTreeSet<String>>,
    /// Whether dropping this removes nothing: it is gone already, or for others to continue.
    is_left: bool,
    // Dropped in this order, after the partial directory is gone.
    partial: Partial,
    parents: MadeParents,
}

/// How this process came to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Created,
    Resumed,
    Joined,
}

impl LocalTarget {
    /// Begins a directory that will be called `path`; directories above it are created, and what an earlier attempt left is
    /// cleared away.
    ///
    /// Errors: [`Error::TargetExists`] and [`Error::NotDirectory`] if what is there must stay, [`Error::TargetBusy`] and
    /// [`Error::ForeignPartial`] if `NAME.partial` cannot be had, [`Error::UnsafeName`] if the path has no last part,
    /// [`Error::NotFound`] if it is a link that leads nowhere, [`Error::Write`].
    pub fn create(path: impl AsRef<Path>, overwrite: Overwrite) -> Result<LocalTarget, Error> {
        let target = LocalTarget::enter(path.as_ref(), overwrite, Role::Created)?;
        // From here on dropping the target cleans up.
        target.partial.clear()?;
        target.make_rooms()?;
        Ok(target)
    }

    /// Continues a directory that will be called `path` where an earlier attempt ended, or begins it.
    ///
    /// Dropping it leaves everything for the next attempt: only [`Target::discard`] removes it. Where the file system has no
    /// locks, it is for the user to know that no other process is at it. Errors: as [`LocalTarget::create`].
    pub fn resume(path: impl AsRef<Path>, overwrite: Overwrite) -> Result<LocalTarget, Error> {
        let mut target = LocalTarget::enter(path.as_ref(), overwrite, Role::Resumed)?;
        target.is_left = true;
        target.partial.clear_commit()?;
        target.make_rooms()?;
        Ok(target)
    }

    /// Enters a directory that another process [resumes](LocalTarget::resume), has resumed or will resume, for the second
    /// and further processes of a run. Dropping or suspending it removes nothing, and it cannot be committed.
    ///
    /// Errors: as [`LocalTarget::create`].
    pub fn join(path: impl AsRef<Path>, overwrite: Overwrite) -> Result<LocalTarget, Error> {
        let mut target = LocalTarget::enter(path.as_ref(), overwrite, Role::Joined)?;
        target.is_left = true;
        std::mem::take(&mut target.parents).keep();
        Ok(target)
    }

    fn enter(path: &Path, overwrite: Overwrite, role: Role) -> Result<LocalTarget, Error> {
        let name = path.display().to_string();
        let (place, parents) = resolve(path, &name)?;
        occupant(&place, &name, overwrite)?;
        let partial = match role {
            Role::Created => Partial::begin(&place)?,
            Role::Resumed => Partial::resume(&place)?,
            Role::Joined => Partial::join(&place)?,
        };
        Ok(LocalTarget {
            name,
            place,
            overwrite,
            access: Access::default(),
            role,
            made: Mutex::default(),
            is_left: false,
            partial,
            parents,
        })
    }

    /// Makes what is built in, if the final place is still free.
    fn make_rooms(&self) -> Result<(), Error> {
        occupant(&self.place, &self.name, self.overwrite)?;
        let made = self.partial.make_rooms();
        made.map_err(|source| write_error(&self.partial.path, source))
    }

    /// The same target, its files written in another way from now on.
    #[must_use]
    pub fn with_access(mut self, access: Access) -> LocalTarget {
        self.access = access;
        self
    }

    /// Bytes that may still be written to the file system of the target, as it says.
    pub fn available_bytes(&self) -> Result<u64, Error> {
        let path = &self.partial.path;
        let state = rustix::fs::statvfs(path).map_err(|errno| write_error(path, errno.into()))?;
        Ok(state.f_bavail.saturating_mul(state.f_frsize))
    }

    fn made(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name that errors show for a file of the tree.
    fn shown(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }

    fn refuse(&self, name: &str, source: io::Error) -> Error {
        write_error(Path::new(&self.shown(name)), source)
    }

    fn sink(&self, name: &str, file: File) -> Box<dyn Sink> {
        let path = self.partial.tree().path(name);
        Box::new(LocalSink::new(file, path, self.shown(name), self.access))
    }

    /// Refuses a name that is not one of a file, and any where the target has ended.
    fn check_name(&self, name: &str) -> Result<(), Error> {
        check_name(name, &Location::file(&self.name))?;
        let checked = self.partial.check();
        checked.map_err(|source| self.refuse(name, source))
    }

    /// The same for a journal.
    fn check_journal(&self, name: &str) -> Result<(), Error> {
        check_part(name, &Location::file(&self.name))?;
        self.check_name(name)
    }

    /// Removes the directory under construction.
    fn remove(&mut self) -> Result<(), Error> {
        self.partial.remove()?;
        self.is_left = true;
        Ok(())
    }

    /// [`Target::commit`], with `exchange` to swap the result with an older one.
    fn commit_with(
        mut self,
        exchange: impl Fn(&Path, &Path) -> io::Result<()>,
    ) -> Result<(), Error> {
        if self.role == Role::Joined {
            return Err(Error::TargetJoined {
                location: Location::file(&self.name),
            });
        }
        // What a journal speaks of is there for the next attempt until it is published.
        let is_continuable = self.partial.journals().names();
        self.is_left |= is_continuable.is_ok_and(|names| !names.is_empty());
        self.partial.tree().sync()?;
        self.publish(exchange)?;
        // The older result is there from now on, which nothing may remove before the new one is durable.
        self.is_left = true;
        // Here rather than only on drop, so that an old result that cannot be deleted is told.
        let settled = self.sync_published().and_then(|()| self.remove());
        settled.map_err(|source| Error::Unsettled {
            location: Location::file(&self.name),
            source: Box::new(source),
        })
    }

    /// Puts `tree`, which has been synced, under the final name. If it fails, everything is where it was.
    fn publish(&self, exchange: impl Fn(&Path, &Path) -> io::Result<()>) -> Result<(), Error> {
        let occupant = occupant(&self.place, &self.name, self.overwrite)?;
        let moved = self.move_tree(&occupant, exchange);
        moved.map_err(|source| match self.partial.undo_commit() {
            Ok(()) => write_error(Path::new(&self.name), source),
            Err(undoing) => write_error(&self.partial.path, undoing),
        })
    }

    /// The renames of a commit.
    fn move_tree(
        &self,
        occupant: &Occupant,
        exchange: impl Fn(&Path, &Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let done = self.partial.path.join(DONE);
        self.partial.retire_journals()?;
        fs::rename(self.partial.tree().0, &done)?;
        match occupant {
            Occupant::Nothing => fs::rename(&done, &self.place),
            Occupant::Directory => match exchange(&done, &self.place) {
                Err(error) if is_unsupported(&error) => {
                    fs::rename(&self.place, self.partial.path.join(OLD))?;
                    fs::rename(&done, &self.place)
                }
                exchanged => exchanged,
            },
        }
    }

    /// Makes what was published survive a power loss.
    fn sync_published(&self) -> Result<(), Error> {
        sync_directory(&self.partial.path)?;
        for parent in self.place.parent().into_iter().chain(self.parents.above()) {
            sync_directory(parent)?;
        }
        Ok(())
    }
}

impl Target for LocalTarget {
    fn name(&self) -> &str {
        &self.name
    }

    fn create(&self, name: &str) -> Result<Box<dyn Sink>, Error> {
        self.check_name(name)?;
        if !self.made().insert(name.to_owned()) {
            return Err(self.refuse(name, io::ErrorKind::AlreadyExists.into()));
        }
        let tree = self.partial.tree();
        let file = match self.role {
            Role::Created => tree.create_new(name),
            Role::Resumed | Role::Joined => tree.replace(name),
        };
        let file = file.map_err(|source| {
            self.made().remove(name);
            self.refuse(name, source)
        })?;
        Ok(self.sink(name, file))
    }

    fn reopen(&self, name: &str) -> Result<Box<dyn Sink>, Error> {
        self.check_name(name)?;
        let tree = self.partial.tree();
        let is_new = tree.length(name)?.is_none();
        let file = tree.reopen(name);
        let file = file.map_err(|source| self.refuse(name, source))?;
        self.made().insert(name.to_owned());
        if is_new {
            // What a journal will say of it is of no use where its name does not survive.
            tree.sync_above(name)?;
        }
        Ok(self.sink(name, file))
    }

    fn retain(&self, names: &BTreeSet<String>) -> Result<(), Error> {
        let path = &self.partial.path;
        (self.partial.check()).map_err(|source| write_error(path, source))?;
        self.made().retain(|made| names.contains(made));
        self.partial.tree().retain(names)
    }

    fn journal(&self, name: &str) -> Result<Box<dyn Journal>, Error> {
        self.check_journal(name)?;
        Ok(Box::new(self.partial.journals().open(name)?))
    }

    fn journals(&self) -> Result<Vec<String>, Error> {
        let path = &self.partial.path;
        (self.partial.check()).map_err(|source| write_error(path, source))?;
        self.partial.journals().names()
    }

    fn read_journal(&self, name: &str) -> Result<Vec<u8>, Error> {
        self.check_journal(name)?;
        self.partial.journals().read(name)
    }

    fn is_held(&self, name: &str) -> Result<Option<bool>, Error> {
        self.check_journal(name)?;
        self.partial.journals().is_held(name)
    }

    fn require_bytes(&self, needed: u64) -> Result<(), Error> {
        let available = self.available_bytes()?;
        if available >= needed {
            return Ok(());
        }
        let location = self.name.clone();
        Err(Error::NoSpace {
            location,
            needed,
            available,
        })
    }

    fn enter(&mut self, plan: &str) -> Result<(), Error> {
        check_part(plan, &Location::file(&self.name))?;
        let entered = self.partial.enter_plan(plan);
        entered.map_err(|source| write_error(&self.partial.path, source))
    }

    fn other_plans(&self) -> Result<Vec<String>, Error> {
        self.partial.other_plans()
    }

    fn remove_other_plans(&self) -> Result<(), Error> {
        self.partial.remove_other_plans()
    }

    fn length(&self, name: &str) -> Result<Option<u64>, Error> {
        self.check_name(name)?;
        self.partial.tree().length(name)
    }

    fn discard(mut self: Box<Self>) -> Result<(), Error> {
        match self.role {
            Role::Joined => Ok(()),
            Role::Created | Role::Resumed => self.remove(),
        }
    }

    fn suspend(mut self: Box<Self>) -> Result<(), Error> {
        self.is_left = true;
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), Error> {
        self.commit_with(|from, to| {
            renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE).map_err(io::Error::from)
        })
    }
}

impl Drop for LocalTarget {
    fn drop(&mut self) {
        // Without a commit an error is on its way already, and what cannot be removed carries the marker: the next run
        // for this target will remove it.
        if !self.is_left {
            let _ = self.remove();
        }
    }
}

#[cfg(test)]
mod tests;
