//! The dispatches of products with weights: of rows, and of the heads of a matrix that makes keys and values of latents.

use std::ops::Range;
use std::sync::Arc;

use rialto_backend::{Buffer, Error, OpCall};
use rialto_program::Op;

use crate::launch::{Floats, GROUP, Launch, Weight};
use crate::recorder::{Recorder, times};
use crate::storage::Memory;

/// Names of the operations of this module.
pub(crate) const OPS: &[&str] = &[
    "rialto.linear/1",
    "rialto.mla_absorb/1",
    "rialto.mla_expand/1",
];

/// With more rows than this, what is decoded of a matrix is kept for several.
pub(crate) const FEW_ROWS: u64 = 8;

/// Columns of a tile.
pub(crate) const TILE_COLUMNS: u64 = 64;

/// Terms of a sum in a dispatch, in whole steps of every shader.
const TERMS: u64 = 1 << 15;

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
    pub(crate) rows: Range<u64>,
    pub(crate) columns: u64,
    /// Terms of a sum.
    pub(crate) k: u64,
    pub(crate) batches: u64,
    /// The first row of a batch's matrix, of so many rows of a batch.
    pub(crate) part: [u64; 2],
    /// Rows for one of x.
    pub(crate) slots: u64,
    /// The first row that x has, and the first that the result has.
    pub(crate) first: [u64; 2],
}

/// What of a weight is bound at a time, and what comes of it.
#[derive(Clone)]
pub(crate) struct Window {
    /// Rows of the weight, counted through all matrices.
    pub(crate) rows: Range<u64>,
    pub(crate) columns: Range<u64>,
    pub(crate) batches: Range<u64>,
    pub(crate) experts: Range<u64>,
}

impl Window {
    /// The same with so many columns at most.
    fn cut(&self, most: u64) -> impl Iterator<Item = Window> + '_ {
        let Range { start, end } = self.columns;
        let begins = (start..end.max(start + 1)).step_by(most as usize);
        begins.map(move |begin| Window {
            columns: begin..end.min(begin.saturating_add(most)),
            ..self.clone()
        })
    }
}

/// Rows that are sorted by their experts: what `permute.wgsl` leaves.
pub(crate) struct Sorted<'a> {
    pub(crate) order: &'a Arc<Memory>,
    /// The word where rows begin.
    pub(crate) rows_at: u64,
    /// Workgroups of the dispatch, from a word on.
    pub(crate) sizes: (&'a Arc<Memory>, u64),
    /// Workgroups at most.
    pub(crate) groups: u64,
}

