//! The dispatches of block-scaled E4M3.

use std::ops::Range;

use rialto_backend::{Error, OpCall};
use rialto_program::Op;

use crate::launch::{GROUP, Launch};
use crate::recorder::{Recorder, times};
use crate::storage::Memory;

/// Names of the operations of this module.
pub(crate) const OPS: &[&str] = &["rialto.quantize_block/1", "rialto.dequantize_block/1"];

/// Work of an element, in multiplications: its arithmetic is on bits.
const WORK: u64 = 64;

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

    /// The scales of elements.
    fn scales_of(&self, elements: &Range<u64>) -> Range<u64> {
        let of_blocks = self.block[0] * self.extents[1];
        match elements.is_empty() {
            true => 0..0,
            false => {
                let [first, last] = [elements.start, elements.end.min(self.elements) - 1];
                first / of_blocks * self.blocks[1]..(last / of_blocks + 1) * self.blocks[1]
            }
        }
    }

    /// Parts of units of so many elements, such that the scales of a part can be bound, too. Errors: [`Error::BufferSize`] if those of a
    /// unit cannot.
    fn parts(
        &self,
        parts: Vec<Range<u64>>,
        each: u64,
        scales: &Memory,
    ) -> Result<Vec<Range<u64>>, Error> {
        let fits = |part: &Range<u64>| {
            let of_part = self.scales_of(&times(part, each));
            scales.reach(of_part.start) >= of_part.end
        };
        let mut smaller = Vec::with_capacity(parts.len());
        for part in parts {
            let mut begin = part.start;
            while begin < part.end {
                let mut end = part.end;
                while !fits(&(begin..end)) {
                    if end - begin == 1 {
                        return Err(scales.too_large());
                    }
                    end = begin + (end - begin) / 2;
                }
                smaller.push(begin..end);
                begin = end;
            }
        }
        Ok(smaller)
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
    let (codes, scales) = (recorder.memory(codes)?, recorder.memory(scales)?);
    let grid = Grid::of(&x.shape, block);
    let ([n, k], [down, across], [rows, columns]) = (grid.extents, grid.blocks, grid.block);
    // Rows of blocks.
    let operands = [(&*x.memory, rows * k), (&*scales, across)];
    for part in recorder.parts(down, recorder.most(rows * k * 4), &operands)? {
        let launch = Launch::units("block_scales", &times(&part, across), rows * columns * 4)
            .loops((rows * columns).div_ceil(GROUP) + 6)
            .params([down * across, k, n, across])
            .params([rows, columns, power_of_two.into()])
            .floats("x", &x, times(&part, rows * k))
            .words(&scales, times(&part, across));
        recorder.dispatch(launch)?;
    }
    // Four codes in a word.
    let words = grid.elements.div_ceil(4);
    let operands = [(&*x.memory, 4), (&*codes, 4)];
    let parts = recorder.parts(words, recorder.most(4 * WORK), &operands)?;
    for part in grid.parts(parts, 4, &scales)? {
        let launch = Launch::elements("quantize", &part, 4 * WORK)
            .params(grid.params())
            .floats("x", &x, times(&part, 4))
            .words(&scales, grid.scales_of(&times(&part, 4)))
            .words(&codes, times(&part, 4));
        recorder.dispatch(launch)?;
    }
    Ok(())
}

fn dequantize(call: &OpCall, recorder: &mut Recorder, block: [u64; 2]) -> Result<(), Error> {
    let [codes, scales] = call.inputs() else {
        unreachable!("the signature has two inputs");
    };
    let grid = Grid::of(codes.values.tensor().shape.extents(), block);
    let (codes, scales) = (
        recorder.memory(&codes.values)?,
        recorder.memory(&scales.values)?,
    );
    let out = &call.outputs()[0];
    let place = recorder.place(out)?;
    let operands = [(&*codes, 1), (&*place, 1)];
    let parts = recorder.parts(grid.elements, recorder.most(WORK), &operands)?;
    for part in grid.parts(parts, 1, &scales)? {
        let launch = Launch::elements("dequantize", &part, WORK)
            .params(grid.params())
            .elements_of(&codes, part.clone())
            .words(&scales, grid.scales_of(&part))
            .words(&place, part);
        recorder.dispatch(launch)?;
    }
    recorder.settle(&place, out)
}
