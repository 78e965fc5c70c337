//! A tensor found in an item: where its elements lie, and in which order.

use rialto_tensor::{ByteRange, Dtype, Location, Shape};

use super::item::{contiguous_strides, legacy_dtype};
use super::pickle::{Limits, Node, Origin, Pickle, Value};
use super::zip::Archive;
use crate::Error;
use crate::store::Source;

/// The pickle of one tensor takes a few hundred bytes.
const MAX_TENSOR_PICKLE_BYTES: u64 = 1 << 20;

/// A tensor in a file, as `torch.save` left it: a storage, and a view of it that need not be contiguous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// Element type.
    pub dtype: Dtype,
    /// Extents, in elements.
    pub size: Shape,
    /// For every axis, how many elements of the storage lie between neighbors; 0 repeats one.
    pub strides: Vec<u64>,
    /// The storage's element that is the tensor's first.
    pub storage_offset: u64,
    /// The whole storage, in bytes of the file.
    pub data: ByteRange,
    /// Whether elements have their most significant byte first.
    pub big_endian: bool,
    /// CRC-32 of the storage as recorded: torch never checks it, and some writers leave it 0.
    pub crc32: u32,
}

impl StoredTensor {
    /// Whether the elements lie in the file in row-major order without gaps.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        let extents = self.size.extents();
        if extents.contains(&0) {
            return true;
        }
        // The stride of an axis of one element is never used, and torch leaves any value there.
        contiguous_strides(&self.size).is_ok_and(|contiguous| {
            extents
                .iter()
                .zip(self.strides.iter().zip(&contiguous))
                .all(|(&extent, (found, dense))| extent == 1 || found == dense)
        })
    }

    /// The bytes of the file that are the tensor's row-major little-endian bytes, if it has such.
    #[must_use]
    pub fn dense_bytes(&self) -> Option<ByteRange> {
        let is_native = !self.big_endian || self.dtype.size_bytes() == 1;
        if !self.is_dense() || !is_native {
            return None;
        }
        let len = self.size.size_bytes(self.dtype).ok()?;
        let start = self.data.start + self.storage_offset * self.dtype.size_bytes();
        Some(ByteRange::new(start, start + len))
    }

    /// Compares the storage with the checksum that its writer recorded; 0 means that none was.
    ///
    /// Reads the storage once, a block at a time. Errors: [`Error::Checksum`], and those of reading.
    pub fn verify(&self, source: &dyn Source, name: &str) -> Result<(), Error> {
        if self.crc32 == 0 {
            return Ok(());
        }
        let mut hasher = crc32fast::Hasher::new();
        let mut block = Vec::new();
        let mut start = self.data.start;
        while start < self.data.end {
            let length = VERIFY_BLOCK_BYTES.min(self.data.end - start);
            block.resize(usize::try_from(length).expect("a block fits in memory"), 0);
            source.read_at(start, &mut block)?;
            hasher.update(&block);
            start += length;
        }
        let found = hasher.finalize();
        if found == self.crc32 {
            return Ok(());
        }
        let place = Location::file(source.name()).with_tensor(name);
        Err(Error::Checksum {
            location: place.with_bytes(self.data.start, self.data.end),
            expected: self.crc32,
            found,
        })
    }

    /// Reads the tensor's elements in row-major order, little-endian, whatever strides and byte order it was stored in.
    ///
    /// Holds the elements twice at most: once as stored, once in order. `source` is the file it was found in.
    pub fn read(&self, source: &dyn Source) -> Result<Vec<u8>, Error> {
        if let Some(range) = self.dense_bytes() {
            return read_range(source, range);
        }
        let Some(last) = self.last_element() else {
            return Ok(Vec::new());
        };
        let element = self.dtype.size_bytes();
        let range = ByteRange::new(
            self.data.start + self.storage_offset * element,
            self.data.start + (last + 1) * element,
        );
        let stored = read_range(source, range)?;
        let mut ordered = Vec::with_capacity(stored.len());
        let size = usize::try_from(element).expect("elements take a few bytes");
        self.walk(&mut |index| {
            // Inside, because the last element is.
            let at = usize::try_from(index * element).expect("inside what was read");
            let bytes = &stored[at..at + size];
            if self.big_endian {
                ordered.extend(bytes.iter().rev());
            } else {
                ordered.extend(bytes);
            }
        });
        Ok(ordered)
    }

    /// Calls `visit` with the storage index of every element, from the tensor's first, in row-major order.
    fn walk(&self, visit: &mut impl FnMut(u64)) {
        let extents = self.size.extents();
        if extents.contains(&0) {
            return;
        }
        let mut position = vec![0; extents.len()];
        let mut index = 0;
        loop {
            visit(index);
            let mut axis = extents.len();
            loop {
                let Some(outer) = axis.checked_sub(1) else {
                    return;
                };
                axis = outer;
                position[axis] += 1;
                index += self.strides[axis];
                if position[axis] < extents[axis] {
                    break;
                }
                index -= position[axis] * self.strides[axis];
                position[axis] = 0;
            }
        }
    }

    /// The storage's element that is furthest in, `None` for an empty tensor.
    fn last_element(&self) -> Option<u64> {
        if self.size.extents().contains(&0) {
            return None;
        }
        let mut spans = self.size.extents().iter().zip(&self.strides);
        spans.try_fold(self.storage_offset, |last, (&extent, &stride)| {
            last.checked_add((extent - 1).checked_mul(stride)?)
        })
    }

    /// Refuses a view that its storage does not hold. An overflow is beyond any storage.
    fn check(&self, location: &Location) -> Result<(), Error> {
        let malformed = |what| Error::ItemMalformed {
            what,
            location: location.clone(),
        };
        if self.size.rank() != self.strides.len() {
            return Err(malformed("sizes and strides have different ranks"));
        }
        self.size
            .size_bytes(self.dtype)
            .map_err(|source| Error::Tensor {
                location: location.clone(),
                source,
            })?;
        let elements = self.data.len() / self.dtype.size_bytes();
        let is_empty = self.size.extents().contains(&0);
        let is_inside = if is_empty {
            self.storage_offset <= elements
        } else {
            self.last_element().is_some_and(|last| last < elements)
        };
        if !is_inside {
            return Err(malformed("the tensor reaches beyond its storage"));
        }
        Ok(())
    }
}

