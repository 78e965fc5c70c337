//! A checkpoint of full size that takes no room: real headers and a real index, and holes where the weights would be.
//!
//! What reads no weight cannot tell it from the published one. It is an outside witness: JSON and a length are all that a
//! header needs, so no writer of this repository has a part in it. Equal configs give equal bytes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::published::{self, Tensor};

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
    /// Bytes of the tensors, none of which were written.
    pub bytes: u64,
}

/// Writes the checkpoint that the `config.json` of a directory was published with into `target`, which it creates.
///
/// Errors: the file system's, also if the target exists; a config that is no JSON, or that [`published::read`] refuses. Those
/// about the config name it.
pub fn write(directory: &Path, target: &Path) -> io::Result<Written> {
    let path = directory.join("config.json");
    let named = |kind, error: &dyn std::fmt::Display| {
        io::Error::new(kind, format!("{}: {error}", path.display()))
    };
    let config = fs::read(&path).map_err(|error| named(error.kind(), &error))?;
    let invalid = |error: &dyn std::fmt::Display| named(io::ErrorKind::InvalidData, error);
    let parsed = serde_json::from_slice(&config).map_err(|error| invalid(&error))?;
    let tensors = published::read(&parsed).map_err(|error| invalid(&error))?;
    write_tensors(&config, &tensors, target)
}

/// The same of tensors that need not be those of the config: what nobody published, and somebody may have.
///
/// Errors: the file system's, also if the target exists. After any error there is nothing that was not there before.
pub fn write_tensors(config: &[u8], tensors: &[Tensor], target: &Path) -> io::Result<Written> {
    fs::create_dir(target)?;
    fill(config, tensors, target).inspect_err(|_| {
        // What went wrong first is what is told.
        let _ = fs::remove_dir_all(target);
    })
}

fn fill(config: &[u8], tensors: &[Tensor], target: &Path) -> io::Result<Written> {
    let shards = pack(tensors, MAX_SHARD_BYTES);
    fs::write(target.join("config.json"), config)?;
    let mut weight_map = BTreeMap::new();
    for (number, tensors) in (1..).zip(&shards) {
        let name = format!("model-{number:05}-of-{:05}.safetensors", shards.len());
        write_shard(&target.join(&name), tensors)?;
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

fn write_shard(path: &Path, tensors: &[Tensor]) -> io::Result<()> {
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
    file.set_len(8 + header.len() as u64 + end)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use safetensors::SafeTensors;

    use super::*;
    use crate::fixture;

    #[test]
    fn an_independent_reader_finds_every_tensor_where_the_index_says() {
        for name in ["glm5-tiny", "glm52-tiny", "glm53-tiny"] {
            let room = tempfile::tempdir().unwrap();
            let target = room.path().join("sparse");
            let written = write(&fixture(name), &target).unwrap();
            let read = |file: &str| fs::read(target.join(file)).unwrap();
            let index: Value =
                serde_json::from_slice(&read("model.safetensors.index.json")).unwrap();
            let config: Value = serde_json::from_slice(&read("config.json")).unwrap();
            let expected = published::tensors(&config);
            let shard = read("model-00001-of-00001.safetensors");
            let shard = SafeTensors::deserialize(&shard).unwrap();
            assert_eq!(shard.len(), expected.len(), "{name}");
            for tensor in &expected {
                let found = shard.tensor(&tensor.name).unwrap();
                let shape: Vec<u64> = found.shape().iter().map(|&extent| extent as u64).collect();
                let dtype = found.dtype().to_string();
                assert_eq!(
                    (dtype.as_str(), &shape),
                    (tensor.dtype.name(), &tensor.shape)
                );
                let file = &index["weight_map"][&tensor.name];
                assert_eq!(file, "model-00001-of-00001.safetensors");
            }
            let names = index["weight_map"].as_object().unwrap().len();
            let bytes: u64 = expected.iter().map(Tensor::size_bytes).sum();
            let whole = (expected.len(), expected.len(), bytes);
            assert_eq!((names, written.tensors, written.bytes), whole, "{name}");
            assert_eq!(index["metadata"]["total_size"], bytes);
        }
    }

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

    #[test]
    fn equal_configs_give_equal_bytes_and_holes_take_no_room() {
        let room = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| room.path().join(name));
        write(&fixture("glm52-tiny"), &one).unwrap();
        write(&fixture("glm52-tiny"), &two).unwrap();
        for entry in fs::read_dir(&one).unwrap() {
            let name = entry.unwrap().file_name();
            let [a, b] = [&one, &two].map(|folder| fs::read(folder.join(&name)).unwrap());
            assert!(a == b, "{name:?}");
        }
        let shard = fs::metadata(one.join("model-00001-of-00001.safetensors")).unwrap();
        assert!(shard.len() > 1_855_840);
        assert!(shard.blocks() * 512 < 100_000, "{} blocks", shard.blocks());
    }

    #[test]
    fn a_target_that_exists_is_left_alone() {
        let room = tempfile::tempdir().unwrap();
        fs::write(room.path().join("mine"), "x").unwrap();
        let error = write(&fixture("glm52-tiny"), room.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_dir(room.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_config_that_cannot_be_read_is_named_and_leaves_no_target() {
        let room = tempfile::tempdir().unwrap();
        let (source, target) = (room.path().join("source"), room.path().join("target"));
        fs::create_dir(&source).unwrap();
        let path = source.join("config.json");
        let config = fs::read_to_string(fixture("glm52-tiny").join("config.json")).unwrap();
        let lacking = config.replace("\"v_head_dim\"", "\"v_head\"");
        for (config, kind, expected) in [
            (None, io::ErrorKind::NotFound, "No such file"),
            (Some("{"), io::ErrorKind::InvalidData, "EOF"),
            (
                Some("{}"),
                io::ErrorKind::InvalidData,
                "vocab_size is absent",
            ),
            (
                Some(&lacking),
                io::ErrorKind::InvalidData,
                "v_head_dim is absent",
            ),
        ] {
            if let Some(config) = config {
                fs::write(&path, config).unwrap();
            }
            let error = write(&source, &target).unwrap_err();
            assert_eq!(error.kind(), kind);
            let expected = format!("{}: {expected}", path.display());
            assert!(error.to_string().starts_with(&expected), "{error}");
            assert!(!target.exists());
        }
    }

    #[test]
    fn what_cannot_be_finished_leaves_no_target() {
        let tensor = |name: &str, rows: u64| Tensor {
            name: name.to_owned(),
            dtype: published::Dtype::Bf16,
            shape: vec![rows],
            part: published::Part::Main,
            is_scale: false,
        };
        // A shard that can be written, and one that is longer than any file.
        let tensors = [tensor("a", 8), tensor("b", 1 << 62)];
        let room = tempfile::tempdir().unwrap();
        let target = room.path().join("target");
        write_tensors(b"{}", &tensors, &target).unwrap_err();
        assert_eq!(fs::read_dir(room.path()).unwrap().count(), 0);
        write_tensors(b"{}", &tensors[..1], &target).unwrap();
    }
}
