//! What the user wrote for commands that run a model.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use bytesize::ByteSize;
use clap::{Args, Subcommand, ValueEnum};
use rialto_backend::Choice;
use rialto_runtime::Sampling;
use rialto_tensor::Dtype;
use serde_json::Value;

use super::run::size;
use super::setting;

/// How a model is run.
#[derive(Debug, Args)]
pub(crate) struct ModelFlags {
    /// Device to run on, as `rialto backend list` names it: cpu, wgpu:1 or a part of a name, wgpu:radeon; auto takes the first hardware,
    /// else the processor
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) backend: Wanted,
    /// Dtype of activations; weights stay as they are stored, F32 ones are rounded for bf16
    #[arg(long, value_name = "DTYPE", default_value = "bf16")]
    pub(crate) dtype: Activation,
    /// Threads that compute [default: one for each core]; results do not depend on it
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// A number of the forward pass, such as latent_eps=1e-5; the plugin says which it knows
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub(crate) set: Vec<(String, Value)>,
    /// Decode weights that are stored in blocks when they are loaded: twice the memory, the same results
    #[arg(long)]
    pub(crate) decode_blocks: bool,
    /// Memory of the device for a model's experts; the others stay in host memory and are brought when tokens choose them, with the
    /// same results [default: all are on the device]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) expert_memory: Option<ByteSize>,
    /// Most tokens of a step; results do not depend on it
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) chunk_tokens: u64,
    /// Hugging Face directory whose config describes a checkpoint that has none
    #[arg(long, value_name = "DIR")]
    pub(crate) reference: Option<PathBuf>,
}

/// Which device a model is to run on.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// The best there is.
    Auto,
    /// This one and no other.
    This(Choice),
}

impl std::str::FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Wanted, String> {
        match text {
            "auto" => Ok(Wanted::Auto),
            _ => {
                let choice = text.parse::<Choice>();
                let choice = choice.map_err(|error| format!("{error}, and so would auto"));
                choice.map(Wanted::This)
            }
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Activation {
    /// 32-bit floats
    F32,
    /// bfloat16, sums in F32
    Bf16,
}

impl Activation {
    pub(crate) fn dtype(self) -> Dtype {
        match self {
            Activation::F32 => Dtype::F32,
            Activation::Bf16 => Dtype::Bf16,
        }
    }
}

/// A number of threads that a machine may have.
fn threads(text: &str) -> Result<NonZeroUsize, String> {
    match text.parse::<NonZeroUsize>() {
        Ok(threads) if threads.get() <= 1024 => Ok(threads),
        _ => Err("expected a number from 1 to 1024".to_owned()),
    }
}

/// Token ids as they are written: with commas between, or in a file after an `@`.
#[derive(Clone, Debug)]
pub(crate) struct Tokens(pub(crate) Vec<u32>);

impl std::str::FromStr for Tokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Tokens, String> {
        let Some(file) = text.strip_prefix('@') else {
            return Ok(Tokens(
                text.split(',').map(token).collect::<Result<_, _>>()?,
            ));
        };
        // A command line ends where a long prompt begins.
        let text = std::fs::read_to_string(file);
        let text = text.map_err(|error| format!("cannot read {file}: {error}"))?;
        let words = text.split(|next: char| next == ',' || next.is_whitespace());
        let words = words.filter(|word| !word.is_empty());
        Ok(Tokens(words.map(token).collect::<Result<_, _>>()?))
    }
}

fn token(word: &str) -> Result<u32, String> {
    let word = word.trim();
    word.parse()
        .map_err(|_| format!("{word:?} is no token id, expected numbers such as 1,2,3"))
}

#[derive(Debug, Args)]
#[command(after_help = "Example: rialto run glm-5.2 --tokens 1,2,3 --max-new-tokens 16 --greedy")]
pub(crate) struct Run {
    /// Checkpoint of either format
    pub(crate) path: PathBuf,
    /// Token ids to continue, such as 1,2,3, or @FILE that has them; given more than once, all are continued together
    #[arg(long, value_name = "IDS", required_unless_present_any = ["prompt", "plan"])]
    pub(crate) tokens: Vec<Tokens>,
    /// Say what would lie where, and how often a step is cut, and do not run: no weight is read
    #[arg(long)]
    pub(crate) plan: bool,
    /// Text to continue; refused, since this version has no tokenizer
    #[arg(long, value_name = "TEXT", conflicts_with = "tokens")]
    pub(crate) prompt: Option<String>,
    /// Most tokens that follow
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(0..=i32::MAX as u64))]
    pub(crate) max_new_tokens: u64,
    /// Take the likeliest token, always
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p", "seed"])]
    greedy: bool,
    /// What logits are divided by; 0 takes the likeliest token
    #[arg(
        long,
        value_name = "T",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    temperature: f32,
    /// How many of the likeliest tokens are kept; 0 for all
    #[arg(long, value_name = "N", default_value_t = 0)]
    top_k: u32,
    /// How much of the probability is kept
    #[arg(
        long,
        value_name = "P",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    top_p: f32,
    /// How likely a token is at least, as a share of the likeliest
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    min_p: f32,
    /// What chance follows from: the same seed gives the same tokens
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Go on after tokens that end a text
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
}

impl Run {
    pub(crate) fn sampling(&self) -> Sampling {
        if self.greedy {
            return Sampling::GREEDY;
        }
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed,
        }
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: rialto compare glm-5.2 run --tokens 1,2,3,4 --dtype f32\n\n\
    Exit code 1 says that the likeliest tokens or the logits differ by more than was allowed."
)]
pub(crate) struct Compare {
    /// Checkpoint of either format
    pub(crate) ours: PathBuf,
    /// The checkpoint to compare it with, of either format
    pub(crate) theirs: PathBuf,
    /// Token ids to run both on, such as 1,2,3, or @FILE that has them
    #[arg(long, value_name = "IDS")]
    pub(crate) tokens: Tokens,
    /// Dtype of activations of the second, if it is another
    #[arg(long, value_name = "DTYPE")]
    pub(crate) their_dtype: Option<Activation>,
    /// Device of the second, if it is another
    #[arg(long, value_name = "DEVICE")]
    pub(crate) their_backend: Option<Wanted>,
    /// Largest difference of logits that is allowed, as a share of the largest logit of the token; 0 demands the same bits
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub(crate) tolerance: f64,
    /// Smallest share of tokens that must have the same likeliest next one
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = share)]
    pub(crate) top1: f64,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
}

/// A number from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a number from 0 to 1".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Backend {
    #[command(subcommand)]
    pub(crate) command: BackendCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BackendCommand {
    /// List the backends with their devices, and why one has none
    List,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_numbers_with_commas_between() {
        let tokens = |text: &str| text.parse::<Tokens>().map(|tokens| tokens.0);
        assert_eq!(tokens("1,2, 3"), Ok(vec![1, 2, 3]));
        assert_eq!(tokens("0"), Ok(vec![0]));
        for wrong in ["", "1,", "1 2", "-1", "a", "4294967296", "1;2"] {
            assert!(tokens(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_device_is_chosen_by_number_by_name_or_left_to_the_machine() {
        assert!(matches!("auto".parse(), Ok(Wanted::Auto)));
        for choice in ["cpu", "wgpu:1", "wgpu:llvmpipe"] {
            let wanted: Wanted = choice.parse().expect(choice);
            assert!(matches!(wanted, Wanted::This(_)), "{choice}");
        }
        assert!("wgpu:".parse::<Wanted>().is_err());
    }
}
