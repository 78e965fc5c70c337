//! A checkpoint of full size that takes no room: real headers and a real index, and holes where the weights would be.
//!
//! What reads no weight cannot tell it from the published one. It is an outside witness: JSON and a length are all that a
//! header needs, so no writer of this repository has a part in it. Equal configs give equal bytes.

use std::fs;
use std::io;
use std::path::Path;

use crate::published::{self, Tensor};
use crate::shards::{self, Written};

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
    shards::write(config, tensors, target, &mut |_, _| Ok(()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use safetensors::SafeTensors;
    use serde_json::Value;

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
