//! The dispatches of a mixture of experts.

use std::ops::Range;
use std::sync::Arc;

use rialto_backend::{Error, OpCall};
use rialto_program::Op;
use rialto_program::op::{Router, Scoring};
use rialto_tensor::Dtype;

use crate::launch::{Floats, GROUP, Launch, Weight};
use crate::linear::{FEW_ROWS, Product, Sorted, TILE_COLUMNS, Window};
use crate::recording::{Recorder, times};
use crate::storage::Memory;

/// Names of the operations of this module.
pub(crate) const OPS: &[&str] = &["rialto.router/1", "rialto.experts/1"];

/// Elements of what lies between two products: tokens that need more go through the experts one part after another.
const SCRATCH: u64 = 1 << 24;

/// Records a call of one of them. `None` for another. Errors: what it is given that no shader reads.
pub(crate) fn record(call: &OpCall, recorder: &mut Recorder) -> Option<Result<(), Error>> {
    Some(match call.op() {
        Op::Router(op) => router(call, recorder, op),
        Op::Experts(_) => experts(call, recorder),
        _ => return None,
    })
}

fn router(call: &OpCall, recorder: &mut Recorder, op: &Router) -> Result<(), Error> {
    let ([logits, bias @ ..], [ids, weights]) = (call.inputs(), call.outputs()) else {
        unreachable!("the signature has an input and two outputs");
    };
    let bits = |value: f64| u64::from((value as f32).to_bits());
    let [tokens, experts] = *logits.values.tensor().shape.extents() else {
        unreachable!("logits have two axes");
    };
    // Without a bias something is bound, and not read.
    let bias_or_logits = recorder.memory(&bias.first().unwrap_or(logits).values)?;
    let logits = recorder.memory(&logits.values)?;
    let (ids, weights) = (recorder.memory(ids)?, recorder.memory(weights)?);
    let of_work = 3 * experts + op.groups;
    let most = (recorder.binding_bytes() / (4 * of_work)).max(1);
    let most = most.min(recorder.most(4 * experts * experts));
    let operands = [(&*logits, experts), (&ids, op.top_k), (&weights, op.top_k)];
    let work = recorder.scratch(tokens.min(most), of_work)?;
    for part in recorder.parts(tokens, most, &operands)? {
        let each = experts.div_ceil(GROUP);
        let loops = 6 * each + 64 + 4 * experts + each * (experts + 1);
        let launch = Launch::units("router", &part, 4 * experts * experts)
            .loops(loops + op.groups.div_ceil(GROUP) * (op.groups + experts + 2))
            .params([tokens, experts, op.top_k, op.groups])
            .params([
                op.top_groups,
                (op.scoring == Scoring::Softmax).into(),
                (!bias.is_empty()).into(),
                op.normalize.into(),
            ])
            .params([bits(op.epsilon), bits(op.scale)])
            .words(&logits, times(&part, experts));
        let launch = match bias.is_empty() {
            true => launch.words(&bias_or_logits, times(&part, experts)),
            false => launch.whole(&bias_or_logits),
        };
        let launch = launch
            .whole(&work)
            .words(&ids, times(&part, op.top_k))
            .words(&weights, times(&part, op.top_k));
        recorder.dispatch(launch)?;
    }
    Ok(())
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

/// The three products of experts, for choices in turn.
struct Experts<'a> {
    ids: &'a Arc<Memory>,
    slots: u64,
    experts: u64,
    lanes: u32,
}

impl Experts<'_> {
    /// Whether rows of an expert go through it together: if there are enough of them, and whole experts are bound.
    fn is_grouped(&self, choices: u64, windows: &[&[Window]; 3]) -> bool {
        let mut all = windows.iter().flat_map(|windows| windows.iter());
        let are_whole = all.all(|window| {
            let rows = window.rows.end - window.rows.start;
            rows == (window.experts.end - window.experts.start) * window.columns.end
        });
        choices > FEW_ROWS * self.experts && are_whole
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
            .words(self.ids, choices.clone())
            .whole(order)
            .whole(sizes)
    }
}

