//! What competes: a copy, an independent reader and writer, and rialto, all on the same bytes and all durable at the end.
//!
//! Every one reads a directory that lies in the page cache (it has just been written or read) and writes another, which must
//! not exist and is removed after the clock has stopped. So the rows compare programs, not disks that are read for the first
//! time; how fast the disk takes what is written is in all of them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use rialto_checkpoint::store::{LocalStore, LocalTarget, Overwrite};
use rialto_engine::{
    ExportOptions, ExportPlan, ImportPlan, MegatronSource, Options, RunOptions, Silent,
};
use rialto_glm5::Glm5;
use safetensors::SafeTensors;
use safetensors::tensor::serialize_to_file;
use tempfile::TempDir;

use crate::synthetic::{self, Size};

/// Two directories that hold one model, and room for a third.
pub(crate) struct Arena {
    room: TempDir,
    /// Bytes of the model's tensors.
    pub(crate) bytes: u64,
}

impl Arena {
    /// Writes the synthetic checkpoint and imports it, in cargo's own folder for such things.
    pub(crate) fn set_up(size: Size) -> Result<Arena> {
        let room = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let bytes = synthetic::write(&room.path().join("hugging-face"), size)?;
        let arena = Arena { room, bytes };
        import(&arena.hugging_face(), &arena.megatron())?;
        Ok(arena)
    }

    /// The Hugging Face directory.
    pub(crate) fn hugging_face(&self) -> PathBuf {
        self.room.path().join("hugging-face")
    }

    /// The Megatron run directory imported from it.
    pub(crate) fn megatron(&self) -> PathBuf {
        self.room.path().join("megatron")
    }

    /// Times one contender from a directory of the arena; what it wrote is removed afterwards, outside of the time.
    pub(crate) fn time(
        &self,
        contender: fn(&Path, &Path) -> Result<()>,
        source: &Path,
    ) -> Duration {
        let target = self.room.path().join("target");
        let begin = Instant::now();
        contender(source, &target).expect("a contender that fails has no time");
        let took = begin.elapsed();
        fs::remove_dir_all(&target).expect("the target was just written");
        took
    }
}

/// Floor: copies a directory file by file and syncs each. The kernel copies, without the bytes passing through the process;
/// a file system that shares extents between copies (btrfs, XFS) would move no bytes, so bench on one that does not.
pub(crate) fn copy(source: &Path, target: &Path) -> Result<()> {
    fs::create_dir(target)?;
    for entry in fs::read_dir(source)? {
        let entry = entry?;
        let (from, to) = (entry.path(), target.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to)?;
        } else {
            fs::copy(&from, &to)?;
            File::open(&to)?.sync_all()?;
        }
    }
    Ok(File::open(target)?.sync_all()?)
}

/// Rival: the `safetensors` crate reads every shard of a Hugging Face directory whole (`std::fs::read`, `deserialize`),
/// writes its tensors as a shard again (`serialize_to_file`) and syncs it; other files are copied.
///
/// It maps nothing, renames nothing and computes no checksum. No independent program for the Megatron side exists in Rust, so
/// for export it does the same with the same model: the volume read and written is that of an export.
pub(crate) fn rewrite(source: &Path, target: &Path) -> Result<()> {
    fs::create_dir(target)?;
    for entry in fs::read_dir(source)? {
        let entry = entry?;
        let (from, to) = (entry.path(), target.join(entry.file_name()));
        if from
            .extension()
            .is_some_and(|extension| extension == "safetensors")
        {
            let bytes = fs::read(&from)?;
            serialize_to_file(SafeTensors::deserialize(&bytes)?.iter(), None, &to)?;
        } else {
            fs::copy(&from, &to)?;
        }
        File::open(&to)?.sync_all()?;
    }
    Ok(File::open(target)?.sync_all()?)
}

/// Ours: opens, plans and runs an import.
pub(crate) fn import(source: &Path, target: &Path) -> Result<()> {
    let store = Arc::new(LocalStore::open(source)?);
    let plan = ImportPlan::new(&Glm5, store, &Options::default())?;
    let target = LocalTarget::create(target, Overwrite::Refuse)?;
    plan.run(&Glm5, Box::new(target), &RunOptions::default(), &Silent)?;
    Ok(())
}

/// Ours: opens, plans and runs an export.
pub(crate) fn export(source: &Path, target: &Path) -> Result<()> {
    let source = MegatronSource::open(Arc::new(LocalStore::open(source)?), None)?;
    let plan = ExportPlan::new(&Glm5, source, &ExportOptions::default())?;
    let target = LocalTarget::create(target, Overwrite::Refuse)?;
    plan.run(Box::new(target), &RunOptions::default(), &Silent)?;
    Ok(())
}
