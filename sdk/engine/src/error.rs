//! The one error type of this crate.

mod help;
#[cfg(test)]
mod tests;

use rialto_tensor::error::code_of;
use thiserror::Error as ThisError;

/// What can be wrong with a conversion.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// The checkpoint, or the place it lies in.
    #[error(transparent)]
    Checkpoint(#[from] rialto_checkpoint::Error),
    /// The family, its rules, or the config.
    #[error(transparent)]
    Bridge(#[from] rialto_bridge::Error),
    /// A dtype or a shape.
    #[error(transparent)]
    Tensor(#[from] rialto_tensor::Error),
    /// The family does not take the config.
    #[error("the family does not take this config: {reason}")]
    NotClaimed {
        /// Its reason.
        reason: String,
    },
    /// A plan from a config alone was asked to move weights.
    #[error("{place} holds no weights, only a config")]
    NoWeights {
        /// The directory.
        place: String,
    },
    /// A weight that a checkpoint does not hold.
    #[error("{place} holds no weight {name}")]
    NoWeight {
        /// Its name, of a tensor or of a param.
        name: String,
        /// The checkpoint.
        place: String,
    },
    /// A Megatron checkpoint without a config, and no reference that has one.
    #[error("no config.json for {place}: looked for {}", searched.join(" and "))]
    NoConfig {
        /// The checkpoint.
        place: String,
        /// Every place searched.
        searched: Vec<String>,
    },
    /// A reference that is another model.
    #[error("reference {reference} is another model than {place}: {}", differences.join("; "))]
    ReferenceDiffers {
        /// The reference directory.
        reference: String,
        /// The checkpoint.
        place: String,
        /// Each field that differs, with both values.
        differences: Vec<String>,
    },
    /// Two checkpoints of two formats, which only a family could compare.
    #[error(
        "{ours} and {theirs} are of two formats, and no family says how their names correspond"
    )]
    TwoFormats {
        /// The first one.
        ours: String,
        /// The second one.
        theirs: String,
    },
    /// A checkpoint that says its vocabulary is another than the config's, and has more rows than the config's.
    #[error(
        "run_config.yaml of {place} names a vocab_size of {named}, expected the config's {config}: {param} has {rows} rows, and \
         those beyond {config} may be no padding"
    )]
    Vocabulary {
        /// The checkpoint.
        place: String,
        /// A param that would be cut.
        param: String,
        /// Its rows.
        rows: u64,
        /// The vocabulary that the checkpoint names.
        named: u64,
        /// The vocabulary of the config.
        config: u64,
    },
    /// A tensor under a second name that is another tensor.
    #[error(
        "{copy} differs from {tensor}, which the config says it repeats, from element {index:?} on ({file})"
    )]
    Copy {
        /// The shard of the copy.
        file: String,
        /// The second name.
        copy: String,
        /// The tensor.
        tensor: String,
        /// Index of the first element that differs.
        index: Vec<u64>,
    },
    /// The family's layers do not fall into the stages once.
    #[error("pipeline layout of {stages} stages for pp {pp} does not hold layers 0..{layers} once")]
    Layout {
        /// Number of stages.
        stages: usize,
        /// Number of stages asked for.
        pp: u64,
        /// Number of layers.
        layers: u64,
    },
    /// The family's stages leave a param out.
    #[error("no stage of the pipeline layout holds param {param}")]
    Stageless {
        /// Its key.
        param: String,
    },
    /// A model whose sizes add up to more than 64 bits hold.
    #[error("the sizes of this model add up to more than 64 bits hold")]
    TooLarge,
    /// The caller asked to stop.
    #[error("stopped on request")]
    Cancelled,
    /// Filters of which some match nothing that is converted.
    #[error("filters that match nothing: {}", unmatched.join("; "))]
    Filter {
        /// Each of them, with what there is.
        unmatched: Vec<String>,
    },
    /// A directory that holds no checkpoint of either format.
    #[error(
        "{place} holds no checkpoint: neither the config.json of a Hugging Face one, nor the tracker or .metadata of a Megatron \
         one"
    )]
    NoCheckpoint {
        /// The directory.
        place: String,
    },
    /// A checkpoint of the other format than is needed.
    #[error("{place} is a {found} checkpoint, expected a {expected} one")]
    OtherFormat {
        /// The directory.
        place: String,
        /// Its format.
        found: &'static str,
        /// The format that is needed.
        expected: &'static str,
    },
    /// A result without a manifest.
    #[error("{place} has no {}", rialto_checkpoint::records::MANIFEST_FILE)]
    NoManifest {
        /// The directory.
        place: String,
    },
    /// Filters that leave nothing.
    #[error("the filters leave none of {tensors} tensors")]
    NothingLeft {
        /// How many there are.
        tensors: u64,
    },
    /// Filters that leave a part of what can only be written whole.
    #[error("the filters cut {} params that are written whole: {}", params.len(), params.join(", "))]
    CutParam {
        /// Their keys.
        params: Vec<String>,
    },
    /// A file that is no manifest.
    #[error("{file} is no manifest: {reason}")]
    Manifest {
        /// The file.
        file: String,
        /// Why not.
        reason: String,
    },
    /// A journal that its own lines do not bear out.
    #[error("the journal of an earlier attempt is damaged: {what}")]
    Journal {
        /// What is wrong with it.
        what: String,
    },
    /// A target that holds the beginnings of another plan.
    #[error(
        "{place} was begun with other options, or by another version of rialto or of the plugin"
    )]
    OtherPlan {
        /// The target.
        place: String,
    },
    /// A source that is not what it was when the target was begun, or that changed while it was read.
    #[error("the source of {place} has changed since it was begun: {}", changes.join("; "))]
    SourceChanged {
        /// The target.
        place: String,
        /// Each file that is another, and how.
        changes: Vec<String>,
    },
    /// A memory budget that is too small.
    #[error("a memory budget of {budget} bytes is too small, expected at least {needed}")]
    Budget {
        /// What was asked for.
        budget: u64,
        /// What one tensor of this model needs at least, or any.
        needed: u64,
    },
    /// A rank that is none of the world.
    #[error("rank {rank} is none of {size} processes, expected 0 to {}", size.saturating_sub(1))]
    World {
        /// The number of the process.
        rank: u64,
        /// How many there are.
        size: u64,
    },
    /// Other processes of the run have ended, or make no progress.
    #[error(
        "{missing} units of {place} are not done and nobody is at work on them: waited {} s for rank {}",
        waited.as_secs(),
        ranks.join(", ")
    )]
    OthersStopped {
        /// The target.
        place: String,
        /// Who should do them.
        ranks: Vec<String>,
        /// How many there are.
        missing: u64,
        /// How long this process has waited since the last of them was done.
        waited: std::time::Duration,
    },
    /// A device that an import was to use, and that does not do it, or stopped.
    #[error("device {device} failed {doing}: {source}")]
    Device {
        /// Its backend and number, and its name.
        device: String,
        /// What it was to do, and with which tensor.
        doing: String,
        /// What it said.
        source: rialto_backend::Error,
    },
    /// A device that makes other bytes than the processor, as with a driver that rounds otherwise.
    #[error(
        "device {device} decodes {tensor} to other numbers than the processor: at {index:?} it makes the BF16 {found:#06x}, \
         expected {expected:#06x}"
    )]
    DeviceDiffers {
        /// Its backend and number, and its name.
        device: String,
        /// The tensor.
        tensor: String,
        /// Index of the first element that differs.
        index: Vec<u64>,
        /// The element's bits.
        expected: u16,
        /// Those that the device made.
        found: u16,
    },
    /// A run that ended before its time; what it has done is kept.
    #[error("{source}")]
    Suspended {
        /// The target.
        place: String,
        /// Why it ended.
        source: Box<Error>,
    },
    /// A run that has made all, and could not put it in its place; it is kept.
    #[error("{source}")]
    NotCommitted {
        /// The target.
        place: String,
        /// What was in the way.
        source: Box<Error>,
    },
}

