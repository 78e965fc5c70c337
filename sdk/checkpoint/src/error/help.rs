//! What to do about an error.

use std::io;

use rialto_tensor::Dtype;

use super::{Error, first};

impl Error {
    /// What to do about it, where something better than reading the message is known.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        let help = match self {
            // --- store ---
            Error::Write { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free some space, or write to another file system".to_owned()
            }
            Error::ShortRead { .. } => {
                "the file is cut off, or changed while it was read; fetch it again".to_owned()
            }
            Error::TargetExists { .. } => {
                "choose another target, or replace it as a whole with --force".to_owned()
            }
            Error::TargetBusy { .. } => {
                "wait for the other run to end, or choose another target".to_owned()
            }
            Error::ForeignPartial { .. } => {
                "move it away, or choose another target; rialto deletes only what it made".to_owned()
            }
            Error::NotDirectory { .. } => {
                "give the directory that holds the checkpoint; as a target, one that is not there yet"
                    .to_owned()
            }
            Error::NoSpace { .. } => {
                "free space, or choose a target on another file system".to_owned()
            }
            Error::Overlap { .. } => {
                "choose a target outside the source: the source is never written to".to_owned()
            }
            Error::HeaderLimit { .. } => {
                "the file is damaged or no safetensors file: fetch it again; when writing, take smaller shards with --max-shard-size".to_owned()
            }
            Error::DuplicateName { .. } => {
                "the file says two things of one name: report it to the checkpoint's author".to_owned()
            }
            // --- tensor ---
            Error::Tensor {
                source: rialto_tensor::Error::UnknownDtype { .. },
                ..
            } => {
                let known: Vec<&str> = Dtype::ALL.iter().map(|d| d.safetensors_name()).collect();
                format!("known are {}", known.join(", "))
            }
            // --- safetensors ---
            Error::Truncated { .. } | Error::TrailingBytes { .. } => {
                "the download or copy was probably interrupted; fetch the file again".to_owned()
            }
            // --- hf ---
            Error::NoWeights { others, .. } if !others.is_empty() => format!(
                "weight files that no index names are there: {}",
                first(others)
            ),
            Error::NoWeights { .. } => {
                "give a directory in the Hugging Face layout, with safetensors weights".to_owned()
            }
            Error::MissingShards { .. } => "fetch the absent files".to_owned(),
            Error::IndexMismatch { .. } => {
                "index and shards are of different versions; fetch both again".to_owned()
            }
            // --- torch_dist ---
            Error::PickleOpcode { .. } | Error::PickleLimit { .. } => {
                "no checkpoint writer makes such a pickle; do not load this file with PyTorch".to_owned()
            }
            Error::Checksum { .. } => {
                "the file was damaged after it was written; copy it again. PyTorch can be told to write no true \
                 checksums: for such a checkpoint, `--ignore-checksums`"
                    .to_owned()
            }
            Error::Digest { .. } => {
                "the file was damaged or replaced after it was written; copy it again".to_owned()
            }
            Error::RanksDisagree { .. } => {
                "save again with collectives, so that one rank decides".to_owned()
            }
            Error::NotTorchSave { .. } => {
                "files that PyTorch wrote with serialization_format=SAFETENSORS are not torch_dist; \
                 save with the default format"
                    .to_owned()
            }
            Error::Transformed { .. } => {
                "save again without transforms (compression)".to_owned()
            }
            Error::DataFiles { .. }
            | Error::StoragePlaces { .. }
            | Error::Tiling { .. }
            | Error::RanksMissing { .. }
            | Error::IntegrityFiles { .. } => {
                "the checkpoint was saved or copied incompletely; save or copy it again".to_owned()
            }
            Error::ShardedBackend { .. } => {
                "convert it to torch_dist with the Megatron-Core version that wrote it".to_owned()
            }
            Error::IncompleteCheckpoint { .. } => {
                "the run that saved it ended early; give an older iteration".to_owned()
            }
            Error::NoTracker { found, .. } | Error::TrackerDangling { found, .. }
                if !found.is_empty() =>
            {
                "give one of the iteration directories instead of the run directory".to_owned()
            }
            Error::NoTracker { .. } | Error::TrackerDangling { .. } => {
                "give the directory of a Megatron run, or of one iteration".to_owned()
            }
            _ => return None,
        };
        Some(help)
    }
}
