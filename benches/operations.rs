//! Operations at the model's own sizes, on the processor and on an adapter of wgpu if there is one, each beside a copy of the bytes that it
//! reads at least, made by the same device: the floor of what is bound by memory, far below what is bound by arithmetic. What is done for a
//! token's logits, indices and attention, one group each, which is named after the device and what computes; its driver is printed. Times of
//! a software adapter say nothing of a GPU.
#![allow(missing_docs, reason = "criterion's macros make public functions")]
#![allow(clippy::print_stdout, reason = "a bench talks to whoever runs it")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rialto_backend::{
    Backend, Blocks, Buffer, Driver, OpCall, OpenOptions, Operand, Recording, TensorType,
};
use rialto_cpu::CpuDriver;
use rialto_program::op::{Linear, Scale, SparseMla, TopK};
use rialto_tensor::Dtype;
use rialto_tensor::format::bf16;
use rialto_tests::random::Random;
use rialto_tests::shapes::{LINEAR_HOT, MLA_HOT, TOPK_HOT};
use rialto_wgpu::WgpuDriver;

/// Rows and columns of a block of codes.
const BLOCK: [u64; 2] = [128, 128];

struct Device {
    backend: Arc<dyn Backend>,
    random: Random,
}

impl Device {
    /// The processor, and the first adapter that there is.
    fn all() -> Vec<Device> {
        let adapter = WgpuDriver::new().open(0, &OpenOptions::default());
        let processor = CpuDriver.open(0, &OpenOptions::default());
        let found = [Ok(processor.expect("there is a processor")), adapter];
        let devices = found.into_iter().flatten().map(|backend| {
            // What numbers are worth nothing without.
            let device = backend.device();
            println!("{device}, {}: {:?}", device.kind, device.details);
            Device {
                backend,
                random: Random(7),
            }
        });
        devices.collect()
    }

    /// A name for what is measured here.
    fn group(&self, what: &str) -> String {
        let device = self.backend.device();
        format!(
            "{what}, {}:{}, {}",
            device.backend, device.index, device.kind
        )
    }

    /// Whether it is the processor's own backend, beside which a rival on the processor is measured.
    fn is_processor(&self) -> bool {
        self.backend.device().backend == "cpu"
    }

    /// Normal numbers; of E4M3 the codes of numbers, none of which is NaN; of I32 as they are given.
    fn buffer(&mut self, dtype: Dtype, shape: impl Into<Vec<u64>>) -> Buffer {
        let tensor = TensorType::new(dtype, shape);
        let elements = tensor.shape.elements().expect("a bench fits");
        let random = &mut self.random;
        let mut bytes = Vec::new();
        for _ in 0..elements {
            match dtype {
                Dtype::Bf16 => bytes.extend(bf16::round(random.normal()).to_le_bytes()),
                Dtype::F8E4m3 => bytes.push((random.bits() % 0x7f) as u8),
                _ => bytes.extend(random.normal().to_le_bytes()),
            }
        }
        self.filled(tensor, &bytes)
    }

    fn ints(&self, shape: impl Into<Vec<u64>>, values: impl Iterator<Item = i32>) -> Buffer {
        let bytes: Vec<u8> = values.flat_map(i32::to_le_bytes).collect();
        self.filled(TensorType::new(Dtype::I32, shape), &bytes)
    }

    fn filled(&self, tensor: TensorType, bytes: &[u8]) -> Buffer {
        let buffer = self.backend.allocate(&tensor).expect("memory");
        self.backend
            .write(&buffer, 0, bytes)
            .expect("its own buffer");
        buffer
    }

    /// What runs a call to its end: a device may give back control before.
    fn run(&self, call: OpCall) -> impl FnMut() + use<> {
        let out = call.outputs()[0].clone();
        let backend = Arc::clone(&self.backend);
        let recording = backend.record(vec![call]);
        let mut recording: Box<dyn Recording> = recording.expect("an operation that it runs");
        move || {
            recording.replay().expect("it runs");
            let mut first = [0; 4];
            backend.read(&out, 0, &mut first).expect("its own buffer");
            black_box(first);
        }
    }

    /// A copy of so many bytes.
    fn copy(&self, bytes: u64) -> Box<dyn FnMut()> {
        if !self.is_processor() {
            // Read, and written elsewhere, by the device itself.
            let tensor = TensorType::new(Dtype::F32, [bytes / 4]);
            let [x, y] = [(), ()].map(|()| self.backend.allocate(&tensor).expect("memory"));
            let call = OpCall::new(Scale { factor: 1.0 }.into(), [x.into()], [y]);
            return Box::new(self.run(call.expect("a copy")));
        }
        let source = vec![1u8; bytes as usize];
        let mut target = vec![0u8; bytes as usize];
        Box::new(move || {
            target.copy_from_slice(black_box(&source));
            black_box(&target);
        })
    }
}

