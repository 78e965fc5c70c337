//! As many workgroups as an axis of a dispatch may have, and more: results are those of the processor, bit for bit. Numbers are whole and
//! small, so that sums are exact in any order.

use rialto_backend::{Backend, Driver, OpCall, OpenOptions, TensorType};
use rialto_cpu::CpuDriver;
use rialto_program::Op;
use rialto_program::op::{Argmax, Linear, Reduce, ReduceFunction, Scale};
use rialto_tensor::Dtype;
use rialto_tests::device::skip;
use rialto_wgpu::{Settings, WgpuDriver};

use crate::harness::read;

/// The most workgroups that an axis may have.
const MOST: u64 = 65_535;

/// As many, and more than one after the fold.
const GROUPS: &[u64] = &[MOST, MOST + 3];

/// An operation, extents of its F32 inputs, and its result.
type Given = (Op, Vec<Vec<u64>>, TensorType);

/// What is run for so many workgroups of a shader.
struct Folded {
    shader: &'static str,
    groups: &'static [u64],
    make: fn(u64) -> Given,
}

/// A way to a workgroup's number each: elements, rows, and the products of few rows and of many.
const FOLDED: [Folded; 5] = [
    Folded {
        shader: "elementwise",
        groups: GROUPS,
        make: |groups| {
            let shape = vec![64 * groups - 3];
            let out = TensorType::new(Dtype::F32, shape.clone());
            (Scale { factor: 3.0 }.into(), vec![shape], out)
        },
    },
    Folded {
        shader: "reduce",
        groups: GROUPS,
        make: |groups| {
            let function = ReduceFunction::Max;
            let out = TensorType::new(Dtype::F32, [groups]);
            (Reduce { function }.into(), vec![vec![groups, 3]], out)
        },
    },
    Folded {
        shader: "argmax",
        groups: GROUPS,
        make: |groups| {
            let out = TensorType::new(Dtype::I32, [groups]);
            (Argmax {}.into(), vec![vec![groups, 3]], out)
        },
    },
    Folded {
        shader: "gemv",
        groups: GROUPS,
        make: |groups| {
            // Four columns each.
            let columns = 4 * groups - 1;
            let out = TensorType::new(Dtype::F32, [1, columns]);
            (
                Linear::default().into(),
                vec![vec![1, 2], vec![columns, 2]],
                out,
            )
        },
    },
    Folded {
        shader: "tile",
        // A software adapter is slow where invocations wait for each other.
        groups: &[MOST + 1],
        make: |groups| {
            // Sixteen rows each, by 128 invocations.
            let rows = 16 * groups - 5;
            let out = TensorType::new(Dtype::F32, [rows, 1]);
            (
                Linear::default().into(),
                vec![vec![rows, 1], vec![1, 1]],
                out,
            )
        },
    },
];

fn run(device: &dyn Backend, (op, inputs, out): Given) -> Vec<u8> {
    let mut operands = Vec::new();
    for shape in inputs {
        let buffer = device
            .allocate(&TensorType::new(Dtype::F32, shape.clone()))
            .unwrap();
        let numbers = (1..=shape.iter().product::<u64>()).map(|at| (at * 7919 % 4093) as f32);
        let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
        device.write(&buffer, 0, &bytes).unwrap();
        operands.push(buffer.into());
    }
    let out = device.allocate(&out).unwrap();
    // What a dispatch leaves out is not by chance what it should be.
    let poison = vec![0xa5; out.tensor().size_bytes().unwrap() as usize];
    device.write(&out, 0, &poison).unwrap();
    let call = OpCall::new(op, operands, [out.clone()]).unwrap();
    device.record(vec![call]).unwrap().replay().unwrap();
    read(device, &out).unwrap()
}

/// The numbers of workgroups for which the result is not the processor's.
fn other(device: &dyn Backend, folded: &Folded) -> Vec<u64> {
    let cpu = CpuDriver.open(0, &OpenOptions::default()).unwrap();
    let is_other =
        |groups: u64| run(device, (folded.make)(groups)) != run(&*cpu, (folded.make)(groups));
    let groups = folded.groups.iter().copied();
    groups.filter(|&groups| is_other(groups)).collect()
}

fn each(edits: Vec<(&'static str, &'static str, &'static str)>, is_wrong: fn(u64) -> bool) {
    let settings = Settings {
        invocations: Some(128),
        edits,
        ..Settings::default()
    };
    match WgpuDriver::with_settings(settings).open(0, &OpenOptions::default()) {
        Err(error) => skip("wgpu", &error.to_string()),
        Ok(device) => {
            for folded in &FOLDED {
                let groups = folded.groups.iter().copied();
                let expected: Vec<u64> = groups.filter(|&groups| is_wrong(groups)).collect();
                assert_eq!(other(&*device, folded), expected, "{}", folded.shader);
            }
        }
    }
}

#[test]
fn fc_61_around_the_most_workgroups_of_an_axis_results_are_those_of_the_processor() {
    each(Vec::new(), |_| false);
}

#[test]
fn fc_61_shaders_that_fold_one_workgroup_later_than_the_dispatch_are_found() {
    let (here, elsewhere) = ("const FOLD: u32 = 65535u;", "const FOLD: u32 = 65536u;");
    let edits = FOLDED.map(|folded| (folded.shader, here, elsewhere));
    each(edits.to_vec(), |groups| groups > MOST);
}
