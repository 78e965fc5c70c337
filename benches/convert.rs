//! Import and export beside a copy of the same bytes and the `safetensors` crate, and planning the published GLM-5.2.
//!
//! Times of different rows may be minutes apart: for a ratio to rely on, run `ratio_convert`.
#![allow(missing_docs, reason = "criterion's macros make public functions")]

mod contenders;
mod random;
mod synthetic;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use rialto_bridge::RawConfig;
use rialto_checkpoint::store::LocalStore;
use rialto_engine::{ImportPlan, Options};
use rialto_glm5::Glm5;

use crate::contenders::{Arena, copy, export, import, rewrite};
use crate::synthetic::{FIXTURES, Size};

type Row<'a> = (&'a str, fn(&Path, &Path) -> Result<()>, PathBuf);

fn conversions(criterion: &mut Criterion) {
    let arena =
        Arena::set_up(Size::from_arguments()).expect("the checkpoint can be written and imported");
    let (hugging_face, megatron) = (arena.hugging_face(), arena.megatron());
    let (read, written) = (|| hugging_face.clone(), || megatron.clone());
    let import: [Row<'_>; 3] = [
        ("floor", copy, read()),
        ("rival", rewrite, read()),
        ("ours", import, read()),
    ];
    let export: [Row<'_>; 3] = [
        ("floor", copy, written()),
        ("rival", rewrite, read()),
        ("ours", export, written()),
    ];
    for (direction, rows) in [("import", import), ("export", export)] {
        let mut group = criterion.benchmark_group(direction);
        group
            .throughput(Throughput::Bytes(arena.bytes))
            .sampling_mode(SamplingMode::Flat);
        for (row, contender, source) in rows {
            group.bench_function(row, |bencher| {
                bencher.iter_custom(|iterations| {
                    (0..iterations)
                        .map(|_| arena.time(contender, &source))
                        .sum()
                });
            });
        }
        group.finish();
    }
}

/// The plan of all tensors of the published model, from its config alone; the floor is what any reader of it must do.
fn plan(criterion: &mut Criterion) {
    let directory = PathBuf::from(FIXTURES).join("configs/glm-5.2");
    let file = directory.join("config.json");
    let parse = || {
        RawConfig::parse(&fs::read(&file).expect("the fixture is there")).expect("it is a config")
    };
    let plan = || {
        let store = LocalStore::open(&directory).expect("the fixture is there");
        ImportPlan::new(&Glm5, Arc::new(store), &Options::default()).expect("the family takes it")
    };
    let mut group = criterion.benchmark_group("plan");
    group.throughput(Throughput::Bytes(parse().text().len() as u64));
    group.bench_function("floor", |bencher| bencher.iter_with_large_drop(parse));
    group
        .throughput(Throughput::Elements(plan().summary().source.tensors))
        .sampling_mode(SamplingMode::Flat);
    group.bench_function("ours", |bencher| bencher.iter_with_large_drop(plan));
    group.finish();
}

/// A conversion takes long and its time says little more the tenth time: few samples, and one conversion in each.
fn short() -> Criterion {
    let criterion = Criterion::default().sample_size(10);
    criterion
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(5))
}

criterion_group! { name = benches; config = short(); targets = conversions, plan }
criterion_main!(benches);
