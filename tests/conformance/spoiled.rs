//! A device with a fault that was planted into it, around another that has none.

use std::sync::{Arc, Mutex, PoisonError};

use rialto_backend::{
    Backend, Blocks, Buffer, Capabilities, DeviceInfo, Error, OpCall, Operand, Recording,
    TensorType,
};
use rialto_program::Op;
use rialto_tensor::Dtype;

use crate::harness::read;
use crate::ideal::input_of;
use crate::input::{Input, decode, encode};

/// New bytes of something, of what a call is and what it is given.
pub(crate) type Edit = fn(&Op, &[Input], Vec<u8>) -> Vec<u8>;

/// What is wrong.
#[derive(Clone, Copy)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// Other attributes.
    Attributes(fn(Op) -> Op),
    /// An input that is read as something else.
    Reads(usize, Edit),
    /// Scales of an input's codes that are read as something else.
    ReadsScales(usize, fn(&mut [f64], &[u64])),
    /// The last input is left out.
    Forgets,
    /// An output that is something else.
    Makes(usize, Edit),
    /// An output that is not written.
    Leaves(usize),
    /// An input that is written to.
    Scribbles(usize),
    /// Everything in F32, and the result made BF16 of it by another rounding.
    Rounds(fn(f64) -> f64),
    /// Codes are decoded without being rounded to BF16.
    Decodes,
    /// What the inputs held at the first replay is used at all.
    Freezes,
}

/// A device whose calls of one operation have a fault.
pub(crate) struct Spoiled {
    inner: Arc<dyn Backend>,
    op: String,
    fault: Fault,
}

impl Spoiled {
    /// Plants a fault.
    pub(crate) fn new(inner: Arc<dyn Backend>, op: &str, fault: Fault) -> Spoiled {
        Spoiled {
            inner,
            op: op.to_owned(),
            fault,
        }
    }

    fn spoil(&self, call: &OpCall) -> Result<Faulty, Error> {
        let (mut op, mut inputs) = (call.op().clone(), call.inputs().to_vec());
        let mut outputs = call.outputs().to_vec();
        let fresh = |tensor: &TensorType| self.inner.allocate(tensor);
        let as_f32 = |tensor: &TensorType| TensorType {
            dtype: Dtype::F32,
            ..tensor.clone()
        };
        match self.fault {
            Fault::Attributes(edit) => op = edit(op),
            Fault::Reads(position, _) => {
                inputs[position].values = fresh(call.inputs()[position].values.tensor())?;
            }
            Fault::ReadsScales(position, _) => {
                if let Some(Blocks { scales, .. }) = &mut inputs[position].blocks {
                    *scales = fresh(scales.tensor())?;
                }
            }
            Fault::Forgets => {
                inputs.pop();
            }
            Fault::Leaves(position) => outputs[position] = fresh(outputs[position].tensor())?,
            Fault::Freezes => {
                for operand in &mut inputs {
                    operand.values = fresh(operand.values.tensor())?;
                }
            }
            Fault::Rounds(_) => {
                for buffer in inputs
                    .iter_mut()
                    .map(|operand| &mut operand.values)
                    .chain(&mut outputs)
                    .filter(|buffer| buffer.tensor().dtype == Dtype::Bf16)
                {
                    *buffer = fresh(&as_f32(buffer.tensor()))?;
                }
            }
            Fault::Decodes => {
                for operand in inputs.iter_mut().filter(|operand| operand.blocks.is_some()) {
                    *operand = fresh(&as_f32(operand.values.tensor()))?.into();
                }
            }
            Fault::None | Fault::Makes(..) | Fault::Scribbles(_) => {}
        }
        // Attributes or inputs that an operation would not take are no fault that a device could have with this call.
        let spoiled = OpCall::new(op, inputs.clone(), outputs.clone());
        let (spoiled, fault) = match spoiled {
            Ok(spoiled) => (spoiled, self.fault),
            Err(_) => (call.clone(), Fault::None),
        };
        Ok(Faulty {
            inner: Arc::clone(&self.inner),
            fault,
            original: call.clone(),
            recording: self.inner.record(vec![spoiled])?,
            inputs,
            outputs,
            frozen: Mutex::new(None),
        })
    }
}