/// Finds the tensor in the item that `item` bytes of `source` are. `location` is what errors speak of.
///
/// Errors: the `Zip…`, `Pickle…` and `Item…` variants of [`Error`].
pub fn read_tensor_item(
    source: &dyn Source,
    item: ByteRange,
    location: &Location,
) -> Result<StoredTensor, Error> {
    let archive = Archive::open(source, item, location.clone())?;
    let (bytes, range) = archive.contents("data.pkl", MAX_TENSOR_PICKLE_BYTES)?;
    archive.require("version")?;
    let origin = Origin {
        location: location.clone(),
        base: range.start,
    };
    let pickle = Pickle::read(&bytes, Limits::ITEM, &origin)?;
    let big_endian = is_big_endian(&archive)?;
    let Some(stored) = tensor(&archive, &pickle, pickle.root(), big_endian)? else {
        return Err(Error::ItemMalformed {
            what: "its pickle is no tensor",
            location: archive.location().clone(),
        });
    };
    // Strides of 0 let a file of a few bytes claim a tensor of any size; a checkpoint writer copies such views first.
    let len = stored.size.size_bytes(stored.dtype);
    if len.is_ok_and(|len| len > stored.data.len()) {
        return Err(Error::ItemUnsupported {
            what: "elements that are stored once and repeated".to_owned(),
            location: archive.location().clone(),
        });
    }
    Ok(stored)
}

/// What the `byteorder` record says; absent means little.
pub(super) fn is_big_endian(archive: &Archive<'_>) -> Result<bool, Error> {
    if archive.record("byteorder").is_none() {
        return Ok(false);
    }
    let (bytes, _) = archive.contents("byteorder", 64)?;
    match bytes.trim_ascii() {
        b"little" => Ok(false),
        b"big" => Ok(true),
        _ => Err(Error::ItemMalformed {
            what: "its byte order is neither little nor big",
            location: archive.location().clone(),
        }),
    }
}

