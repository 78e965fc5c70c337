//! What competes in dequantizing one matrix, all in memory, on one core or on two.
//!
//! The matrix is the largest of a GLM-5.3 layer, `o_proj` of `[6144, 16384]`: weights normal-like with the published
//! `initializer_range` of 0.02 as standard deviation, quantized to E4M3 as the checkpoint is, each block of 128 by 128 by
//! its largest weight. So the codes have the distribution that a real matrix has: most in the upper half of the exponents, one
//! in ten thousand subnormal, none a NaN; and the scales, some 1.5e-4, are as odd as those.
//!
//! Codes and results have 288 MiB together, more than the caches of most processors. The buffers have been written before the
//! clock starts, but for what a contender allocates itself; they lie where the allocator puts them, which is rarely at the
//! beginning of a line.

use half::bf16;
use rialto_tensor::format::e4m3;
use rialto_tensor::quant::block;
use rialto_tensor::simd::Tier;
use rialto_tensor::{Dtype, Shape, TensorView};
use rialto_tests::random::Random;
use rialto_tests::weights::nearest_code;

const BLOCK: usize = 128;

/// A matrix, its scales, and room for the results.
pub(crate) struct Arena {
    rows: usize,
    columns: usize,
    codes: Vec<u8>,
    scales: Vec<f32>,
    out: Vec<u8>,
    /// For the floor: half of the bytes that dequantization reads and writes.
    copied: [Vec<u8>; 2],
}

/// One way of filling the results, or of moving as many bytes.
pub(crate) type Contender = Box<dyn Fn(&mut Arena)>;

impl Arena {
    /// The whole matrix if cargo asked for a bench, two blocks and a bit if it only asked whether the bench works.
    pub(crate) fn set_up() -> Arena {
        let has = |flag: &str| std::env::args().any(|argument| argument == flag);
        let (rows, columns): (usize, usize) = match has("--bench") && !has("--test") {
            true => (6144, 16384),
            false => (130, 257),
        };
        let mut random = Random(53);
        let weights: Vec<f32> = (0..rows * columns)
            .map(|_| 0.02 * random.normal())
            .collect();
        let grid_columns = columns.div_ceil(BLOCK);
        let mut scales = vec![0f32; rows.div_ceil(BLOCK) * grid_columns];
        let place = |at: usize| at / columns / BLOCK * grid_columns + at % columns / BLOCK;
        for (at, weight) in weights.iter().enumerate() {
            let largest = &mut scales[place(at)];
            *largest = largest.max(weight.abs());
        }
        scales.iter_mut().for_each(|scale| *scale /= 448.0);
        let weights = weights.iter().enumerate();
        let codes = weights.map(|(at, weight)| nearest_code(weight / scales[place(at)]));
        let mut arena = Arena {
            rows,
            columns,
            codes: codes.collect(),
            scales,
            out: vec![1; 2 * rows * columns],
            copied: [2, 3].map(|byte| vec![byte; 3 * rows * columns / 2]),
        };
        rival(&mut arena);
        let expected = arena.out.clone();
        for tier in Tier::available() {
            for cores in [1, 2] {
                arena.out.fill(1);
                ours(tier, cores)(&mut arena);
                assert!(arena.out == expected, "{tier} on {cores} does the same");
            }
        }
        arena
    }

    /// One byte is read for each element, and two are written.
    pub(crate) fn bytes_moved(&self) -> u64 {
        3 * self.codes.len() as u64
    }
}

/// Floor: a copy that reads and writes as many bytes as dequantization does, 3 for each element: of 1.5 bytes, once read and
/// once written. On so many cores.
pub(crate) fn copy(cores: usize) -> Contender {
    Box::new(move |arena| {
        let [source, target] = &mut arena.copied;
        let part = source.len().div_ceil(cores);
        let parts = source.chunks(part).zip(target.chunks_mut(part));
        on_cores(parts, |(source, target)| target.copy_from_slice(source));
    })
}

/// Does all parts at the same time, the first of them on this thread.
fn on_cores<P: Send>(mut parts: impl Iterator<Item = P>, work: impl Fn(P) + Sync) {
    std::thread::scope(|scope| {
        let first = parts.next();
        for part in parts {
            scope.spawn(|| work(part));
        }
        first.map(&work);
    });
}

/// Rival: as the reference in Python does it. First a scale for each element, as a matrix of its own; then every code decoded,
/// by table, multiplied and narrowed by the `half` crate.
pub(crate) fn rival(arena: &mut Arena) {
    let grid_columns = arena.columns.div_ceil(BLOCK);
    let mut expanded = Vec::with_capacity(arena.codes.len());
    for row in 0..arena.rows {
        let scales = &arena.scales[row / BLOCK * grid_columns..][..grid_columns];
        expanded.extend((0..arena.columns).map(|column| scales[column / BLOCK]));
    }
    let out = arena.out.as_chunks_mut::<2>().0;
    for ((out, &code), scale) in out.iter_mut().zip(&arena.codes).zip(&expanded) {
        let value = e4m3::VALUES[usize::from(code)] * scale;
        *out = bf16::from_f32(value).to_le_bytes();
    }
}

/// Ours, views and scales in bytes included: in a tier, on so many cores, each with a band of whole rows of blocks.
pub(crate) fn ours(tier: Tier, cores: usize) -> Contender {
    Box::new(move |arena| {
        let (columns, grid_columns) = (arena.columns, arena.columns.div_ceil(BLOCK));
        let block_rows = arena.rows.div_ceil(BLOCK).div_ceil(cores);
        let codes = arena.codes.chunks(block_rows * BLOCK * columns);
        let scales = arena.scales.chunks(block_rows * grid_columns);
        let out = arena.out.chunks_mut(2 * block_rows * BLOCK * columns);
        on_cores(codes.zip(scales).zip(out), |((codes, scales), out)| {
            dequantize(tier, columns, codes, scales, out);
        });
    })
}

fn dequantize(tier: Tier, columns: usize, codes: &[u8], scales: &[f32], out: &mut [u8]) {
    let shape = Shape::new([codes.len() / columns, columns].map(|extent| extent as u64));
    let block = [BLOCK as u64; 2];
    let grid = block::grid(&shape, block).expect("a matrix has a grid");
    let scales: Vec<u8> = scales
        .iter()
        .flat_map(|scale| scale.to_le_bytes())
        .collect();
    let q = TensorView::new(Dtype::F8E4m3, &shape, codes).expect("codes are as many");
    let scale = TensorView::new(Dtype::F32, &grid, &scales).expect("scales are as many");
    block::dequantize_in(tier, &q, &scale, block, out).expect("they fit together");
}
