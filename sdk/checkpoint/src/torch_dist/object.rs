//! Objects beside the tensors: common state, train state, and what Megatron modules call extra state.

use std::collections::HashMap;

use rialto_tensor::{ByteRange, Dtype, Location, Shape};

use super::item::{ROOT, write_head, write_tensor};
use super::pickle::{Limits, Node, Origin, Pickle, PickleWriter, Value};
use super::stored::{StoredTensor, is_big_endian, tensor};
use super::zip::{Archive, ArchiveWriter};
use crate::Error;
use crate::store::Source;

/// How deep objects nest before they are taken for an endless loop.
const MAX_DEPTH: usize = 64;
/// How many values an object may hold, counted as if nothing were shared.
const MAX_VALUES: u64 = 1 << 20;
/// Nor may it hold many more than its pickle has bytes: a value that is not shared takes one at least. This many are left
/// for sharing, by which a hundred bytes would otherwise become a million values.
const SHARED_VALUES: u64 = 1 << 16;
/// How many bytes of text and tensors are read into an object; tensors beyond stay opaque.
const MAX_BYTES: u64 = 64 << 20;
/// And for the same reason, how many more than its item has.
const SHARED_BYTES: u64 = 16 << 20;

/// The part of Python that checkpoints need; everything else is opaque and never executed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Object {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer of up to 64 bits.
    Int(i64),
    /// A float.
    Float(f64),
    /// Text.
    Str(String),
    /// `bytes`, or what an `io.BytesIO` holds. Read only: nothing that rialto writes needs them.
    Bytes(Vec<u8>),
    /// A list.
    List(Vec<Object>),
    /// A tuple.
    Tuple(Vec<Object>),
    /// A dict, or an ordered one, whose keys are text, in order.
    Dict(Vec<(String, Object)>),
    /// A tensor: element type, shape, and its bytes, dense, row-major, little-endian.
    Tensor {
        /// Element type.
        dtype: Dtype,
        /// Extents.
        shape: Shape,
        /// `shape.size_bytes(dtype)` bytes.
        bytes: Vec<u8>,
    },
    /// Anything else, by the name of its class or kind.
    Opaque(String),
}

impl Object {
    /// A tensor without axes.
    #[must_use]
    pub fn scalar(dtype: Dtype, little_endian_bytes: &[u8]) -> Object {
        Object::Tensor {
            dtype,
            shape: Shape::new([]),
            bytes: little_endian_bytes.to_vec(),
        }
    }

    /// The value under a key, `None` also if this is no dict.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Object> {
        match self {
            Object::Dict(entries) => entries
                .iter()
                .find(|(found, _)| found == key)
                .map(|(_, value)| value),
            _ => None,
        }
    }
}

/// The `torch.save` stream of an object: the same bytes every time, loadable with `weights_only=True`.
///
/// Errors: [`Error::ObjectOpaque`] if a part is opaque; [`Error::Tensor`] if a tensor's bytes are not its shape's.
pub fn object_item(object: &Object) -> Result<Vec<u8>, Error> {
    let mut pickle = PickleWriter::new();
    let mut storages = Vec::new();
    write_object(&mut pickle, object, &mut storages)?;
    let mut archive = ArchiveWriter::new(ROOT);
    write_head(&mut archive, &pickle.finish());
    for (key, bytes) in storages.iter().enumerate() {
        archive.aligned_record(&format!("data/{key}"), bytes);
    }
    Ok(archive.finish())
}

