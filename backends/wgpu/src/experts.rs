//! The dispatches of a mixture of experts.

use std::ops::Range;
use std::sync::Arc;

use rialto_backend::{Error, OpCall, Operand};
use rialto_program::Op;

use crate::launch::{Floats, Launch, Weight};
use crate::linear::{FEW_ROWS, Product, Sorted, TILE_COLUMNS, Window};
use crate::recorder::{Recorder, times};
use crate::shader::BF16;
use crate::storage::Memory;

/// Names of the operations of this module.
pub(crate) const OPS: &[&str] = &["rialto.experts/1"];

/// Elements of what lies between two products: tokens that need more go through the experts one part after another.
const SCRATCH: u64 = 1 << 24;

/// Records a call of it. `None` for another. Errors: what it is given that no shader reads.
pub(crate) fn record(call: &OpCall, recorder: &mut Recorder) -> Option<Result<(), Error>> {
    match call.op() {
        Op::Experts(_) => Some(experts(call, recorder)),
        _ => None,
    }
}

/// Parts of matrices of experts: of whole ones, or of a single one.
fn windows(weight: &Weight) -> Result<Vec<Window>, Error> {
    let ([n, ..], experts) = (weight.sizes(), weight.shape[0]);
    let window = |experts: Range<u64>, columns: Range<u64>| Window {
        rows: experts.start * n + columns.start..(experts.end - 1) * n + columns.end,
        columns,
        batches: 0..1,
        experts,
    };
    if let Ok(parts) = weight.parts(n.max(1)) {
        let parts = parts.into_iter().filter(|rows| !rows.is_empty());
        return Ok(parts
            .map(|rows| window(rows.start / n..rows.end / n, 0..n))
            .collect());
    }
    let mut windows = Vec::new();
    for rows in weight.parts(1)? {
        let mut begin = rows.start;
        while begin < rows.end {
            let expert = begin / n;
            let end = rows.end.min((expert + 1) * n);
            windows.push(window(
                expert..expert + 1,
                begin - expert * n..end - expert * n,
            ));
            begin = end;
        }
    }
    debug_assert!(windows.iter().all(|window| window.experts.end <= experts));
    Ok(windows)
}

/// A matrix of each expert, and its parts.
struct Matrices {
    weight: Weight,
    windows: Vec<Window>,
}

impl Matrices {
    fn new(operand: &Operand, recorder: &Recorder) -> Result<Matrices, Error> {
        let weight = recorder.weight(operand)?;
        let windows = windows(&weight)?;
        Ok(Matrices { weight, windows })
    }

    /// Whether its parts are of whole experts.
    fn are_whole(&self) -> bool {
        self.windows.iter().all(|window| {
            let rows = window.rows.end - window.rows.start;
            rows == (window.experts.end - window.experts.start) * window.columns.end
        })
    }
}

/// A call.
struct Experts {
    x: Floats,
    ids: Arc<Memory>,
    weights: Arc<Memory>,
    gate: Matrices,
    up: Matrices,
    down: Matrices,
    /// Experts of a token.
    slots: u64,
    experts: u64,
    lanes: u32,
}

/// What lies between dispatches of a part of the tokens, for the largest part.
struct Between {
    gates: Arc<Memory>,
    ups: Arc<Memory>,
    hidden: Arc<Memory>,
    products: Arc<Memory>,
    /// What `permute.wgsl` leaves; none if each row goes alone.
    sorted: Option<[Arc<Memory>; 2]>,
}

impl Experts {
    fn new(call: &OpCall, recorder: &Recorder) -> Result<Experts, Error> {
        let [x, ids, weights, gate, up, down] = call.inputs() else {
            unreachable!("the signature has six inputs");
        };
        Ok(Experts {
            x: recorder.floats(x)?,
            slots: ids.values.tensor().shape.extents()[1],
            experts: gate.values.tensor().shape.extents()[0],
            ids: recorder.memory(&ids.values)?,
            weights: recorder.memory(&weights.values)?,
            gate: Matrices::new(gate, recorder)?,
            up: Matrices::new(up, recorder)?,
            down: Matrices::new(down, recorder)?,
            lanes: recorder.lanes(),
        })
    }

    /// Elements of a row of x, and of a row between the products.
    fn widths(&self) -> [u64; 2] {
        let [inner, ..] = self.gate.weight.sizes();
        [self.x.last(), inner]
    }

    /// Parts of the tokens.
    fn parts(&self, recorder: &Recorder, place: &Memory) -> Result<Vec<Range<u64>>, Error> {
        let [width, inner] = self.widths();
        let each = self.slots * inner.max(width).max(1);
        // Of what is sorted, so that one workgroup can do it.
        let sorted = recorder.loops() / 2 * u64::from(self.lanes) / 8 / self.slots.max(1);
        let most = SCRATCH.min(recorder.binding_bytes() / 4) / each.max(1);
        let most = most
            .min(sorted)
            .min(recorder.most(self.slots * inner * width));
        let operands = [
            (&*self.x.memory, width),
            (&*self.ids, self.slots),
            (&*self.weights, self.slots),
            (place, width),
        ];
        recorder.parts(self.x.shape[0], most.max(1), &operands)
    }

