//! The dispatches of block-scaled E4M3.

use rialto_backend::{Error, OpCall};
use rialto_program::Op;

use crate::recording::{GROUP, Launch, Recorder};

/// Names of the operations of this module.
pub(crate) const OPS: &[&str] = &["rialto.quantize_block/1", "rialto.dequantize_block/1"];

/// Records a call of one of them. `None` for another. Errors: what it is given that no shader reads.
pub(crate) fn record(call: &OpCall, recorder: &mut Recorder) -> Option<Result<(), Error>> {
    Some(match call.op() {
        Op::QuantizeBlock(op) => quantize(call, recorder, op.block, op.power_of_two),
        Op::DequantizeBlock(op) => dequantize(call, recorder, op.block),
        _ => return None,
    })
}

/// A matrix in blocks.
struct Grid {
    elements: u64,
    extents: [u64; 2],
    /// Rows and columns of a block, of which one that is larger than the matrix is the matrix.
    block: [u64; 2],
    /// Blocks below each other, and side by side.
    blocks: [u64; 2],
}

impl Grid {
    fn of(shape: &[u64], block: [u64; 2]) -> Grid {
        let &[rows, columns] = shape else {
            unreachable!("a matrix has two axes");
        };
        let extents = [rows, columns];
        let block = [0, 1].map(|axis| block[axis].min(extents[axis].max(1)));
        Grid {
            elements: rows * columns,
            extents,
            block,
            blocks: [0, 1].map(|axis| extents[axis].div_ceil(block[axis])),
        }
    }

    /// What shaders of elements are told.
    fn params(&self) -> [u64; 6] {
        let [rows, columns] = self.block;
        [
            self.elements,
            self.extents[1],
            self.blocks[1],
            0,
            rows,
            columns,
        ]
    }
}

fn quantize(
    call: &OpCall,
    recorder: &mut Recorder,
    block: [u64; 2],
    power_of_two: bool,
) -> Result<(), Error> {
    let x = recorder.floats(&call.inputs()[0])?;
    let [codes, scales] = call.outputs() else {
        unreachable!("the signature has two outputs");
    };
    let (codes, scales) = (recorder.buffer(codes)?, recorder.buffer(scales)?);
    let grid = Grid::of(&x.shape, block);
    let ([n, k], [down, across], [rows, columns]) = (grid.extents, grid.blocks, grid.block);
    let launch = Launch::new("block_scales", down * across)
        .params([
            down * across,
            k,
            n,
            across,
            rows,
            columns,
            power_of_two.into(),
        ])
        .floats("x", &x)
        .buffer(&scales);
    recorder.dispatch(launch)?;
    let launch = Launch::new("quantize", grid.elements.div_ceil(4 * GROUP))
        .params(grid.params())
        .floats("x", &x)
        .buffer(&scales)
        .buffer(&codes);
    recorder.dispatch(launch)
}

fn dequantize(call: &OpCall, recorder: &mut Recorder, block: [u64; 2]) -> Result<(), Error> {
    let [codes, scales] = call.inputs() else {
        unreachable!("the signature has two inputs");
    };
    let grid = Grid::of(codes.values.tensor().shape.extents(), block);
    let (codes, scales) = (
        recorder.buffer(&codes.values)?,
        recorder.buffer(&scales.values)?,
    );
    let launch = Launch::new("dequantize", grid.elements.div_ceil(GROUP))
        .params(grid.params())
        .buffer(&codes)
        .buffer(&scales);
    recorder.leave(launch, &call.outputs()[0])
}
