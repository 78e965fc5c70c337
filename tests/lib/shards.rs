//! Writing a Hugging Face directory: shards with their headers, an index, and weights from whoever has them.
//!
//! It is an outside witness: JSON and a length are all that a header needs, so no writer of this repository has a part in it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::published::Tensor;

/// Data of a shard, unless one tensor alone is more. With this the published releases have the number of files that they
/// were published in: 282 in BF16, 141 in FP8.
const MAX_SHARD_BYTES: u64 = 5 << 30;

/// Headers end on a multiple of this, as every writer pads them.
const ALIGNMENT: usize = 8;

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Shards.
    pub shards: usize,
    /// Tensors in them, scales included.
    pub tensors: usize,
    /// Bytes of the tensors.
    pub bytes: u64,
}

/// Writes a checkpoint of these tensors into `target`, which it creates. Each shard has its full length when `weights` is given
/// its tensors and the file at the first byte of their data.
///
/// Errors: the file system's, also if the target exists; those of `weights`. After any error there is nothing that was not there
/// before.
pub fn write(
    config: &[u8],
    tensors: &[Tensor],
    target: &Path,
    weights: &mut dyn FnMut(&[Tensor], &mut File) -> io::Result<()>,
) -> io::Result<Written> {
    fs::create_dir(target)?;
    fill(config, tensors, target, weights).inspect_err(|_| {
        // What went wrong first is what is told.
        let _ = fs::remove_dir_all(target);
    })
}

fn fill(
    config: &[u8],
    tensors: &[Tensor],
    target: &Path,
    weights: &mut dyn FnMut(&[Tensor], &mut File) -> io::Result<()>,
) -> io::Result<Written> {
    let shards = pack(tensors, MAX_SHARD_BYTES);
    fs::write(target.join("config.json"), config)?;
    let mut weight_map = BTreeMap::new();
    for (number, tensors) in (1..).zip(&shards) {
        let name = format!("model-{number:05}-of-{:05}.safetensors", shards.len());
        let mut file = create_shard(&target.join(&name), tensors)?;
        weights(tensors, &mut file)?;
        let of_shard = tensors.iter().map(|tensor| (&tensor.name, name.clone()));
        weight_map.extend(of_shard);
    }
    let bytes = tensors.iter().map(Tensor::size_bytes).sum();
    let index = json!({"metadata": {"total_size": bytes}, "weight_map": weight_map});
    // Last, so that what was not finished is no checkpoint.
    fs::write(
        target.join("model.safetensors.index.json"),
        format!("{index:#}\n"),
    )?;
    Ok(Written {
        shards: shards.len(),
        tensors: tensors.len(),
        bytes,
    })
}

/// Fills shards one after the other.
fn pack(mut tensors: &[Tensor], max_bytes: u64) -> Vec<&[Tensor]> {
    let mut shards = Vec::new();
    while !tensors.is_empty() {
        let mut filled = 0;
        let fits = tensors.iter().take_while(|tensor| {
            filled += tensor.size_bytes();
            filled <= max_bytes
        });
        let (shard, rest) = tensors.split_at(fits.count().max(1));
        shards.push(shard);
        tensors = rest;
    }
    shards
}

fn create_shard(path: &Path, tensors: &[Tensor]) -> io::Result<File> {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut end = 0;
    for tensor in tensors {
        let begin = end;
        end += tensor.size_bytes();
        let entry = json!({
            "dtype": tensor.dtype.name(),
            "shape": tensor.shape,
            "data_offsets": [begin, end],
        });
        header.insert(tensor.name.clone(), entry);
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
    let mut file = File::create_new(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    file.set_len(8 + header.len() as u64 + end)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published;

    #[test]
    fn shards_are_filled_in_order_and_never_beyond_their_size_but_for_one_tensor() {
        let tensor = |rows: u64| Tensor {
            name: rows.to_string(),
            dtype: published::Dtype::Bf16,
            shape: vec![rows],
            part: published::Part::Main,
            is_scale: false,
        };
        let tensors = [3, 2, 1, 9, 4, 1].map(tensor);
        let rows = |shard: &&[Tensor]| shard.iter().map(Tensor::elements).collect::<Vec<_>>();
        let shards: Vec<_> = pack(&tensors, 10).iter().map(rows).collect();
        assert_eq!(shards, [vec![3, 2], vec![1], vec![9], vec![4, 1]]);
    }
}
