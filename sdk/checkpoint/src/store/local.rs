//! A directory of the file system to read from; [`target`] has the one to write.
//!
//! Reading is by offset (`pread`), without a memory map and without a shared cursor, so that any number of threads may
//! read one file. The source directory is only ever opened for reading. What is large goes past the page cache: [`direct`].

pub mod direct;
pub mod overlap;
pub mod target;

mod journal;
mod partial;
mod place;
mod sink;
mod source;
mod tree;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rialto_tensor::Location;
use rustix::io::Errno;

use super::{FileEntry, Source, Stamp, Store, check_name};
use crate::Error;
use source::LocalSource;

pub use direct::{Access, DIRECT_BLOCK, DIRECT_MIN};
pub use overlap::refuse_overlap;
pub use target::{LocalTarget, Overwrite};

/// A directory of the file system.
#[derive(Debug)]
pub struct LocalStore {
    root: PathBuf,
    name: String,
    access: Access,
}

impl LocalStore {
    /// Opens a directory. Errors: [`Error::NotFound`], [`Error::NotDirectory`], [`Error::Read`].
    pub fn open(path: impl AsRef<Path>) -> Result<LocalStore, Error> {
        let root = path.as_ref().to_path_buf();
        let name = root.display().to_string();
        let metadata = fs::metadata(&root).map_err(|source| {
            not_a_directory(&root, &source).unwrap_or_else(|| read_error(&name, source))
        })?;
        if !metadata.is_dir() {
            return Err(Error::NotDirectory {
                location: Location::file(name),
            });
        }
        Ok(LocalStore {
            root,
            name,
            access: Access::default(),
        })
    }

    /// The same directory, its files read in another way.
    #[must_use]
    pub fn with_access(self, access: Access) -> LocalStore {
        LocalStore { access, ..self }
    }

    /// Where a file of that name is, and what the system says of it. Errors: as [`Store::open`].
    fn find(&self, name: &str) -> Result<(PathBuf, fs::Metadata), Error> {
        check_name(name, &Location::file(&self.name))?;
        let path = self.root.join(name);
        let shown = path.display().to_string();
        let metadata = fs::metadata(&path).map_err(|source| read_error(&shown, source))?;
        if !metadata.is_file() {
            return Err(Error::NotRegular {
                location: Location::file(shown),
            });
        }
        Ok((path, metadata))
    }

    /// Every file below, and every directory that is a link, each in order of name.
    fn walk(&self) -> Result<(Vec<FileEntry>, Vec<String>), Error> {
        let (mut files, mut linked) = (Vec::new(), Vec::new());
        let mut directories = vec![String::new()];
        while let Some(directory) = directories.pop() {
            self.list(&directory, &mut files, &mut directories, &mut linked)?;
        }
        files.sort();
        linked.sort();
        Ok((files, linked))
    }

    /// Lists one directory into `files`, and its subdirectories into `directories`; both as names with their path.
    fn list(
        &self,
        directory: &str,
        files: &mut Vec<FileEntry>,
        directories: &mut Vec<String>,
        linked: &mut Vec<String>,
    ) -> Result<(), Error> {
        let path = self.root.join(directory);
        let refuse = |source| read_error(&path.display().to_string(), source);
        for entry in fs::read_dir(&path).map_err(refuse)? {
            let entry = entry.map_err(refuse)?;
            let Some(part) = entry.file_name().to_str().map(str::to_owned) else {
                let reason = io::Error::new(io::ErrorKind::InvalidData, "its name is not UTF-8");
                return Err(read_error(&entry.path().display().to_string(), reason));
            };
            let name = match directory {
                "" => part.clone(),
                _ => format!("{directory}/{part}"),
            };
            let kind = entry.file_type().map_err(refuse)?;
            if kind.is_dir() {
                if !part.starts_with('.') {
                    directories.push(name);
                }
                continue;
            }
            // Follows a link. One that leads nowhere is an error: what it stood for would be lost without a word.
            let shown = || entry.path().display().to_string();
            let metadata =
                fs::metadata(entry.path()).map_err(|error| read_error(&shown(), error))?;
            if metadata.is_file() {
                let len = metadata.len();
                files.push(FileEntry { name, len });
            } else if metadata.is_dir() {
                linked.push(name);
            }
        }
        Ok(())
    }
}

impl Store for LocalStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn files(&self) -> Result<Vec<FileEntry>, Error> {
        Ok(self.walk()?.0)
    }

    fn linked_directories(&self) -> Result<Vec<String>, Error> {
        Ok(self.walk()?.1)
    }

    fn open(&self, name: &str) -> Result<Box<dyn Source>, Error> {
        // Asked before opening, because opening a named pipe waits for a writer.
        let (path, _) = self.find(name)?;
        let refuse = |source| read_error(&path.display().to_string(), source);
        let file = File::open(&path).map_err(refuse)?;
        let len = file.metadata().map_err(refuse)?.len();
        Ok(Box::new(LocalSource::new(file, path, len, self.access)))
    }

    fn stamp(&self, name: &str) -> Result<Stamp, Error> {
        let (_, metadata) = self.find(name)?;
        Ok(Stamp {
            len: metadata.len(),
            modified_ns: modified_ns(&metadata),
        })
    }
}

/// When a file was last written, in nanoseconds since 1970; `None` for before, and for after 2554.
fn modified_ns(metadata: &fs::Metadata) -> Option<u64> {
    let seconds = u64::try_from(metadata.mtime()).ok()?;
    let nanoseconds = u32::try_from(metadata.mtime_nsec()).ok()?;
    u64::try_from(Duration::new(seconds, nanoseconds).as_nanos()).ok()
}

