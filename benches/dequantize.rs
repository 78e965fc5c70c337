//! Dequantization of block-scaled FP8 beside a copy of as many bytes and a plain loop over expanded scales.
//!
//! For a ratio to rely on, run `ratio_dequantize`.
#![allow(missing_docs, reason = "criterion's macros make public functions")]

mod matrix;

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rialto_tensor::simd::Tier;

use crate::matrix::{Arena, Contender, copy, ours, rival};

fn dequantize(criterion: &mut Criterion) {
    let mut arena = Arena::set_up();
    let mut group = criterion.benchmark_group("dequantize");
    group.throughput(Throughput::Bytes(arena.bytes_moved()));
    let mut rows: Vec<(String, Contender)> = vec![
        ("floor".to_owned(), copy(1)),
        ("rival".to_owned(), Box::new(rival)),
    ];
    for tier in Tier::available() {
        rows.push((format!("ours, {tier}"), ours(tier, 1)));
        rows.push((format!("ours, {tier}, two cores"), ours(tier, 2)));
    }
    for (row, contender) in rows {
        group.bench_function(row, |bencher| bencher.iter(|| contender(&mut arena)));
    }
    group.finish();
}

fn short() -> Criterion {
    let criterion = Criterion::default().sample_size(20);
    criterion
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(5))
}

criterion_group! { name = benches; config = short(); targets = dequantize }
criterion_main!(benches);