fn experts(call: &OpCall, recorder: &mut Recorder) -> Result<(), Error> {
    let ([x, ids, weights, gate, up, down], [out]) = (call.inputs(), call.outputs()) else {
        unreachable!("the signature has six inputs and one output");
    };
    let is_rounded = x.values.tensor().dtype == Dtype::Bf16;
    let slots = ids.values.tensor().shape.extents()[1];
    let (ids, weights) = (
        recorder.memory(&ids.values)?,
        recorder.memory(&weights.values)?,
    );
    let x = recorder.floats(x)?;
    let (gate, up, down) = (
        recorder.weight(gate)?,
        recorder.weight(up)?,
        recorder.weight(down)?,
    );
    let (tokens, width) = (x.shape[0], x.last());
    let ([inner, ..], experts) = (gate.sizes(), gate.shape[0]);
    let place = recorder.place(out)?;
    let each = slots * inner.max(width).max(1);
    // Of the last, so that one workgroup can sort them.
    let sorted = recorder.loops() / 2 * u64::from(recorder.lanes()) / 8 / slots.max(1);
    let most = (SCRATCH.min(recorder.binding_bytes() / 4) / each.max(1)).min(sorted);
    let most = most.min(recorder.most(slots * inner * width)).max(1);
    let operands = [
        (&*x.memory, width),
        (&*ids, slots),
        (&*weights, slots),
        (&*place, width),
    ];
    let parts = recorder.parts(tokens, most, &operands)?;
    let longest = parts.iter().map(|part| part.end - part.start).max();
    let choices = longest.unwrap_or_default() * slots;
    let routed = Experts {
        ids: &ids,
        slots,
        experts,
        lanes: recorder.lanes(),
    };
    let gates = recorder.scratch(choices, inner)?;
    let ups = recorder.scratch(choices, inner)?;
    let hidden = recorder.scratch(choices, inner)?;
    let products = recorder.scratch(choices, width)?;
    let hidden_floats = Floats::scratch(&hidden, vec![choices, inner]);
    let windows = [windows(&gate)?, windows(&up)?, windows(&down)?];
    let windows = windows.each_ref().map(Vec::as_slice);
    let is_grouped = routed.is_grouped(choices, &windows);
    let order = recorder.scratch(1, routed.order(choices))?;
    let sizes = recorder.scratch(1, 6)?;
    for part in parts {
        let choices = times(&part, slots);
        let count = choices.end - choices.start;
        let across = [inner, width].map(|columns| columns.div_ceil(TILE_COLUMNS));
        if is_grouped {
            recorder.dispatch(routed.permute(&choices, across, [&order, &sizes]))?;
        }
        let products_of = |product: &Product<'_>, which: usize, windows: &[Window]| {
            let launches = windows
                .iter()
                .flat_map(|window| product.terms().map(move |terms| (window, terms)));
            let launches = launches.map(|(window, terms)| match is_grouped {
                true => product.grouped(
                    window,
                    &terms,
                    &Sorted {
                        order: &order,
                        rows_at: 1 + 3 * routed.tiles(count),
                        sizes: (&sizes, 3 * which as u64),
                        groups: routed.tiles(count) * across[which],
                    },
                    routed.lanes,
                ),
                false => product.gemv(window, &terms, Some(routed.ids)),
            });
            launches.collect::<Vec<_>>()
        };
        let of_tokens = |weight| Product {
            x: &x,
            weight,
            rows: choices.clone(),
            columns: inner,
            k: width,
            batches: 1,
            part: [0, inner],
            slots: routed.slots,
            first: [0, choices.start],
        };
        for launch in products_of(&of_tokens(&gate), 0, windows[0]) {
            recorder.dispatch(launch.whole(&gates))?;
        }
        for launch in products_of(&of_tokens(&up), 0, windows[1]) {
            recorder.dispatch(launch.whole(&ups))?;
        }
        let gated = Launch::elements("gated", &(0..count * inner), 16)
            .params([0, is_rounded.into()])
            .whole(&gates)
            .whole(&ups)
            .whole(&hidden);
        recorder.dispatch(gated)?;
        let of_hidden = Product {
            x: &hidden_floats,
            weight: &down,
            rows: choices.clone(),
            columns: width,
            k: inner,
            batches: 1,
            part: [0, width],
            slots: 1,
            first: [choices.start, choices.start],
        };
        for launch in products_of(&of_hidden, 1, windows[2]) {
            recorder.dispatch(launch.whole(&products))?;
        }
        let weighed = Launch::elements("weighed", &times(&part, width), 2 * slots)
            .loops(slots)
            .params([tokens, width, slots, experts])
            .words(&ids, choices.clone())
            .words(&weights, choices)
            .whole(&products)
            .words(&place, times(&part, width));
        recorder.dispatch(weighed)?;
    }
    recorder.settle(&place, out)
}
