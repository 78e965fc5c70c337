//! The zip stream of `torch.save`: stored records under one root folder, each tensor's bytes on a multiple of 64.
//!
//! ```text
//! item ┌ local header, data.pkl        what the object is, as a pickle
//!      │ local header, byteorder       `little`
//!      │ local header, version         `3`
//!      │ local header, data/0          padded so that the bytes begin on a multiple of 64
//!      │   the tensor's bytes
//!      │   data descriptor             their CRC, known only now
//!      │ central directory             the truth about every record
//!      └ zip64 end, its locator, end record
//! ```
//!
//! Numbers are little-endian and count from the beginning of the item, not of the file. Source: PKWARE APPNOTE 6.3.10
//! sections 4.3 and 4.5.3, and what PyTorch's `PyTorchStreamWriter` writes.

mod read;
mod write;

pub(crate) use read::Archive;
pub(crate) use write::{ArchiveWriter, StreamedArchive};

/// Tensor bytes begin on a multiple of this within their item.
pub(crate) const ALIGNMENT: u64 = 64;

const LOCAL_SIGNATURE: u32 = 0x0403_4b50;
const LOCAL_LEN: u64 = 30;
const DESCRIPTOR_SIGNATURE: u32 = 0x0807_4b50;
const CENTRAL_SIGNATURE: u32 = 0x0201_4b50;
const CENTRAL_LEN: usize = 46;
const ZIP64_END_SIGNATURE: u32 = 0x0606_4b50;
const ZIP64_END_LEN: usize = 56;
const ZIP64_LOCATOR_SIGNATURE: u32 = 0x0706_4b50;
const ZIP64_LOCATOR_LEN: usize = 20;
const END_SIGNATURE: u32 = 0x0605_4b50;
const END_LEN: usize = 22;
const ZIP64_EXTRA: u16 = 1;
/// The padding field of PyTorch.
const PADDING_EXTRA: u16 = u16::from_le_bytes(*b"FB");
/// In a 32-bit field: the value is in the zip64 field.
const IN_ZIP64: u32 = u32::MAX;

#[cfg(test)]
mod tests;
