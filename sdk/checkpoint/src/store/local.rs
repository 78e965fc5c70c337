//! A directory of the file system to read from; [`target`] has the one to write.
//!
//! Reading is by offset (`pread`), without a memory map and without a shared cursor, so that any number of threads may
//! read one file. The source directory is only ever opened for reading.

pub mod overlap;
pub mod target;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rialto_tensor::Location;

use super::{FileEntry, Source, Store, check_name};
use crate::Error;

pub use overlap::refuse_overlap;
pub use target::{LocalTarget, Overwrite};

/// A directory of the file system.
#[derive(Debug)]
pub struct LocalStore {
    root: PathBuf,
    name: String,
}

impl LocalStore {
    /// Opens a directory. Errors: [`Error::NotFound`], [`Error::NotDirectory`], [`Error::Read`].
    pub fn open(path: impl AsRef<Path>) -> Result<LocalStore, Error> {
        let root = path.as_ref().to_path_buf();
        let name = root.display().to_string();
        let metadata = fs::metadata(&root).map_err(|source| read_error(&name, source))?;
        if !metadata.is_dir() {
            return Err(Error::NotDirectory {
                location: Location::file(name),
            });
        }
        Ok(LocalStore { root, name })
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
        check_name(name, &Location::file(&self.name))?;
        let path = self.root.join(name);
        let shown = path.display().to_string();
        let refuse = |source| read_error(&shown, source);
        // Asked before opening, because opening a named pipe waits for a writer.
        if !fs::metadata(&path).map_err(refuse)?.is_file() {
            return Err(Error::NotRegular {
                location: Location::file(shown),
            });
        }
        let file = File::open(&path).map_err(refuse)?;
        let len = file.metadata().map_err(refuse)?.len();
        Ok(Box::new(LocalSource {
            file,
            name: shown,
            len,
        }))
    }
}

fn read_error(name: &str, source: io::Error) -> Error {
    let location = Location::file(name);
    match source.kind() {
        io::ErrorKind::NotFound => Error::NotFound { location },
        _ => Error::Read { location, source },
    }
}

#[derive(Debug)]
struct LocalSource {
    file: File,
    name: String,
    len: u64,
}

impl Source for LocalSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let end = offset.saturating_add(buffer.len() as u64);
        let location = Location::file(&self.name).with_bytes(offset, end);
        // What was appended after opening is not part of the file that was opened.
        if end > self.len {
            return Err(Error::ShortRead {
                location,
                len: self.len,
            });
        }
        match self.file.read_exact_at(buffer, offset) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Error::ShortRead {
                location,
                len: self.file.metadata().map_or(offset, |now| now.len()),
            }),
            Err(source) => Err(Error::Read { location, source }),
        }
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
    fn fc_41_a_file_that_shrinks_while_open_is_an_error_with_file_and_offset() {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("w"), [7; 100]).unwrap();
        let source = LocalStore::open(scratch.path()).unwrap().open("w").unwrap();
        let file = File::options().write(true).open(scratch.path().join("w"));
        file.unwrap().set_len(10).unwrap();
        let error = source.read_at(8, &mut [0; 8]).unwrap_err();
        let Error::ShortRead { location, len: 10 } = &error else {
            panic!("{error}")
        };
        assert_eq!(location.bytes, Some(rialto_tensor::ByteRange::new(8, 16)));
        assert!(location.file.as_ref().unwrap().ends_with("/w"), "{error}");
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
