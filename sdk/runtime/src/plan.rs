//! Where the params of a model will lie, known before one is read.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rialto_backend::Backend;
use rialto_bridge::{WeightInfo, WeightSource};
use rialto_program::{Call, Dim, PhaseTypes, Program};
use serde::Serialize;

use crate::experts::deal::{self, Need, Share};
use crate::params::{self, Encoding};
use crate::{Error, LoadOptions};

/// The operation whose weights may lie in host memory.
const EXPERTS: &str = "rialto.experts/1";

/// How the memory of a model's experts is divided. Layers are those of experts that nothing else reads; of others all is on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExpertMemory {
    /// Layers with experts.
    pub layers: u64,
    /// Layers whose experts are in host memory, all of them: the device has slots for some at a time.
    pub host_layers: u64,
    /// Experts of these.
    pub host_experts: u64,
    /// Slots that they have on the device.
    pub slots: u64,
    /// Bytes on the device: slots, and the experts of layers that have theirs there.
    pub device_bytes: u64,
    /// Bytes in host memory.
    pub host_bytes: u64,
}

/// Where the params of a model will lie, and how often a step of it is cut.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    param_bytes: u64,
    experts: ExpertMemory,
    cuts: BTreeMap<String, u64>,
    /// In the order of the program's params.
    pub(crate) encodings: Vec<Encoding>,
    /// Layers whose experts are in host memory.
    pub(crate) layers: Vec<ExpertLayer>,
    /// Of these layers.
    pub(crate) banks: Vec<Share>,
}

impl LoadPlan {
    /// Plans what [`crate::Model::load`] will do. No weight is read.
    ///
    /// Errors: a program that is not sound or that the device does not run; weights that are missing or do not fit;
    /// [`Error::ExpertMemory`].
    pub fn new<S: WeightSource>(
        program: &Program,
        source: &S,
        backend: &dyn Backend,
        options: &LoadOptions,
    ) -> Result<LoadPlan, Error> {
        let types = program.check()?;
        check_capabilities(program, backend, options)?;
        let infos = params::infos_of(program, source)?;
        LoadPlan::of(program, &types, &infos, backend, options)
    }

    /// The same of what was checked.
    pub(crate) fn of(
        program: &Program,
        types: &[PhaseTypes],
        infos: &[Vec<WeightInfo>],
        backend: &dyn Backend,
        options: &LoadOptions,
    ) -> Result<LoadPlan, Error> {
        let params = program.params.iter().zip(infos);
        let encodings: Vec<Encoding> = params
            .map(|(param, infos)| Encoding::of(program, param, infos, backend, options))
            .collect();
        let mut sizes = Vec::with_capacity(encodings.len());
        for (param, encoding) in program.params.iter().zip(&encodings) {
            sizes.push(encoding.sizes(&param.shape)?);
        }
        let bytes_of = |param: usize| sizes[param].iter().sum::<u64>();
        let layers = layers_of(program, types);
        let of_layer = |layer: &ExpertLayer| layer.params.map(bytes_of).iter().sum::<u64>();
        let all: u64 = layers.iter().map(of_layer).sum();
        let form = |layer: &ExpertLayer| {
            let shape_of = |param: usize| &program.params[param].shape[1..];
            layer
                .params
                .map(|param| (encodings[param], shape_of(param)))
        };
        let needs = layers.iter().enumerate().map(|(number, layer)| {
            let same = layers.iter().position(|other| form(other) == form(layer));
            Need {
                form: same.unwrap_or(number),
                experts: layer.experts,
                per_token: layer.per_token,
                expert_bytes: of_layer(layer) / layer.experts.max(1),
            }
        });
        let needs: Vec<Need> = needs.collect();
        let shares = match options.expert_bytes {
            None => Vec::new(),
            Some(bytes) => {
                deal::deal(&needs, bytes).map_err(|least_bytes| Error::ExpertMemory {
                    bytes,
                    least_bytes,
                    all_bytes: all,
                })?
            }
        };
        let mut plan = LoadPlan {
            param_bytes: 0,
            experts: ExpertMemory {
                layers: layers.len() as u64,
                device_bytes: all,
                ..ExpertMemory::default()
            },
            cuts: BTreeMap::new(),
            encodings,
            layers: Vec::new(),
            banks: Vec::new(),
        };
        for share in shares {
            // A layer that has a slot for each of its experts has them there, in their places.
            if let [layer] = *share.layers
                && share.slots >= layers[layer].experts
            {
                continue;
            }
            let (experts, first) = (&mut plan.experts, plan.layers.len());
            experts.slots += share.slots;
            experts.device_bytes += share.slots * needs[share.layers[0]].expert_bytes;
            for &layer in &share.layers {
                experts.host_layers += 1;
                experts.host_experts += layers[layer].experts;
                experts.host_bytes += of_layer(&layers[layer]);
                experts.device_bytes -= of_layer(&layers[layer]);
                plan.layers.push(layers[layer]);
            }
            plan.banks.push(Share {
                slots: share.slots,
                layers: (first..plan.layers.len()).collect(),
            });
        }
        let others: u64 = (0..sizes.len()).map(bytes_of).sum::<u64>() - all;
        plan.param_bytes = others + plan.experts.device_bytes;
        for phase in &program.phases {
            let cuts = phase.calls.iter().filter(|call| {
                triple(program, call).is_some_and(|params| {
                    let mut layers = plan.layers.iter();
                    layers.any(|layer| layer.params == params)
                })
            });
            plan.cuts.insert(phase.name.clone(), cuts.count() as u64);
        }
        Ok(plan)
    }

