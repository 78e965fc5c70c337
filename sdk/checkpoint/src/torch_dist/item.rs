//! One tensor as one `torch.save` stream, laid out before its bytes are known.
//!
//! Prefix, data and suffix are an item of a `.distcp` file. Their lengths follow from dtype and shape alone, so a plan can
//! place every item of a checkpoint and hand the holes to whoever streams the data.

use rialto_tensor::{Dtype, Location, Shape};

use super::pickle::PickleWriter;
use super::zip::{ArchiveWriter, StreamedArchive};
use crate::Error;

/// The folder in which torch puts the records of a stream that has no file name.
pub(super) const ROOT: &str = "archive";

/// The layout of one tensor's item: C-contiguous, little-endian, storage offset 0.
///
/// ```
/// use rialto_checkpoint::torch_dist::TensorItem;
/// use rialto_tensor::{Dtype, Shape};
///
/// let item = TensorItem::plan(Dtype::Bf16, &Shape::new([2, 3]))?;
/// assert_eq!(item.data_len(), 12);
/// assert_eq!(item.data_offset() % 64, 0);
///
/// let data = [0u8; 12];
/// let stream = [&item.prefix()[..], &data, &item.suffix(crc32fast::hash(&data))].concat();
/// assert_eq!(stream.len() as u64, item.len());
/// # Ok::<(), rialto_checkpoint::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorItem {
    dtype: Dtype,
    shape: Shape,
    data_offset: u64,
    data_len: u64,
    len: u64,
}

impl TensorItem {
    /// Lays out a tensor. Errors: [`Error::Tensor`] if its bytes do not fit in 63 bits, as torch counts them.
    pub fn plan(dtype: Dtype, shape: &Shape) -> Result<TensorItem, Error> {
        let data_len = shape.size_bytes(dtype).map_err(size_error)?;
        let mut item = TensorItem {
            dtype,
            shape: shape.clone(),
            data_offset: 0,
            data_len,
            len: 0,
        };
        contiguous_strides(shape)?;
        // Head and tail take less than this, whatever the shape's rank.
        if data_len > i64::MAX as u64 - (1 << 20) {
            return Err(overflow(shape));
        }
        let (prefix, rest) = item.archive();
        item.data_offset = prefix.len() as u64;
        item.len = item.data_offset + data_len + rest.finish(0).len() as u64;
        Ok(item)
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Extents.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes of the whole item.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an item is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Where the data begins, in bytes from the item's start: a multiple of 64.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// Bytes of data: dense, row-major, little-endian.
    #[must_use]
    pub fn data_len(&self) -> u64 {
        self.data_len
    }

    /// The `data_offset` bytes before the data.
    #[must_use]
    pub fn prefix(&self) -> Vec<u8> {
        self.archive().0
    }

    /// The bytes after the data, given the data's CRC-32 (that of zip and zlib): as many for one CRC as for another.
    #[must_use]
    pub fn suffix(&self, data_crc32: u32) -> Vec<u8> {
        self.archive().1.finish(data_crc32)
    }

    fn archive(&self) -> (Vec<u8>, StreamedArchive) {
        let mut pickle = PickleWriter::new();
        write_tensor(&mut pickle, self.dtype, &self.shape, "0");
        let mut archive = ArchiveWriter::new(ROOT);
        write_head(&mut archive, &pickle.finish());
        archive.streamed_record("data/0", self.data_len)
    }
}

/// The records that every stream has; any order is legal, and this one leaves the data last.
pub(super) fn write_head(archive: &mut ArchiveWriter, pickle: &[u8]) {
    archive.record("data.pkl", pickle);
    archive.record("byteorder", b"little");
    archive.record("version", b"3\n");
}

/// The call that rebuilds a contiguous tensor from storage `key`.
///
/// Element types older than 2023 have a storage class each; newer ones are rebuilt from bytes and a dtype.
pub(super) fn write_tensor(pickle: &mut PickleWriter, dtype: Dtype, shape: &Shape, key: &str) {
    let elements = shape.elements().expect("checked when it was planned");
    let strides = contiguous_strides(shape).expect("checked when it was planned");
    let legacy = legacy_storage(dtype);
    let function = match legacy {
        Some(_) => "_rebuild_tensor_v2",
        None => "_rebuild_tensor_v3",
    };
    pickle.global("torch._utils", function);
    pickle.mark();
    pickle.mark();
    pickle.shared_text("storage");
    match legacy {
        Some(class) => pickle.global("torch", class),
        None => pickle.global("torch.storage", "UntypedStorage"),
    }
    pickle.text(key);
    pickle.shared_text("cpu");
    pickle.uint(match legacy {
        Some(_) => elements,
        None => elements * dtype.size_bytes(),
    });
    pickle.tuple();
    pickle.persistent_id();
    pickle.uint(0); // storage offset
    pickle.int_tuple(shape.extents());
    pickle.int_tuple(&strides);
    pickle.bool(false); // requires_grad
    pickle.global("collections", "OrderedDict"); // backward hooks
    pickle.empty_tuple();
    pickle.reduce();
    if legacy.is_none() {
        pickle.global("torch", dtype.torch_name());
    }
    pickle.tuple();
    pickle.reduce();
}

/// The class in module `torch` that holds elements of this type, if there is one.
fn legacy_storage(dtype: Dtype) -> Option<&'static str> {
    LEGACY_STORAGES
        .iter()
        .find(|(found, _)| *found == dtype)
        .map(|(_, class)| *class)
}

/// The element type of a storage class in module `torch`.
pub(super) fn legacy_dtype(class: &str) -> Option<Dtype> {
    LEGACY_STORAGES
        .iter()
        .find(|(_, found)| *found == class)
        .map(|(dtype, _)| *dtype)
}

const LEGACY_STORAGES: &[(Dtype, &str)] = &[
    (Dtype::Bf16, "BFloat16Storage"),
    (Dtype::F16, "HalfStorage"),
    (Dtype::F32, "FloatStorage"),
    (Dtype::F64, "DoubleStorage"),
    (Dtype::I8, "CharStorage"),
    (Dtype::I16, "ShortStorage"),
    (Dtype::I32, "IntStorage"),
    (Dtype::I64, "LongStorage"),
    (Dtype::U8, "ByteStorage"),
    (Dtype::Bool, "BoolStorage"),
];

/// Strides of a row-major tensor, in elements; an extent of 0 counts as 1, as in torch.
pub(super) fn contiguous_strides(shape: &Shape) -> Result<Vec<u64>, Error> {
    let mut strides = vec![0; shape.rank()];
    let mut stride = 1u64;
    for (slot, &extent) in strides.iter_mut().zip(shape.extents()).rev() {
        *slot = stride;
        stride = stride
            .checked_mul(extent.max(1))
            .filter(|&stride| i64::try_from(stride).is_ok())
            .ok_or_else(|| overflow(shape))?;
    }
    Ok(strides)
}

fn overflow(shape: &Shape) -> Error {
    size_error(rialto_tensor::Error::ShapeOverflow {
        shape: shape.clone(),
    })
}

fn size_error(source: rialto_tensor::Error) -> Error {
    Error::Tensor {
        location: Location::default(),
        source,
    }
}

#[cfg(test)]
mod tests;
