//! What to do about an error.

use super::{Error, HUGGING_FACE};

impl Error {
    /// What to do about it.
    ///
    /// Every kind is named here, so that a new one is not without.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        let help = match self {
            Error::Checkpoint(error) => return error.help(),
            Error::Bridge(error) => return error.help(),
            Error::Tensor(error) => return error.help(),
            Error::NotClaimed { .. } => "use the plugin of the model's family",
            Error::NoWeights { .. } => {
                "`rialto plan` works on a config alone; import needs the weights"
            }
            Error::NoWeight { .. } => "ask for a tensor or a param of the weight map",
            Error::Copy { copy, .. } => {
                return Some(format!(
                    "a config that says the two are untied takes both; an import leaves this one out with `--allow-unmapped {copy}`"
                ));
            }
            Error::NoConfig { .. } => {
                "give a Hugging Face directory of the same model with `--reference DIR`"
            }
            Error::TwoFormats { .. } => {
                "give the plugin of the family, and a config if neither side has one (`--reference DIR`)"
            }
            Error::ReferenceDiffers { .. } => {
                "give the directory this checkpoint was imported from"
            }
            Error::Vocabulary { .. } => {
                "give the directory of the model that was trained with `--reference DIR`"
            }
            Error::Layout { .. } | Error::Stageless { .. } => "report it to the plugin's author",
            Error::TooLarge => "look for the wrong size in config.json",
            Error::Cancelled => "run again: nothing had been done that could be kept",
            Error::Filter { .. } => "correct them, or leave them out",
            Error::NoCheckpoint { .. } => {
                "give a Hugging Face directory, the directory of a Megatron run, or that of one iteration"
            }
            Error::OtherFormat { expected, .. } if *expected == HUGGING_FACE => {
                "`rialto export` converts a Megatron checkpoint"
            }
            Error::OtherFormat { .. } => "`rialto import` converts a Hugging Face checkpoint",
            Error::NoManifest { .. } => {
                "rialto did not write it, or was told `--hash none`: compare it with its source, `rialto verify OURS SOURCE`"
            }
            Error::NothingLeft { .. } => {
                "look at `--layers`, `--experts`, `--include` and `--exclude`"
            }
            Error::CutParam { .. } => {
                "let through or leave out all tensors of a param; layers that are stacked come apart with `--layer-axis per-layer`"
            }
            Error::Manifest { .. } => {
                "give the rialto-manifest.json of the result, or a copy of it as it was written"
            }
            Error::Journal { .. } => {
                "remove the directory under construction, or choose another target"
            }
            Error::OtherPlan { .. } => {
                "give the options it was begun with, or run without `--resume` to begin anew"
            }
            Error::SourceChanged { .. } => {
                "run again without `--resume`: everything is then written anew"
            }
            Error::Budget { needed, .. } => {
                return Some(format!(
                    "give at least `--memory-budget {}MiB`",
                    needed.div_ceil(1 << 20)
                ));
            }
            Error::World { .. } => "ranks count from 0",
            Error::OthersStopped { .. } => {
                "see what those processes said, and start all of them again"
            }
            Error::Device { .. } => "leave `--device` out: the processor makes the same bytes",
            Error::DeviceDiffers { .. } => {
                "leave `--device` out, and report it to the maker of the device's driver"
            }
            Error::Suspended { place, source } => return Some(kept(place, source)),
            Error::NotCommitted { place, source } => return Some(complete(place, source)),
        };
        Some(help.to_owned())
    }
}

/// Where a target is built.
fn partial(place: &str) -> String {
    format!("{}.partial", place.trim_end_matches('/'))
}

/// What to do after a run that ended before its time, of which something is kept.
fn kept(place: &str, source: &Error) -> String {
    let partial = partial(place);
    let kept = match source {
        Error::SourceChanged { .. } | Error::OtherPlan { .. } => {
            format!("until then what was done lies in {partial}")
        }
        // It was looked at now and then only: what it made before, in this attempt or an earlier one, may differ, too.
        Error::DeviceDiffers { .. } => format!(
            "what is done lies in {partial}, and what a device made of it may be wrong: run again without `--resume`, which \
             begins anew"
        ),
        _ if matches!(source.code(), 5 | 6 | 7 | 9) => {
            format!("what is done is kept in {partial}: run again with `--resume`")
        }
        // Something has to be mended first, and other files are another plan's.
        _ => format!(
            "what is done is kept in {partial}: a run with `--resume` goes on with it if the files of the source have the \
             lengths and times of now (`cp -p`), one without begins anew; if there will be none, remove it"
        ),
    };
    match source.help() {
        Some(help) if !matches!(source, Error::Cancelled) => format!("{help}; {kept}"),
        _ => kept,
    }
}

/// What to do after a run that has made all and could not put it in its place.
fn complete(place: &str, source: &Error) -> String {
    let help = match source {
        Error::Checkpoint(rialto_checkpoint::Error::TargetExists { .. }) => {
            "move away what is there, or replace it as a whole with `--force`".to_owned()
        }
        _ => source.help().unwrap_or_default(),
    };
    format!(
        "{help}; the result is complete in {}: run again with `--resume`, which puts it in its place without converting again",
        partial(place)
    )
}
