//! A device that answers with the middle of what the oracle allows, rounded. It stands in where the suite itself is tested: what
//! nothing is wrong with passes, and each fault that is planted into it is found.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use rialto_backend::{
    Backend, Buffer, Capabilities, DeviceInfo, DeviceKind, Error, OpCall, Operand, Recording,
    TensorType,
};
use rialto_program::Op;
use rialto_tensor::Dtype;

use crate::input::{Input, Scales, decode, encode};
use crate::oracle::{self, Expected};

/// The device.
pub(crate) struct Ideal {
    device: DeviceInfo,
    capabilities: Capabilities,
}

impl Ideal {
    /// One that can do everything.
    #[must_use]
    pub(crate) fn new() -> Ideal {
        Ideal {
            device: DeviceInfo {
                backend: "ideal".to_owned(),
                index: 0,
                name: "the oracle, rounded".to_owned(),
                kind: DeviceKind::Software,
                memory_bytes: None,
                details: BTreeMap::new(),
                limits: BTreeMap::new(),
                features: BTreeSet::new(),
            },
            capabilities: Capabilities {
                ops: Op::NAMES.iter().map(|&name| name.to_owned()).collect(),
                activations: vec![Dtype::F32, Dtype::Bf16],
                runs_block_weights: true,
                is_row_invariant: true,
                max_piece_bytes: None,
            },
        }
    }
}

type Storage = Mutex<Vec<u8>>;

/// Does something with the bytes of a range of a buffer.
fn with_bytes<T>(
    buffer: &Buffer,
    begin: usize,
    length: usize,
    act: impl FnOnce(&mut [u8]) -> T,
) -> Result<T, Error> {
    let storage = buffer.storage::<Storage>()?;
    let mut bytes = storage.lock().unwrap_or_else(PoisonError::into_inner);
    let size_bytes = bytes.len() as u64;
    match bytes.get_mut(begin..begin + length) {
        Some(range) => Ok(act(range)),
        None => Err(Error::BufferRange {
            tensor: buffer.tensor().clone(),
            size_bytes,
            begin: begin as u64,
            end: (begin + length) as u64,
        }),
    }
}

impl Backend for Ideal {
    fn device(&self) -> &DeviceInfo {
        &self.device
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&self, tensor: &TensorType) -> Result<Buffer, Error> {
        let storage: Storage = Mutex::new(vec![0; tensor.size_bytes()? as usize]);
        Ok(Buffer::new(tensor.clone(), Arc::new(storage)))
    }

    fn write(&self, buffer: &Buffer, offset_bytes: u64, bytes: &[u8]) -> Result<(), Error> {
        with_bytes(buffer, offset_bytes as usize, bytes.len(), |range| {
            range.copy_from_slice(bytes);
        })
    }

    fn read(&self, buffer: &Buffer, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), Error> {
        with_bytes(buffer, offset_bytes as usize, bytes.len(), |range| {
            bytes.copy_from_slice(range);
        })
    }

    fn record(&self, calls: Vec<OpCall>) -> Result<Box<dyn Recording>, Error> {
        Ok(Box::new(Calls(calls)))
    }
}

struct Calls(Vec<OpCall>);

fn bytes_of(buffer: &Buffer) -> Result<Vec<u8>, Error> {
    let length = buffer.tensor().size_bytes()? as usize;
    with_bytes(buffer, 0, length, |bytes| bytes.to_vec())
}

/// What an operand holds now.
pub(crate) fn input_of(
    operand: &Operand,
    bytes_of: impl Fn(&Buffer) -> Result<Vec<u8>, Error>,
) -> Result<Input, Error> {
    let scales = match &operand.blocks {
        Some(blocks) => Some(Scales {
            values: decode(Dtype::F32, &bytes_of(&blocks.scales)?),
            shape: blocks.scales.tensor().shape.extents().to_vec(),
            block: blocks.block,
        }),
        None => None,
    };
    Ok(Input {
        tensor: operand.values.tensor().clone(),
        bytes: bytes_of(&operand.values)?,
        scales,
    })
}

/// One answer of those that are right.
fn middle(expected: &Expected, dtype: Dtype) -> Vec<u8> {
    match expected {
        Expected::Bytes(bytes) | Expected::Codes(bytes) => bytes.clone(),
        Expected::Ints(ints) => ints.iter().flat_map(|int| int.to_le_bytes()).collect(),
        Expected::Spans(spans) => {
            let middle = spans.iter().map(|span| match span.is_any() {
                true => 0.0,
                false => span.middle(),
            });
            encode(dtype, &middle.collect::<Vec<f64>>())
        }
    }
}

impl Recording for Calls {
    fn replay(&mut self) -> Result<(), Error> {
        for call in &self.0 {
            let inputs = call.inputs().iter();
            let inputs: Vec<Input> = inputs
                .map(|operand| input_of(operand, bytes_of))
                .collect::<Result<_, _>>()?;
            let types: Vec<TensorType> = call
                .outputs()
                .iter()
                .map(|output| output.tensor().clone())
                .collect();
            let answer = oracle::answer(call.op(), &inputs, &types);
            for (expected, output) in answer.outputs.iter().zip(call.outputs()) {
                let bytes = middle(expected, output.tensor().dtype);
                with_bytes(output, 0, bytes.len(), |range| {
                    range.copy_from_slice(&bytes)
                })?;
            }
            if let Some((position, bytes)) = &answer.written {
                let written = &call.inputs()[*position].values;
                with_bytes(written, 0, bytes.len(), |range| {
                    range.copy_from_slice(bytes)
                })?;
            }
        }
        Ok(())
    }
}
