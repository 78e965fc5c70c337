//! What the user wrote, before it means anything.

mod model;
mod run;

use std::collections::HashSet;
use std::path::PathBuf;

use bytesize::ByteSize;
use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use rialto_bridge::settings::{FIELD_NAME, is_field_name};
use rialto_bridge::{LayerAxis, Mesh, MtpPolicy, StageChoice};
use rialto_engine::{ChunkChoice, DtypeChoice, ExportOptions, Options};
use serde_json::Value;

pub(crate) use model::{Backend, BackendCommand, Compare, ModelFlags, Run, Wanted};
pub(crate) use run::{FilterFlags, RunFlags};

/// Moves large models between Hugging Face checkpoints and Megatron-Core checkpoints, bit for bit, and runs them.
#[derive(Debug, Parser)]
#[command(name = "rialto", version = version(), max_term_width = 110, propagate_version = false)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// What was written on the command line. Errors: wrong usage, help and version.
    pub(crate) fn read() -> Result<Arguments, clap::Error> {
        let arguments = Arguments::try_parse()?;
        let twice = match &arguments.command {
            Command::Import(import) => import.options.set_twice(),
            Command::Plan(plan) => plan.options.set_twice(),
            Command::Run(run) => twice_set(&run.model.set),
            Command::Compare(compare) => twice_set(&compare.model.set),
            _ => None,
        };
        match twice {
            None => Ok(arguments),
            Some(field) => {
                let message = format!("--set gives {field} more than once");
                Err(Arguments::command().error(ErrorKind::ArgumentConflict, message))
            }
        }
    }
}

/// The version, and that of the contract with plugins.
fn version() -> String {
    format!(
        "{} (plugin abi {})",
        env!("CARGO_PKG_VERSION"),
        rialto_abi::decl::ABI_CRATE_VERSION
    )
}

/// Options of every command.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Print the result as one JSON document on stdout, also on failure; help and version stay text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// A plugin library to look in first; may be given more than once
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) plugin: Vec<PathBuf>,
    /// When to color: NO_COLOR and CLICOLOR_FORCE are obeyed by `auto`
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: ColorWhen,
    /// Print only errors on stderr
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Say more on stderr: -v stages, -vv tensors
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ColorWhen {
    Auto,
    Always,
    Never,
}

impl ColorWhen {
    /// Decides for every stream that is printed to later.
    pub(crate) fn write_global(self) {
        let choice = match self {
            ColorWhen::Auto => anstream::ColorChoice::Auto,
            ColorWhen::Always => anstream::ColorChoice::Always,
            ColorWhen::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Convert a Hugging Face checkpoint into a Megatron run directory
    Import(Import),
    /// Convert a Megatron checkpoint into a Hugging Face directory
    Export(Export),
    /// Show what an import or export would do, without doing it
    Plan(Plan),
    /// Compare two checkpoints of any formats, value by value
    Verify(Verify),
    /// Show what a checkpoint holds
    Inspect(Inspect),
    /// Continue token ids with the model of a checkpoint
    Run(Run),
    /// Run two checkpoints on the same tokens and compare them layer by layer
    Compare(Compare),
    /// List plugins, or check one
    Plugin(Plugin),
    /// List the devices that models run on
    Backend(Backend),
}

#[derive(Debug, Args)]
#[command(after_help = "Example: rialto import glm-5.2 run --mtp drop --resume")]
pub(crate) struct Import {
    /// Hugging Face directory; it is only read
    pub(crate) source: PathBuf,
    /// Run directory to create: tracker file and iter_0000000
    pub(crate) target: PathBuf,
    #[command(flatten)]
    pub(crate) options: ImportOptions,
    #[command(flatten)]
    pub(crate) run: RunFlags,
    /// Device that decodes block-scaled weights, as `rialto backend list` names it, or auto; the result is the same, and it is said if the
    /// processor is faster. Its memory comes on top: half of --memory-budget at most
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "cpu",
        help_heading = "How it is run"
    )]
    pub(crate) device: Wanted,
}

