//! An operation on buffers, whose shapes have been checked: a backend need not do it again.

use rialto_program::{Op, ValueType};

use crate::{Buffer, Error};

/// The scales of a matrix that is stored as codes in blocks.
#[derive(Clone, Debug)]
pub struct Blocks {
    /// F32 `[.., ceil(n/rows), ceil(k/columns)]`.
    pub scales: Buffer,
    /// Rows and columns of a block.
    pub block: [u64; 2],
}

/// What an operation reads.
#[derive(Clone, Debug)]
pub struct Operand {
    /// The elements, or the codes.
    pub values: Buffer,
    /// The scales of codes.
    pub blocks: Option<Blocks>,
}

impl Operand {
    /// Its type as operations see it.
    #[must_use]
    pub fn value_type(&self) -> ValueType {
        ValueType {
            block: self.blocks.as_ref().map(|blocks| blocks.block),
            ..self.values.tensor().value_type()
        }
    }

    fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let scales = self.blocks.as_ref().map(|blocks| &blocks.scales);
        std::iter::once(&self.values).chain(scales)
    }
}

impl From<Buffer> for Operand {
    fn from(values: Buffer) -> Operand {
        Operand {
            values,
            blocks: None,
        }
    }
}

/// A call of an operation: inputs that it takes, and outputs of the types that it makes of them.
#[derive(Clone, Debug)]
pub struct OpCall {
    op: Op,
    inputs: Vec<Operand>,
    outputs: Vec<Buffer>,
}

impl OpCall {
    /// Checks shapes and element types. Errors: [`Error::Program`] for inputs that the operation does not take,
    /// [`Error::Operand`] for an output of another type, for scales of another shape than the grid of their codes, and for an
    /// output that is an input or another output.
    pub fn new(
        op: Op,
        inputs: impl IntoIterator<Item = Operand>,
        outputs: impl IntoIterator<Item = Buffer>,
    ) -> Result<OpCall, Error> {
        let call = OpCall {
            op,
            inputs: inputs.into_iter().collect(),
            outputs: outputs.into_iter().collect(),
        };
        call.check()?;
        Ok(call)
    }

    fn check(&self) -> Result<(), Error> {
        let types: Vec<ValueType> = self.inputs.iter().map(Operand::value_type).collect();
        let made = self.op.infer(&types)?;
        let refused = |port: &str, reason: String| Error::Operand {
            op: self.op.name().to_owned(),
            port: port.to_owned(),
            reason,
        };
        let signature = self.op.signature();
        for (operand, port) in self.inputs.iter().zip(signature.inputs) {
            let Some(blocks) = &operand.blocks else {
                continue;
            };
            let grid =
                rialto_tensor::quant::block::grid(&operand.values.tensor().shape, blocks.block);
            let grid = grid.map_err(|error| refused(port, error.to_string()))?;
            let found = blocks.scales.tensor();
            if found.dtype != rialto_tensor::Dtype::F32 || found.shape != grid {
                return Err(refused(
                    port,
                    format!("its scales are {found}, expected F32 {grid}"),
                ));
            }
        }
        if made.len() != self.outputs.len() {
            let found = self.outputs.len();
            return Err(refused(
                "outputs",
                format!("{} expected, {found} found", made.len()),
            ));
        }
        for (position, (made, output)) in made.iter().zip(&self.outputs).enumerate() {
            let port = signature.outputs[position];
            let found = output.tensor();
            if !made.admits(&found.value_type()) {
                return Err(refused(port, format!("it is {found}, expected {made}")));
            }
            let mut others = self
                .inputs
                .iter()
                .flat_map(Operand::buffers)
                .chain(&self.outputs[..position]);
            if others.any(|other| other.is_same(output)) {
                return Err(refused(
                    port,
                    "it is another operand of the call, too".to_owned(),
                ));
            }
        }
        Ok(())
    }

    /// The operation.
    #[must_use]
    pub fn op(&self) -> &Op {
        &self.op
    }

    /// What it reads, in the order of the signature. A cache that is written stands here, too.
    #[must_use]
    pub fn inputs(&self) -> &[Operand] {
        &self.inputs
    }

    /// What it writes.
    #[must_use]
    pub fn outputs(&self) -> &[Buffer] {
        &self.outputs
    }
}
