//! A program with its params on a device, or within its reach.

use std::collections::HashMap;
use std::sync::Arc;

use rialto_backend::{Backend, Operand, TensorType};
use rialto_bridge::WeightSource;
use rialto_program::{Dim, Element, PhaseTypes, Program, ValueType};
use rialto_tensor::Dtype;

use crate::experts::{ExpertCounts, Experts, HostParam};
use crate::{Error, LoadError, LoadPlan, params, plan};

/// How a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// What activations are: F32 or BF16.
    pub activation: Dtype,
    /// Whether weights that are stored as codes in blocks are decoded now: twice the memory, and the same results.
    pub decodes_blocks: bool,
    /// Most bytes that experts take on the device; the others stay in host memory, and are brought when tokens choose them. Results do
    /// not depend on it where a backend's rows do not see their neighbors. Without, all are on the device.
    pub expert_bytes: Option<u64>,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            activation: Dtype::Bf16,
            decodes_blocks: false,
            expert_bytes: None,
        }
    }
}

/// A program with its params on a device, but for experts that are brought to it. Any number of sessions run it.
pub struct Model {
    program: Program,
    types: Vec<PhaseTypes>,
    /// Those that are on the device.
    params: HashMap<String, Operand>,
    experts: Experts,
    plan: LoadPlan,
    backend: Arc<dyn Backend>,
    activation: Dtype,
    vocabulary: Option<u64>,
}