fn write_object<'o>(
    pickle: &mut PickleWriter,
    object: &'o Object,
    storages: &mut Vec<&'o [u8]>,
) -> Result<(), Error> {
    // Containers hand their elements to a closure, which keeps the first error for afterwards.
    let mut result = Ok(());
    let mut write = |pickle: &mut PickleWriter, element: &'o Object| {
        let written = write_object(pickle, element, storages);
        if result.is_ok() {
            result = written;
        }
    };
    match object {
        Object::None => pickle.none(),
        Object::Bool(value) => pickle.bool(*value),
        Object::Int(value) => pickle.int(*value),
        Object::Float(value) => pickle.float(*value),
        Object::Str(text) => pickle.text(text),
        Object::List(elements) => pickle.list(elements, write),
        Object::Tuple(elements) => {
            pickle.mark();
            for element in elements {
                write(pickle, element);
            }
            pickle.tuple();
        }
        Object::Dict(entries) => pickle.dict(entries, |pickle, (key, value)| {
            pickle.text(key);
            write(pickle, value);
        }),
        Object::Tensor {
            dtype,
            shape,
            bytes,
        } => {
            let located = |source| Error::Tensor {
                location: Location::default(),
                source,
            };
            rialto_tensor::TensorView::new(*dtype, shape, bytes).map_err(located)?;
            super::item::contiguous_strides(shape)?;
            write_tensor(pickle, *dtype, shape, &storages.len().to_string());
            storages.push(bytes);
        }
        Object::Bytes(_) => {
            return Err(Error::ObjectOpaque {
                what: "bytes".to_owned(),
            });
        }
        Object::Opaque(what) => return Err(Error::ObjectOpaque { what: what.clone() }),
    }
    result
}

/// Decodes the object in `item` bytes of `source`. `location` is what errors speak of.
///
/// Errors: the `Zip…`, `Pickle…` and `Item…` variants of [`Error`]. What is understood but not part of [`Object`] is
/// opaque, not an error.
pub fn read_object(
    source: &dyn Source,
    item: ByteRange,
    location: &Location,
) -> Result<Object, Error> {
    let archive = Archive::open(source, item, location.clone())?;
    let (bytes, range) = archive.contents("data.pkl", Limits::ITEM.bytes)?;
    archive.require("version")?;
    let origin = Origin {
        location: location.clone(),
        base: range.start,
    };
    let pickle = Pickle::read(&bytes, Limits::ITEM, &origin)?;
    let mut decoder = Decoder {
        source,
        big_endian: is_big_endian(&archive)?,
        archive: &archive,
        pickle: &pickle,
        values: 0,
        max_values: MAX_VALUES.min(SHARED_VALUES + bytes.len() as u64),
        bytes: 0,
        max_bytes: MAX_BYTES.min(item.len().saturating_add(SHARED_BYTES)),
    };
    decoder.decode(pickle.root(), 0)
}

/// Turns the arena, where a value may be shared or hold itself, into a tree: so it counts what it makes.
struct Decoder<'d, 'a> {
    source: &'d dyn Source,
    archive: &'d Archive<'d>,
    pickle: &'d Pickle<'a>,
    big_endian: bool,
    values: u64,
    max_values: u64,
    bytes: u64,
    max_bytes: u64,
}