impl Product<'_> {
    fn count(&self) -> u64 {
        self.rows.end - self.rows.start
    }

    /// Parts of the terms of a sum, one at least.
    pub(crate) fn terms(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let k = self.k;
        let parts = (0..k.div_ceil(TERMS).max(1)).map(|part| part * TERMS);
        parts.map(move |begin| begin..k.min(begin + TERMS))
    }

    /// Work of a row.
    fn work(&self) -> u64 {
        self.batches * self.columns * self.k
    }

    /// What all shaders of products are given.
    fn given(&self, launch: Launch, window: &Window, rows_at: u64, terms: &Range<u64>) -> Launch {
        let Product {
            columns,
            k,
            batches,
            part,
            slots,
            first,
            ..
        } = *self;
        let fours = self.weight.has_fours().into();
        let of_x = self.rows.start / slots - first[0]..self.rows.end.div_ceil(slots) - first[0];
        launch
            .span(&self.rows)
            .across(&window.columns)
            .params([k, fours, first[0], first[1]])
            .params([batches * k, k, batches * columns, columns])
            .params([part[0], part[1], slots, 0])
            .params(self.weight.sizes())
            .params([window.batches.start, window.batches.end])
            .params([window.experts.start, window.experts.end])
            .params([rows_at, terms.start, terms.end])
            .floats("x", self.x, times(&of_x, batches * k))
            .weight("weight", self.weight, &window.rows)
    }

    fn groups(&self, window: &Window, columns: u64) -> u64 {
        let length = |range: &Range<u64>| range.end - range.start;
        length(&window.columns).div_ceil(columns) * length(&window.batches)
    }

    /// The work of a dispatch.
    fn work_of(&self, window: &Window, terms: &Range<u64>) -> u64 {
        self.count() * self.groups(window, 1) * (terms.end - terms.start)
    }

    /// Each row on its own, with the matrix of its expert if ids say which.
    pub(crate) fn gemv(
        &self,
        window: &Window,
        terms: &Range<u64>,
        ids: Option<&Arc<Memory>>,
    ) -> Launch {
        let groups = self.count() * self.groups(window, QUAD);
        let steps = (terms.end - terms.start).div_ceil(256);
        let launch = Launch::new("gemv", groups, self.work_of(window, terms)).loops(33 * steps);
        let launch = self
            .given(launch, window, 0, terms)
            .constant("routed", ids.is_some().into());
        match ids {
            Some(ids) => launch.words(ids, self.rows.clone()),
            // Bound, and not read.
            None => launch.words(&self.weight.codes, 0..0),
        }
    }

    fn columns(&self, window: &Window, terms: &Range<u64>) -> Launch {
        let groups = self.count() * self.groups(window, GROUP);
        let steps = (terms.end - terms.start).div_ceil(16);
        let launch = Launch::new("columns", groups, self.work_of(window, terms)).loops(17 * steps);
        self.given(launch, window, 0, terms)
    }

    /// Several rows together.
    fn tiles(&self, window: &Window, terms: &Range<u64>, goes_down: bool, lanes: u32) -> Launch {
        let down = self.count().div_ceil(u64::from(lanes) / 8);
        let groups = down * self.groups(window, TILE_COLUMNS);
        let launch = Launch::new("tile", groups, self.work_of(window, terms));
        self.given(launch.loops(loops_of_tile(terms)), window, 0, terms)
            .constant("goes_down", goes_down.into())
            .constant("grouped", 0)
            .constant("LANES", lanes)
            // Bound, and not read.
            .words(&self.weight.codes, 0..0)
    }

    /// The rows of an expert together.
    pub(crate) fn grouped(
        &self,
        window: &Window,
        terms: &Range<u64>,
        sorted: &Sorted<'_>,
        lanes: u32,
    ) -> Launch {
        let launch = Launch::new("tile", sorted.groups, self.work_of(window, terms));
        let launch = launch.loops(loops_of_tile(terms));
        self.given(launch, window, sorted.rows_at, terms)
            .constant("goes_down", 0)
            .constant("grouped", 1)
            .constant("LANES", lanes)
            .whole(sorted.order)
            .indirect(sorted.sizes.0, sorted.sizes.1)
    }

    /// Parts of the weight: columns of the result where these are all rows of a matrix, and else whole batches.
    fn windows(&self, goes_down: bool) -> Result<Vec<Window>, Error> {
        let [first, each] = self.part;
        let are_columns = !goes_down && self.batches == 1 && first == 0 && each == self.columns;
        let unit = if are_columns { 1 } else { each };
        let parts = self.weight.parts(unit)?.into_iter();
        let windows = parts.map(|rows| match are_columns {
            true => Window {
                columns: rows.clone(),
                batches: 0..1,
                experts: 0..1,
                rows,
            },
            false => Window {
                columns: 0..self.columns,
                batches: rows.start / each.max(1)..rows.end / each.max(1),
                experts: 0..1,
                rows,
            },
        });
        Ok(windows.collect())
    }

    /// Records it for all rows. The sum goes along the rows of the weight, or down its columns.
    fn record(&self, recorder: &mut Recorder, out: &Buffer, goes_down: bool) -> Result<(), Error> {
        let place = recorder.place(out)?;
        let [of_x, of_out] = [self.batches * self.k, self.batches * self.columns];
        let operands = [(&*self.x.memory, of_x), (&*place, of_out)];
        let windows = self.windows(goes_down)?;
        let lanes = recorder.lanes();
        let most = recorder.most(self.work());
        for rows in recorder.parts(self.count(), most, &operands)? {
            let product = Product {
                rows: rows.clone(),
                ..*self
            };
            let of_column = product.count() * self.batches * self.k;
            let at_once = recorder.most(of_column) / TILE_COLUMNS * TILE_COLUMNS;
            let windows = windows
                .iter()
                .flat_map(|window| window.cut(at_once.max(TILE_COLUMNS)));
            for window in windows {
                for terms in self.terms() {
                    let launch = match (self.count() <= FEW_ROWS, goes_down) {
                        (true, false) => product.gemv(&window, &terms, None),
                        (true, true) => product.columns(&window, &terms),
                        (false, _) => product.tiles(&window, &terms, goes_down, lanes),
                    };
                    recorder.dispatch(launch.words(&place, times(&rows, of_out)))?;
                }
            }
        }
        recorder.settle(&place, out)
    }
}

/// Rounds of loops for so many terms: of 16 terms one for the step, 16 for the products, 10 at most to read the weight.
fn loops_of_tile(terms: &Range<u64>) -> u64 {
    27 * (terms.end - terms.start).div_ceil(16)
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
        rows: 0..x.shape[..x.shape.len() - 1].iter().product(),
        columns,
        k,
        batches: 1,
        part: [0, columns],
        slots: 1,
        first: [0, 0],
        x: &x,
        weight: &weight,
    };
    product.record(recorder, &call.outputs()[0], false)
}

fn absorb(call: &OpCall, recorder: &mut Recorder, value: u64) -> Result<(), Error> {
    let (q, kv_b) = operands(call, recorder)?;
    let [_, latent, ..] = kv_b.sizes();
    let (heads, nope) = (q.shape[1], q.shape[2]);
    let product = Product {
        rows: 0..q.shape[0],
        columns: latent,
        k: nope,
        batches: heads,
        part: [0, nope + value],
        slots: 1,
        first: [0, 0],
        x: &q,
        weight: &kv_b,
    };
    product.record(recorder, &call.outputs()[0], true)
}

fn expand(call: &OpCall, recorder: &mut Recorder, value: u64) -> Result<(), Error> {
    let (x, kv_b) = operands(call, recorder)?;
    let [rows, latent, ..] = kv_b.sizes();
    let heads = x.shape[1];
    let each = rows.checked_div(heads).unwrap_or_default();
    let product = Product {
        rows: 0..x.shape[0],
        columns: value,
        k: latent,
        batches: heads,
        part: [each - value.min(each), each],
        slots: 1,
        first: [0, 0],
        x: &x,
        weight: &kv_b,
    };
    product.record(recorder, &call.outputs()[0], false)
}
