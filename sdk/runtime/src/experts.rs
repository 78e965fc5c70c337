//! Experts in host memory, and banks of slots on the device that those are brought to which tokens have chosen.
//!
//! A layer's experts lie in host memory as the device would have them, so that bringing one is three copies and no arithmetic. The
//! operation runs on the bank as it would on the layer's params: it takes a slot for an expert, and a token's slots stand in the
//! order of its experts, in which it adds them up.

pub(crate) mod deal;
pub(crate) mod lru;
pub(crate) mod rounds;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rialto_backend::{Backend, Operand};
use rialto_program::{Call, Program};
use serde::Serialize;

use crate::Error;
use crate::experts::lru::Lru;
use crate::params::{self, Part};
use crate::plan::LoadPlan;

/// How often an expert that tokens had chosen was on the device already, and how often it had to be brought. An expert counts once for
/// all tokens of a step that went through it together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExpertCounts {
    /// It was there.
    pub hits: u64,
    /// It was brought.
    pub misses: u64,
}

/// A layer and an expert of it.
type Key = (usize, u32);

/// Layers whose experts are in host memory.
#[derive(Default)]
pub(crate) struct Experts {
    layers: Vec<Layer>,
    banks: Vec<Bank>,
    /// Layers by the name of their gates, which stand in no other.
    by_gate: HashMap<String, usize>,
}

/// The experts of a layer.
struct Layer {
    /// Gate, up and down.
    params: [HostParam; 3],
    experts: u64,
    bank: usize,
}

/// A param in host memory, encoded as on the device.
#[derive(Default)]
pub(crate) struct HostParam {
    values: Vec<u8>,
    scales: Vec<u8>,
}

/// Slots on the device.
struct Bank {
    /// Gate, up and down, of as many experts as there are slots.
    operands: [Operand; 3],
    /// Whoever runs something on the bank holds it until that is under way: what is written afterwards comes after it.
    lru: Mutex<Lru<Key>>,
}

impl HostParam {
    /// Room for so many bytes of values and scales. Errors: memory that is not there.
    pub(crate) fn with_room([values, scales]: [u64; 2]) -> Result<HostParam, Error> {
        let room = |bytes: u64| {
            let mut part: Vec<u8> = Vec::new();
            let reserved = part.try_reserve_exact(usize::try_from(bytes).unwrap_or(usize::MAX));
            reserved.map_err(|_| rialto_backend::Error::Memory {
                device: "host".to_owned(),
                bytes,
                used_bytes: None,
                most_bytes: None,
            })?;
            Ok::<_, Error>(part)
        };
        Ok(HostParam {
            values: room(values)?,
            scales: room(scales)?,
        })
    }

    /// Appends bytes.
    pub(crate) fn extend(&mut self, part: Part, bytes: &[u8]) {
        match part {
            Part::Values => self.values.extend_from_slice(bytes),
            Part::Scales => self.scales.extend_from_slice(bytes),
        }
    }

    /// The bytes of one of so many experts.
    fn expert(&self, part: Part, expert: usize, experts: usize) -> &[u8] {
        let all = match part {
            Part::Values => &self.values,
            Part::Scales => &self.scales,
        };
        let each = all.len() / experts;
        &all[expert * each..][..each]
    }
}

impl Experts {
    /// Banks on the device for layers that were read: for each its gates, ups and downs. Errors: memory that is not there.
    pub(crate) fn new(
        program: &Program,
        plan: &LoadPlan,
        read: Vec<[HostParam; 3]>,
        backend: &dyn Backend,
    ) -> Result<Experts, Error> {
        let mut experts = Experts::default();
        for (params, planned) in read.into_iter().zip(&plan.layers) {
            let gate = &program.params[planned.params[0]];
            experts
                .by_gate
                .insert(gate.name.clone(), experts.layers.len());
            experts.layers.push(Layer {
                params,
                experts: planned.experts,
                bank: 0,
            });
        }
        for (number, share) in plan.banks.iter().enumerate() {
            for &layer in &share.layers {
                experts.layers[layer].bank = number;
            }
            let allocate = |param: usize| {
                let mut shape = program.params[param].shape.clone();
                shape[0] = share.slots;
                plan.encodings[param].allocate(backend, &shape)
            };
            let [gate, up, down] = plan.layers[share.layers[0]].params.map(allocate);
            experts.banks.push(Bank {
                operands: [gate?, up?, down?],
                lru: Mutex::new(Lru::new(share.slots as usize)),
            });
        }
        Ok(experts)
    }

    /// The layer of a call, if its experts are in host memory.
    pub(crate) fn layer_of(&self, call: &Call) -> Option<usize> {
        let gate = call.inputs.get(3)?;
        self.by_gate.get(gate).copied()
    }

    /// How many experts a layer has.
    pub(crate) fn count(&self, layer: usize) -> u64 {
        self.layers[layer].experts
    }

    /// Gate, up and down of the slots that a layer uses.
    pub(crate) fn operands(&self, layer: usize) -> &[Operand; 3] {
        &self.banks[self.layers[layer].bank].operands
    }

    /// What is in the slots that a layer uses. It stays so as long as this is held.
    pub(crate) fn held(&self, layer: usize) -> Held<'_> {
        let layer_of = &self.layers[layer];
        let bank = &self.banks[layer_of.bank];
        // Whatever ended in a panic: a slot that was not written to its end is nobody's.
        let lru = bank.lru.lock().unwrap_or_else(PoisonError::into_inner);
        Held {
            number: layer,
            layer: layer_of,
            operands: &bank.operands,
            lru,
        }
    }

    /// Hits and misses so far, of all banks.
    pub(crate) fn counts(&self) -> ExpertCounts {
        let mut all = ExpertCounts::default();
        for bank in &self.banks {
            let lru = bank.lru.lock().unwrap_or_else(PoisonError::into_inner);
            let (hits, misses) = lru.counts();
            all.hits += hits;
            all.misses += misses;
        }
        all
    }
}

/// The slots of a layer, in the hands of who uses them.
pub(crate) struct Held<'a> {
    number: usize,
    layer: &'a Layer,
    operands: &'a [Operand; 3],
    lru: MutexGuard<'a, Lru<Key>>,
}

impl Held<'_> {
    pub(crate) fn slots(&self) -> usize {
        self.lru.slots()
    }

    pub(crate) fn holds(&self, expert: u32) -> bool {
        self.lru.holds((self.number, expert))
    }

    /// The slots of these experts, to which those that were not there have been brought, a matrix at a time. They are different ones,
    /// and not more than there are slots. Errors: what the device says; the others are then where they were, or gone.
    pub(crate) fn bring(
        &mut self,
        experts: &[u32],
        backend: &dyn Backend,
    ) -> Result<Vec<usize>, Error> {
        let keys: Vec<Key> = experts
            .iter()
            .map(|&expert| (self.number, expert))
            .collect();
        let (layer, operands) = (self.layer, self.operands);
        self.lru.bring(&keys, &mut |(_, expert), slot| {
            for (param, operand) in layer.params.iter().zip(operands) {
                for part in [Part::Values, Part::Scales] {
                    let Some(buffer) = params::part(operand, part) else {
                        continue;
                    };
                    let bytes = param.expert(part, expert as usize, layer.experts as usize);
                    backend.write(buffer, (slot * bytes.len()) as u64, bytes)?;
                }
            }
            Ok(())
        })
    }
}
