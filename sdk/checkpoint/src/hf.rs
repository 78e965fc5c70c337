//! A checkpoint in the Hugging Face layout: `config.json`, safetensors shards, their index, and side files.
//!
//! What belongs to it is decided by the index, or by `model.safetensors` where there is no index, and never by what else
//! lies in the directory. [`HfCheckpoint`] reads one, [`HfPlan`] lays one out.

pub mod read;
pub mod write;

#[cfg(test)]
pub(crate) mod tests;

pub use read::{HfCheckpoint, HfFile, HfTensor, holds_weight_files, read_config, side_files};
pub use write::{HfPlan, ShardLimit};

/// The file that says which model it is.
pub const CONFIG_FILE: &str = "config.json";

/// The file that says which shard holds which tensor.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// The one shard of a checkpoint that is not split.
pub const SINGLE_FILE: &str = "model.safetensors";
