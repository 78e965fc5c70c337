//! Recorded calls, and which function runs which.

use std::sync::Arc;

use rialto_backend::{Buffer, Error, OpCall, Recording};
use rialto_program::Op;

use crate::device::{NAME, Queue};
use crate::operand::{Tensor, TensorMut};
use crate::storage::Storage;
use crate::{cache, embed, gqa, indexer, linear, mla, moe, norm, plain, quant, rope, sample};

/// What runs an operation, its attributes known.
type Kernel = Box<dyn Fn(&[Tensor<'_>], &mut [TensorMut<'_>]) + Send + Sync>;

/// The function of an operation. `None` for one of a later version.
fn kernel(op: &Op) -> Option<Kernel> {
    Some(match op.clone() {
        Op::Embed(_) => Box::new(embed::embed),
        Op::RmsNorm(op) => Box::new(move |i, o| norm::rms_norm(&op, i, o)),
        Op::LayerNorm(op) => Box::new(move |i, o| norm::layer_norm(&op, i, o)),
        Op::Linear(_) => Box::new(linear::linear),
        Op::Rope(op) => Box::new(move |i, o| rope::rope(&op, i, o)),
        Op::Append(_) => Box::new(cache::append),
        Op::IndexerScores(op) => Box::new(move |i, o| indexer::indexer_scores(&op, i, o)),
        Op::TopK(_) => Box::new(indexer::topk),
        Op::MlaAbsorb(op) => Box::new(move |i, o| mla::mla_absorb(&op, i, o)),
        Op::SparseMla(op) => Box::new(move |i, o| mla::sparse_mla(&op, i, o)),
        Op::MlaExpand(op) => Box::new(move |i, o| mla::mla_expand(&op, i, o)),
        Op::Gqa(op) => Box::new(move |i, o| gqa::gqa(&op, i, o)),
        Op::Router(op) => Box::new(move |i, o| moe::router(&op, i, o)),
        Op::Experts(_) => Box::new(moe::experts),
        Op::SwiGlu(_) => Box::new(moe::swiglu),
        Op::Unary(op) => Box::new(move |i, o| plain::unary(&op, i, o)),
        Op::Binary(op) => Box::new(move |i, o| plain::binary(&op, i, o)),
        Op::Scale(op) => Box::new(move |i, o| plain::scale(&op, i, o)),
        Op::Softmax(_) => Box::new(plain::softmax),
        Op::Reduce(op) => Box::new(move |i, o| plain::reduce(&op, i, o)),
        Op::Gather(_) => Box::new(plain::gather),
        Op::Concat(_) => Box::new(plain::concat),
        Op::Slice(op) => Box::new(move |i, o| plain::slice(&op, i, o)),
        Op::Reshape(_) | Op::Cast(_) => Box::new(plain::copy),
        Op::QuantizeBlock(op) => Box::new(move |i, o| quant::quantize_block(&op, i, o)),
        Op::DequantizeBlock(op) => Box::new(move |i, o| quant::dequantize_block(&op, i, o)),
        Op::Argmax(_) => Box::new(sample::argmax),
        Op::Sample(_) => Box::new(sample::sample),
        _ => return None,
    })
}

/// Memory and the extents of what lies in it.
struct Place {
    storage: Arc<Storage>,
    shape: Vec<usize>,
}

impl Place {
    fn of(buffer: &Buffer, queue: &Arc<Queue>) -> Result<Place, Error> {
        let extents = buffer.tensor().shape.extents().iter();
        Ok(Place {
            storage: Storage::of(buffer, queue)?,
            // Memory was allocated for the product of them.
            shape: extents.map(|&extent| extent as usize).collect(),
        })
    }
}

/// A block as large as an address can say: a larger one holds a whole matrix, too.
fn size(block: [u64; 2]) -> [usize; 2] {
    block.map(|size| usize::try_from(size).unwrap_or(usize::MAX))
}