impl<'a> Decoder<'_, 'a> {
    fn decode(&mut self, value: Value<'a>, depth: usize) -> Result<Object, Error> {
        self.values += 1;
        if self.values > self.max_values {
            return Err(self.limit("values in an object", self.max_values));
        }
        if depth > MAX_DEPTH {
            return Err(self.limit("nested containers", MAX_DEPTH as u64));
        }
        let pickle = self.pickle;
        let node = match value {
            Value::None => return Ok(Object::None),
            Value::Bool(value) => return Ok(Object::Bool(value)),
            Value::Int(value) => return Ok(Object::Int(value)),
            Value::Float(value) => return Ok(Object::Float(value)),
            Value::Str(text) => return self.text(text).map(Object::Str),
            Value::Bytes(bytes) => return self.raw(bytes).map(Object::Bytes),
            Value::BigInt(_) => return Ok(Object::Opaque("int beyond 64 bits".to_owned())),
            Value::Node(_) => pickle
                .node(value)
                .expect("values name nodes of their arena"),
        };
        match node {
            Node::List(elements) => self.elements(elements, depth).map(Object::List),
            Node::Tuple(elements) => self.elements(elements, depth).map(Object::Tuple),
            Node::Dict(entries) => self.entries(entries, depth),
            Node::Set(_) => Ok(Object::Opaque("set".to_owned())),
            Node::PersistentId(_) => Ok(Object::Opaque("storage".to_owned())),
            Node::Global { module, name } => {
                self.text(&format!("{module}.{name}")).map(Object::Opaque)
            }
            Node::Call(call) => {
                if let Some(stored) = tensor(self.archive, pickle, value, self.big_endian)? {
                    return self.tensor(&stored);
                }
                if let Some(bytes) = self.bytes_of(value)? {
                    return Ok(Object::Bytes(bytes));
                }
                match pickle.global(call.callable) {
                    Some(("collections", "OrderedDict")) if call.state.is_none() => {
                        self.entries(&call.entries, depth)
                    }
                    Some((module, name)) => {
                        self.text(&format!("{module}.{name}")).map(Object::Opaque)
                    }
                    None => Ok(Object::Opaque("call".to_owned())),
                }
            }
        }
    }

    fn elements(&mut self, elements: &[Value<'a>], depth: usize) -> Result<Vec<Object>, Error> {
        elements
            .iter()
            .map(|&element| self.decode(element, depth + 1))
            .collect()
    }

    fn entries(
        &mut self,
        entries: &[(Value<'a>, Value<'a>)],
        depth: usize,
    ) -> Result<Object, Error> {
        let mut decoded: Vec<(String, Object)> = Vec::new();
        let mut positions = HashMap::new();
        for &(key, value) in entries {
            let Some(key) = key.as_str() else {
                return Ok(Object::Opaque(
                    "dict with keys that are not text".to_owned(),
                ));
            };
            let value = self.decode(value, depth + 1)?;
            // As in Python: the first position, the last value.
            match positions.get(key) {
                Some(&position) => {
                    let (_, slot): &mut (String, Object) = &mut decoded[position];
                    *slot = value;
                }
                None => {
                    positions.insert(key, decoded.len());
                    decoded.push((self.text(key)?, value));
                }
            }
        }
        Ok(Object::Dict(decoded))
    }

    fn tensor(&mut self, stored: &StoredTensor) -> Result<Object, Error> {
        let located = |source| Error::Tensor {
            location: self.archive.location().clone(),
            source,
        };
        let len = stored.size.size_bytes(stored.dtype).map_err(located)?;
        // Reading holds the storage as well, of which the tensor may be a small part.
        let span = len.max(if stored.is_dense() {
            0
        } else {
            stored.data.len()
        });
        // Elements that are stored once and repeated would be written out here, by a few bytes of the file for each megabyte.
        let is_repeated = len > stored.data.len();
        if is_repeated || self.bytes.saturating_add(span) > self.max_bytes {
            return Ok(Object::Opaque(format!("tensor of {len} bytes")));
        }
        self.bytes += span;
        Ok(Object::Tensor {
            dtype: stored.dtype,
            shape: stored.size.clone(),
            bytes: stored.read(self.source)?,
        })
    }

    /// The bytes of a stream in memory, or those that protocol 2, which knows no `bytes`, writes as text to be encoded.
    fn bytes_of(&mut self, value: Value<'a>) -> Result<Option<Vec<u8>>, Error> {
        let pickle = self.pickle;
        if let Some(stream) = pickle.call_of(value, "_io", "BytesIO") {
            let Some(state) = stream.state else {
                return Ok(None);
            };
            return match pickle.tuple(state) {
                Some(&[Value::Bytes(bytes), ..]) => self.raw(bytes).map(Some),
                Some(&[inner @ Value::Node(_), ..]) => self.encoded(inner),
                _ => Ok(None),
            };
        }
        self.encoded(value)
    }

    fn encoded(&mut self, value: Value<'a>) -> Result<Option<Vec<u8>>, Error> {
        let Some(call) = self.pickle.call_of(value, "_codecs", "encode") else {
            return Ok(None);
        };
        let Some(&[Value::Str(text), Value::Str("latin1")]) = self.pickle.tuple(call.args) else {
            return Ok(None);
        };
        self.count(text.len())?;
        let bytes: Result<Vec<u8>, _> = text.chars().map(u8::try_from).collect();
        Ok(bytes.ok())
    }

    fn text(&mut self, text: &str) -> Result<String, Error> {
        self.count(text.len())?;
        Ok(text.to_owned())
    }

    fn raw(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        self.count(bytes.len())?;
        Ok(bytes.to_vec())
    }

    fn count(&mut self, len: usize) -> Result<(), Error> {
        self.bytes = self.bytes.saturating_add(len as u64);
        if self.bytes > self.max_bytes {
            return Err(self.limit("bytes in an object", self.max_bytes));
        }
        Ok(())
    }

    fn limit(&self, what: &'static str, limit: u64) -> Error {
        Error::PickleLimit {
            what,
            limit,
            location: self.archive.location().clone(),
        }
    }
}

#[cfg(test)]
mod tests;