/// The tensor that a value of an archive's pickle rebuilds, or `None` if the value is something else.
pub(super) fn tensor<'a>(
    archive: &Archive<'_>,
    pickle: &Pickle<'a>,
    value: Value<'a>,
    big_endian: bool,
) -> Result<Option<StoredTensor>, Error> {
    let location = archive.location();
    let malformed = |what| Error::ItemMalformed {
        what,
        location: location.clone(),
    };
    let unsupported = |what: &str| Error::ItemUnsupported {
        what: what.to_owned(),
        location: location.clone(),
    };
    let Some(call) = pickle.call(value) else {
        return Ok(None);
    };
    let arguments = pickle.tuple(call.args).unwrap_or_default();
    let has_dtype = match pickle.global(call.callable) {
        Some(("torch._utils", "_rebuild_tensor_v2")) => false,
        Some(("torch._utils", "_rebuild_tensor_v3")) => true,
        Some(("torch._utils", "_rebuild_parameter")) => {
            // A parameter is a tensor and two facts about its gradient. It never wraps another one.
            let inner = arguments.first().copied().unwrap_or(Value::None);
            let is_parameter = pickle
                .call_of(inner, "torch._utils", "_rebuild_parameter")
                .is_some();
            return if is_parameter {
                Err(malformed("a parameter holds a parameter"))
            } else {
                tensor(archive, pickle, inner, big_endian)
            };
        }
        _ => return Ok(None),
    };
    let &[storage, offset, size, strides, _grad, _hooks, ref rest @ ..] = arguments else {
        return Err(malformed("it is rebuilt from too few values"));
    };
    let Some(storage) = storage_of(pickle, storage) else {
        return Err(malformed("its storage is not described"));
    };
    let (dtype, metadata) = match (has_dtype, rest) {
        (true, &[dtype, ref metadata @ ..]) => {
            if storage.class != UNTYPED {
                return Err(malformed("it has a dtype of its own and a typed storage"));
            }
            let Some(("torch", name)) = pickle.global(dtype) else {
                return Err(malformed("its dtype is not described"));
            };
            (
                Dtype::from_torch_name(name)
                    .ok_or_else(|| unsupported(&format!("dtype torch.{name}")))?,
                metadata,
            )
        }
        (true, []) => return Err(malformed("it is rebuilt from too few values")),
        (false, metadata) => (
            legacy_dtype(storage.class)
                .ok_or_else(|| unsupported(&format!("storage torch.{}", storage.class)))?,
            metadata,
        ),
    };
    // Lazy conjugation or negation: the bytes are not the values.
    let is_plain = metadata
        .iter()
        .all(|&value| value == Value::None || pickle.dict(value).is_some_and(<[_]>::is_empty));
    if !is_plain {
        return Err(unsupported("lazy conjugation or negation"));
    }
    let (Some(size), Some(strides), Some(storage_offset)) = (
        pickle.extents(size),
        pickle.extents(strides),
        offset.as_u64(),
    ) else {
        return Err(malformed("its size, strides or offset are no counts"));
    };
    let unit = if has_dtype { 1 } else { dtype.size_bytes() };
    let name = format!("data/{}", storage.key);
    let record = archive.require(&name)?;
    let data = archive.locate(&name, record)?;
    if storage.count.checked_mul(unit) != Some(data.len()) {
        return Err(malformed("its storage has another length than its record"));
    }
    let stored = StoredTensor {
        dtype,
        size: Shape::new(size),
        strides,
        storage_offset,
        data,
        big_endian,
        crc32: record.crc32,
    };
    stored.check(location)?;
    Ok(Some(stored))
}

/// Bytes held while a storage is compared with its checksum.
const VERIFY_BLOCK_BYTES: u64 = 1 << 20;

/// The storage class that counts bytes.
const UNTYPED: &str = "UntypedStorage";

struct Storage<'a> {
    class: &'a str,
    key: &'a str,
    /// Elements, or bytes for an untyped storage.
    count: u64,
}

/// `('storage', class, key, device, count)`, as a persistent id.
fn storage_of<'a>(pickle: &Pickle<'a>, value: Value<'a>) -> Option<Storage<'a>> {
    let Node::PersistentId(id) = pickle.node(value)? else {
        return None;
    };
    let &[Value::Str("storage"), class, key, _device, count] = pickle.tuple(*id)? else {
        return None;
    };
    let (module, class) = pickle.global(class)?;
    let key = key.as_str()?;
    // `torch.UntypedStorage` is another name of the same class.
    let is_untyped = class == UNTYPED;
    (module == "torch" || (module == "torch.storage" && is_untyped)).then_some(Storage {
        class,
        key,
        count: count.as_u64()?,
    })
}

fn read_range(source: &dyn Source, range: ByteRange) -> Result<Vec<u8>, Error> {
    let len =
        usize::try_from(range.len()).expect("a tensor that lies in a file fits in memory's width");
    let mut bytes = vec![0; len];
    source.read_at(range.start, &mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
