//! Opening and planning the published GLM-5.2 at full size: 59,585 tensors in 282 shards, whose weights are holes.
//!
//! No weight is read by any row, so headers and index are all there is, and they lie in the page cache. The config alone is
//! planned at TP 1, PP 2, EP 8, ETP 2.
#![allow(missing_docs, reason = "criterion's macros make public functions")]

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use rialto_bridge::{Mesh, RawConfig};
use rialto_checkpoint::hf::HfCheckpoint;
use rialto_checkpoint::store::LocalStore;
use rialto_engine::{ImportPlan, Options};
use rialto_glm5::Glm5;
use rialto_tests::published::{self, Tensor};
use rialto_tests::{fixture, sparse};
use safetensors::tensor::Metadata;
use tempfile::TempDir;

/// The published config, and the sparse checkpoint of it.
struct Arena {
    config: PathBuf,
    checkpoint: PathBuf,
    tensors: u64,
    header_bytes: u64,
    _room: TempDir,
}

impl Arena {
    fn set_up() -> Result<Arena> {
        let room = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let (config, checkpoint) = (fixture("configs/glm-5.2"), room.path().join("glm-5.2"));
        let written = sparse::write(&config, &checkpoint)?;
        let headers = headers(&checkpoint)?;
        Ok(Arena {
            config,
            checkpoint,
            tensors: written.tensors as u64,
            header_bytes: headers.iter().map(|header| header.len() as u64).sum(),
            _room: room,
        })
    }
}

/// Floor of what reads a checkpoint: the bytes of every header, in memory.
fn headers(directory: &Path) -> Result<Vec<Vec<u8>>> {
    let mut headers = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|ending| ending == "safetensors")
        {
            let mut file = File::open(path)?;
            let mut length = [0; 8];
            file.read_exact(&mut length)?;
            let mut header = vec![0; usize::try_from(u64::from_le_bytes(length))?];
            file.read_exact(&mut header)?;
            headers.push(header);
        }
    }
    Ok(headers)
}

/// Rival: the `safetensors` crate parses every header, by the code of its `SafeTensors::read_metadata`, which itself would have
/// the whole shard in memory. It looks at no index and at no file's length.
fn parse(directory: &Path) -> Result<Vec<Metadata>> {
    let headers = headers(directory)?;
    let parsed = headers.iter().map(|header| serde_json::from_slice(header));
    Ok(parsed.collect::<Result<_, _>>()?)
}

/// Ours: headers and index, and that they agree; what `rialto inspect` prints.
fn open(directory: &Path) -> Result<HfCheckpoint> {
    Ok(HfCheckpoint::open(Arc::new(LocalStore::open(directory)?))?)
}

/// Ours: the import of a directory, with weights or without.
fn plan(directory: &Path) -> Result<ImportPlan> {
    let options = Options {
        mesh: Mesh {
            tp: 1,
            pp: 2,
            ep: 8,
            etp: 2,
        },
        ..Options::default()
    };
    let store = Arc::new(LocalStore::open(directory)?);
    Ok(ImportPlan::new(&Glm5, store, &options)?)
}

/// Floor of a plan from a config: the config, parsed.
fn config(directory: &Path) -> Result<RawConfig> {
    Ok(RawConfig::parse(&fs::read(directory.join("config.json"))?)?)
}

/// Rival of a plan from a config: another program's list of the tensors. It maps, cuts and places none of them.
fn list(directory: &Path) -> Result<Vec<Tensor>> {
    let config = fs::read(directory.join("config.json"))?;
    Ok(published::tensors(&serde_json::from_slice(&config)?))
}

fn plans(criterion: &mut Criterion) {
    let arena = Arena::set_up().expect("the sparse checkpoint can be written");
    let planned = plan(&arena.checkpoint).expect("the family takes it");
    assert_eq!(planned.summary().source.tensors, arena.tensors);
    drop(planned);

    let mut group = criterion.benchmark_group("plan of a config");
    group
        .throughput(Throughput::Elements(arena.tensors))
        .sampling_mode(SamplingMode::Flat);
    row(&mut group, "floor", &arena.config, config);
    row(&mut group, "rival", &arena.config, list);
    row(&mut group, "ours", &arena.config, plan);
    group.finish();

    let mut group = criterion.benchmark_group("open 282 shards");
    group
        .throughput(Throughput::Bytes(arena.header_bytes))
        .sampling_mode(SamplingMode::Flat);
    row(&mut group, "floor", &arena.checkpoint, headers);
    row(&mut group, "rival", &arena.checkpoint, parse);
    row(&mut group, "ours", &arena.checkpoint, open);
    group.finish();

    // The floor and the rival are those of opening: nothing else plans.
    let mut group = criterion.benchmark_group("plan of 282 shards");
    group
        .throughput(Throughput::Bytes(arena.header_bytes))
        .sampling_mode(SamplingMode::Flat);
    row(&mut group, "floor", &arena.checkpoint, headers);
    row(&mut group, "rival", &arena.checkpoint, parse);
    row(&mut group, "ours", &arena.checkpoint, plan);
    group.finish();
}

type Group<'a> = criterion::BenchmarkGroup<'a, criterion::measurement::WallTime>;

fn row<T>(group: &mut Group<'_>, name: &str, directory: &Path, job: fn(&Path) -> Result<T>) {
    let job = || {
        let done = job(directory).with_context(|| format!("{name} of {}", directory.display()));
        done.expect("a row that fails has no time")
    };
    group.bench_function(name, |bencher| bencher.iter_with_large_drop(job));
}

fn short() -> Criterion {
    let criterion = Criterion::default().sample_size(20);
    criterion
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(5))
}

criterion_group! { name = benches; config = short(); targets = plans }
criterion_main!(benches);
