//! A checkpoint to convert: a GLM-5.2 with every part of the published one, at a size that a bench can move.
//!
//! Names, shapes and dtypes are the family's own; the shards are written by the `safetensors` crate. Weights are normal-like
//! with the published `initializer_range` of 0.02 as standard deviation, norms the same around one, never zero, the same
//! bytes in every run: zeros would compress, and be sparse on some file systems.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use half::bf16;
use rialto_bridge::StoredTensor;
use rialto_checkpoint::store::MemoryStore;
use rialto_engine::{ImportPlan, Options};
use rialto_glm5::Glm5;
use rialto_tensor::Dtype;
use rialto_tests::random::Random;
use safetensors::tensor::{TensorView, serialize_to_file};
use serde_json::{Map, Value, json};

/// The fixtures of the test suites.
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures");

/// How much is moved.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Size {
    /// About 256 MiB, in shards of 64 MiB.
    Full,
    /// A few MiB, in shards of 1 MiB: shows that the bench runs, measures nothing.
    Smoke,
}

impl Size {
    /// [`Size::Full`] only if cargo asked for a bench and nobody asked for a test of it: as criterion decides.
    pub(crate) fn from_arguments() -> Size {
        let has = |flag: &str| std::env::args().any(|argument| argument == flag);
        match has("--bench") && !has("--test") {
            true => Size::Full,
            false => Size::Smoke,
        }
    }

    fn shard_bytes(self) -> usize {
        match self {
            Size::Full => 64 << 20,
            Size::Smoke => 1 << 20,
        }
    }

    /// The keys in which the config differs from that of the tiny fixture, which says the rest: layer and indexer types.
    fn config(self) -> Value {
        match self {
            Size::Full => json!({
                "hidden_size": 1024, "intermediate_size": 2048, "moe_intermediate_size": 512, "n_routed_experts": 8,
                "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 96, "qk_nope_head_dim": 96,
                "qk_rope_head_dim": 32, "qk_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 384, "kv_lora_rank": 128,
                "index_n_heads": 8, "index_head_dim": 64, "vocab_size": 4096,
            }),
            Size::Smoke => json!({}),
        }
    }
}

/// Writes the checkpoint into a directory, which it creates, and returns the bytes of its tensors.
pub(crate) fn write(directory: &Path, size: Size) -> Result<u64> {
    fs::create_dir(directory)?;
    let config = config(size)?;
    fs::write(directory.join("config.json"), &config)?;
    let shards = shards(tensors(config)?, size.shard_bytes())?;
    let (mut random, mut weight_map, mut total_bytes) = (Random(5), Map::new(), 0);
    for (number, shard) in (1..).zip(&shards) {
        let name = format!("model-{number:05}-of-{:05}.safetensors", shards.len());
        let mut contents = Vec::new();
        for tensor in shard {
            contents.push(values(&mut random, tensor)?);
            weight_map.insert(tensor.name.clone(), json!(name));
        }
        total_bytes += contents.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        let views = shard
            .iter()
            .zip(&contents)
            .map(|(tensor, bytes)| view(tensor, bytes));
        let views = views.collect::<Result<Vec<_>>>()?;
        serialize_to_file(
            views,
            Some([("format".to_owned(), "pt".to_owned())].into()),
            &directory.join(name),
        )?;
    }
    let index = json!({ "metadata": { "total_size": total_bytes }, "weight_map": weight_map });
    fs::write(
        directory.join("model.safetensors.index.json"),
        serde_json::to_vec_pretty(&index)?,
    )?;
    Ok(total_bytes)
}

fn config(size: Size) -> Result<Vec<u8>> {
    let tiny = PathBuf::from(FIXTURES).join("glm52-tiny/config.json");
    let mut config: Map<String, Value> = serde_json::from_slice(&fs::read(tiny)?)?;
    config.extend(size.config().as_object().cloned().unwrap_or_default());
    Ok(serde_json::to_vec_pretty(&config)?)
}

/// What the family says a checkpoint of this config holds, in the order of the forward pass.
fn tensors(config: Vec<u8>) -> Result<Vec<StoredTensor>> {
    let store = MemoryStore::new("synthetic");
    store.insert("config.json", config)?;
    let plan = ImportPlan::new(&Glm5, Arc::new(store), &Options::default())?;
    Ok(plan.mapping().nominal_tensors("config.json", &[])?)
}

/// Fills shards one after the other; a larger tensor gets a shard of its own.
fn shards(tensors: Vec<StoredTensor>, max_bytes: usize) -> Result<Vec<Vec<StoredTensor>>> {
    let (mut shards, mut filled) = (vec![Vec::new()], 0);
    for tensor in tensors {
        let bytes = size_bytes(&tensor)?;
        if filled > 0 && filled + bytes > max_bytes {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += bytes;
        shards
            .last_mut()
            .context("there is a first shard")?
            .push(tensor);
    }
    Ok(shards)
}

fn size_bytes(tensor: &StoredTensor) -> Result<usize> {
    Ok(usize::try_from(tensor.shape.size_bytes(tensor.dtype)?)?)
}

fn view<'a>(tensor: &'a StoredTensor, bytes: &'a [u8]) -> Result<(&'a str, TensorView<'a>)> {
    let dtype = match tensor.dtype {
        Dtype::F32 => safetensors::Dtype::F32,
        _ => safetensors::Dtype::BF16,
    };
    let extents = tensor
        .shape
        .extents()
        .iter()
        .map(|&extent| usize::try_from(extent));
    Ok((
        &tensor.name,
        TensorView::new(dtype, extents.collect::<Result<_, _>>()?, bytes)?,
    ))
}

fn values(random: &mut Random, tensor: &StoredTensor) -> Result<Vec<u8>> {
    let mean = if tensor.name.ends_with("norm.weight") {
        1.0
    } else {
        0.0
    };
    let mut bytes = vec![0; size_bytes(tensor)?];
    match tensor.dtype {
        Dtype::F32 => {
            let elements = bytes.as_chunks_mut().0;
            elements
                .iter_mut()
                .for_each(|element| *element = (mean + 0.02 * random.normal()).to_le_bytes());
        }
        _ => {
            let elements = bytes.as_chunks_mut().0;
            elements.iter_mut().for_each(|element| {
                *element = bf16::from_f32(mean + 0.02 * random.normal()).to_le_bytes()
            });
        }
    }
    Ok(bytes)
}
