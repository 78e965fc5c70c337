//! A checkpoint to convert whole: chosen layers of a published model at their real widths, with weights.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bytesize::ByteSize;
use rialto_tests::excerpt::Excerpt;
use rialto_tests::shards::Written;
use rialto_tests::weights::Weights;
use rialto_tests::{published, sparse};
use serde_json::Value;

/// Which model, and how much of it.
#[derive(clap::Args)]
pub(crate) struct MakeArguments {
    /// Directory with the config.json of a GLM-5 release, such as tests/fixtures/configs/glm-5.2.
    config_dir: PathBuf,
    /// Directory to create. What exists is refused.
    target: PathBuf,
    /// Layers of the release, ascending, such as 0,3,6,78; they are numbered anew.
    #[arg(long, required = true, value_delimiter = ',', value_name = "NUMBERS")]
    layers: Vec<u64>,
    /// Routed experts of a layer; as many as the release has, if not given.
    #[arg(long, value_name = "N")]
    experts: Option<u64>,
    /// Rows of embedding and head; as many as the release has, if not given.
    #[arg(long, value_name = "ROWS")]
    vocabulary: Option<u64>,
    /// Leave out experts, and then rows of the vocabulary, until the tensors are no more than this.
    #[arg(long, value_name = "SIZE")]
    max_bytes: Option<ByteSize>,
    /// Decides the weights.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Leave holes where the weights would be.
    #[arg(long)]
    sparse: bool,
}

/// Makes it. Errors: a config or a choice of layers that is none; the file system's. Then there is no target.
pub(crate) fn run(arguments: &MakeArguments) -> Result<()> {
    let MakeArguments {
        config_dir, target, ..
    } = arguments;
    let excerpt = Excerpt {
        layers: arguments.layers.clone(),
        experts: arguments.experts,
        vocabulary: arguments.vocabulary,
    };
    let max_bytes = arguments.max_bytes.map(|size| size.as_u64());
    let seed = (!arguments.sparse).then_some(arguments.seed);
    let made = make(config_dir, excerpt, max_bytes, seed, target)
        .with_context(|| format!("no checkpoint {} was made", target.display()))?;
    let Made { excerpt, written } = made;
    let taken = |own: Option<u64>| own.map_or("all".to_owned(), |number| number.to_string());
    println!(
        "{}: {} tensors, {} bytes of {} in {} shards; layers {:?}, experts {}, rows of vocabulary {}",
        target.display(),
        written.tensors,
        written.bytes,
        if seed.is_some() { "weights" } else { "holes" },
        written.shards,
        excerpt.layers,
        taken(excerpt.experts),
        taken(excerpt.vocabulary),
    );
    Ok(())
}

/// What was made of what.
pub(crate) struct Made {
    excerpt: Excerpt,
    pub(crate) written: Written,
}

/// Makes the checkpoint of an excerpt of the release whose config lies in a directory, cut to a size if one is given; without
/// a seed its weights are holes.
pub(crate) fn make(
    config_dir: &Path,
    excerpt: Excerpt,
    max_bytes: Option<u64>,
    seed: Option<u64>,
    target: &Path,
) -> Result<Made> {
    let path = config_dir.join("config.json");
    let named = || path.display().to_string();
    let whole: Value =
        serde_json::from_slice(&fs::read(&path).with_context(named)?).with_context(named)?;
    let refused = |reason: String| anyhow::Error::msg(reason).context(named());
    let excerpt = match max_bytes {
        Some(max_bytes) => excerpt.within(max_bytes, &whole).map_err(refused)?,
        None => excerpt,
    };
    let config = excerpt.config(&whole).map_err(refused)?;
    let tensors = published::read(&config).map_err(refused)?;
    let config = format!("{config:#}\n").into_bytes();
    let written = match seed {
        None => sparse::write_tensors(&config, &tensors, target)?,
        Some(seed) => Weights::new(seed).write_checkpoint(&config, &tensors, target)?,
    };
    Ok(Made { excerpt, written })
}
