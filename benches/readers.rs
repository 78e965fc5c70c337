//! What competes in comparing two directories: reading them, an independent reader, and rialto. Nothing is written, and all
//! files lie in the page cache.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rialto_checkpoint::store::LocalStore;
use rialto_engine::{Contents, Silent, VerifyOptions, VerifySource};
use rialto_glm5::Glm5;
use safetensors::SafeTensors;

/// Floor of a comparison: reads every file of two directories, a block at a time.
pub(crate) fn read(ours: &Path, theirs: &Path) -> Result<()> {
    let mut block = vec![0; 1 << 20];
    for directory in [ours, theirs] {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                let path = entry.path();
                read(&path, &path)?;
                continue;
            }
            let mut file = File::open(entry.path())?;
            while file.read(&mut block)? > 0 {}
        }
    }
    Ok(())
}

/// Rival of a comparison: the `safetensors` crate reads every shard of two Hugging Face directories whole, and each tensor is
/// looked up on the other side and compared. It knows no other format, decodes nothing and makes no digest.
pub(crate) fn compare(ours: &Path, theirs: &Path) -> Result<()> {
    let shards = |directory: &Path| -> Result<Vec<Vec<u8>>> {
        let mut shards = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "safetensors")
            {
                shards.push(fs::read(path)?);
            }
        }
        Ok(shards)
    };
    let (ours, theirs) = (shards(ours)?, shards(theirs)?);
    let theirs = parsed(&theirs)?;
    for (name, tensor) in parsed(&ours)?.iter().flat_map(SafeTensors::iter) {
        let other = theirs.iter().find_map(|shard| shard.tensor(name).ok());
        ensure!(other.is_some_and(|other| other == tensor), "{name} differs");
    }
    Ok(())
}

fn parsed(shards: &[Vec<u8>]) -> Result<Vec<SafeTensors<'_>>> {
    let shards = shards.iter().map(|bytes| SafeTensors::deserialize(bytes));
    Ok(shards.collect::<Result<_, _>>()?)
}

/// Ours: opens two checkpoints of any formats and compares them.
pub(crate) fn verify(ours: &Path, theirs: &Path) -> Result<()> {
    let [a, b] = [ours, theirs].map(|path| -> Result<VerifySource> {
        Ok(VerifySource::open(Arc::new(LocalStore::open(path)?))?)
    });
    let (a, b) = (a?, b?);
    let config = |source: &VerifySource| source.config().cloned().context("there is a config");
    let (ours, theirs) = (
        Contents::new(&a, &config(&a)?, &Glm5)?,
        Contents::new(&b, &config(&b)?, &Glm5)?,
    );
    let report = rialto_engine::verify(&ours, &theirs, &VerifyOptions::default(), &Silent)?;
    ensure!(report.is_equal, "they differ");
    Ok(())
}