    /// Bytes that params take on the device.
    #[must_use]
    pub fn param_bytes(&self) -> u64 {
        self.param_bytes
    }

    /// How the memory of experts is divided.
    #[must_use]
    pub fn experts(&self) -> ExpertMemory {
        self.experts
    }

    /// How often a step of a phase is cut: at each call of experts that are in host memory. None if there is no such phase.
    #[must_use]
    pub fn cuts(&self, phase: &str) -> Option<u64> {
        self.cuts.get(phase).copied()
    }
}

/// Experts of a layer: params that nothing but calls of the operation reads, always these three together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertLayer {
    /// Positions of gate, up and down among the program's params.
    pub(crate) params: [usize; 3],
    /// How many there are.
    pub(crate) experts: u64,
    /// How many of them a token has at most.
    per_token: u64,
}

/// The layers of a program, in the order of their first calls.
fn layers_of(program: &Program, types: &[PhaseTypes]) -> Vec<ExpertLayer> {
    let mut layers: Vec<ExpertLayer> = Vec::new();
    // For each param what reads it: three params together, or anything else.
    let mut readers: HashMap<&str, BTreeSet<Option<[usize; 3]>>> = HashMap::new();
    for (phase, types) in program.phases.iter().zip(types) {
        for call in &phase.calls {
            let per_token = match call.inputs.get(1).and_then(|ids| types.get(ids)) {
                Some(ids) => match *ids.shape {
                    [_, Dim::Size(per_token)] => Some(per_token),
                    _ => None,
                },
                None => None,
            };
            let found = triple(program, call).zip(per_token);
            for (at, name) in call.inputs.iter().enumerate() {
                let reader = found.filter(|_| at >= 3).map(|(params, _)| params);
                readers.entry(name).or_default().insert(reader);
            }
            let Some((params, per_token)) = found else {
                continue;
            };
            let experts = program.params[params[0]].shape[0];
            let per_token = per_token.min(experts);
            match layers.iter_mut().find(|layer| layer.params == params) {
                Some(layer) => layer.per_token = layer.per_token.max(per_token),
                None => layers.push(ExpertLayer {
                    params,
                    experts,
                    per_token,
                }),
            }
        }
    }
    layers.retain(|layer| {
        layer.params.iter().all(|&param| {
            let readers = &readers[program.params[param].name.as_str()];
            readers.iter().all(|reader| *reader == Some(layer.params))
        })
    });
    layers
}

/// Gate, up and down of a call of experts, if they are three params.
fn triple(program: &Program, call: &Call) -> Option<[usize; 3]> {
    let [_, _, _, gate, up, down] = call.inputs.as_slice() else {
        return None;
    };
    if call.op != EXPERTS || gate == up || gate == down || up == down {
        return None;
    }
    let position = |name: &String| program.params.iter().position(|param| param.name == *name);
    Some([position(gate)?, position(up)?, position(down)?])
}

/// Refuses a program with operations, and activations, that a device does not have.
pub(crate) fn check_capabilities(
    program: &Program,
    backend: &dyn Backend,
    options: &LoadOptions,
) -> Result<(), Error> {
    let (device, capabilities) = (backend.device(), backend.capabilities());
    let calls = program.phases.iter().flat_map(|phase| &phase.calls);
    for call in calls {
        if !capabilities.ops.contains(&call.op) {
            return Err(Error::Backend(rialto_backend::Error::UnsupportedOp {
                backend: device.backend.clone(),
                op: call.op.clone(),
            }));
        }
    }
    match capabilities.activations.contains(&options.activation) {
        true => Ok(()),
        false => Err(Error::Backend(rialto_backend::Error::UnsupportedElement {
            backend: device.backend.clone(),
            what: format!("activations of {}", options.activation),
        })),
    }
}
