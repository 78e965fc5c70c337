//! A local file to write.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rialto_tensor::Location;
use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::io::Errno;

use super::direct::{Access, DirectFile, is_in_memory};
use super::is_unsupported;
use crate::Error;
use crate::store::Sink;

#[derive(Debug)]
pub(super) struct LocalSink {
    file: DirectFile,
    name: String,
}

impl LocalSink {
    /// The file open as `file` and found at `path`, which errors call `name`.
    pub(super) fn new(file: File, path: PathBuf, name: String, access: Access) -> LocalSink {
        LocalSink {
            file: DirectFile::for_writing(file, path, access),
            name,
        }
    }

    fn refuse(&self, source: io::Error) -> Error {
        Error::Write {
            location: Location::file(&self.name),
            source,
        }
    }
}

impl Sink for LocalSink {
    fn name(&self) -> &str {
        &self.name
    }

    fn reserve(&self, len: u64) -> Result<(), Error> {
        let file = self.file.buffered();
        allocate(file, len).map_err(|source| self.refuse(source))?;
        // Cuts off what an earlier attempt wrote beyond, and makes up for a file system that cannot allocate.
        file.set_len(len).map_err(|source| self.refuse(source))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all_at(offset, bytes).map_err(|source| {
            let end = offset.saturating_add(bytes.len() as u64);
            Error::Write {
                location: Location::file(&self.name).with_bytes(offset, end),
                source,
            }
        })
    }

    fn sync(&self) -> Result<(), Error> {
        let synced = self.file.buffered().sync_all();
        synced.map_err(|source| self.refuse(source))?;
        self.file.drop_cached(0, 0);
        Ok(())
    }
}

/// Bytes that a file may come to have where memory is all there is: those that it has, and what is free.
fn in_memory_room(file: &File) -> io::Result<u64> {
    let state = fstatvfs(file)?;
    let free = state.f_bavail.saturating_mul(state.f_frsize);
    // The unit of the count of blocks, whatever the file system.
    Ok(free.saturating_add(file.metadata()?.blocks() * 512))
}

/// Gives a file blocks for `len` bytes, where the file system has a notion of that. If it has no room, then the file is as
/// long as before, so that a full disk does not stay full.
fn allocate(file: &File, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    if is_in_memory(file) {
        // Pages of memory are cleared when they are taken: one thread would do now what several do as they write.
        return match in_memory_room(file)? < len {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        };
    }
    let before = file.metadata()?.len();
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, len) {
            Err(Errno::INTR) => {}
            Err(errno) if is_unsupported(&errno.into()) => return Ok(()),
            Err(errno) => {
                file.set_len(before)?;
                return Err(errno.into());
            }
            Ok(()) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Barrier;

    use super::*;
    use crate::store::PageBuffer;

    fn sink(path: &Path, access: Access) -> LocalSink {
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(false).open(path);
        LocalSink::new(file.unwrap(), path.to_owned(), "out/f".to_owned(), access)
    }

    #[test]
    fn neighbors_that_share_pages_write_at_once() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("f");
        // Ends within pages, and parts of more and of fewer bytes than go past the cache.
        let lengths = [
            300_001, 5, 1_100_003, 70_000, 262_144, 400_000, 4096, 611_111,
        ];
        for access in [Access::Auto, Access::Buffered] {
            for is_reserved in [false, true] {
                let _ = fs::remove_file(&path);
                let sink = sink(&path, access);
                if is_reserved {
                    sink.reserve(lengths.iter().sum::<usize>() as u64).unwrap();
                }
                let barrier = Barrier::new(lengths.len());
                std::thread::scope(|scope| {
                    let mut offset = 0;
                    for (part, len) in lengths.into_iter().enumerate() {
                        let (sink, barrier) = (&sink, &barrier);
                        scope.spawn(move || {
                            let mut buffer = PageBuffer::new();
                            let alignment = if part % 2 == 0 { offset } else { 1 };
                            let bytes = buffer.at(alignment, len);
                            bytes.fill(part as u8 + 1);
                            barrier.wait();
                            sink.write_at(offset, bytes).unwrap();
                        });
                        offset += len as u64;
                    }
                });
                sink.sync().unwrap();
                let expected: Vec<u8> = (1..)
                    .zip(lengths)
                    .flat_map(|(part, len)| std::iter::repeat_n(part, len))
                    .collect();
                assert!(fs::read(&path).unwrap() == expected, "{access:?}");
            }
        }
    }

    #[test]
    fn room_is_the_length_of_the_file_from_then_on() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("f");
        let sink = sink(&path, Access::Auto);
        sink.reserve(100_000).unwrap();
        sink.write_at(3, b"x").unwrap();
        sink.reserve(200_000).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!((bytes.len(), &bytes[..5]), (200_000, &b"\0\0\0x\0"[..]));
        // Less than an earlier attempt wrote.
        for len in [4, 0, 1] {
            sink.reserve(len).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), len);
        }
        sink.sync().unwrap();
    }

    #[test]
    fn fc_46_a_disk_without_room_is_told_with_the_file_and_left_as_it_was() {
        // A file system that compares before it allocates, so that the test fills no disk.
        let Ok(scratch) = tempfile::tempdir_in("/dev/shm") else {
            println!("SKIP: no /dev/shm");
            return;
        };
        let path = scratch.path().join("f");
        let sink = sink(&path, Access::Auto);
        sink.write_at(0, b"kept").unwrap();
        let error = sink.reserve(1 << 50).unwrap_err();
        let Error::Write { location, source } = &error else {
            panic!("{error}")
        };
        assert_eq!(source.kind(), io::ErrorKind::StorageFull, "{error}");
        assert_eq!(location.file.as_deref(), Some("out/f"));
        assert_eq!(fs::read(&path).unwrap(), b"kept");
    }
}