fn linear(criterion: &mut Criterion) {
    for mut device in Device::all() {
        linear_on(&mut device, criterion);
    }
}

fn linear_on(device: &mut Device, criterion: &mut Criterion) {
    for [t, n, k] in LINEAR_HOT {
        let name = device.group(&format!("linear {t}x{n}x{k}"));
        let mut group = criterion.benchmark_group(name);
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F8E4m3] {
            let x = device.buffer(Dtype::Bf16, [t, k]);
            let weight = device.buffer(dtype, [n, k]);
            let out = device.buffer(Dtype::Bf16, [t, n]);
            let blocks = (dtype == Dtype::F8E4m3).then(|| Blocks {
                scales: device.buffer(Dtype::F32, [n.div_ceil(BLOCK[0]), k.div_ceil(BLOCK[1])]),
                block: BLOCK,
            });
            let weight = Operand {
                values: weight,
                blocks,
            };
            let call = OpCall::new(Linear::default().into(), [x.into(), weight], [out]);
            let mut ours = device.run(call.expect("a product"));
            let bytes = n * k * dtype.size_bytes();
            group.throughput(Throughput::Bytes(bytes));
            let mut floor = device.copy(bytes);
            group.bench_function(format!("{dtype} floor"), |bencher| bencher.iter(&mut floor));
            group.bench_function(format!("{dtype} ours"), |bencher| bencher.iter(&mut ours));
        }
        group.finish();
    }
}

fn topk(criterion: &mut Criterion) {
    for mut device in Device::all() {
        topk_on(&mut device, criterion);
    }
}

fn topk_on(device: &mut Device, criterion: &mut Criterion) {
    let [t, n, k] = TOPK_HOT;
    let scores = device.buffer(Dtype::F32, [t, n]);
    let out = device.ints([t, k], std::iter::repeat_n(0, (t * k) as usize));
    let call = OpCall::new(TopK { k }.into(), [scores.clone().into()], [out]);
    let mut ours = device.run(call.expect("a selection"));
    let name = device.group(&format!("topk {k} of {n}"));
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Bytes(4 * t * n));
    let mut floor = device.copy(4 * t * n);
    group.bench_function("floor", |bencher| bencher.iter(&mut floor));
    let mut bytes = vec![0; (4 * n) as usize];
    device
        .backend
        .read(&scores, 0, &mut bytes)
        .expect("its own buffer");
    let values = bytes.as_chunks().0.iter();
    let values: Vec<f32> = values.map(|&value| f32::from_le_bytes(value)).collect();
    if device.is_processor() {
        group.bench_function("rival, a whole sort", |bencher| {
            bencher.iter(|| {
                let mut order: Vec<usize> = (0..values.len()).collect();
                order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
                order.truncate(k as usize);
                order.sort_unstable();
                black_box(order)
            });
        });
    }
    group.bench_function("ours", |bencher| bencher.iter(&mut ours));
    group.finish();
}

fn sparse_mla(criterion: &mut Criterion) {
    for mut device in Device::all() {
        sparse_mla_on(&mut device, criterion);
    }
}

fn sparse_mla_on(device: &mut Device, criterion: &mut Criterion) {
    let ([heads, nope, rope, _, latent], k) = MLA_HOT;
    let (page, context) = (64, 2 * k);
    let width = latent + rope;
    let inputs = [
        device.buffer(Dtype::Bf16, [1, heads, latent]),
        device.buffer(Dtype::Bf16, [1, heads, rope]),
        device.ints([1, k], (0..k as i32).map(|position| 2 * position)),
        device.buffer(Dtype::Bf16, [context / page, page, width]),
        device.ints([1], [0].into_iter()),
        device.ints([1], [context as i32 - 1].into_iter()),
        device.ints([1, context / page], 0..(context / page) as i32),
    ];
    let out = device.buffer(Dtype::Bf16, [1, heads, latent]);
    let op = SparseMla {
        scale: ((nope + rope) as f64).powf(-0.5),
    };
    let call = OpCall::new(op.into(), inputs.map(Operand::from), [out]);
    let mut ours = device.run(call.expect("attention"));
    let name = device.group(&format!("sparse_mla {heads} heads {k} positions"));
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Bytes(2 * k * width));
    let mut floor = device.copy(2 * k * width);
    group.bench_function("floor", |bencher| bencher.iter(&mut floor));
    group.bench_function("ours", |bencher| bencher.iter(&mut ours));
    group.finish();
}

fn short() -> Criterion {
    let criterion = Criterion::default().sample_size(20);
    criterion
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
}

criterion_group! { name = benches; config = short(); targets = linear, topk, sparse_mla }
criterion_main!(benches);
