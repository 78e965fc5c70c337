//! A phase, recorded for so many tokens: the values that it makes have their buffers, and one is used again when its value has been
//! read for the last time.

use std::collections::HashMap;
use std::sync::Arc;

use rialto_backend::{Buffer, OpCall, Operand, Recording, TensorType};
use rialto_program::op::Sample;
use rialto_program::value::Extents;
use rialto_program::{CacheDecl, Dim, Phase, Program, step};
use rialto_tensor::Dtype;

use crate::cut::Cut;
use crate::model::concrete;
use crate::{Error, Model};

/// Element types of the inputs of a [`Sample`] besides the logits: temperature, top_k, top_p, min_p, draw.
const CHOICES: [Dtype; 5] = [Dtype::F32, Dtype::I32, Dtype::F32, Dtype::F32, Dtype::F32];

/// What the choice of the next tokens reads besides the logits, and what it leaves.
pub(crate) struct Choice {
    /// In the order of the operation's signature.
    pub(crate) inputs: [Buffer; 5],
    /// The tokens.
    pub(crate) tokens: Buffer,
}

/// What of a phase is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) extents: Extents,
    /// Values that are read afterwards.
    pub(crate) wanted: Vec<String>,
    /// Whether the next tokens are chosen.
    pub(crate) samples: bool,
}

/// What is replayed as a whole.
enum Segment {
    Calls(Box<dyn Recording>),
    Cut(Cut),
}

/// A recorded phase with the buffers that go in and come out.
pub(crate) struct Recorded {
    /// One, if all experts are on the device; otherwise a cut at each call of those that are not.
    segments: Vec<Segment>,
    buffers: HashMap<String, Buffer>,
    /// If the next tokens are chosen.
    pub(crate) choice: Option<Choice>,
}

impl Recorded {
    /// Records a phase. Errors: memory that is not there, and what the device refuses.
    pub(crate) fn new(
        model: &Model,
        phase: &Phase,
        caches: &HashMap<String, Buffer>,
        key: &Key,
    ) -> Result<Recorded, Error> {
        let types = model.types(&phase.name)?;
        let mut pool = Pool {
            model,
            free: HashMap::new(),
        };
        let mut buffers: HashMap<String, Buffer> = HashMap::new();
        let type_of = |name: &str| match types.get(name) {
            Some(value) => concrete(value, &key.extents, model.activation()),
            None => Err(Error::Step {
                what: format!("phase {} has no value {name:?}", phase.name),
            }),
        };
        let given = phase.inputs.iter().map(|input| input.name.as_str());
        for name in step::NAMES.into_iter().chain(given) {
            buffers.insert(name.to_owned(), pool.take(type_of(name)?)?);
        }
        let last_uses = last_uses(phase);
        let logits = match key.samples {
            true => Some(model.require_logits(&phase.name)?),
            false => None,
        };
        // Before any call has a buffer to give back: these are written before the first call, and read by the last.
        let choice = match logits {
            Some(_) => Some(pool.choice(key.extents.rows)?),
            None => None,
        };
        let is_kept = |name: &str| {
            key.wanted.iter().any(|wanted| wanted == name)
                || logits == Some(name)
                || buffers_of_step(phase, name)
        };
        let backend = model.backend();
        let mut segments = Vec::new();
        let mut calls = Vec::with_capacity(phase.calls.len() + 1);
        for (position, call) in phase.calls.iter().enumerate() {
            let layer = model.experts().layer_of(call);
            let mut inputs = Vec::with_capacity(call.inputs.len());
            for (at, name) in call.inputs.iter().enumerate() {
                let buffer = caches.get(name).or_else(|| buffers.get(name));
                inputs.push(match (model.param(name), buffer, layer) {
                    (Some(param), ..) => param.clone(),
                    (None, Some(buffer), _) => Operand::from(buffer.clone()),
                    (None, None, Some(layer)) if at >= 3 => {
                        model.experts().operands(layer)[at - 3].clone()
                    }
                    (None, None, _) => {
                        return Err(Error::Step {
                            what: format!("phase {} has no value {name:?}", phase.name),
                        });
                    }
                });
            }
            let mut outputs = Vec::with_capacity(call.outputs.len());
            for name in &call.outputs {
                let buffer = pool.take(type_of(name)?)?;
                outputs.push(buffer.clone());
                buffers.insert(name.clone(), buffer);
            }
            match layer {
                None => calls.push(OpCall::new(call.operation()?, inputs, outputs)?),
                Some(layer) => {
                    if !calls.is_empty() {
                        let before = std::mem::take(&mut calls);
                        segments.push(Segment::Calls(backend.record(before)?));
                    }
                    let (ids, out) = (inputs[1].values.clone(), outputs[0].clone());
                    let slots = pool.take(ids.tensor().clone())?;
                    inputs[1] = slots.clone().into();
                    let on_slots = OpCall::new(call.operation()?, inputs, outputs)?;
                    let rows = types.get(&call.inputs[1]).map(|ids| &ids.shape);
                    segments.push(Segment::Cut(Cut {
                        layer,
                        ids,
                        rows: rows.and_then(|shape| shape.first().copied()),
                        slots: slots.clone(),
                        out,
                        call: backend.record(vec![on_slots])?,
                    }));
                    pool.give(slots);
                }
            }
            // Only now: a call's output is never its input. What nobody reads at all is over at once.
            for name in call.inputs.iter().chain(&call.outputs) {
                let is_over = last_uses
                    .get(name.as_str())
                    .is_none_or(|&last| last <= position);
                if is_over
                    && !is_kept(name)
                    && let Some(buffer) = buffers.remove(name)
                {
                    pool.give(buffer);
                }
            }
        }
        if let (Some(logits), Some(choice)) = (logits, &choice) {
            let inputs = std::iter::once(&buffers[logits]).chain(&choice.inputs);
            let inputs = inputs.cloned().map(Operand::from);
            let tokens = choice.tokens.clone();
            calls.push(OpCall::new(Sample {}.into(), inputs, [tokens])?);
        }
        if !calls.is_empty() || segments.is_empty() {
            segments.push(Segment::Calls(backend.record(calls)?));
        }
        Ok(Recorded {
            segments,
            buffers,
            choice,
        })
    }