    fn between(&self, recorder: &mut Recorder, choices: u64) -> Result<Between, Error> {
        let [width, inner] = self.widths();
        let [gates, ups, hidden] = [
            recorder.scratch(choices, inner)?,
            recorder.scratch(choices, inner)?,
            recorder.scratch(choices, inner)?,
        ];
        // Rows of an expert go through it together if there are enough of them, and whole experts are bound.
        let all = [&self.gate, &self.up, &self.down];
        let is_grouped =
            choices > FEW_ROWS * self.experts && all.iter().all(|matrices| matrices.are_whole());
        Ok(Between {
            gates,
            ups,
            hidden,
            products: recorder.scratch(choices, width)?,
            sorted: match is_grouped {
                true => Some([
                    recorder.scratch(1, self.order(choices))?,
                    recorder.scratch(1, 6)?,
                ]),
                false => None,
            },
        })
    }

    /// Most tiles of so many choices.
    fn tiles(&self, choices: u64) -> u64 {
        choices / (u64::from(self.lanes) / 8) + self.experts.min(choices)
    }

    /// Words of what `permute.wgsl` leaves.
    fn order(&self, choices: u64) -> u64 {
        1 + 3 * self.tiles(choices) + choices + self.experts
    }

    fn permute(
        &self,
        choices: &Range<u64>,
        across: [u64; 2],
        [order, sizes]: [&Arc<Memory>; 2],
    ) -> Launch {
        let count = choices.end - choices.start;
        let rows_at = 1 + 3 * self.tiles(count);
        // The first invocation goes through experts and tiles; all of them twice through choices.
        let lanes = u64::from(self.lanes);
        let loops = 2 * self.experts + self.tiles(count) + 2 * count.div_ceil(lanes) + 4;
        Launch::new("permute", 1, 4 * count)
            .loops(loops + self.experts.div_ceil(lanes))
            .span(choices)
            .params([self.experts, u64::from(self.lanes) / 8])
            .params(across)
            .params([rows_at, rows_at + count])
            .constant("LANES", self.lanes)
            .words(&self.ids, choices.clone())
            .whole(order)
            .whole(sizes)
    }

    /// Workgroups across a row of either product.
    fn across(&self) -> [u64; 2] {
        let [width, inner] = self.widths();
        [inner, width].map(|columns| columns.div_ceil(TILE_COLUMNS))
    }

    /// Rows times the matrices of their experts, into memory. Of the two kinds of products it is the first or the second.
    fn product(
        &self,
        recorder: &mut Recorder,
        (product, windows, which): (&Product<'_>, &[Window], usize),
        sorted: Option<&[Arc<Memory>; 2]>,
        into: &Arc<Memory>,
    ) -> Result<(), Error> {
        let tiles = self.tiles(product.rows.end - product.rows.start);
        for window in windows {
            for terms in product.terms() {
                let launch = match sorted {
                    Some([order, sizes]) => {
                        let sorted = Sorted {
                            order,
                            rows_at: 1 + 3 * tiles,
                            sizes: (sizes, 3 * which as u64),
                            groups: tiles * self.across()[which],
                        };
                        product.grouped(window, &terms, &sorted, self.lanes)
                    }
                    None => product.gemv(window, &terms, Some(&self.ids)),
                };
                recorder.dispatch(launch.whole(into))?;
            }
        }
        Ok(())
    }

    /// Dispatches of some tokens.
    fn record(
        &self,
        recorder: &mut Recorder,
        tokens: &Range<u64>,
        between: &Between,
        place: &Arc<Memory>,
    ) -> Result<(), Error> {
        let [width, inner] = self.widths();
        let choices = times(tokens, self.slots);
        let count = choices.end - choices.start;
        let sorted = between.sorted.as_ref();
        if let Some([order, sizes]) = sorted {
            recorder.dispatch(self.permute(&choices, self.across(), [order, sizes]))?;
        }
        for (matrices, into) in [(&self.gate, &between.gates), (&self.up, &between.ups)] {
            let product = Product {
                x: &self.x,
                weight: &matrices.weight,
                rows: choices.clone(),
                columns: inner,
                k: width,
                batches: 1,
                part: [0, inner],
                slots: self.slots,
                first: [0, choices.start],
            };
            self.product(recorder, (&product, &matrices.windows, 0), sorted, into)?;
        }
        // With the roundings of the type of x.
        let is_rounded = self.x.kind == BF16;
        let gated = Launch::elements("gated", &(0..count * inner), 16)
            .params([0, is_rounded.into()])
            .whole(&between.gates)
            .whole(&between.ups)
            .whole(&between.hidden);
        recorder.dispatch(gated)?;
        let hidden = Floats::scratch(&between.hidden, vec![count, inner]);
        let product = Product {
            x: &hidden,
            weight: &self.down.weight,
            rows: choices.clone(),
            columns: width,
            k: inner,
            batches: 1,
            part: [0, width],
            slots: 1,
            first: [choices.start, choices.start],
        };
        let of_down = (&product, self.down.windows.as_slice(), 1);
        self.product(recorder, of_down, sorted, &between.products)?;
        let weighed = Launch::elements("weighed", &times(tokens, width), 2 * self.slots)
            .loops(self.slots)
            .params([self.x.shape[0], width, self.slots, self.experts])
            .words(&self.ids, choices.clone())
            .words(&self.weights, choices)
            .whole(&between.products)
            .words(place, times(tokens, width));
        recorder.dispatch(weighed)
    }
}

fn experts(call: &OpCall, recorder: &mut Recorder) -> Result<(), Error> {
    let out = &call.outputs()[0];
    let experts = Experts::new(call, recorder)?;
    let place = recorder.place(out)?;
    let parts = experts.parts(recorder, &place)?;
    let longest = parts.iter().map(|part| part.end - part.start).max();
    let choices = longest.unwrap_or_default() * experts.slots;
    let between = experts.between(recorder, choices)?;
    for tokens in parts {
        experts.record(recorder, &tokens, &between, &place)?;
    }
    recorder.settle(&place, out)
}
