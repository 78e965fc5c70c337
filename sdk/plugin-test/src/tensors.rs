//! Tensors with their values, as an independent reader finds them in a Hugging Face directory, and rectangles of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rialto_bridge::StoredTensor;
use rialto_checkpoint::hf::{INDEX_FILE, SINGLE_FILE};
use rialto_checkpoint::store::{Store, read_whole};
use rialto_tensor::{Dtype, Region, Shape};
use serde_json::Value;

use crate::error::Error;

/// Most bytes of a file that is read whole: fixtures are tiny.
pub(crate) const LIMIT: u64 = 1 << 30;

/// A tensor with its values, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Shape,
    pub(crate) bytes: Vec<u8>,
}

/// Tensors by name.
pub(crate) type Tensors = BTreeMap<String, Tensor>;

/// Every tensor of a Hugging Face directory, shard by shard as its index says.
pub(crate) fn read(directory: &dyn Store) -> Result<Tensors, Error> {
    let files = directory.files()?;
    if !files.iter().any(|file| file.name == INDEX_FILE) {
        return shard(directory, SINGLE_FILE);
    }
    let index = json(directory, INDEX_FILE)?;
    let wrong = || Error::Json {
        file: INDEX_FILE.to_owned(),
        reason: "weight_map is no object of file names".to_owned(),
    };
    let map = index
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(wrong)?;
    let files: Option<BTreeSet<&str>> = map.values().map(Value::as_str).collect();
    let mut tensors = Tensors::new();
    for file in files.ok_or_else(wrong)? {
        let held = shard(directory, file)?.into_iter();
        tensors.extend(held.filter(|(name, _)| map.get(name).is_some_and(|of| of == file)));
    }
    Ok(tensors)
}

fn shard(directory: &dyn Store, file: &str) -> Result<Tensors, Error> {
    let bytes = read_whole(directory, file, LIMIT)?;
    let read =
        safetensors::SafeTensors::deserialize(&bytes).map_err(|error| Error::Safetensors {
            file: file.to_owned(),
            error,
        })?;
    let tensors = read.iter().map(|(name, view)| {
        let shape: Vec<u64> = view.shape().iter().map(|&extent| extent as u64).collect();
        let tensor = Tensor {
            dtype: view.dtype().to_string().parse()?,
            shape: Shape::new(shape),
            bytes: view.data().to_vec(),
        };
        Ok((name.to_owned(), tensor))
    });
    tensors.collect()
}

/// A JSON file.
pub(crate) fn json(directory: &dyn Store, file: &str) -> Result<Value, Error> {
    let bytes = read_whole(directory, file, LIMIT)?;
    serde_json::from_slice(&bytes).map_err(|error| Error::Json {
        file: file.to_owned(),
        reason: error.to_string(),
    })
}

/// What a mapping is held against.
pub(crate) fn inventory(tensors: &Tensors) -> Vec<StoredTensor> {
    let stored = tensors.iter().map(|(name, tensor)| StoredTensor {
        name: name.clone(),
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
        place: "the fixture".to_owned(),
    });
    stored.collect()
}

impl Tensor {
    /// Zeros.
    pub(crate) fn zeros(dtype: Dtype, shape: &Shape) -> Result<Tensor, Error> {
        let len = usize::try_from(shape.size_bytes(dtype)?).unwrap_or(usize::MAX);
        Ok(Tensor {
            dtype,
            shape: shape.clone(),
            bytes: vec![0; len],
        })
    }

    /// The values of a rectangle, row-major.
    pub(crate) fn part(&self, region: &Region) -> Vec<u8> {
        let runs = runs(&self.shape, region, self.dtype).into_iter();
        runs.flat_map(|run| &self.bytes[run]).copied().collect()
    }

    /// Gives a rectangle its values.
    pub(crate) fn set(&mut self, region: &Region, values: &[u8]) {
        let mut rest = values;
        for run in runs(&self.shape, region, self.dtype) {
            let (values, after) = rest.split_at(run.len());
            self.bytes[run].copy_from_slice(values);
            rest = after;
        }
    }
}

/// The byte ranges of a rectangle inside a tensor, one for each of its rows.
fn runs(shape: &Shape, region: &Region, dtype: Dtype) -> Vec<Range<usize>> {
    let width = dtype.size_bytes();
    let at = |elements: u64| usize::try_from(elements * width).unwrap_or(usize::MAX);
    // A scalar is a row of one.
    let (&row, outer) = region.sizes().split_last().unwrap_or((&1, &[]));
    let first = |place: u64| {
        let (mut rest, mut step, mut first) = (place, 1, 0);
        for (axis, &extent) in shape.extents().iter().enumerate().rev() {
            let inside = match outer.get(axis) {
                Some(&size) => {
                    let inside = rest % size;
                    rest /= size;
                    inside
                }
                None => 0,
            };
            first += (region.offsets()[axis] + inside) * step;
            step *= extent;
        }
        first
    };
    let rows: u64 = outer.iter().product();
    let runs = (0..rows).map(|place| {
        let first = first(place);
        at(first)..at(first + row)
    });
    runs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(shape: &[u64]) -> Tensor {
        let shape = Shape::new(shape);
        let elements = u8::try_from(shape.elements().unwrap()).unwrap();
        Tensor {
            dtype: Dtype::U8,
            shape,
            bytes: (0..elements).collect(),
        }
    }

    #[test]
    fn a_rectangle_is_its_rows_one_after_the_other() {
        let tensor = counted(&[2, 3, 4]);
        let part = tensor.part(&Region::new([0, 1, 2], [2, 2, 2]));
        assert_eq!(part, [6, 7, 10, 11, 18, 19, 22, 23]);
        let scalar = counted(&[]);
        assert_eq!(scalar.part(&Region::new([], [])), [0]);
    }

    #[test]
    fn what_is_set_is_read_and_nothing_else_changes() {
        let mut tensor = Tensor::zeros(Dtype::U8, &Shape::new([2, 3])).unwrap();
        let region = Region::new([0, 1], [2, 2]);
        tensor.set(&region, &[1, 2, 3, 4]);
        assert_eq!(tensor.bytes, [0, 1, 2, 0, 3, 4]);
        assert_eq!(tensor.part(&region), [1, 2, 3, 4]);
    }
}