    /// The buffer of a value that goes in or comes out.
    pub(crate) fn buffer(&self, name: &str) -> Result<&Buffer, Error> {
        self.buffers.get(name).ok_or_else(|| Error::Step {
            what: format!("{name:?} was not asked for"),
        })
    }

    /// Runs the phase. `rows` says how many of an extent's rows are no padding.
    pub(crate) fn replay(
        &mut self,
        model: &Model,
        rows: &dyn Fn(Option<Dim>) -> Option<u64>,
    ) -> Result<(), Error> {
        for segment in &mut self.segments {
            match segment {
                Segment::Calls(calls) => calls.replay()?,
                Segment::Cut(cut) => {
                    cut.run(model.experts(), model.backend().as_ref(), rows(cut.rows))?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a value is given at each step: the host writes it while calls of the step before may still run.
fn buffers_of_step(phase: &Phase, name: &str) -> bool {
    step::NAMES.contains(&name) || phase.inputs.iter().any(|input| input.name == name)
}

/// The last call that reads each value.
fn last_uses(phase: &Phase) -> HashMap<&str, usize> {
    let calls = phase.calls.iter().enumerate();
    let uses = calls.flat_map(|(position, call)| {
        let names = call.inputs.iter();
        names.map(move |name| (name.as_str(), position))
    });
    uses.collect()
}

/// Buffers whose values are over, by type.
struct Pool<'a> {
    model: &'a Model,
    free: HashMap<TensorType, Vec<Buffer>>,
}

impl Pool<'_> {
    fn take(&mut self, tensor: TensorType) -> Result<Buffer, Error> {
        if let Some(buffer) = self.free.get_mut(&tensor).and_then(Vec::pop) {
            return Ok(buffer);
        }
        Ok(self.model.backend().allocate(&tensor)?)
    }

    /// Gives back the buffer of a value that is over.
    fn give(&mut self, buffer: Buffer) {
        let tensor = buffer.tensor().clone();
        self.free.entry(tensor).or_default().push(buffer);
    }

    fn choice(&mut self, rows: u64) -> Result<Choice, Error> {
        let inputs = CHOICES.map(|dtype| self.take(TensorType::new(dtype, [rows])));
        let [temperature, top_k, top_p, min_p, draw] = inputs;
        Ok(Choice {
            inputs: [temperature?, top_k?, top_p?, min_p?, draw?],
            tokens: self.take(TensorType::new(Dtype::I32, [rows]))?,
        })
    }
}

/// The caches that a phase names, each with room for all pages.
pub(crate) fn caches(
    model: &Arc<Model>,
    phase: &Phase,
    pages: u64,
    page_positions: u64,
) -> Result<HashMap<String, Buffer>, Error> {
    let mut caches = HashMap::new();
    for cache in caches_of(model.program(), phase) {
        let shape = [pages, page_positions, cache.width];
        let buffer = model
            .backend()
            .allocate(&TensorType::new(model.activation(), shape))?;
        caches.insert(cache.name.clone(), buffer);
    }
    Ok(caches)
}

/// The caches that a phase reads.
fn caches_of<'a>(program: &'a Program, phase: &'a Phase) -> impl Iterator<Item = &'a CacheDecl> {
    let is_named = |name: &String| phase.calls.iter().any(|call| call.inputs.contains(name));
    let caches = program.caches.iter();
    caches.filter(move |cache| is_named(&cache.name))
}

/// Bytes of a position in all caches of a phase, in elements of the type of activations; 0 without such a phase.
#[must_use]
pub fn cache_row_bytes(program: &Program, phase: &str, activation: Dtype) -> u64 {
    let phase = program.phases.iter().find(|known| known.name == phase);
    let widths = phase.map(|phase| {
        caches_of(program, phase)
            .map(|cache| cache.width)
            .sum::<u64>()
    });
    widths.unwrap_or_default() * activation.size_bytes()
}
