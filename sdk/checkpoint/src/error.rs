//! The one error type of this crate, grouped by theme.
//!
//! | module | what of it |
//! |---|---|
//! | `finding` | the parts of errors that collect: one finding each |
//! | `kind` | the table of codes and slugs |
//! | `help` | what to do about an error |

mod finding;
mod help;
mod kind;

#[cfg(test)]
mod tests;

use std::io;

use rialto_tensor::{Dtype, Location, Shape};
use thiserror::Error as ThisError;

pub(crate) use finding::first;
use finding::first_or_none;
pub use finding::{DataFileFault, IndexFinding, TensorTilingFault};

/// What can be wrong with a checkpoint or with the place it lies in.
///
/// Messages say what, then where, then what was expected and found, in one line; [`Error::help`] says what to do.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    // --- store: files and directories ---
    /// No file or directory of that name.
    #[error("no such file or directory{location}")]
    NotFound {
        /// What was looked for.
        location: Location,
    },
    /// The operating system refused to read.
    #[error("cannot read{location}: {source}")]
    Read {
        /// What was being read.
        location: Location,
        /// The system's reason.
        source: io::Error,
    },
    /// The operating system refused to write.
    #[error("cannot write{location}: {source}")]
    Write {
        /// What was being written.
        location: Location,
        /// The system's reason.
        source: io::Error,
    },
    /// A file ended before the bytes asked for.
    #[error("file ends at byte {len}, before the bytes wanted{location}")]
    ShortRead {
        /// The bytes wanted.
        location: Location,
        /// Where the file ended.
        len: u64,
    },
    /// A name that would leave the directory it is meant for.
    #[error("name {name:?} is not a relative path inside the directory{location}")]
    UnsafeName {
        /// The name as found.
        name: String,
        /// Who named it.
        location: Location,
    },
    /// A file that is read whole is larger than anything sensible.
    #[error("file of {len} bytes exceeds the limit of {limit} bytes{location}")]
    FileTooLarge {
        /// The file.
        location: Location,
        /// Its length in bytes.
        len: u64,
        /// The most that is read, in bytes.
        limit: u64,
    },
    /// A directory is needed and something else is there.
    #[error("not a directory{location}")]
    NotDirectory {
        /// What is there.
        location: Location,
    },
    /// The target is there already and must not be replaced.
    #[error("target exists and is not an empty directory{location}")]
    TargetExists {
        /// The target.
        location: Location,
    },
    /// Somebody else is building the same target.
    #[error("target is being written by another process{location}")]
    TargetBusy {
        /// The directory under construction.
        location: Location,
    },
    /// A process that only joined a target was to commit it.
    #[error("a target that was joined is committed by the process that began it{location}")]
    TargetJoined {
        /// The target.
        location: Location,
    },
    /// A target that was published, after which something failed.
    #[error("target is whole and in its place, but {source}{location}")]
    Unsettled {
        /// The target.
        location: Location,
        /// What failed: to make sure of it on the disk, or to remove what was built beside it.
        source: Box<Error>,
    },
    /// The place for the directory under construction is taken by something that rialto did not make.
    #[error("the place to build in is taken by something else{location}")]
    ForeignPartial {
        /// The directory in the way.
        location: Location,
    },
    /// Source and target share files.
    #[error("target {target:?} is {relation} source {origin:?}")]
    Overlap {
        /// The source, as the user typed it.
        origin: String,
        /// The target, as the user typed it.
        target: String,
        /// `the same as`, `inside`, `above` or `built inside`.
        relation: &'static str,
    },

    // --- tensor: what `rialto-tensor` says, with the place ---
    /// A dtype, shape or view is wrong in itself.
    #[error("{source}{location}")]
    Tensor {
        /// The tensor and its file.
        location: Location,
        /// What is wrong with it; also gives code and slug.
        source: rialto_tensor::Error,
    },

    // --- safetensors: one shard ---
    /// The file is shorter than its header says, or than a header.
    #[error("truncated: expected at least {expected} bytes, found {found}{location}")]
    Truncated {
        /// The file, the first tensor that misses bytes, and the range missing in the file.
        location: Location,
        /// Bytes the file needs, as far as can be known.
        expected: u64,
        /// Bytes the file has.
        found: u64,
    },
    /// Bytes follow the last tensor.
    #[error("bytes after the last tensor: expected {expected} bytes, found {found}{location}")]
    TrailingBytes {
        /// The file and the range of the surplus.
        location: Location,
        /// Bytes the file needs.
        expected: u64,
        /// Bytes the file has.
        found: u64,
    },
    /// A header longer than the format allows, met in a file or about to be written.
    #[error("header of {len} bytes exceeds the limit of {limit} bytes{location}")]
    HeaderLimit {
        /// The shard.
        location: Location,
        /// Length of the header in bytes.
        len: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A header that is not the JSON that the format asks for.
    #[error("malformed header: {reason}{location}")]
    HeaderSyntax {
        /// The shard, and the tensor if its entry is at fault.
        location: Location,
        /// What the JSON parser says.
        reason: String,
    },
    /// One name given twice where names are unique.
    #[error("name {name:?} occurs more than once{location}")]
    DuplicateName {
        /// The file.
        location: Location,
        /// The name.
        name: String,
    },
    /// A tensor under the name that the format keeps for its metadata.
    #[error("the name \"__metadata__\" is reserved by the format{location}")]
    ReservedName {
        /// The tensor, and the shard it was meant for.
        location: Location,
    },
    /// A data range that is reversed or beyond 64-bit arithmetic.
    #[error("data range is reversed or too large{location}")]
    DataRange {
        /// The tensor, and the range relative to the data section as the header gives it.
        location: Location,
    },
    /// A data range that is not as long as dtype and shape need.
    #[error(
        "{dtype} tensor of shape {shape} needs {expected} bytes, its data range has {found}{location}"
    )]
    DataLength {
        /// The tensor and its range in the file.
        location: Location,
        /// Element type.
        dtype: Dtype,
        /// Shape.
        shape: Shape,
        /// Bytes needed.
        expected: u64,
        /// Bytes in the range.
        found: u64,
    },
    /// Two tensors share bytes.
    #[error("data overlaps that of tensor {other}{location}")]
    DataOverlap {
        /// The later tensor and the bytes shared.
        location: Location,
        /// The earlier tensor.
        other: String,
    },
    /// Bytes between tensors belong to none.
    #[error("bytes before the tensor belong to no tensor{location}")]
    DataHole {
        /// The tensor after the hole, and the hole.
        location: Location,
    },

    // --- hf: a Hugging Face directory ---
    /// The index is not the JSON that it should be.
    #[error("malformed index: {reason}{location}")]
    IndexSyntax {
        /// The index file.
        location: Location,
        /// What the JSON parser says.
        reason: String,
    },
    /// The directory holds no safetensors weights.
    #[error(
        "no weights: neither model.safetensors.index.json nor model.safetensors is there{location}"
    )]
    NoWeights {
        /// The directory.
        location: Location,
        /// Weight files that are there, but belong to no index.
        others: Vec<String>,
    },
    /// Shards that the index names are not there.
    #[error(
        "{} shard(s) named by the index are absent: {}{location}",
        shards.len(),
        first(shards.iter().map(|(file, tensors)| format!("{file} ({tensors} tensors)")))
    )]
    MissingShards {
        /// The index.
        location: Location,
        /// Every absent file, with the number of tensors that the index places in it.
        shards: Vec<(String, usize)>,
    },
    /// The index and the headers of its shards disagree.
    #[error(
        "index and shards disagree about {} tensor(s): {}{location}",
        findings.len(),
        first(findings)
    )]
    IndexMismatch {
        /// The index.
        location: Location,
        /// Every disagreement, in order of tensor name.
        findings: Vec<IndexFinding>,
    },
    /// Shards of no size cannot hold anything.
    #[error("shard size of 0 bytes")]
    ShardSize,

    // --- torch_dist: PyTorch distributed checkpoints, as Megatron-Core writes them ---
    /// A pickle stops in the middle.
    #[error("pickle ends in the middle of an instruction{location}")]
    PickleTruncated {
        /// The pickle, and the byte at which more was wanted.
        location: Location,
    },
    /// A pickle instruction that no checkpoint needs, such as one that names a class by a registry number.
    #[error("pickle instruction {opcode:#04x} is not accepted{location}")]
    PickleOpcode {
        /// The instruction's first byte.
        opcode: u8,
        /// The pickle, and the byte in it.
        location: Location,
    },
    /// Pickle instructions that contradict each other or themselves.
    #[error("pickle is malformed: {what}{location}")]
    PickleMalformed {
        /// The contradiction.
        what: &'static str,
        /// The pickle, and the byte in it.
        location: Location,
    },
    /// A pickle that is larger, deeper or longer than any real one.
    #[error("pickle exceeds the limit of {limit} {what}{location}")]
    PickleLimit {
        /// What is bounded.
        what: &'static str,
        /// How many of it are accepted.
        limit: u64,
        /// The pickle, and the byte in it.
        location: Location,
    },
    /// An item that does not begin as a zip file does.
    #[error("item is not a torch.save stream: it does not begin with PK{location}")]
    NotTorchSave {
        /// The item.
        location: Location,
    },
    /// The zip structure of a torch.save stream contradicts itself or the bytes it lies in.
    #[error("zip structure is malformed: {what}{location}")]
    ZipMalformed {
        /// The contradiction.
        what: &'static str,
        /// The bytes concerned.
        location: Location,
    },
    /// A zip record that is compressed or encrypted, which torch.save never does.
    #[error("zip record {record:?} is compressed or encrypted (method {method}){location}")]
    ZipEncoded {
        /// The record.
        record: String,
        /// The zip compression method.
        method: u16,
        /// The archive.
        location: Location,
    },
    /// A record that every torch.save stream has is absent.
    #[error("zip record {record:?} is missing{location}")]
    ZipRecordMissing {
        /// The record, without the archive's root folder.
        record: String,
        /// The archive.
        location: Location,
    },
    /// The pickle of an item does not describe a tensor, or describes one that its storage does not hold.
    #[error("item does not hold a tensor: {what}{location}")]
    ItemMalformed {
        /// The contradiction.
        what: &'static str,
        /// The item.
        location: Location,
    },
    /// A tensor of a kind that this version does not read.
    #[error("tensor uses {what}, which is not supported{location}")]
    ItemUnsupported {
        /// The kind.
        what: String,
        /// The item.
        location: Location,
    },
    /// An object that was kept opaque on reading was to be written.
    #[error("object {what:?} has no encoding")]
    ObjectOpaque {
        /// What the object is, as far as it was understood.
        what: String,
    },
    /// `.metadata` lacks a value, or has another kind of value in its place.
    #[error("checkpoint metadata is malformed: {what} is not {expected}{location}")]
    MetadataMalformed {
        /// The place in the object graph.
        what: &'static str,
        /// What belongs there.
        expected: &'static str,
        /// The file and the tensor or object.
        location: Location,
    },
    /// Chunks that leave elements of a tensor uncovered, cover some twice, or reach outside.
    #[error("chunks do not tile their tensors: {}{location}", first(faults))]
    Tiling {
        /// Every fault of every tensor.
        faults: Vec<TensorTilingFault>,
        /// The file that lists the chunks.
        location: Location,
    },
    /// A chunk or object without exactly one place in a data file.
    #[error("{found} places in data files are recorded for {item}, expected 1{location}")]
    StoragePlaces {
        /// The chunk, as `[0, 0]+[4, 8]`, or the word `object`.
        item: String,
        /// How many places were found.
        found: usize,
        /// The file and the tensor or object.
        location: Location,
    },
    /// A place in a data file is recorded for something the checkpoint does not hold.
    #[error("a place in data file {file:?} is recorded for a chunk that no tensor has{location}")]
    StorageStray {
        /// The data file.
        file: String,
        /// The metadata file and the key recorded.
        location: Location,
    },
    /// An item passed through a transform, such as compression, before it was written.
    #[error(
        "item was written through transforms {transforms:?}, which are not supported{location}"
    )]
    Transformed {
        /// The transforms, in order.
        transforms: Vec<String>,
        /// The file and the tensor or object.
        location: Location,
    },
    /// Data files that are absent, or shorter than the metadata says.
    #[error("data files are incomplete: {}{location}", first(faults))]
    DataFiles {
        /// Every file concerned.
        faults: Vec<DataFileFault>,
        /// The checkpoint.
        location: Location,
    },
    /// Two items of a data file share bytes.
    #[error("item overlaps that of {other}{location}")]
    ItemOverlap {
        /// The tensor or object whose item begins before.
        other: String,
        /// The data file, the tensor or object whose item begins later, and that item's bytes.
        location: Location,
    },
    /// An item holds another tensor than the metadata says.
    #[error("item holds {found}, expected {expected}{location}")]
    ItemMismatch {
        /// Dtype and shape that the metadata gives.
        expected: String,
        /// Dtype and shape of the item.
        found: String,
        /// The data file, the tensor and the item's bytes.
        location: Location,
    },
    /// A tensor or object that the checkpoint does not hold.
    #[error("no tensor or object of that name{location}")]
    NoSuchItem {
        /// The checkpoint and the name.
        location: Location,
    },
    /// `metadata.json` cannot be understood.
    #[error("not a description of a sharded checkpoint: {reason}{location}")]
    ShardedDescription {
        /// What is wrong with it.
        reason: String,
        /// The file.
        location: Location,
    },
    /// A sharded checkpoint in another format than torch_dist version 1.
    #[error(
        "sharded backend {backend:?} version {version}, expected \"torch_dist\" version 1{location}"
    )]
    ShardedBackend {
        /// The backend named.
        backend: String,
        /// Its version.
        version: String,
        /// The file that names it.
        location: Location,
    },
    /// A checkpoint whose writer did not reach its last step, which writes `.metadata`.
    #[error("checkpoint is incomplete: it has no .metadata{location}")]
    IncompleteCheckpoint {
        /// The directory.
        location: Location,
    },
    /// A save without collectives, of which some ranks' metadata files are not there.
    #[error("metadata of {} rank(s) is absent: {}{location}", files.len(), first(files))]
    RanksMissing {
        /// The files that would continue the numbering of those that are there.
        files: Vec<String>,
        /// The directory.
        location: Location,
    },
    /// Two ranks of a save without collectives say different things about one tensor.
    #[error("ranks disagree: {before}, but {after}{location}")]
    RanksDisagree {
        /// What the lower rank says.
        before: String,
        /// What the higher rank says.
        after: String,
        /// The directory and the tensor.
        location: Location,
    },
    /// `integrity.json` cannot be understood.
    #[error("not a list of digests: {reason}{location}")]
    IntegritySyntax {
        /// What is wrong with it.
        reason: String,
        /// The file.
        location: Location,
    },
    /// `integrity.json` holds digests of a kind that this version does not compute.
    #[error("digests are of algorithm {algorithm:?}, expected \"sha256\"{location}")]
    IntegrityAlgorithm {
        /// The algorithm named.
        algorithm: String,
        /// The file.
        location: Location,
    },
    /// Files that `integrity.json` lists are not there.
    #[error("{} file(s) with a recorded digest are absent: {}{location}", files.len(), first(files))]
    IntegrityFiles {
        /// Every absent file.
        files: Vec<String>,
        /// The list.
        location: Location,
    },
    /// A file whose digest was asked for and which `integrity.json` does not list.
    #[error("no digest is recorded for the file{location}")]
    NoDigest {
        /// The file.
        location: Location,
    },
    /// A file is not the one that its writer took the digest of.
    #[error("sha256 of the file is {found}, expected {expected}{location}")]
    Digest {
        /// The file.
        location: Location,
        /// The digest recorded, in hexadecimal.
        expected: String,
        /// The digest of the file.
        found: String,
    },
    /// A directory that is neither a run directory nor an iteration directory.
    #[error(
        "neither {tracker} nor .metadata is here; iterations found: {}{location}",
        first_or_none(found)
    )]
    NoTracker {
        /// The name of the tracker file.
        tracker: &'static str,
        /// The iteration directories that exist.
        found: Vec<String>,
        /// The directory.
        location: Location,
    },
    /// A tracker file that names no iteration.
    #[error("tracker says {text:?}, expected a decimal iteration or the word release{location}")]
    TrackerMalformed {
        /// The file's text, shortened.
        text: String,
        /// The file.
        location: Location,
    },
    /// A tracker file that names an iteration which does not exist.
    #[error(
        "tracker names {named}, which is not here; iterations found: {}{location}",
        first_or_none(found)
    )]
    TrackerDangling {
        /// The directory it names.
        named: String,
        /// The iteration directories that exist.
        found: Vec<String>,
        /// The file.
        location: Location,
    },
    /// One tensor was planned twice with different dtypes or shapes, or a name twice.
    #[error("planned twice, and differently{location}")]
    PlanConflict {
        /// The tensor or object.
        location: Location,
    },
    /// Stored bytes are not those that their writer took the checksum of.
    #[error("checksum of the stored bytes is {found:08x}, expected {expected:08x}{location}")]
    Checksum {
        /// The item and its data.
        location: Location,
        /// The checksum recorded beside the bytes.
        expected: u32,
        /// The checksum of the bytes.
        found: u32,
    },
    /// A directory, a pipe or a device where a file is needed.
    #[error("not a regular file{location}")]
    NotRegular {
        /// What is there.
        location: Location,
    },
    /// The file system of the target has less room than is needed.
    #[error("{available} bytes are free for {location}, {needed} are needed")]
    NoSpace {
        /// The target.
        location: String,
        /// Bytes that will be written.
        needed: u64,
        /// Bytes that the file system offers.
        available: u64,
    },
    /// A provider field that has no YAML form.
    #[error("run_config.yaml cannot be written: {reason}")]
    RunConfig {
        /// What is wrong.
        reason: String,
    },
    /// A `run_config.yaml` that cannot be understood.
    #[error("not a run config: {reason}{location}")]
    RunConfigSyntax {
        /// The file.
        location: Location,
        /// What is wrong.
        reason: String,
    },
}
