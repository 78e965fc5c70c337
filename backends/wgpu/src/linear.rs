//! The dispatches of products with weights: of rows, and of the heads of a matrix that makes keys and values of latents.

use rialto_backend::{Error, OpCall};
use rialto_program::Op;

use crate::recording::{Floats, GROUP, Launch, Recorder, Weight};

/// Names of the operations of this module.
pub(crate) const OPS: &[&str] = &[
    "rialto.linear/1",
    "rialto.mla_absorb/1",
    "rialto.mla_expand/1",
];

/// With more rows than this, what is decoded of a matrix is kept for several.
const FEW_ROWS: u64 = 8;

/// Rows and columns of a tile.
const TILE: [u64; 2] = [32, 64];

/// Columns of a workgroup that has one row.
const QUAD: u64 = 4;

/// Records a call of one of them. `None` for another. Errors: what it is given that no shader reads.
pub(crate) fn record(call: &OpCall, recorder: &mut Recorder) -> Option<Result<(), Error>> {
    Some(match call.op() {
        Op::Linear(_) => linear(call, recorder),
        Op::MlaAbsorb(op) => absorb(call, recorder, op.value),
        Op::MlaExpand(op) => expand(call, recorder, op.value),
        _ => return None,
    })
}

/// Rows times a matrix for each batch, as `product.wgsl` says it.
pub(crate) struct Product<'a> {
    pub(crate) x: &'a Floats,
    pub(crate) weight: &'a Weight,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    /// Terms of a sum.
    pub(crate) k: u64,
    pub(crate) batches: u64,
    /// The first row of a batch's matrix, of so many rows of a batch.
    pub(crate) part: [u64; 2],
}

/// Where a product finds its experts.
pub(crate) struct Routed<'a> {
    pub(crate) ids: &'a wgpu::Buffer,
    /// The first id.
    pub(crate) first_id: u64,
    pub(crate) experts: u64,
    /// The first element of x.
    pub(crate) first_x: u64,
    /// Results for a row of x.
    pub(crate) slots: u64,
}

impl Product<'_> {
    /// What all shaders of products are given.
    fn given(&self, launch: Launch, routed: Option<&Routed<'_>>) -> Launch {
        let Product {
            rows,
            columns,
            k,
            batches,
            part,
            ..
        } = *self;
        let [first_x, first_id, experts, slots] = match routed {
            Some(routed) => [
                routed.first_x,
                routed.first_id,
                routed.experts,
                routed.slots.max(1),
            ],
            None => [0, 0, 0, 1],
        };
        let fours = self.weight.has_fours().into();
        launch
            .params([rows, columns, k, batches])
            .params([batches * k, k, batches * columns, columns])
            .params([part[0], part[1], slots, fours])
            .params(self.weight.sizes())
            .params([first_x, first_id, experts])
            .floats("x", self.x)
            .weight("weight", self.weight)
    }

    /// The sum goes along the rows of the weight.
    fn along(&self) -> Launch {
        match self.rows <= FEW_ROWS {
            true => self.gemv(None),
            false => self.tiles(0),
        }
    }

    /// The sum goes down the columns of the weight.
    fn down(&self) -> Launch {
        let groups = self.rows * self.batches * self.columns.div_ceil(GROUP);
        match self.rows <= FEW_ROWS {
            true => self.given(Launch::new("columns", groups), None),
            false => self.tiles(1),
        }
    }

    fn tiles(&self, goes_down: u32) -> Launch {
        let [rows, columns] = TILE;
        let groups = self.rows.div_ceil(rows) * self.columns.div_ceil(columns) * self.batches;
        self.given(Launch::new("tile", groups), None)
            .constant("goes_down", goes_down)
    }

    /// Each row on its own, with the matrix of its expert if they are routed.
    pub(crate) fn gemv(&self, routed: Option<&Routed<'_>>) -> Launch {
        let groups = self.rows * self.batches * self.columns.div_ceil(QUAD);
        let ids = match routed {
            Some(routed) => routed.ids,
            // Bound, and not read.
            None => self.x.buffer(),
        };
        self.given(Launch::new("gemv", groups), routed)
            .constant("routed", routed.is_some().into())
            .buffer(ids)
    }
}

fn operands(call: &OpCall, recorder: &Recorder) -> Result<(Floats, Weight), Error> {
    let [x, weight] = call.inputs() else {
        unreachable!("the signature has two inputs");
    };
    Ok((recorder.floats(x)?, recorder.weight(weight)?))
}

fn linear(call: &OpCall, recorder: &mut Recorder) -> Result<(), Error> {
    let (x, weight) = operands(call, recorder)?;
    let [columns, k, ..] = weight.sizes();
    let product = Product {
        rows: x.shape[..x.shape.len() - 1].iter().product(),
        columns,
        k,
        batches: 1,
        part: [0, columns],
        x: &x,
        weight: &weight,
    };
    recorder.leave(product.along(), &call.outputs()[0])
}

fn absorb(call: &OpCall, recorder: &mut Recorder, value: u64) -> Result<(), Error> {
    let (q, kv_b) = operands(call, recorder)?;
    let [_, latent, ..] = kv_b.sizes();
    let (heads, nope) = (q.shape[1], q.shape[2]);
    let product = Product {
        rows: q.shape[0],
        columns: latent,
        k: nope,
        batches: heads,
        part: [0, nope + value],
        x: &q,
        weight: &kv_b,
    };
    recorder.leave(product.down(), &call.outputs()[0])
}

fn expand(call: &OpCall, recorder: &mut Recorder, value: u64) -> Result<(), Error> {
    let (x, kv_b) = operands(call, recorder)?;
    let [rows, latent, ..] = kv_b.sizes();
    let heads = x.shape[1];
    let each = rows.checked_div(heads).unwrap_or_default();
    let product = Product {
        rows: x.shape[0],
        columns: value,
        k: latent,
        batches: heads,
        part: [each - value.min(each), each],
        x: &x,
        weight: &kv_b,
    };
    recorder.leave(product.along(), &call.outputs()[0])
}
