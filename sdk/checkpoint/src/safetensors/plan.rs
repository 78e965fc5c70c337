//! A shard that is laid out completely before a byte of it is written.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use rialto_tensor::held::Held;
use rialto_tensor::{ByteRange, Dtype, Location, Shape};
use serde_json::{Map, Value};

use super::{HEADER_LIMIT, Header, METADATA, PREFIX, Tensor};
use crate::Error;

/// A shard to be written: its first bytes, and where each tensor will lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedShard {
    /// The file, relative to the checkpoint.
    pub name: String,
    /// The length prefix, the JSON and the padding: what is written at offset 0.
    pub header_bytes: Vec<u8>,
    /// The tensors, in the order in which they were given, with their ranges in the file.
    pub tensors: Vec<Tensor>,
    /// Length of the whole file in bytes.
    pub len: u64,
}

impl Held for PlannedShard {
    fn held_bytes(&self) -> u64 {
        self.header_bytes.held_bytes() + self.tensors.held_bytes()
    }
}

impl Header {
    /// Lays out a shard called `name`.
    ///
    /// The header lists the tensors as given. The data lies by falling element size, and among equal sizes as given: so
    /// every tensor begins at a multiple of its element size, as readers that map the file expect, and nothing is padded.
    /// The header is padded with spaces to a multiple of 8. Equal arguments give equal bytes.
    ///
    /// Errors: [`Error::DuplicateName`], [`Error::ReservedName`], [`Error::Tensor`] and [`Error::DataRange`] for sizes
    /// beyond 64 bits, [`Error::HeaderLimit`].
    pub fn plan(
        name: &str,
        tensors: impl IntoIterator<Item = (String, Dtype, Shape)>,
        metadata: &BTreeMap<String, String>,
    ) -> Result<PlannedShard, Error> {
        let file = Location::file(name);
        let mut planned = Vec::new();
        for (tensor, dtype, shape) in tensors {
            let location = file.clone().with_tensor(&tensor);
            if tensor == METADATA {
                return Err(Error::ReservedName { location });
            }
            let size = shape
                .size_bytes(dtype)
                .map_err(|source| Error::Tensor { location, source })?;
            planned.push(Tensor {
                name: tensor,
                dtype,
                shape,
                range: ByteRange::new(0, size),
            });
        }
        check_unique(&planned, &file)?;

        let mut in_order: Vec<&mut Tensor> = planned.iter_mut().collect();
        in_order.sort_by_key(|tensor| Reverse(tensor.dtype.size_bytes()));
        let mut data_len = 0;
        for tensor in in_order {
            tensor.range = shifted(tensor, data_len, &file)?;
            data_len = tensor.range.end;
        }

        let header_bytes = header_bytes(&planned, metadata, &file, HEADER_LIMIT)?;
        let data_start = header_bytes.len() as u64;
        for tensor in &mut planned {
            tensor.range = shifted(tensor, data_start, &file)?;
        }
        Ok(PlannedShard {
            name: name.to_owned(),
            header_bytes,
            // Cannot overflow: it is the end of some tensor, or the header alone.
            len: data_start + data_len,
            tensors: planned,
        })
    }
}

fn check_unique(tensors: &[Tensor], file: &Location) -> Result<(), Error> {
    let mut names = HashSet::new();
    match tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
        None => Ok(()),
        Some(tensor) => Err(Error::DuplicateName {
            location: file.clone(),
            name: tensor.name.clone(),
        }),
    }
}

/// The range of a tensor, moved back by `offset` bytes.
fn shifted(tensor: &Tensor, offset: u64, file: &Location) -> Result<ByteRange, Error> {
    let ByteRange { start, end } = tensor.range;
    match (start.checked_add(offset), end.checked_add(offset)) {
        (Some(start), Some(end)) => Ok(ByteRange::new(start, end)),
        _ => Err(Error::DataRange {
            location: file
                .clone()
                .with_tensor(&tensor.name)
                .with_bytes(start, end),
        }),
    }
}

/// Writes length, JSON and padding for tensors whose ranges count from the beginning of the data. A parameter for the limit
/// lets a test meet it without a hundred megabytes.
pub(super) fn header_bytes(
    tensors: &[Tensor],
    metadata: &BTreeMap<String, String>,
    file: &Location,
    limit: u64,
) -> Result<Vec<u8>, Error> {
    let mut document = Vec::with_capacity(tensors.len() + 1);
    if !metadata.is_empty() {
        let values = metadata
            .iter()
            .map(|(key, value)| (key.clone(), value.as_str().into()));
        document.push(member(
            METADATA,
            Value::Object(values.collect::<Map<String, Value>>()),
        ));
    }
    for tensor in tensors {
        document.push(member(
            &tensor.name,
            serde_json::json!({
                "dtype": tensor.dtype.safetensors_name(),
                "shape": tensor.shape.extents(),
                "data_offsets": [tensor.range.start, tensor.range.end],
            }),
        ));
    }
    let mut json = format!("{{{}}}", document.join(","));
    let len = (json.len() as u64).next_multiple_of(PREFIX);
    if len > limit {
        return Err(Error::HeaderLimit {
            location: file.clone(),
            len,
            limit,
        });
    }
    while (json.len() as u64) < len {
        json.push(' ');
    }
    let mut bytes = Vec::with_capacity(json.len() + PREFIX as usize);
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(json.as_bytes());
    Ok(bytes)
}

/// One member of a JSON object, as text: a map would have to hold them all as values first.
fn member(name: &str, value: Value) -> String {
    format!("{}:{value}", Value::from(name))
}
