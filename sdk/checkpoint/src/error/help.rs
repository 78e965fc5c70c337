//! What to do about an error.

use std::io;

use super::{Error, first};

const FETCH: &str = "the file is damaged; fetch it again";
const COPY: &str = "the file is damaged; copy the checkpoint again";
const INCOMPLETE: &str = "the checkpoint was saved or copied incompletely; save or copy it again";
const CALLER: &str = "this is a fault of the program that asked; report it to its author";
const PLUGIN: &str = "report it to the plugin's author";

impl Error {
    /// What to do about it. There is an answer for every kind.
    ///
    /// Every kind is named here, so that a new one is not without.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        let help = match self {
            // --- store ---
            Error::NotFound { .. } => {
                "correct the path; a file that a checkpoint lacks has to be fetched"
            }
            Error::Read { .. } => "check permissions and the disk",
            Error::Write { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free some space, or write to another file system"
            }
            Error::Write { .. } => {
                "check permissions, also those of what is to be replaced, and free space; or write to another place"
            }
            Error::ShortRead { .. } => {
                "the file is cut off, or changed while it was read; fetch it again"
            }
            Error::NotRegular { .. } => {
                "give or put a file there: a directory, a pipe or a device is no file"
            }
            Error::UnsafeName { .. } => {
                "do not trust this checkpoint; of a path that you gave yourself, write the last part out"
            }
            Error::FileTooLarge { .. } => "look at the file; it is not what its name says",
            Error::TargetExists { .. } => {
                "choose another target, or replace it as a whole with --force"
            }
            Error::TargetBusy { .. } => "wait for the other run to end, or choose another target",
            Error::TargetJoined { .. } => {
                "correct the caller: the process that began or resumed the target commits it"
            }
            Error::Unsettled { .. } => {
                "nothing has to be made again: see to what failed, and remove what is left beside the target"
            }
            Error::ForeignPartial { .. } => {
                "move it away, or choose another target; rialto deletes only what it made"
            }
            Error::NotDirectory { .. } => {
                "give the directory that holds the checkpoint; as a target, one that is not there yet, in a directory"
            }
            Error::NoSpace { .. } => "free space, or choose a target on another file system",
            Error::Overlap { .. } => {
                "choose a target outside the source: the source is never written to"
            }
            // --- tensor ---
            Error::Tensor { source, .. } => return source.help(),
            // --- safetensors ---
            Error::Truncated { .. } | Error::TrailingBytes { .. } => {
                "the download or copy was probably interrupted; fetch the file again"
            }
            Error::HeaderLimit { .. } => {
                "the file is damaged or no safetensors file: fetch it again; when writing, take smaller shards with --max-shard-size"
            }
            Error::HeaderSyntax { .. } => {
                "the file is damaged or no safetensors file; fetch it again"
            }
            Error::DataRange { .. } | Error::DataLength { .. } => FETCH,
            Error::DuplicateName { .. } => {
                "the file says two things of one name: report it to the checkpoint's author"
            }
            Error::DataOverlap { .. } | Error::DataHole { .. } => {
                "report it to the checkpoint's author: no writer of safetensors lays out a file so"
            }
            Error::ReservedName { .. } => "rename the tensor",
            // --- hf ---
            Error::IndexSyntax { .. } => "fetch the index again, or make it anew from the shards",
            Error::NoWeights { others, .. } if !others.is_empty() => {
                return Some(format!(
                    "weight files that no index names are there: {}",
                    first(others)
                ));
            }
            Error::NoWeights { .. } => {
                "give a directory in the Hugging Face layout, with safetensors weights"
            }
            Error::MissingShards { .. } => "fetch the absent files",
            Error::IndexMismatch { .. } => {
                "index and shards are of different versions; fetch both again"
            }
            Error::ShardSize => "give a larger size with --max-shard-size, such as 5GiB",
            // --- torch_dist ---
            Error::PickleOpcode { .. } | Error::PickleLimit { .. } => {
                "no checkpoint writer makes such a pickle: if the file was damaged, copy it again; else do not load it with \
                 PyTorch, which would run what it says"
            }
            Error::PickleTruncated { .. }
            | Error::PickleMalformed { .. }
            | Error::ZipMalformed { .. }
            | Error::ZipRecordMissing { .. }
            | Error::ItemMalformed { .. }
            | Error::MetadataMalformed { .. }
            | Error::ItemMismatch { .. }
            | Error::ShardedDescription { .. }
            | Error::IntegritySyntax { .. } => COPY,
            Error::ZipEncoded { .. } => "save it again with torch.save, which does not compress",
            Error::ItemUnsupported { .. } => "save it as a plain dense tensor",
            Error::StorageStray { .. } | Error::ItemOverlap { .. } => "save the checkpoint again",
            Error::ObjectOpaque { .. } | Error::NoDigest { .. } => CALLER,
            Error::NoSuchItem { .. } => "`rialto inspect` lists what the checkpoint holds",
            Error::Checksum { .. } => {
                "the file was damaged after it was written; copy it again. PyTorch can be told to write no true \
                 checksums: for such a checkpoint, `--ignore-checksums`"
            }
            Error::Digest { .. } => {
                "the file was damaged or replaced after it was written; copy it again"
            }
            Error::IntegrityAlgorithm { .. } => {
                "use a newer version, or take the file away to read without the check"
            }
            Error::RanksDisagree { .. } => "save again with collectives, so that one rank decides",
            Error::NotTorchSave { .. } => {
                "files that PyTorch wrote with serialization_format=SAFETENSORS are not torch_dist; \
                 save with the default format"
            }
            Error::Transformed { .. } => "save again without transforms (compression)",
            Error::DataFiles { .. }
            | Error::StoragePlaces { .. }
            | Error::Tiling { .. }
            | Error::RanksMissing { .. }
            | Error::IntegrityFiles { .. } => INCOMPLETE,
            Error::ShardedBackend { .. } => {
                "convert it to torch_dist with the Megatron-Core version that wrote it"
            }
            Error::IncompleteCheckpoint { .. } => {
                "the run that saved it ended early; give an older iteration"
            }
            Error::NoTracker { found, .. } | Error::TrackerDangling { found, .. }
                if !found.is_empty() =>
            {
                "give one of the iteration directories instead of the run directory"
            }
            Error::NoTracker { .. } | Error::TrackerDangling { .. } => {
                "give the directory of a Megatron run, or of one iteration"
            }
            Error::TrackerMalformed { .. } => {
                "write the iteration's number into it, or give the directory of one iteration"
            }
            Error::PlanConflict { .. } | Error::RunConfig { .. } => PLUGIN,
            Error::RunConfigSyntax { .. } => {
                "mend the file, or take it away to go by the config alone"
            }
        };
        Some(help.to_owned())
    }
}
