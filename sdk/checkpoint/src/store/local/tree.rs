//! The files of a target under construction.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::{RACES, read_error, sync_directory, write_error};
use crate::Error;

/// A directory tree by its root. The root itself is never made here: once it has been moved or removed, nothing more is
/// written into it.
#[derive(Debug)]
pub(super) struct Tree(pub(super) PathBuf);

impl Tree {
    /// Where a file of that name lies.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a file that is not there, and the directories above it.
    pub(super) fn create_new(&self, name: &str) -> io::Result<File> {
        self.open_with(name, OpenOptions::new().write(true).create_new(true))
    }

    /// Makes a file in the place of any that is there.
    pub(super) fn replace(&self, name: &str) -> io::Result<File> {
        // Removed rather than cut, so that whoever still has the old one open cannot reach into the new.
        match fs::remove_file(self.path(name)) {
            Err(error) if !is_absent(&error) => Err(error),
            _ => self.create_new(name),
        }
    }

    /// Opens a file as it is, or makes it.
    pub(super) fn reopen(&self, name: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        self.open_with(name, options.write(true).create(true).truncate(false))
    }

    /// The length of a file; nothing if it is not there.
    pub(super) fn length(&self, name: &str) -> Result<Option<u64>, Error> {
        match fs::symlink_metadata(self.path(name)) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if is_absent(&error) => Ok(None),
            Err(source) => Err(read_error(&self.path(name).display().to_string(), source)),
        }
    }

    /// Syncs the directories above a file, up to the one that the root lies in.
    pub(super) fn sync_above(&self, name: &str) -> Result<(), Error> {
        let mut directory = self.path(name);
        while directory != self.0 && directory.pop() {
            sync_directory(&directory)?;
        }
        self.0.parent().map_or(Ok(()), sync_directory)
    }

    fn open_with(&self, name: &str, options: &OpenOptions) -> io::Result<File> {
        let path = self.path(name);
        let mut opened = Err(io::ErrorKind::NotFound.into());
        for _ in 0..RACES {
            opened = self
                .make_directories(name)
                .and_then(|()| options.open(&path));
            // Somebody else may have removed a directory again, which was empty.
            if !opened.as_ref().is_err_and(is_absent) {
                break;
            }
        }
        opened
    }

    /// Makes the directories above a file.
    fn make_directories(&self, name: &str) -> io::Result<()> {
        let mut directory = self.0.clone();
        let (above, _) = name.rsplit_once('/').unwrap_or_default();
        for part in above.split('/').filter(|part| !part.is_empty()) {
            directory.push(part);
            match fs::create_dir(&directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes every file that is not named, and every directory that holds none.
    pub(super) fn retain(&self, names: &BTreeSet<String>) -> Result<(), Error> {
        retain_below(&self.0, "", names)
    }

    /// Syncs every file and directory below, and the root.
    pub(super) fn sync(&self) -> Result<(), Error> {
        let mut directories = vec![self.0.clone()];
        while let Some(directory) = directories.pop() {
            let refuse = |source| write_error(&directory, source);
            for entry in fs::read_dir(&directory).map_err(refuse)? {
                let entry = entry.map_err(refuse)?;
                let path = entry.path();
                if entry.file_type().map_err(refuse)?.is_dir() {
                    directories.push(path);
                    continue;
                }
                File::open(&path)
                    .and_then(|file| file.sync_all())
                    .map_err(|source| write_error(&path, source))?;
            }
            sync_directory(&directory)?;
        }
        Ok(())
    }
}

/// [`Tree::retain`] in one directory, whose name in the tree is `prefix` with a `/` at its end.
fn retain_below(directory: &Path, prefix: &str, names: &BTreeSet<String>) -> Result<(), Error> {
    let refuse = |source| write_error(directory, source);
    for entry in fs::read_dir(directory).map_err(refuse)? {
        let entry = entry.map_err(refuse)?;
        let path = entry.path();
        let name = entry
            .file_name()
            .to_str()
            .map(|part| format!("{prefix}{part}"));
        if entry.file_type().map_err(refuse)?.is_dir() {
            // One whose name is no text holds nothing that could be named.
            let prefix = name.map_or("/".to_owned(), |name| format!("{name}/"));
            retain_below(&path, &prefix, names)?;
            // Fails if something is left in it.
            let _ = fs::remove_dir(&path);
        } else if name.is_none_or(|name| !names.contains(&name)) {
            match fs::remove_file(&path) {
                Err(error) if !is_absent(&error) => return Err(write_error(&path, error)),
                _ => {}
            }
        }
    }
    Ok(())
}

fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_made_where_the_root_is_gone() {
        let scratch = tempfile::tempdir().unwrap();
        let tree = Tree(scratch.path().join("tree"));
        for name in ["a", "b/c"] {
            for opened in [tree.create_new(name), tree.replace(name), tree.reopen(name)] {
                assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::NotFound);
            }
        }
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn files_are_made_while_their_directories_are_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let tree = &Tree(scratch.path().to_owned());
        let kept: &BTreeSet<String> = &(0..3).map(|file| format!("a/b/{file}")).collect();
        std::thread::scope(|scope| {
            for name in kept {
                scope.spawn(move || {
                    for _ in 0..300 {
                        tree.reopen(name).unwrap();
                        fs::remove_file(tree.path(name)).unwrap();
                    }
                });
            }
            for _ in 0..600 {
                tree.retain(kept).unwrap();
            }
        });
        tree.retain(kept).unwrap();
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
}
