//! A file open twice: through the page cache, and past it for what is large.
//!
//! A call of at least [`DIRECT_MIN`] bytes is cut where pages begin:
//!
//! ```text
//!            | page       | page       | page       | page       |
//!   the call      |-----------------------------------------|
//!                 | head  |     body, past the cache    | tail |
//! ```
//!
//! Head and tail share their pages with neighbors, who may be at work on them, and the tail may share its page with the
//! end of the file: they go through the cache, where the kernel keeps the parts of a page together. Where the caller's
//! memory lies in pages as the file does, the body goes straight to it or from it, and elsewhere by a block that each
//! thread keeps; a read by blocks takes the pages of head and tail along.
//!
//! Nothing rests on a direct call being whole: what one leaves undone, at the end of a file or for whatever reason, is
//! done through the cache, which has the exact last word on where a file ends.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, OFlags, fadvise, fstatfs};
use rustix::io::Errno;

use crate::store::{PAGE, PageBuffer};

/// Calls of fewer bytes go through the page cache.
pub const DIRECT_MIN: u64 = 256 << 10;

/// The most that goes past the page cache by way of a copy at a time, in bytes: every thread that reads or writes has
/// memory for it and a page more, once one of its calls was large and did not lie in pages as the file does.
pub const DIRECT_BLOCK: u64 = 1 << 20;

const PAGE_LEN: usize = PAGE as usize;

thread_local! {
    static BLOCK: RefCell<PageBuffer> = const { RefCell::new(PageBuffer::new()) };
}

/// How the bytes of local files are read and written; it changes no result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// What is large goes past the page cache (`O_DIRECT`) where the file system can do that.
    #[default]
    Auto,
    /// As [`Access::Auto`], but where the file system cannot do it, that is an error.
    Direct,
    /// Everything goes through the page cache, in which nothing large is kept.
    Buffered,
}

/// Whether a file's bytes lie in memory and nowhere else: there is no device that could be read past the cache, and nothing
/// to be taken from it in advance.
pub(super) fn is_in_memory(file: &File) -> bool {
    // The magic numbers of tmpfs and ramfs, from the manual page of statfs.
    const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];
    fstatfs(file).is_ok_and(|state| IN_MEMORY.contains(&state.f_type))
}

/// A file open for reading or for writing, with the second way in.
#[derive(Debug)]
pub(super) struct DirectFile {
    buffered: File,
    /// Where `buffered` was opened, and how.
    path: PathBuf,
    is_written: bool,
    access: Access,
    /// Opened by the first large call; `None` where it cannot be opened and need not.
    direct: OnceLock<Option<File>>,
    /// Whether a call past the cache was refused; set by the call, never unset.
    is_refused: AtomicBool,
}

impl DirectFile {
    pub(super) fn for_reading(buffered: File, path: PathBuf, access: Access) -> DirectFile {
        DirectFile {
            buffered,
            path,
            is_written: false,
            access,
            direct: OnceLock::new(),
            is_refused: AtomicBool::new(false),
        }
    }

    pub(super) fn for_writing(buffered: File, path: PathBuf, access: Access) -> DirectFile {
        DirectFile {
            is_written: true,
            ..DirectFile::for_reading(buffered, path, access)
        }
    }

    pub(super) fn buffered(&self) -> &File {
        &self.buffered
    }

