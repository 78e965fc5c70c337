//! A file that costs nothing to open.

use rialto_checkpoint::Error;
use rialto_checkpoint::store::Source;
use rialto_tensor::Location;

/// Borrowed bytes, and after them as many zeros as a test wants: tensor data that nobody reads.
#[derive(Debug)]
pub(crate) struct BytesSource<'a> {
    bytes: &'a [u8],
    zeros: u64,
}

impl<'a> BytesSource<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> BytesSource<'a> {
        BytesSource { bytes, zeros: 0 }
    }

    pub(crate) fn with_zeros(bytes: &'a [u8], zeros: u64) -> BytesSource<'a> {
        BytesSource { bytes, zeros }
    }
}

impl Source for BytesSource<'_> {
    fn name(&self) -> &str {
        "fuzz"
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64 + self.zeros
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let end = offset.saturating_add(buffer.len() as u64);
        if end > self.len() {
            return Err(Error::ShortRead {
                location: Location::file(self.name()).with_bytes(offset, end),
                len: self.len(),
            });
        }
        let start =
            usize::try_from(offset).map_or(self.bytes.len(), |offset| offset.min(self.bytes.len()));
        let there = &self.bytes[start..];
        let there = &there[..there.len().min(buffer.len())];
        let (first, rest) = buffer.split_at_mut(there.len());
        first.copy_from_slice(there);
        rest.fill(0);
        Ok(())
    }
}