/// A call, ready to be run.
struct Step {
    kernel: Kernel,
    inputs: Vec<Place>,
    /// For each input the scales of its blocks.
    scales: Vec<Option<(Place, [usize; 2])>>,
    /// What is written, in the order that the kernel has it: the cache of an operation that writes one is no input of it.
    outputs: Vec<Place>,
}

impl Step {
    fn new(call: &OpCall, queue: &Arc<Queue>) -> Result<Step, Error> {
        let kernel = kernel(call.op()).ok_or_else(|| Error::UnsupportedOp {
            backend: NAME.to_owned(),
            op: call.op().name().to_owned(),
        })?;
        let mut step = Step {
            kernel,
            inputs: Vec::new(),
            scales: Vec::new(),
            outputs: Vec::new(),
        };
        let written = match call.op() {
            Op::Append(_) => call.op().signature().input("cache"),
            _ => None,
        };
        for (position, operand) in call.inputs().iter().enumerate() {
            let place = Place::of(&operand.values, queue)?;
            if Some(position) == written {
                step.outputs.push(place);
                continue;
            }
            step.inputs.push(place);
            let scales = match &operand.blocks {
                None => None,
                Some(blocks) => Some((Place::of(&blocks.scales, queue)?, size(blocks.block))),
            };
            step.scales.push(scales);
        }
        for output in call.outputs() {
            step.outputs.push(Place::of(output, queue)?);
        }
        if let (Some(position), [cache]) = (written, step.outputs.as_slice()) {
            let mut inputs = step.inputs.iter();
            if inputs.any(|input| Arc::ptr_eq(&input.storage, &cache.storage)) {
                return Err(Error::Operand {
                    op: call.op().name().to_owned(),
                    port: call.op().signature().inputs[position].to_owned(),
                    reason: "it is another operand of the call, too".to_owned(),
                });
            }
        }
        Ok(step)
    }

    /// Runs it, in the queue's turn.
    fn run(&self) {
        let mut written: Vec<_> = self.outputs.iter().map(|out| out.storage.write()).collect();
        // Without elements there is nothing to do, and extents beside a zero need not make sense as numbers.
        if written.iter().all(|elements| elements.is_empty()) {
            return;
        }
        let read: Vec<_> = self
            .inputs
            .iter()
            .map(|input| input.storage.read())
            .collect();
        let scales = self.scales.iter();
        let scales: Vec<_> = scales
            .map(|scales| {
                scales
                    .as_ref()
                    .map(|(place, block)| (place.storage.read(), *block))
            })
            .collect();
        let inputs: Vec<Tensor<'_>> = (self.inputs.iter().zip(&read).zip(&scales))
            .map(|((place, elements), scales)| {
                let mut tensor = Tensor {
                    elements,
                    shape: &place.shape,
                    blocks: None,
                };
                if let Some((elements, block)) = scales {
                    let scales = Tensor { elements, ..tensor };
                    tensor.blocks = Some((scales.f32s(), *block));
                }
                tensor
            })
            .collect();
        let mut outputs: Vec<TensorMut<'_>> = (self.outputs.iter().zip(&mut written))
            .map(|(place, elements)| TensorMut {
                elements,
                shape: &place.shape,
            })
            .collect();
        (self.kernel)(&inputs, &mut outputs);
    }
}

/// A list of calls on one device.
pub(crate) struct CpuRecording {
    steps: Vec<Step>,
    queue: Arc<Queue>,
}

impl CpuRecording {
    /// Errors: [`Error::UnsupportedOp`], [`Error::ForeignBuffer`]; [`Error::Operand`] for a cache that is read by what writes it.
    pub(crate) fn new(calls: Vec<OpCall>, queue: &Arc<Queue>) -> Result<CpuRecording, Error> {
        let steps = calls.iter().map(|call| Step::new(call, queue));
        Ok(CpuRecording {
            steps: steps.collect::<Result<_, _>>()?,
            queue: Arc::clone(queue),
        })
    }
}

impl Recording for CpuRecording {
    fn replay(&mut self) -> Result<(), Error> {
        let _turn = self.queue.turn();
        self.queue.run(|| self.steps.iter().for_each(Step::run));
        Ok(())
    }
}
