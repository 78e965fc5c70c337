//! Memory that direct I/O can read into and write from: its address is as far into a page as its place in the file.

use std::fmt;

/// The unit of direct I/O in bytes: offsets, lengths and addresses are multiples of it.
pub const PAGE: u64 = 4096;

/// A block of memory that lies in pages as the bytes it is for lie in their file, so that [`Source::read_at`] and
/// [`Sink::write_at`] of a local file need no copy.
///
/// ```
/// use rialto_checkpoint::store::{PAGE, PageBuffer};
///
/// let mut buffer = PageBuffer::new();
/// let block = buffer.at(10_000, 1 << 20);
/// assert_eq!(block.as_ptr().addr() as u64 % PAGE, 10_000 % PAGE);
/// ```
///
/// [`Source::read_at`]: super::Source::read_at
/// [`Sink::write_at`]: super::Sink::write_at
#[derive(Default)]
pub struct PageBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl PageBuffer {
    /// A buffer without memory.
    #[must_use]
    pub const fn new() -> PageBuffer {
        PageBuffer {
            memory: Vec::new(),
            start: 0,
            len: 0,
        }
    }

    /// Room for `len` bytes of a file from `offset` on. Whatever the memory held is still in it, if perhaps elsewhere, or
    /// gone; it grows to `len` and a page more, and never shrinks.
    pub fn at(&mut self, offset: u64, len: usize) -> &mut [u8] {
        let needed = len.saturating_add(PAGE as usize);
        if self.memory.len() < needed {
            // Freed first and not copied: nothing in it is promised.
            self.memory = Vec::new();
            self.memory = vec![0; needed];
        }
        // `addr` rather than `align_offset`, which may answer that it cannot tell.
        let address = self.memory.as_ptr().addr() as u64;
        self.start = (offset.wrapping_sub(address) % PAGE) as usize;
        self.len = len;
        self.bytes_mut()
    }

    /// What [`PageBuffer::at`] gave last.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }

    /// What [`PageBuffer::at`] gave last.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}

impl fmt::Debug for PageBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PageBuffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_address_is_as_far_into_a_page_as_the_offset() {
        let mut buffer = PageBuffer::new();
        assert_eq!(buffer.bytes(), b"");
        for len in [0, 1, 4095, 4096, 4097, 100_000, 5] {
            for offset in [0, 1, 511, 4095, 4096, 10_000, u64::MAX] {
                let block = buffer.at(offset, len);
                assert_eq!(block.len(), len);
                assert_eq!(block.as_ptr().addr() as u64 % PAGE, offset % PAGE);
            }
        }
    }

    #[test]
    fn the_slice_last_made_stays_and_the_memory_only_grows() {
        let mut buffer = PageBuffer::new();
        buffer.at(7, 100_000).fill(1);
        let memory = buffer.memory.as_ptr();
        buffer.at(8, 3).copy_from_slice(b"abc");
        assert_eq!(
            (buffer.memory.as_ptr(), buffer.bytes()),
            (memory, &b"abc"[..])
        );
        buffer.bytes_mut()[1] = b'x';
        assert_eq!(buffer.bytes(), b"axc");
        assert_eq!(format!("{buffer:?}"), "PageBuffer(3 bytes)");
    }
}
