//! Import and export beside a copy of the same bytes and the `safetensors` crate.
//!
//! Times of different rows may be minutes apart: for a ratio to rely on, run `ratio_convert`.
#![allow(missing_docs, reason = "criterion's macros make public functions")]

mod contenders;
mod synthetic;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};

use crate::contenders::{Arena, copy, export, import, rewrite};
use crate::synthetic::Size;

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

/// A conversion takes long and its time says little more the tenth time: few samples, and one conversion in each.
fn short() -> Criterion {
    let criterion = Criterion::default().sample_size(10);
    criterion
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(5))
}

criterion_group! { name = benches; config = short(); targets = conversions }
criterion_main!(benches);
