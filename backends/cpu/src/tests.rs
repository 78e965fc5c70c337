//! Operations as a caller sees them: values by hand, and that a row is the same bits alone, in a batch, in pieces, and on any number
//! of threads.

use std::num::NonZeroUsize;
use std::sync::Arc;

use rialto_backend::{Backend, Blocks, Buffer, Driver, OpCall, OpenOptions, Operand, TensorType};
use rialto_program::Op;
use rialto_tensor::format::bf16;
use rialto_tensor::{Dtype, Shape, quant};

use crate::CpuDriver;

mod rows;
mod values;

/// An input, as a test writes it.
#[derive(Clone)]
struct Input {
    tensor: TensorType,
    bytes: Vec<u8>,
    blocks: Option<([u64; 2], Vec<f32>)>,
}

fn input(dtype: Dtype, shape: &[u64], bytes: Vec<u8>) -> Input {
    Input {
        tensor: TensorType::new(dtype, shape),
        bytes,
        blocks: None,
    }
}

fn f32s(shape: &[u64], numbers: &[f32]) -> Input {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    input(Dtype::F32, shape, bytes.collect())
}

fn bf16s(shape: &[u64], numbers: &[f32]) -> Input {
    let codes = numbers.iter().map(|&number| bf16::round(number));
    let bytes = codes.flat_map(u16::to_le_bytes);
    input(Dtype::Bf16, shape, bytes.collect())
}

fn ints(shape: &[u64], numbers: &[i32]) -> Input {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    input(Dtype::I32, shape, bytes.collect())
}

fn codes(shape: &[u64], codes: &[u8], block: [u64; 2], scales: &[f32]) -> Input {
    Input {
        blocks: Some((block, scales.to_vec())),
        ..input(Dtype::F8E4m3, shape, codes.to_vec())
    }
}

/// A device with so many threads.
fn device(threads: usize) -> Arc<dyn Backend> {
    let options = OpenOptions {
        threads: NonZeroUsize::new(threads),
    };
    CpuDriver.open(0, &options).unwrap()
}

fn filled(device: &dyn Backend, tensor: &TensorType, bytes: &[u8]) -> Buffer {
    let buffer = device.allocate(tensor).unwrap();
    assert_eq!(bytes.len() as u64, tensor.size_bytes().unwrap());
    device.write(&buffer, 0, bytes).unwrap();
    buffer
}

fn bytes_of(device: &dyn Backend, buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.tensor().size_bytes().unwrap() as usize];
    device.read(buffer, 0, &mut bytes).unwrap();
    bytes
}

/// The bytes of what an operation makes, activations being of a dtype. An operation without outputs makes its cache.
fn run(device: &dyn Backend, activation: Dtype, op: &Op, inputs: &[Input]) -> Vec<Vec<u8>> {
    let operands: Vec<Operand> = inputs
        .iter()
        .map(|input| Operand {
            values: filled(device, &input.tensor, &input.bytes),
            blocks: input.blocks.as_ref().map(|(block, scales)| {
                let grid = quant::block::grid(&input.tensor.shape, *block).unwrap();
                let scales: Vec<u8> = scales
                    .iter()
                    .flat_map(|scale| scale.to_le_bytes())
                    .collect();
                let tensor = TensorType::new(Dtype::F32, grid.extents());
                Blocks {
                    scales: filled(device, &tensor, &scales),
                    block: *block,
                }
            }),
        })
        .collect();
    let types: Vec<_> = operands.iter().map(Operand::value_type).collect();
    let outputs: Vec<Buffer> = op
        .infer(&types)
        .unwrap()
        .iter()
        .map(|made| {
            let dtype = match made.element {
                rialto_program::Element::Activation => activation,
                rialto_program::Element::Of(dtype) => dtype,
            };
            let extents = made.shape.iter().map(|dim| match dim {
                rialto_program::Dim::Size(size) => *size,
                other => panic!("{other}"),
            });
            let shape: Vec<u64> = extents.collect();
            let tensor = TensorType {
                dtype,
                shape: Shape::new(shape),
            };
            // What was there before must not matter.
            let bytes = vec![0x7b; tensor.size_bytes().unwrap() as usize];
            filled(device, &tensor, &bytes)
        })
        .collect();
    let made = match outputs.is_empty() {
        true => vec![operands[1].values.clone()],
        false => outputs.clone(),
    };
    let call = OpCall::new(op.clone(), operands, outputs).unwrap();
    device.record(vec![call]).unwrap().replay().unwrap();
    made.iter().map(|made| bytes_of(device, made)).collect()
}

/// Bytes as F32.
fn numbers(bytes: &[u8]) -> Vec<f32> {
    let numbers = bytes.as_chunks().0.iter();
    numbers.map(|&number| f32::from_le_bytes(number)).collect()
}

/// Bytes as BF16.
fn halves(bytes: &[u8]) -> Vec<f32> {
    let numbers = bytes.as_chunks().0.iter();
    numbers
        .map(|&code| bf16::decode(u16::from_le_bytes(code)))
        .collect()
}

/// Bytes as I32.
fn integers(bytes: &[u8]) -> Vec<i32> {
    let numbers = bytes.as_chunks().0.iter();
    numbers.map(|&number| i32::from_le_bytes(number)).collect()
}

#[test]
fn every_operation_of_this_version_is_run() {
    let device = device(1);
    let known = &device.capabilities().ops;
    assert!(Op::NAMES.iter().all(|&name| known.contains(name)));
    let tested: Vec<&str> = rows::cases(Dtype::F32)
        .iter()
        .map(|case| case.op.name())
        .collect();
    for name in Op::NAMES {
        assert!(tested.contains(name), "{name} has no case");
    }
}
