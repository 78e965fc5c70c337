//! The one error type of this crate.

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
    /// A run that ended before its time; what it has done is kept.
    #[error("{source}")]
    Suspended {
        /// The target.
        place: String,
        /// Why it ended.
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
            Error::Suspended { source, .. } => source.code(),
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
            Error::Suspended { source, .. } => source.slug(),
        }
    }

    /// What to do about it, if there is one thing to do.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match self {
            Error::Checkpoint(error) => error.help(),
            Error::Bridge(error) => error.help(),
            Error::NoWeights { .. } => {
                Some("`rialto plan` works on a config alone; import needs the weights".to_owned())
            }
            Error::Copy { copy, .. } => Some(format!(
                "a config that says the two are untied imports both; `--allow-unmapped {copy}` leaves this one out"
            )),
            Error::NoConfig { .. } => Some(
                "give a Hugging Face directory of the same model with `--reference DIR`".to_owned(),
            ),
            Error::TwoFormats { .. } => Some(
                "give the plugin of the family, and a config if neither side has one (`--reference DIR`)".to_owned(),
            ),
            Error::ReferenceDiffers { .. } => {
                Some("give the directory this checkpoint was imported from".to_owned())
            }
            Error::Vocabulary { .. } => Some(
                "give the directory of the model that was trained with `--reference DIR`".to_owned(),
            ),
            Error::CutParam { .. } => Some(
                "let through or leave out all tensors of a param; layers that are stacked come apart with `--layer-axis per-layer`"
                    .to_owned(),
            ),
            Error::Journal { .. } => {
                Some("remove the directory under construction, or choose another target".to_owned())
            }
            Error::OtherPlan { .. } => Some(
                "give the options it was begun with, or run without `--resume` to begin anew".to_owned(),
            ),
            Error::SourceChanged { .. } => {
                Some("run again without `--resume`: everything is then written anew".to_owned())
            }
            Error::Budget { needed, .. } => Some(format!(
                "give at least `--memory-budget {}MiB`",
                needed.div_ceil(1 << 20)
            )),
            Error::OthersStopped { .. } => Some(
                "see what those processes said, and start all of them again: what is done is kept".to_owned(),
            ),
            Error::Suspended { place, source } => {
                let kept = format!("what is done is kept in {place}.partial: run again with `--resume`");
                Some(match source.help() {
                    Some(help) => format!("{help}; {kept}"),
                    None => kept,
                })
            }
            _ => None,
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
            Error::Suspended { source, .. } => source.findings(),
            _ => Vec::new(),
        }
    }
}
