//! How a param lies in memory, and the way there from where weights come from.

use rialto_backend::{Backend, Blocks, Operand, TensorType};
use rialto_bridge::{WeightInfo, WeightSource};
use rialto_program::{Element, ParamDecl, Program, Stored};
use rialto_tensor::{Dtype, Shape, cast, quant};

use crate::error::WeightFault;
use crate::{Error, LoadError, LoadOptions};

/// What the elements of a param are where it is computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Encoding {
    dtype: Dtype,
    /// Rows and columns that have a scale, if these are codes.
    block: Option<[u64; 2]>,
}

/// Which part of a param bytes are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The elements, or the codes.
    Values,
    /// The scales of codes.
    Scales,
}

/// Where the bytes of a param go.
pub(crate) type Sink<'a> = dyn FnMut(Part, &[u8]) -> Result<(), Error> + 'a;

impl Encoding {
    /// Codes where it is stored so throughout, its codec means what operations do, and whatever reads it can; otherwise floats.
    pub(crate) fn of(
        program: &Program,
        param: &ParamDecl,
        infos: &[WeightInfo],
        backend: &dyn Backend,
        options: &LoadOptions,
    ) -> Encoding {
        if let Some(block) = kept_block(program, param, infos, backend, options) {
            return Encoding {
                dtype: Dtype::F8E4m3,
                block: Some(block),
            };
        }
        let all_bf16 = infos.iter().all(|info| info.dtype == Dtype::Bf16);
        let dtype = match (param.element, options.activation) {
            (Element::Activation, Dtype::Bf16) => Dtype::Bf16,
            // Exact as it is, and half the memory.
            (Element::Activation, _) if all_bf16 => Dtype::Bf16,
            _ => Dtype::F32,
        };
        Encoding { dtype, block: None }
    }

    /// The elements of a param of this shape.
    fn values(self, shape: &[u64]) -> TensorType {
        TensorType::new(self.dtype, shape)
    }

    /// The scales of its codes, with their block.
    fn scales(self, shape: &[u64]) -> Result<Option<(TensorType, [u64; 2])>, Error> {
        let Some(block) = self.block else {
            return Ok(None);
        };
        let shape = quant::block::grid(&Shape::new(shape), block)?;
        let dtype = Dtype::F32;
        Ok(Some((TensorType { dtype, shape }, block)))
    }

    /// Bytes of values and scales of a param of this shape.
    pub(crate) fn sizes(self, shape: &[u64]) -> Result<[u64; 2], Error> {
        let scales = match self.scales(shape)? {
            Some((scales, _)) => scales.size_bytes()?,
            None => 0,
        };
        Ok([self.values(shape).size_bytes()?, scales])
    }

    /// Memory of the device for a param of this shape.
    pub(crate) fn allocate(self, backend: &dyn Backend, shape: &[u64]) -> Result<Operand, Error> {
        let values = backend.allocate(&self.values(shape))?;
        let blocks = match self.scales(shape)? {
            Some((scales, block)) => Some(Blocks {
                scales: backend.allocate(&scales)?,
                block,
            }),
            None => None,
        };
        Ok(Operand { values, blocks })
    }

    /// Reads a param, one weight at a time, and gives its bytes to `sink`, in order for each part. `on_bytes` is told how many more
    /// there are, and says whether to go on.
    ///
    /// Errors: what the source says, and [`Error::WeightLength`] if it gives more bytes or fewer; what `sink` says;
    /// [`Error::Cancelled`].
    pub(crate) fn read<S: WeightSource>(
        self,
        param: &ParamDecl,
        infos: &[WeightInfo],
        source: &S,
        sink: &mut Sink<'_>,
        on_bytes: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), LoadError<S::Error>> {
        for (name, info) in param.sources().iter().zip(infos) {
            let check = |bytes: &[u8], expected_bytes: u64| match bytes.len() as u64 {
                found_bytes if found_bytes != expected_bytes => Err(Error::WeightLength {
                    param: param.name.clone(),
                    weight: name.clone(),
                    expected_bytes,
                    found_bytes,
                }),
                _ => Ok(()),
            };
            let bytes = if self.block.is_some() {
                let read = source.read_codes(name).map_err(LoadError::Source)?;
                let [codes, scales] = self.sizes(info.shape.extents())?;
                check(&read.codes, codes)?;
                check(&read.scales, scales)?;
                sink(Part::Values, &read.codes)?;
                sink(Part::Scales, &read.scales)?;
                read.codes.len() + read.scales.len()
            } else {
                let mut bytes = source.read(name).map_err(LoadError::Source)?;
                check(&bytes, info.shape.size_bytes(info.dtype)?)?;
                if info.dtype != self.dtype {
                    let length = info.shape.size_bytes(self.dtype)?;
                    let length = usize::try_from(length).unwrap_or(usize::MAX);
                    let mut converted = vec![0; length];
                    cast::cast_into(info.dtype, self.dtype, &bytes, &mut converted)?;
                    bytes = converted;
                }
                sink(Part::Values, &bytes)?;
                bytes.len()
            };
            if !on_bytes(bytes as u64) {
                return Err(Error::Cancelled.into());
            }
        }
        Ok(())
    }
}

/// The buffer of a part of an operand.
pub(crate) fn part(operand: &Operand, part: Part) -> Option<&rialto_backend::Buffer> {
    match part {
        Part::Values => Some(&operand.values),
        Part::Scales => operand.blocks.as_ref().map(|blocks| &blocks.scales),
    }
}

/// The block of a param that stays as codes.
fn kept_block(
    program: &Program,
    param: &ParamDecl,
    infos: &[WeightInfo],
    backend: &dyn Backend,
    options: &LoadOptions,
) -> Option<[u64; 2]> {
    if options.decodes_blocks || !backend.capabilities().runs_block_weights {
        return None;
    }
    let mut blocks = infos.iter().map(|info| {
        let encoded = info.encoded.as_ref()?;
        let is_known = program.block_codecs.contains(&encoded.codec);
        is_known.then_some(encoded.block)
    });
    let block = blocks.next().flatten()?;
    let is_throughout = blocks.all(|other| other == Some(block));
    let calls = program.phases.iter().flat_map(|phase| &phase.calls);
    let mut uses = calls.flat_map(|call| {
        let named = call.inputs.iter().enumerate();
        let named = named.filter(|(_, name)| **name == param.name);
        named.map(|(at, _)| (call.op.as_str(), at))
    });
    (is_throughout && uses.all(|(op, at)| takes_codes(op, at))).then_some(block)
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

/// What is known of each weight of each param. Errors: [`Error::Weights`] with all that are missing or do not fit, before one is read.
pub(crate) fn infos_of<S: WeightSource>(
    program: &Program,
    source: &S,
) -> Result<Vec<Vec<WeightInfo>>, Error> {
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
