//! A program with its params on a device.

use std::collections::HashMap;
use std::sync::Arc;

use rialto_backend::{Backend, Blocks, Buffer, Operand, TensorType};
use rialto_bridge::{WeightInfo, WeightSource};
use rialto_program::{Dim, Element, ParamDecl, PhaseTypes, Program, Stored, ValueType};
use rialto_tensor::{Dtype, Shape, cast, quant};

use crate::error::WeightFault;
use crate::{Error, LoadError};

/// How a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// What activations are: F32 or BF16.
    pub activation: Dtype,
    /// Whether weights that are stored as codes in blocks are decoded now: twice the memory, and the same results.
    pub decodes_blocks: bool,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            activation: Dtype::Bf16,
            decodes_blocks: false,
        }
    }
}

/// A program with its params on a device. It does not change: any number of sessions run it.
pub struct Model {
    program: Program,
    types: Vec<PhaseTypes>,
    params: HashMap<String, Operand>,
    backend: Arc<dyn Backend>,
    activation: Dtype,
    vocabulary: Option<u64>,
    param_bytes: u64,
}

impl Model {
    /// Checks the program, and takes its params from `source` to the device, one weight at a time. `on_bytes` is told how many
    /// bytes more are there, and says whether to go on.
    ///
    /// Errors: a program that is not sound or that the device does not run; a weight that is missing or has another shape; what
    /// the source says; [`Error::Cancelled`].
    pub fn load<S: WeightSource>(
        program: Program,
        source: &S,
        backend: Arc<dyn Backend>,
        options: &LoadOptions,
        on_bytes: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Model, LoadError<S::Error>> {
        let types = program.check().map_err(Error::from)?;
        check_capabilities(&program, backend.as_ref(), options)?;
        let mut model = Model {
            types,
            params: HashMap::with_capacity(program.params.len()),
            backend,
            activation: options.activation,
            vocabulary: program.vocabulary(),
            param_bytes: 0,
            program,
        };
        let infos = infos_of(&model.program, source)?;
        for (position, infos) in infos.iter().enumerate() {
            let param = &model.program.params[position];
            let operand = match model.kept_codes(param, infos, options) {
                Some(block) => model.load_codes(param, source, block, on_bytes)?,
                None => model.load_values(param, source, infos, on_bytes)?,
            };
            model.param_bytes += operand_bytes(&operand)?;
            model.params.insert(param.name.clone(), operand);
        }
        tracing::info!(target: "rialto::runtime", params = model.params.len(), bytes = model.param_bytes, "model loaded");
        Ok(model)
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
        self.param_bytes
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

    pub(crate) fn param(&self, name: &str) -> Option<&Operand> {
        self.params.get(name)
    }

    /// The block of a param that stays as codes: if it is stored so throughout, its codec means what operations do, and whatever
    /// reads it can.
    fn kept_codes(
        &self,
        param: &ParamDecl,
        infos: &[WeightInfo],
        options: &LoadOptions,
    ) -> Option<[u64; 2]> {
        if options.decodes_blocks || !self.backend.capabilities().runs_block_weights {
            return None;
        }
        let mut blocks = infos.iter().map(|info| {
            let encoded = info.encoded.as_ref()?;
            let is_known = self.program.block_codecs.contains(&encoded.codec);
            is_known.then_some(encoded.block)
        });
        let block = blocks.next().flatten()?;
        let is_throughout = blocks.all(|other| other == Some(block));
        let calls = self.program.phases.iter().flat_map(|phase| &phase.calls);
        let mut uses = calls.flat_map(|call| {
            let named = call.inputs.iter().enumerate();
            let named = named.filter(|(_, name)| **name == param.name);
            named.map(|(at, _)| (call.op.as_str(), at))
        });
        (is_throughout && uses.all(|(op, at)| takes_codes(op, at))).then_some(block)
    }

    fn load_codes<S: WeightSource>(
        &self,
        param: &ParamDecl,
        source: &S,
        block: [u64; 2],
        on_bytes: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Operand, LoadError<S::Error>> {
        let shape = Shape::new(param.shape.clone());
        let grid = quant::block::grid(&shape, block)?;
        let values = self.allocate(Dtype::F8E4m3, shape)?;
        let scales = self.allocate(Dtype::F32, grid)?;
        let (mut at, mut scale_at) = (0, 0);
        for name in param.sources() {
            let read = source.read_codes(&name).map_err(LoadError::Source)?;
            self.backend.write(&values, at, &read.codes)?;
            self.backend.write(&scales, scale_at, &read.scales)?;
            let (codes, of_scales) = (read.codes.len() as u64, read.scales.len() as u64);
            (at, scale_at) = (at + codes, scale_at + of_scales);
            if !on_bytes(codes + of_scales) {
                return Err(Error::Cancelled.into());
            }
        }
        let blocks = Some(Blocks { scales, block });
        Ok(Operand { values, blocks })
    }

    fn load_values<S: WeightSource>(
        &self,
        param: &ParamDecl,
        source: &S,
        infos: &[WeightInfo],
        on_bytes: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Operand, LoadError<S::Error>> {
        let all_bf16 = infos.iter().all(|info| info.dtype == Dtype::Bf16);
        let dtype = match (param.element, self.activation) {
            (Element::Activation, Dtype::Bf16) => Dtype::Bf16,
            // Exact as it is, and half the memory.
            (Element::Activation, _) if all_bf16 => Dtype::Bf16,
            _ => Dtype::F32,
        };
        let values = self.allocate(dtype, Shape::new(param.shape.clone()))?;
        let mut at = 0;
        for (name, info) in param.sources().iter().zip(infos) {
            let mut bytes = source.read(name).map_err(LoadError::Source)?;
            if info.dtype != dtype {
                let length = usize::try_from(info.shape.size_bytes(dtype)?).unwrap_or(usize::MAX);
                let mut converted = vec![0; length];
                cast::cast_into(info.dtype, dtype, &bytes, &mut converted)?;
                bytes = converted;
            }
            self.backend.write(&values, at, &bytes)?;
            at += bytes.len() as u64;
            if !on_bytes(bytes.len() as u64) {
                return Err(Error::Cancelled.into());
            }
        }
        Ok(values.into())
    }

    fn allocate(&self, dtype: Dtype, shape: Shape) -> Result<Buffer, Error> {
        Ok(self.backend.allocate(&TensorType { dtype, shape })?)
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
        let (params, device) = (self.params.len(), self.backend.device());
        write!(
            f,
            "Model({params} params on {}:{})",
            device.backend, device.index
        )
    }
}

/// What is known of each weight of each param. Errors: [`Error::Weights`] with all that are missing or do not fit, before one is read.
fn infos_of<S: WeightSource>(program: &Program, source: &S) -> Result<Vec<Vec<WeightInfo>>, Error> {
    let mut faults = Vec::new();
    let mut infos = Vec::with_capacity(program.params.len());
    for param in &program.params {
        let is_whole = matches!(param.stored, Stored::Whole(_));
        let expected = match param.shape.as_slice() {
            [_, each @ ..] if !is_whole => each.to_vec(),
            shape => shape.to_vec(),
        };
        let expected = Shape::new(expected);
        let mut of_param = Vec::new();
        for weight in param.sources() {
            match source.info(&weight) {
                None => faults.push(WeightFault::Missing {
                    param: param.name.clone(),
                    weight,
                }),
                Some(info) if info.shape != expected => faults.push(WeightFault::Shape {
                    param: param.name.clone(),
                    weight,
                    expected: expected.clone(),
                    found: info.shape,
                }),
                Some(info) => match info.dtype {
                    Dtype::F32 | Dtype::Bf16 | Dtype::F16 | Dtype::F64 => of_param.push(info),
                    dtype => faults.push(WeightFault::Dtype {
                        param: param.name.clone(),
                        weight,
                        dtype,
                    }),
                },
            }
        }
        infos.push(of_param);
    }
    match faults.is_empty() {
        true => Ok(infos),
        false => Err(Error::Weights { faults }),
    }
}

/// Whether an operation's input may be codes in blocks.
fn takes_codes(op: &str, input: usize) -> bool {
    let port =
        rialto_program::Op::signature_of(op).and_then(|signature| signature.inputs.get(input));
    matches!(
        (op, port),
        ("rialto.linear/1", Some(&"weight"))
            | ("rialto.mla_absorb/1" | "rialto.mla_expand/1", Some(&"kv_b"))
            | ("rialto.experts/1", Some(&("gate" | "up" | "down")))
    )
}

fn check_capabilities(
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

fn operand_bytes(operand: &Operand) -> Result<u64, Error> {
    let mut bytes = operand.values.tensor().size_bytes()?;
    if let Some(blocks) = &operand.blocks {
        bytes += blocks.scales.tensor().size_bytes()?;
    }
    Ok(bytes)
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