    /// As [`FileExt::read_exact_at`].
    pub(super) fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let Some(direct) = self.direct_for(offset, buffer.len())? else {
            return self.read_buffered(offset, buffer);
        };
        let done = if lies_in_pages(offset, buffer) {
            let (head, body) = cut(offset, buffer.len());
            self.read_buffered(offset, &mut buffer[..head])?;
            head + self.read_pages(direct, offset + head as u64, &mut buffer[head..head + body])?
        } else {
            self.read_by_blocks(direct, offset, buffer)?
        };
        self.read_buffered(offset + done as u64, &mut buffer[done..])
    }

    /// As [`FileExt::write_all_at`].
    pub(super) fn write_all_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let Some(direct) = self.direct_for(offset, bytes.len())? else {
            return self.buffered.write_all_at(bytes, offset);
        };
        let (head, body) = cut(offset, bytes.len());
        self.buffered.write_all_at(&bytes[..head], offset)?;
        let (at, pages) = (offset + head as u64, &bytes[head..head + body]);
        let done = if lies_in_pages(offset, bytes) {
            self.write_pages(direct, at, pages)?
        } else {
            by_blocks(pages, |done, copy| {
                self.write_pages(direct, at + done as u64, copy)
            })?
        };
        self.buffered
            .write_all_at(&bytes[head + done..], at + done as u64)
    }

    /// Asks the kernel to keep no page of a range, or of all that follows for no length. What it does is up to it.
    pub(super) fn drop_cached(&self, offset: u64, len: usize) {
        let _ = fadvise(
            &self.buffered,
            offset,
            NonZeroU64::new(len as u64),
            Advice::DontNeed,
        );
    }

    fn read_buffered(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.buffered.read_exact_at(buffer, offset)?;
        if buffer.len() as u64 >= DIRECT_MIN {
            self.drop_cached(offset, buffer.len());
        }
        Ok(())
    }

    /// The file past the cache, if a call is to go there. Errors: only with [`Access::Direct`], the reason to open it.
    fn direct_for(&self, offset: u64, len: usize) -> io::Result<Option<&File>> {
        let is_large = len as u64 >= DIRECT_MIN && offset.checked_add(len as u64).is_some();
        let is_refused = self.is_refused.load(Ordering::Relaxed);
        if !is_large || is_refused || self.access == Access::Buffered {
            return Ok(None);
        }
        if let Some(opened) = self.direct.get() {
            return Ok(opened.as_ref());
        }
        let opened = match self.open_direct() {
            Ok(file) => Some(file),
            Err(error) if self.access == Access::Direct => return Err(error),
            // Whatever the reason is: a file that cannot be read or written at all will say so through the cache.
            Err(_) => None,
        };
        Ok(self.direct.get_or_init(|| opened).as_ref())
    }

    fn open_direct(&self) -> io::Result<File> {
        if self.access == Access::Auto && is_in_memory(&self.buffered) {
            // It would go through the cache all the same, in steps and with one copy more.
            return Err(io::ErrorKind::Unsupported.into());
        }
        let file = OpenOptions::new()
            .read(!self.is_written)
            .write(self.is_written)
            .custom_flags(OFlags::DIRECT.bits().cast_signed())
            .open(&self.path)?;
        let (first, second) = (self.buffered.metadata()?, file.metadata()?);
        if (first.dev(), first.ino()) != (second.dev(), second.ino()) {
            return Err(io::Error::other("another file has taken its name"));
        }
        Ok(file)
    }

    /// Whether a direct call may be made up for through the cache: the file system, or a sector larger than a page, does
    /// not allow it.
    fn falls_back(&self, error: &io::Error) -> bool {
        let refused = [Errno::INVAL, Errno::OPNOTSUPP].map(|errno| Some(errno.raw_os_error()));
        let falls_back = self.access == Access::Auto && refused.contains(&error.raw_os_error());
        if falls_back {
            self.is_refused.store(true, Ordering::Relaxed);
        }
        falls_back
    }

    /// Goes through `len` bytes by direct calls, each of which says how many it did from where it is told to begin. Stops
    /// before the end where going on would not be in whole pages. Returns how many were done.
    fn proceed(
        &self,
        len: usize,
        mut call: impl FnMut(usize) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut done = 0;
        while done < len {
            match call(done) {
                Ok(more) => {
                    done += more;
                    if more == 0 || more % PAGE_LEN != 0 {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if self.falls_back(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn read_pages(&self, direct: &File, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        self.proceed(pages.len(), |done| {
            direct.read_at(&mut pages[done..], offset + done as u64)
        })
    }

    fn write_pages(&self, direct: &File, offset: u64, pages: &[u8]) -> io::Result<usize> {
        self.proceed(pages.len(), |done| {
            direct.write_at(&pages[done..], offset + done as u64)
        })
    }

    /// Reads the pages that hold a range, and returns how many bytes of the range, from its start, it got.
    fn read_by_blocks(&self, direct: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        BLOCK.with_borrow_mut(|block| {
            let mut done = 0;
            while done < buffer.len() {
                let at = offset + done as u64;
                let skipped = (at % PAGE) as usize;
                let rest = buffer.len() - done;
                let wanted = (skipped + rest)
                    .next_multiple_of(PAGE_LEN)
                    .min(DIRECT_BLOCK as usize);
                let pages = block.at(0, wanted);
                let got = self.read_pages(direct, at - skipped as u64, pages)?;
                let useful = got.saturating_sub(skipped).min(rest);
                buffer[done..][..useful].copy_from_slice(&pages[skipped..][..useful]);
                done += useful;
                if got < wanted {
                    break;
                }
            }
            Ok(done)
        })
    }
}

/// Writes whole pages from memory that does not lie so, block by block: `write` is told how many bytes come before a block
/// and gets a copy of it. Returns how many bytes, from the first on, were written.
fn by_blocks(
    pages: &[u8],
    mut write: impl FnMut(usize, &[u8]) -> io::Result<usize>,
) -> io::Result<usize> {
    BLOCK.with_borrow_mut(|block| {
        let mut done = 0;
        for part in pages.chunks(DIRECT_BLOCK as usize) {
            let copy = block.at(0, part.len());
            copy.copy_from_slice(part);
            let wrote = write(done, copy)?;
            done += wrote;
            if wrote < part.len() {
                break;
            }
        }
        Ok(done)
    })
}

/// Whether memory lies in pages as the bytes of a file from `offset` on do.
fn lies_in_pages(offset: u64, memory: &[u8]) -> bool {
    (memory.as_ptr().addr() as u64)
        .abs_diff(offset)
        .is_multiple_of(PAGE)
}

/// The bytes of a large range before its first whole page, and in whole pages.
fn cut(offset: u64, len: usize) -> (usize, usize) {
    let head = (0u64.wrapping_sub(offset) % PAGE) as usize;
    (head, (len - head) / PAGE_LEN * PAGE_LEN)
}

#[cfg(test)]
mod tests;