impl Model {
    /// Checks the program, and takes its params from `source` to where [`LoadPlan`] says, one weight at a time. `on_bytes` is told how
    /// many bytes more are there, and says whether to go on.
    ///
    /// Errors: a program that is not sound or that the device does not run; a weight that is missing or has another shape; too little
    /// memory for experts; what the source says, and [`Error::WeightLength`] if it gives other bytes than it said; [`Error::Cancelled`].
    pub fn load<S: WeightSource>(
        program: Program,
        source: &S,
        backend: Arc<dyn Backend>,
        options: &LoadOptions,
        on_bytes: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Model, LoadError<S::Error>> {
        let types = program.check().map_err(Error::from)?;
        plan::check_capabilities(&program, backend.as_ref(), options)?;
        let infos = params::infos_of(&program, source)?;
        let plan = LoadPlan::of(&program, &types, &infos, backend.as_ref(), options)?;
        let mut on_device = HashMap::with_capacity(program.params.len());
        let mut in_host = HashMap::new();
        let is_in_host = |position| {
            let mut layers = plan.layers.iter();
            layers.any(|layer| layer.params.contains(&position))
        };
        for (position, infos) in infos.iter().enumerate() {
            let (param, encoding) = (&program.params[position], plan.encodings[position]);
            if is_in_host(position) {
                let mut host = HostParam::with_room(encoding.sizes(&param.shape)?)?;
                let mut sink = |part, bytes: &[u8]| {
                    host.extend(part, bytes);
                    Ok(())
                };
                encoding.read(param, infos, source, &mut sink, on_bytes)?;
                in_host.insert(position, host);
            } else {
                let operand = encoding.allocate(backend.as_ref(), &param.shape)?;
                let mut at = [0, 0];
                let mut sink = |part, bytes: &[u8]| {
                    let at = &mut at[part as usize];
                    if let Some(buffer) = params::part(&operand, part) {
                        backend.write(buffer, *at, bytes)?;
                    }
                    *at += bytes.len() as u64;
                    Ok(())
                };
                encoding.read(param, infos, source, &mut sink, on_bytes)?;
                on_device.insert(param.name.clone(), operand);
            }
        }
        let mut take = |param| in_host.remove(&param).unwrap_or_default();
        let read = plan.layers.iter().map(|layer| layer.params.map(&mut take));
        let experts = Experts::new(&program, &plan, read.collect(), backend.as_ref())?;
        tracing::info!(
            target: "rialto::runtime",
            params = program.params.len(),
            bytes = plan.param_bytes(),
            host_bytes = plan.experts().host_bytes,
            "model loaded"
        );
        Ok(Model {
            types,
            params: on_device,
            experts,
            plan,
            backend,
            activation: options.activation,
            vocabulary: program.vocabulary(),
            program,
        })
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The device.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// What activations are.
    #[must_use]
    pub fn activation(&self) -> Dtype {
        self.activation
    }

    /// Rows of the embedding, if there is one: token ids are below.
    #[must_use]
    pub fn vocabulary(&self) -> Option<u64> {
        self.vocabulary
    }

    /// Refuses tokens that the embedding has no row for. `text` is the number of the text in the error. Errors: [`Error::Token`].
    pub fn check_tokens(&self, text: usize, tokens: &[u32]) -> Result<(), Error> {
        check_tokens(&self.program, text, tokens)
    }

    /// Bytes that the params take on the device.
    #[must_use]
    pub fn param_bytes(&self) -> u64 {
        self.plan.param_bytes()
    }

    /// Where its params lie, and how often a step is cut.
    #[must_use]
    pub fn plan(&self) -> &LoadPlan {
        &self.plan
    }

    /// How often experts that are in host memory had to be brought to the device so far, by all sessions.
    #[must_use]
    pub fn expert_counts(&self) -> ExpertCounts {
        self.experts.counts()
    }

    /// The types of the values of a phase. Errors: [`rialto_program::Error::Absent`].
    pub fn types(&self, phase: &str) -> Result<&PhaseTypes, Error> {
        self.program.require(phase)?;
        let position = self
            .program
            .phases
            .iter()
            .position(|known| known.name == phase);
        Ok(&self.types[position.unwrap_or_default()])
    }

    /// The first output of a phase that is F32 `[rows, ..]`, which the next token is chosen by.
    pub fn logits(&self, phase: &str) -> Result<Option<&str>, Error> {
        let types = self.types(phase)?;
        let is_logits = |name: &&String| {
            types.get(*name).is_some_and(|value| {
                value.element == Element::F32
                    && matches!(value.shape.as_slice(), [Dim::Rows, Dim::Size(_)])
            })
        };
        let outputs = &self.program.require(phase)?.outputs;
        Ok(outputs.iter().find(is_logits).map(String::as_str))
    }

    /// The same, where there must be some. Errors: [`Error::NoLogits`].
    pub(crate) fn require_logits(&self, phase: &str) -> Result<&str, Error> {
        self.logits(phase)?.ok_or_else(|| Error::NoLogits {
            phase: phase.to_owned(),
        })
    }

    pub(crate) fn experts(&self) -> &Experts {
        &self.experts
    }

    pub(crate) fn param(&self, name: &str) -> Option<&Operand> {
        self.params.get(name)
    }
}

/// Refuses tokens that the embedding of a program has no row for, as can be done before a weight is read. `text` is the number of the
/// text in the error. Errors: [`Error::Token`].
pub fn check_tokens(program: &Program, text: usize, tokens: &[u32]) -> Result<(), Error> {
    // Token ids are I32 on a device.
    let most = 1 << 31;
    let vocabulary = program.vocabulary().unwrap_or(most).min(most);
    let mut numbered = tokens.iter().enumerate();
    match numbered.find(|(_, token)| u64::from(**token) >= vocabulary) {
        None => Ok(()),
        Some((position, &token)) => Err(Error::Token {
            token,
            position,
            text,
            vocabulary,
        }),
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (params, device) = (self.program.params.len(), self.backend.device());
        write!(
            f,
            "Model({params} params on {}:{})",
            device.backend, device.index
        )
    }
}

/// A value's type at a step, in a model whose activations are of a dtype.
pub(crate) fn concrete(
    value: &ValueType,
    extents: &rialto_program::value::Extents,
    activation: Dtype,
) -> Result<TensorType, Error> {
    let dtype = match value.element {
        Element::Activation => activation,
        Element::Of(dtype) => dtype,
    };
    let shape: Option<Vec<u64>> = value.shape.iter().map(|&dim| extents.of(dim)).collect();
    let shape = shape.ok_or_else(|| Error::Step {
        what: format!("a value of {value} is larger than 64 bits hold"),
    })?;
    Ok(TensorType::new(dtype, shape))
}