/// What a user may ask of an import; `plan` takes the same.
#[derive(Debug, Args)]
pub(crate) struct ImportOptions {
    /// Tensor parallel size
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    tp: u64,
    /// Pipeline parallel size [default: the stages of --pipeline, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pp: Option<u64>,
    /// Expert parallel size
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    ep: u64,
    /// Tensor parallel size inside an expert
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    etp: u64,
    /// Layers of each pipeline stage, such as 6,8x8,4,4, or a hybrid layer pattern with | before stages
    #[arg(long, value_name = "LAYOUT")]
    pipeline: Option<StageChoice>,
    /// A provider field for run_config.yaml, such as seq_length=8192; the value is JSON, else text; may be given once for each field
    #[arg(long, value_name = "FIELD=VALUE", value_parser = setting)]
    set: Vec<(String, Value)>,
    /// Multi-token-prediction layers
    #[arg(long, value_name = "WHAT", default_value = "keep")]
    mtp: Mtp,
    /// Dtype of the weights written; a router's correction bias keeps F32
    #[arg(long, value_name = "DTYPE", default_value = "keep")]
    dtype: Dtype,
    /// In which chunks params are written
    #[arg(long, value_name = "WHAT", default_value = "megatron")]
    chunks: Chunks,
    /// Params of layers that are alike, in a family that has them
    #[arg(long, value_name = "WHAT", default_value = "stacked")]
    layer_axis: LayerAxisChoice,
    /// Pad the vocabulary with zeros to a size that Megatron makes and tensor parallel ranks can share
    #[arg(long)]
    pad_vocab: bool,
    /// Tensors that may be left out though no rule claims them; `*` stands for anything; may be given more than once
    #[arg(long, value_name = "PATTERN")]
    allow_unmapped: Vec<String>,
    /// Files that hold the tensors, never more than tensors; they do not depend on who writes them [default: by size]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    files: Option<u64>,
    #[command(flatten)]
    filter: FilterFlags,
}

impl ImportOptions {
    /// Options that an import alone knows and that were given another value than the default.
    pub(crate) fn only_of_import(&self) -> Vec<&'static str> {
        let given = [
            ("--tp", self.tp != 1),
            ("--pp", self.pp.is_some_and(|pp| pp != 1)),
            ("--ep", self.ep != 1),
            ("--etp", self.etp != 1),
            ("--pipeline", self.pipeline.is_some()),
            ("--set", !self.set.is_empty()),
            ("--chunks", matches!(self.chunks, Chunks::Whole)),
            (
                "--layer-axis",
                matches!(self.layer_axis, LayerAxisChoice::PerLayer),
            ),
            ("--pad-vocab", self.pad_vocab),
        ];
        let given = given.into_iter().filter(|(_, is_given)| *is_given);
        given.map(|(name, _)| name).collect()
    }

    fn set_twice(&self) -> Option<&str> {
        twice_set(&self.set)
    }

    pub(crate) fn resolve(&self) -> Options {
        let stages = self.pipeline.clone().unwrap_or_default();
        let mesh = Mesh {
            tp: self.tp,
            pp: self.pp.or(stages.count()).unwrap_or(1),
            ep: self.ep,
            etp: self.etp,
        };
        let mtp = self.mtp.resolve();
        Options {
            mesh,
            stages,
            settings: self.set.iter().cloned().collect(),
            mtp,
            dtype: self.dtype.resolve(),
            chunks: match self.chunks {
                Chunks::Megatron => ChunkChoice::Megatron,
                Chunks::Whole => ChunkChoice::Whole,
            },
            layer_axis: match self.layer_axis {
                LayerAxisChoice::Stacked => LayerAxis::Stacked,
                LayerAxisChoice::PerLayer => LayerAxis::PerLayer,
            },
            pads_vocabulary: self.pad_vocab,
            allow_unmapped: self.allow_unmapped.clone(),
            files: self.files,
            filter: self.filter.resolve(),
        }
    }
}

/// A field that `--set` gives more than once: which value was meant nobody can tell.
fn twice_set(set: &[(String, Value)]) -> Option<&str> {
    let mut earlier = HashSet::new();
    let mut fields = set.iter().map(|(field, _)| field.as_str());
    fields.find(|field| !earlier.insert(*field))
}

