//! A checkpoint of full size with real headers and holes for weights: what planning and inspecting are tried on.

use std::path::PathBuf;

use anyhow::{Context, Result};
use rialto_tests::sparse;

/// Where from and where to.
#[derive(clap::Args)]
pub(crate) struct SparseArguments {
    /// Directory with the config.json of a GLM-5 release, such as tests/fixtures/configs/glm-5.2.
    config_dir: PathBuf,
    /// Directory to create. What exists is refused.
    target: PathBuf,
}

/// Writes it. Errors: those of [`sparse::write`], with the target.
pub(crate) fn run(arguments: &SparseArguments) -> Result<()> {
    let SparseArguments { config_dir, target } = arguments;
    let written = sparse::write(config_dir, target)
        .with_context(|| format!("no sparse checkpoint {} was written", target.display()))?;
    println!(
        "{}: {} shards with the headers of {} tensors, {} bytes of holes",
        target.display(),
        written.shards,
        written.tensors,
        written.bytes
    );
    Ok(())
}
