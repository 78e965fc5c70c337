//! One safetensors file: a header that says where every tensor lies, read with suspicion or planned ahead.
//!
//! ```text
//! bytes 0..8       length of the header, u64 little-endian
//! bytes 8..8+n     JSON: {"__metadata__": {string: string}, NAME: {"dtype", "shape", "data_offsets": [start, end]}, ...}
//! the rest         the data; offsets count from here; tensors touch, in any order, and end where the file ends
//! ```
//!
//! Source: the format section of the `safetensors` project's README, and its reference implementation for the limit.

mod json;
mod plan;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};

use rialto_tensor::held::Held;
use rialto_tensor::{ByteRange, Dtype, Location, Shape};

use crate::Error;
use crate::store::Source;

pub use plan::PlannedShard;

/// The longest header in bytes that is read or written, as in the reference implementation.
pub const HEADER_LIMIT: u64 = 100_000_000;

/// Bytes of the length that precedes the header.
const PREFIX: u64 = 8;

/// The name that stands for the metadata and so for no tensor.
const METADATA: &str = "__metadata__";

/// A tensor in a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Name, unique in the shard.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Extents in elements, outermost first.
    pub shape: Shape,
    /// Where the elements lie, dense and row-major, counted from the beginning of the file.
    pub range: ByteRange,
}

impl Held for Tensor {
    fn held_bytes(&self) -> u64 {
        self.name.held_bytes() + self.shape.held_bytes()
    }
}

/// The header of a shard, which has been proven to describe its file completely.
///
/// Every tensor is as long as dtype and shape need, no two share a byte, and together they cover all bytes after the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    tensors: Vec<Tensor>,
    metadata: BTreeMap<String, String>,
}

impl Header {
    /// Reads and checks the header of an open file; no tensor data is read.
    ///
    /// Errors: [`Error::Truncated`], [`Error::TrailingBytes`], [`Error::HeaderLimit`] (before anything is allocated),
    /// [`Error::HeaderSyntax`], [`Error::DuplicateName`], [`Error::Tensor`] for an unknown dtype or a shape that overflows,
    /// [`Error::DataRange`], [`Error::DataLength`], [`Error::DataOverlap`], [`Error::DataHole`], and those of
    /// [`Source::read_at`].
    pub fn read(source: &dyn Source) -> Result<Header, Error> {
        let file = Location::file(source.name());
        let found = source.len();
        let truncated = |expected| Error::Truncated {
            location: file.clone().with_bytes(found, expected),
            expected,
            found,
        };
        if found < PREFIX {
            return Err(truncated(PREFIX));
        }
        let mut prefix = [0; PREFIX as usize];
        source.read_at(0, &mut prefix)?;
        let len = u64::from_le_bytes(prefix);
        let size = usize::try_from(len).ok().filter(|_| len <= HEADER_LIMIT);
        let Some(size) = size else {
            return Err(Error::HeaderLimit {
                location: file,
                len,
                limit: HEADER_LIMIT,
            });
        };
        let data_start = PREFIX + len;
        if found < data_start {
            return Err(truncated(data_start));
        }
        let mut text = vec![0; size];
        source.read_at(PREFIX, &mut text)?;
        let document = json::parse(&text, &file)?;
        drop(text);

        let mut names = HashSet::new();
        for (name, _) in &document.entries {
            if !names.insert(name.as_str()) {
                return Err(Error::DuplicateName {
                    location: file,
                    name: name.clone(),
                });
            }
        }
        let tensors = document
            .entries
            .into_iter()
            .map(|(name, entry)| place(name, entry, data_start, &file))
            .collect::<Result<Vec<Tensor>, Error>>()?;
        check_coverage(&tensors, data_start, found, &file)?;
        Ok(Header {
            tensors,
            metadata: document.metadata,
        })
    }

    /// The tensors in the order of the header.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensors in the order of the header, for whoever needs nothing else.
    #[must_use]
    pub fn into_tensors(self) -> Vec<Tensor> {
        self.tensors
    }

    /// The `__metadata__` of the file, empty if there is none.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }
}

/// Checks one entry in itself.
fn place(
    name: String,
    entry: json::Entry,
    data_start: u64,
    file: &Location,
) -> Result<Tensor, Error> {
    let location = file.clone().with_tensor(&name);
    let in_place = |source| Error::Tensor {
        location: location.clone(),
        source,
    };
    let dtype: Dtype = entry.dtype.parse().map_err(in_place)?;
    let shape = Shape::from(entry.shape);
    let expected = shape.size_bytes(dtype).map_err(in_place)?;
    let [start, end] = entry.data_offsets;
    let range = match (start.checked_add(data_start), end.checked_add(data_start)) {
        (Some(first), Some(last)) if start <= end => ByteRange::new(first, last),
        _ => {
            return Err(Error::DataRange {
                location: location.with_bytes(start, end),
            });
        }
    };
    if range.len() != expected {
        return Err(Error::DataLength {
            location: location.with_bytes(range.start, range.end),
            dtype,
            shape,
            expected,
            found: range.len(),
        });
    }
    Ok(Tensor {
        name,
        dtype,
        shape,
        range,
    })
}

/// Checks that the tensors cover the bytes from `data_start` to the end of the file, each once.
fn check_coverage(
    tensors: &[Tensor],
    data_start: u64,
    found: u64,
    file: &Location,
) -> Result<(), Error> {
    let mut in_order: Vec<&Tensor> = tensors.iter().collect();
    in_order.sort_by_key(|tensor| tensor.range);
    let mut covered = data_start;
    let mut cut = None;
    let mut previous = "";
    for tensor in in_order {
        let range = tensor.range;
        let location = file.clone().with_tensor(&tensor.name);
        if range.start > covered {
            return Err(Error::DataHole {
                location: location.with_bytes(covered, range.start),
            });
        }
        if range.start < covered {
            return Err(Error::DataOverlap {
                location: location.with_bytes(range.start, covered.min(range.end)),
                other: previous.to_owned(),
            });
        }
        covered = range.end;
        previous = &tensor.name;
        if covered > found && cut.is_none() {
            cut = Some(location);
        }
    }
    if let Some(location) = cut {
        return Err(Error::Truncated {
            location: location.with_bytes(found, covered),
            expected: covered,
            found,
        });
    }
    if covered < found {
        return Err(Error::TrailingBytes {
            location: file.clone().with_bytes(covered, found),
            expected: covered,
            found,
        });
    }
    Ok(())
}
