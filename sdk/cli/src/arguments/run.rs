//! How a conversion is run: options that change nothing of the result.

use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use rialto_checkpoint::store::Access;
use rialto_engine::HashChoice;

/// What a user may ask of a run, in either direction.
#[derive(Debug, Args)]
#[command(next_help_heading = "How it is run")]
pub(crate) struct RunFlags {
    /// Replace the target if it exists, as a whole and only when the new one is complete
    #[arg(long)]
    pub(crate) force: bool,
    /// Go on where an earlier attempt at this target ended, if there was one; its source and options must be the same
    #[arg(long)]
    pub(crate) resume: bool,
    /// Memory for data at a time, at least 64MiB; plan, index and the program itself come on top
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    memory_budget: ByteSize,
    /// Units of about 8 MiB that are worked on at once, as far as memory allows [default: twice the cores, at least 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Digest of every tensor, in a manifest in the result that `verify --manifest` reads
    #[arg(long, value_name = "WHAT", default_value = "blake3")]
    hash: Hash,
    /// How files are read and written; `auto` passes the system's cache by where the file system can
    #[arg(long, value_name = "HOW", default_value = "auto")]
    io: Io,
    /// Which of several processes this is, from 0; each writes files of its own [default: as a launcher says]
    #[arg(long, value_name = "N", requires = "world_size")]
    pub(crate) rank: Option<u64>,
    /// How many processes do this together, over one file system [default: as a launcher says, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub(crate) world_size: Option<u64>,
    /// How long rank 0 waits for others that make no progress
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    rank_timeout: u64,
    /// How often what is done is made durable: what a killed run loses, and what comes of chunks that were not yet read whole
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    sync_every: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Hash {
    /// BLAKE3
    Blake3,
    /// No digests, and no manifest
    None,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Io {
    /// Direct where the file system can, else buffered
    Auto,
    /// Direct, or an error
    Direct,
    /// Through the system's cache
    Buffered,
}

impl RunFlags {
    /// How files are opened.
    pub(crate) fn access(&self) -> Access {
        match self.io {
            Io::Auto => Access::Auto,
            Io::Direct => Access::Direct,
            Io::Buffered => Access::Buffered,
        }
    }

    /// But for the world, which the environment may say.
    pub(crate) fn resolve(&self) -> rialto_engine::RunOptions {
        rialto_engine::RunOptions {
            threads: self.threads.map_or(0, |threads| threads as usize),
            memory_budget_bytes: self.memory_budget.as_u64(),
            hash: match self.hash {
                Hash::Blake3 => HashChoice::Blake3,
                Hash::None => HashChoice::None,
            },
            is_resumed: self.resume,
            patience: Duration::from_secs(self.rank_timeout),
            sync_every: Duration::from_secs(self.sync_every),
            ..rialto_engine::RunOptions::default()
        }
    }
}

/// Reads a number of bytes.
pub(crate) fn size(text: &str) -> Result<ByteSize, String> {
    let too_large =
        || Err("more bytes than a 64-bit number counts, expected a size such as 256MiB".to_owned());
    // A number with a unit is computed in floating point, where the largest are all one.
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map(ByteSize::b).or_else(|_| too_large());
    }
    match text.parse::<ByteSize>() {
        // What does not fit is as much as does.
        Ok(size) if size.as_u64() == u64::MAX => too_large(),
        Ok(size) => Ok(size),
        Err(_) => Err(
            "expected a number, and a unit unless it counts bytes: KiB MiB GiB TiB PiB EiB, or KB MB GB TB PB EB; such as \
             256MiB or 1.5GB"
                .to_owned(),
        ),
    }
}

/// Which part of a model a conversion writes.
#[derive(Debug, Args)]
#[command(next_help_heading = "A part of the model only")]
pub(crate) struct FilterFlags {
    /// Layers to convert, such as 0-3,78, as the Hugging Face side numbers them; what is in no layer stays
    #[arg(long, value_name = "RANGES", value_parser = ranges)]
    layers: Option<Ranges>,
    /// Experts to convert, such as 0-7, where each is a tensor of its own
    #[arg(long, value_name = "RANGES", value_parser = ranges)]
    experts: Option<Ranges>,
    /// Convert only tensors of these Hugging Face names; `*` stands for anything; may be given more than once
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Leave out tensors of these Hugging Face names; may be given more than once
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
}

/// Numbers as a user writes them.
pub(crate) type Ranges = rialto_engine::Ranges;

fn ranges(text: &str) -> Result<Ranges, String> {
    text.parse()
}

impl FilterFlags {
    pub(crate) fn resolve(&self) -> rialto_engine::Filter {
        rialto_engine::Filter {
            layers: self.layers.clone(),
            experts: self.experts.clone(),
            include: self.include.clone(),
            exclude: self.exclude.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_of_bytes_that_fits() {
        for (text, bytes) in [
            ("0", 0),
            ("500", 500),
            ("256MiB", 256 << 20),
            ("5 gib", 5 << 30),
            ("1.5GB", 1_500_000_000),
            ("7EiB", 7 << 60),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(size(text).map(|size| size.as_u64()), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_told_the_forms_and_what_is_too_large_that_it_is() {
        for text in ["abc", "", "MiB", "-1", "1 XiB", "1e3", "1.2.3GB"] {
            let error = size(text).unwrap_err();
            assert!(
                error.contains("MiB") && error.contains("GB"),
                "{text}: {error}"
            );
            assert!(!error.contains("ByteSize"), "{error}");
        }
        for text in [
            "16EiB",
            "99999999999EiB",
            "18446744073709551616",
            "99999999999999999999999",
        ] {
            let error = size(text).unwrap_err();
            assert!(error.contains("64-bit"), "{text}: {error}");
        }
    }
}