impl Error {
    /// Kinds of this crate as (slug, code); `docs/errors.md` lists them.
    pub const KINDS: &'static [(&'static str, u32)] = &[
        ("engine/not-claimed", 3),
        ("engine/no-weights", 2),
        ("engine/no-weight", 2),
        ("engine/no-config", 2),
        ("engine/reference-differs", 1),
        ("engine/two-formats", 3),
        ("engine/vocabulary", 1),
        ("engine/copy", 4),
        ("engine/layout", 13),
        ("engine/stageless", 13),
        ("engine/too-large", 4),
        ("engine/cancelled", 9),
        ("engine/nothing-left", 1),
        ("engine/cut-param", 1),
        ("engine/manifest", 4),
        ("engine/journal", 4),
        ("engine/other-plan", 1),
        ("engine/source-changed", 1),
        ("engine/budget", 6),
        ("engine/world", 1),
        ("engine/others-stopped", 5),
        ("engine/filter", 1),
        ("engine/no-checkpoint", 2),
        ("engine/other-format", 1),
        ("engine/no-manifest", 2),
        ("engine/device", 7),
        ("engine/device-differs", 7),
    ];

    /// What is wrong with a journal.
    pub(crate) fn journal(what: &str) -> Error {
        Error::Journal {
            what: what.to_owned(),
        }
    }

    /// The status code; see `docs/errors.md`.
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            Error::Checkpoint(error) => error.code(),
            Error::Bridge(error) => error.code(),
            Error::Tensor(error) => error.code(),
            Error::Suspended { source, .. } | Error::NotCommitted { source, .. } => source.code(),
            _ => code_of(Error::KINDS, self.slug()),
        }
    }

    /// The stable name of this kind of error; see `docs/errors.md`.
    #[must_use]
    pub fn slug(&self) -> &str {
        match self {
            Error::Checkpoint(error) => error.slug(),
            Error::Bridge(error) => error.slug(),
            Error::Tensor(error) => error.slug(),
            Error::NotClaimed { .. } => "engine/not-claimed",
            Error::NoWeights { .. } => "engine/no-weights",
            Error::NoWeight { .. } => "engine/no-weight",
            Error::NoConfig { .. } => "engine/no-config",
            Error::ReferenceDiffers { .. } => "engine/reference-differs",
            Error::TwoFormats { .. } => "engine/two-formats",
            Error::Vocabulary { .. } => "engine/vocabulary",
            Error::Copy { .. } => "engine/copy",
            Error::Layout { .. } => "engine/layout",
            Error::Stageless { .. } => "engine/stageless",
            Error::TooLarge => "engine/too-large",
            Error::Cancelled => "engine/cancelled",
            Error::NothingLeft { .. } => "engine/nothing-left",
            Error::CutParam { .. } => "engine/cut-param",
            Error::Manifest { .. } => "engine/manifest",
            Error::Journal { .. } => "engine/journal",
            Error::OtherPlan { .. } => "engine/other-plan",
            Error::SourceChanged { .. } => "engine/source-changed",
            Error::Budget { .. } => "engine/budget",
            Error::World { .. } => "engine/world",
            Error::OthersStopped { .. } => "engine/others-stopped",
            Error::Filter { .. } => "engine/filter",
            Error::NoCheckpoint { .. } => "engine/no-checkpoint",
            Error::OtherFormat { .. } => "engine/other-format",
            Error::NoManifest { .. } => "engine/no-manifest",
            Error::Device { .. } => "engine/device",
            Error::DeviceDiffers { .. } => "engine/device-differs",
            Error::Suspended { source, .. } | Error::NotCommitted { source, .. } => source.slug(),
        }
    }

    /// The findings behind an error that collects them.
    #[must_use]
    pub fn findings(&self) -> Vec<String> {
        match self {
            Error::Bridge(error) => error.findings(),
            Error::ReferenceDiffers { differences, .. } => differences.clone(),
            Error::SourceChanged { changes, .. } => changes.clone(),
            Error::CutParam { params } => params.clone(),
            Error::Filter { unmatched } => unmatched.clone(),
            Error::Suspended { source, .. } | Error::NotCommitted { source, .. } => {
                source.findings()
            }
            _ => Vec::new(),
        }
    }
}

/// What the formats are called, for [`Error::OtherFormat`].
pub(crate) const HUGGING_FACE: &str = "Hugging Face";
/// The other one.
pub(crate) const MEGATRON: &str = "Megatron";