/// Reads `field=value`. A value that is no JSON is text, unless it begins as JSON does: then something in it is misspelled,
/// and text is not what was meant.
fn setting(text: &str) -> Result<(String, Value), String> {
    let (field, value) = text.split_once('=').ok_or("expected FIELD=VALUE")?;
    if !is_field_name(field) {
        return Err(format!(
            "{field:?} is no name of a field, expected {FIELD_NAME}"
        ));
    }
    let value = match serde_json::from_str(value) {
        Ok(value) => value,
        Err(error) if value.trim_start().starts_with(['[', '{', '"']) => {
            return Err(format!("the value of {field} is no JSON: {error}"));
        }
        Err(_) => Value::from(value),
    };
    Ok((field.to_owned(), value))
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Chunks {
    /// Those that Megatron itself writes on the mesh
    Megatron,
    /// One a param
    Whole,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LayerAxisChoice {
    /// One tensor with a leading layer axis, as Megatron demands by default
    Stacked,
    /// One tensor for each layer, as Megatron reads them when the checkpoint says so
    PerLayer,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mtp {
    /// Convert them
    Keep,
    /// Leave them out
    Drop,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Dtype {
    /// As stored
    Keep,
    /// BF16, as Megatron narrows
    Bf16,
}

impl Mtp {
    fn resolve(self) -> MtpPolicy {
        match self {
            Mtp::Keep => MtpPolicy::Keep,
            Mtp::Drop => MtpPolicy::Drop,
        }
    }
}

impl Dtype {
    fn resolve(self) -> DtypeChoice {
        match self {
            Dtype::Keep => DtypeChoice::Keep,
            Dtype::Bf16 => DtypeChoice::Bf16,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example: rialto export run glm-5.2-exported")]
pub(crate) struct Export {
    /// Run directory or iteration directory; it is only read
    pub(crate) source: PathBuf,
    /// Hugging Face directory to create
    pub(crate) target: PathBuf,
    #[command(flatten)]
    pub(crate) options: ExportFlags,
    #[command(flatten)]
    pub(crate) run: RunFlags,
}

/// What a user may ask of an export.
#[derive(Debug, Args)]
pub(crate) struct ExportFlags {
    /// Hugging Face directory whose config and side files are taken instead of those kept at import
    #[arg(long, value_name = "DIR")]
    pub(crate) reference: Option<PathBuf>,
    /// Dtype of the weights written; a router's correction bias keeps F32
    #[arg(long, value_name = "DTYPE", default_value = "keep")]
    dtype: Dtype,
    /// Largest shard, such as 5GiB or 500MB
    #[arg(long, value_name = "SIZE", default_value = "5GiB", value_parser = run::size)]
    max_shard_size: ByteSize,
    /// Do not compare the checkpoint's bytes with the checksums recorded beside them
    #[arg(long)]
    ignore_checksums: bool,
    /// Write tensors in this spelling where the family has it, such as `fused` experts; may be given more than once
    #[arg(long, value_name = "NAME")]
    form: Vec<String>,
    /// Params that may be left out though no rule claims them; `*` stands for anything; may be given more than once
    #[arg(long, value_name = "PATTERN")]
    allow_unmapped: Vec<String>,
    /// Shards that hold the tensors, never more than tensors, instead of as many as --max-shard-size makes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000), conflicts_with = "max_shard_size")]
    files: Option<u64>,
    /// Multi-token-prediction layers
    #[arg(long, value_name = "WHAT", default_value = "keep")]
    mtp: Mtp,
    #[command(flatten)]
    filter: FilterFlags,
}

impl ExportFlags {
    pub(crate) fn resolve(&self) -> ExportOptions {
        ExportOptions {
            dtype: self.dtype.resolve(),
            max_shard_bytes: self.max_shard_size.as_u64(),
            verifies_checksums: !self.ignore_checksums,
            forms: self.form.clone(),
            allow_unmapped: self.allow_unmapped.clone(),
            files: self.files,
            mtp: self.mtp.resolve(),
            filter: self.filter.resolve(),
        }
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: rialto plan glm-5.2 --pp 2 --ep 8 --etp 2 --json\n\n\
    A directory that holds only config.json is planned in the published dtypes.\n\
    A Megatron checkpoint is planned for export."
)]
pub(crate) struct Plan {
    /// Checkpoint of either format, or a directory that holds only config.json
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) options: ImportOptions,
    /// Hugging Face directory whose config an export would take
    #[arg(long, value_name = "DIR")]
    pub(crate) reference: Option<PathBuf>,
    /// List every rank of the mesh with what it holds
    #[arg(long)]
    pub(crate) ranks: bool,
    /// List the sizes that fit the model instead; --tp, --ep and --etp say for which ranks bytes are counted
    #[arg(long, conflicts_with_all = ["pp", "pipeline", "ranks", "probe"])]
    pub(crate) suggest: bool,
    /// Estimate the time: read a little of PATH, write a little beside TARGET, which need not exist and stays as it is. What
    /// the system still has in memory reads faster than a disk
    #[arg(long, value_name = "TARGET")]
    pub(crate) probe: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples: rialto verify glm-5.2 run\n          rialto verify run --manifest\n\n\
    Exit code 1 says that they differ. Encoded tensors are compared decoded; \
    where dtypes differ the wider side is narrowed as a conversion would."
)]
pub(crate) struct Verify {
    /// Checkpoint of either format
    pub(crate) ours: PathBuf,
    /// The checkpoint to compare it with, of either format; with --manifest a copy of the manifest, if it is not in OURS
    #[arg(required_unless_present = "manifest")]
    pub(crate) theirs: Option<PathBuf>,
    /// Read OURS again and compare every tensor and side file with the manifest that its run left in it
    #[arg(long, conflicts_with_all = ["reference", "strict_dtype", "strict_keys", "ignore_checksums"])]
    pub(crate) manifest: bool,
    /// Hugging Face directory whose config describes a side that has none
    #[arg(long, value_name = "DIR")]
    pub(crate) reference: Option<PathBuf>,
    /// Take another dtype for a difference
    #[arg(long)]
    pub(crate) strict_dtype: bool,
    /// Take a part that one side lacks altogether (MTP, scales, a tied head stored again) for a difference
    #[arg(long)]
    pub(crate) strict_keys: bool,
    /// Do not compare a checkpoint's bytes with the checksums recorded beside them
    #[arg(long)]
    pub(crate) ignore_checksums: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: rialto inspect run --json")]
pub(crate) struct Inspect {
    /// Checkpoint of either format
    pub(crate) path: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Plugin {
    #[command(subcommand)]
    pub(crate) command: PluginCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    /// List the plugins found, in search order, and the files that are none
    List,
    /// Check every step of loading one library
    #[command(after_help = "Example: rialto plugin check librialto_glm5.so --json")]
    Check {
        /// The library
        path: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_setting_is_a_field_and_json_or_text() {
        for (text, field, value) in [
            ("seq_length=8192", "seq_length", json!(8192)),
            ("a=0.5", "a", json!(0.5)),
            ("a=null", "a", json!(null)),
            ("a=true", "a", json!(true)),
            ("a=[\"b\", 1]", "a", json!(["b", 1])),
            ("a={\"b\": 1}", "a", json!({"b": 1})),
            ("a=\"8\"", "a", json!("8")),
            ("a=hybrid", "a", json!("hybrid")),
            ("a=", "a", json!("")),
            ("a=b=c", "a", json!("b=c")),
            ("a=True", "a", json!("True")),
            ("a=1e", "a", json!("1e")),
            ("a=8 192", "a", json!("8 192")),
            ("a=x[", "a", json!("x[")),
            ("a='b'", "a", json!("'b'")),
        ] {
            assert_eq!(setting(text), Ok((field.to_owned(), value)), "{text}");
        }
    }

    #[test]
    fn a_setting_that_begins_as_json_and_is_none_or_names_no_field_is_refused() {
        for (text, said) in [
            ("seq_length", "expected FIELD=VALUE"),
            ("", "expected FIELD=VALUE"),
            ("=3", "\"\" is no name of a field"),
            (
                "_target_=os.system",
                "\"_target_\" is no name of a field, expected small letters",
            ),
            ("_a=1", "is no name"),
            (" a=1", "is no name"),
            ("a =1", "is no name"),
            ("a.b=1", "is no name"),
            ("A=1", "is no name"),
            ("1a=1", "is no name"),
            ("a=[\"core_attn\"", "the value of a is no JSON"),
            ("a=[core_attn]", "the value of a is no JSON"),
            ("a=[1] 2", "the value of a is no JSON"),
            ("a={b: 1}", "the value of a is no JSON"),
            ("a={", "the value of a is no JSON"),
            ("a=\"b", "the value of a is no JSON"),
            ("a= [1", "the value of a is no JSON"),
        ] {
            let error = setting(text).unwrap_err();
            assert!(error.contains(said), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error:?}");
        }
    }
}
