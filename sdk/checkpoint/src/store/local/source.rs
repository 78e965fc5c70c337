//! A local file to read.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use rialto_tensor::Location;

use super::direct::{Access, DirectFile};
use crate::Error;
use crate::store::Source;

#[derive(Debug)]
pub(super) struct LocalSource {
    file: DirectFile,
    name: String,
    len: u64,
}

impl LocalSource {
    /// The file open as `file` and found at `path`, `len` bytes long.
    pub(super) fn new(file: File, path: PathBuf, len: u64, access: Access) -> LocalSource {
        LocalSource {
            name: path.display().to_string(),
            file: DirectFile::for_reading(file, path, access),
            len,
        }
    }
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
        match self.file.read_exact_at(offset, buffer) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Error::ShortRead {
                location,
                len: (self.file.buffered().metadata()).map_or(offset, |now| now.len()),
            }),
            Err(source) => Err(Error::Read { location, source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::store::{LocalStore, PageBuffer, Store};

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
    fn fc_41_a_large_read_of_a_file_that_shrank_says_where_it_ends_now() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("w");
        let offset = 1000;
        let mut buffer = PageBuffer::new();
        for access in [Access::Auto, Access::Buffered] {
            // Memory that lies as the file does, and memory that does not.
            for alignment in [offset, 0] {
                for len in [0, 999, 1001, 4096, 5000, 1 << 20, 2_000_000, 2_900_999] {
                    fs::write(&path, vec![7; 3_000_000]).unwrap();
                    let store = LocalStore::open(scratch.path()).unwrap();
                    let source = store.with_access(access).open("w").unwrap();
                    let file = File::options().write(true).open(&path).unwrap();
                    file.set_len(len).unwrap();
                    let buffer = buffer.at(alignment, 2_900_000);
                    let error = source.read_at(offset, buffer).unwrap_err();
                    let Error::ShortRead { len: found, .. } = &error else {
                        panic!("{error}")
                    };
                    assert_eq!(*found, len, "{access:?} {alignment}");
                    // And what is left of it can be read.
                    file.set_len(offset + 2_900_000).unwrap();
                    source.read_at(offset, buffer).unwrap();
                }
            }
        }
    }
}