impl Backend for Spoiled {
    fn device(&self) -> &DeviceInfo {
        self.inner.device()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn allocate(&self, tensor: &TensorType) -> Result<Buffer, Error> {
        self.inner.allocate(tensor)
    }

    fn write(&self, buffer: &Buffer, offset_bytes: u64, bytes: &[u8]) -> Result<(), Error> {
        self.inner.write(buffer, offset_bytes, bytes)
    }

    fn read(&self, buffer: &Buffer, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.inner.read(buffer, offset_bytes, bytes)
    }

    fn record(&self, calls: Vec<OpCall>) -> Result<Box<dyn Recording>, Error> {
        match calls.as_slice() {
            [call] if call.op().name() == self.op => Ok(Box::new(self.spoil(call)?)),
            _ => self.inner.record(calls),
        }
    }
}

/// A recorded call with its fault.
struct Faulty {
    inner: Arc<dyn Backend>,
    fault: Fault,
    original: OpCall,
    recording: Box<dyn Recording>,
    /// What it reads and writes in place of what it should.
    inputs: Vec<Operand>,
    outputs: Vec<Buffer>,
    frozen: Mutex<Option<Vec<Vec<u8>>>>,
}

impl Faulty {
    fn given(&self) -> Result<Vec<Input>, Error> {
        let operands = self.original.inputs().iter();
        operands
            .map(|operand| input_of(operand, |buffer| read(&*self.inner, buffer)))
            .collect()
    }

    fn before(&self, given: &[Input]) -> Result<(), Error> {
        let write = |operand: &Operand, bytes: &[u8]| self.inner.write(&operand.values, 0, bytes);
        match self.fault {
            Fault::Reads(position, edit) => {
                let bytes = given[position].bytes.clone();
                let bytes = edit(self.original.op(), given, bytes);
                write(&self.inputs[position], &bytes)?;
            }
            Fault::ReadsScales(position, edit) => {
                let blocks = &self.inputs[position].blocks;
                if let (Some(blocks), Some(scales)) = (blocks, &given[position].scales) {
                    let mut values = scales.values.clone();
                    edit(&mut values, &scales.shape);
                    let bytes = encode(Dtype::F32, &values);
                    self.inner.write(&blocks.scales, 0, &bytes)?;
                }
            }
            Fault::Freezes => {
                let mut frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner);
                let known = frozen
                    .get_or_insert_with(|| given.iter().map(|input| input.bytes.clone()).collect());
                for (operand, bytes) in self.inputs.iter().zip(known) {
                    write(operand, bytes)?;
                }
            }
            Fault::Rounds(_) => {
                for (operand, input) in self.inputs.iter().zip(given) {
                    if input.dtype() == Dtype::Bf16 {
                        write(operand, &encode(Dtype::F32, &input.values()))?;
                    }
                }
            }
            Fault::Decodes => {
                for (operand, input) in self.inputs.iter().zip(given) {
                    if input.scales.is_some() {
                        write(operand, &encode(Dtype::F32, &input.unrounded()))?;
                    }
                }
            }
            Fault::None
            | Fault::Attributes(_)
            | Fault::Forgets
            | Fault::Makes(..)
            | Fault::Leaves(_)
            | Fault::Scribbles(_) => {}
        }
        Ok(())
    }

    fn after(&self, given: &[Input]) -> Result<(), Error> {
        let made = self.original.outputs();
        match self.fault {
            Fault::Makes(position, edit) => {
                let bytes = read(&*self.inner, &made[position])?;
                let bytes = edit(self.original.op(), given, bytes);
                self.inner.write(&made[position], 0, &bytes)?;
            }
            Fault::Scribbles(position) => {
                if let Some(&byte) = given[position].bytes.first() {
                    let buffer = &self.original.inputs()[position].values;
                    self.inner.write(buffer, 0, &[byte ^ 1])?;
                }
            }
            Fault::Rounds(rounding) => {
                let pairs = self.outputs.iter().zip(made);
                for (output, made) in pairs.filter(|(_, made)| made.tensor().dtype == Dtype::Bf16) {
                    let values = decode(Dtype::F32, &read(&*self.inner, output)?);
                    let values: Vec<f64> = values.into_iter().map(rounding).collect();
                    self.inner.write(made, 0, &encode(Dtype::Bf16, &values))?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Recording for Faulty {
    fn replay(&mut self) -> Result<(), Error> {
        let given = self.given()?;
        self.before(&given)?;
        self.recording.replay()?;
        self.after(&given)
    }
}