/// How often something is tried again that others come and go in.
const RACES: usize = 16;

/// How long is waited in between for something that others have for a moment.
const PAUSE: Duration = Duration::from_millis(5);

fn write_error(path: &Path, source: io::Error) -> Error {
    Error::Write {
        location: Location::file(path.display().to_string()),
        source,
    }
}

/// Whether the name is taken, if only by a link that leads nowhere.
fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Whether the file system has no locks, as opposed to one that is taken.
fn has_no_locks(error: &io::Error) -> bool {
    // ENOLCK is what NFS says where nobody serves its locks.
    is_unsupported(error) || error.raw_os_error() == Some(Errno::NOLCK.raw_os_error())
}

/// Whether an open file is the one of that name now.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

fn sync_directory(directory: &Path) -> Result<(), Error> {
    match File::open(directory).and_then(|file| file.sync_all()) {
        // Some file systems have nothing to sync in a directory and say so.
        Err(error) if !is_unsupported(&error) => Err(write_error(directory, error)),
        _ => Ok(()),
    }
}

/// Whether the file system lacks the operation, as opposed to refusing it.
fn is_unsupported(error: &io::Error) -> bool {
    // EINVAL is how a file system says that it does not know a flag.
    matches!(
        error.kind(),
        io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput
    )
}

/// That something above a path is no directory, if that is what the system says of the path.
fn not_a_directory(path: &Path, error: &io::Error) -> Option<Error> {
    if error.kind() != io::ErrorKind::NotADirectory {
        return None;
    }
    let mut above = path.ancestors().skip(1);
    let in_the_way = above.find(|above| is_there(above)).unwrap_or(path);
    Some(Error::NotDirectory {
        location: Location::file(in_the_way.display().to_string()),
    })
}

fn read_error(name: &str, source: io::Error) -> Error {
    let location = Location::file(name);
    match source.kind() {
        io::ErrorKind::NotFound => Error::NotFound { location },
        _ => Error::Read { location, source },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_missing_directory_and_a_file_are_no_store() {
        let scratch = tempfile::tempdir().unwrap();
        let missing = LocalStore::open(scratch.path().join("x")).unwrap_err();
        assert!(matches!(missing, Error::NotFound { .. }), "{missing}");
        fs::write(scratch.path().join("f"), b"").unwrap();
        let file = LocalStore::open(scratch.path().join("f")).unwrap_err();
        assert!(matches!(file, Error::NotDirectory { .. }), "{file}");
    }

    #[test]
    fn a_stamp_tells_that_a_file_was_written_again() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("f");
        fs::write(&path, b"12345").unwrap();
        let store = LocalStore::open(scratch.path()).unwrap();
        let stamp = store.stamp("f").unwrap();
        assert_eq!(stamp, store.stamp("f").unwrap());
        let at = |nanoseconds| std::time::UNIX_EPOCH + Duration::from_nanos(nanoseconds);
        assert!(stamp.modified_ns.unwrap() > 1_700_000_000_000_000_000);
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(at(1_000_000_007)).unwrap();
        let later = store.stamp("f").unwrap();
        assert_eq!((later.len, later.modified_ns), (5, Some(1_000_000_007)));
        file.set_modified(at(0) - Duration::from_nanos(1)).unwrap();
        assert_eq!(store.stamp("f").unwrap().modified_ns, None);
        let text = serde_json::to_string(&later).unwrap();
        assert_eq!(serde_json::from_str::<Stamp>(&text).unwrap(), later);
    }

    #[test]
    fn fc_40_nothing_is_changed_in_a_source_that_is_read() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("f");
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        let fixed = std::time::UNIX_EPOCH + Duration::from_secs(1);
        for place in [&path, scratch.path()] {
            File::open(place).unwrap().set_modified(fixed).unwrap();
            let mut permissions = fs::metadata(place).unwrap().permissions();
            permissions.set_readonly(true);
            fs::set_permissions(place, permissions).unwrap();
        }
        for access in [Access::Auto, Access::Buffered] {
            let store = LocalStore::open(scratch.path()).unwrap();
            let store = store.with_access(access);
            let source = store.open("f").unwrap();
            source.read_at(0, &mut vec![0; 1 << 20]).unwrap();
            store.stamp("f").unwrap();
        }
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
        for place in [&path, scratch.path()] {
            assert_eq!(fs::metadata(place).unwrap().modified().unwrap(), fixed);
        }
    }

    #[test]
    fn links_to_files_are_listed_and_links_to_directories_are_not() {
        let scratch = tempfile::tempdir().unwrap();
        let (root, blobs) = (
            scratch.path().join("snapshot"),
            scratch.path().join("blobs"),
        );
        fs::create_dir_all(root.join("sub/.cache")).unwrap();
        fs::create_dir(&blobs).unwrap();
        fs::write(blobs.join("abc"), b"12345").unwrap();
        fs::write(root.join("sub/.cache/hidden"), b"").unwrap();
        fs::write(root.join("sub/.gitkeep"), b"").unwrap();
        symlink(blobs.join("abc"), root.join("config.json")).unwrap();
        symlink(&blobs, root.join("linked")).unwrap();
        let store = LocalStore::open(&root).unwrap();
        let files = store.files().unwrap();
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["config.json", "sub/.gitkeep"]);
        assert_eq!(files[0].len, 5);
        assert!(matches!(store.open("absent"), Err(Error::NotFound { .. })));
        assert!(matches!(store.open("sub"), Err(Error::NotRegular { .. })));
    }
}
