//! The dispatches of a mixture of experts.

use rialto_backend::{Error, OpCall};
use rialto_program::Op;
use rialto_program::op::{Router, Scoring};
use rialto_tensor::Dtype;

use crate::linear::{Product, Routed};
use crate::recording::{Floats, GROUP, Launch, Recorder, Weight};

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
    let bias_or_logits = bias.first().unwrap_or(logits);
    let work = recorder.scratch(tokens * (3 * experts + op.groups))?;
    let launch = Launch::new("router", tokens)
        .params([tokens, experts, op.top_k, op.groups])
        .params([
            op.top_groups,
            (op.scoring == Scoring::Softmax).into(),
            (!bias.is_empty()).into(),
            op.normalize.into(),
        ])
        .params([bits(op.epsilon), bits(op.scale)])
        .buffer(&recorder.buffer(&logits.values)?)
        .buffer(&recorder.buffer(&bias_or_logits.values)?)
        .buffer(&work)
        .buffer(&recorder.buffer(ids)?)
        .buffer(&recorder.buffer(weights)?);
    recorder.dispatch(launch)
}

fn experts(call: &OpCall, recorder: &mut Recorder) -> Result<(), Error> {
    let ([x, ids, weights, gate, up, down], [out]) = (call.inputs(), call.outputs()) else {
        unreachable!("the signature has six inputs and one output");
    };
    let is_rounded = x.values.tensor().dtype == Dtype::Bf16;
    let slots = ids.values.tensor().shape.extents()[1];
    let [ids, weights] = [
        recorder.buffer(&ids.values)?,
        recorder.buffer(&weights.values)?,
    ];
    let x = recorder.floats(x)?;
    let (gate, up, down) = (
        recorder.weight(gate)?,
        recorder.weight(up)?,
        recorder.weight(down)?,
    );
    let (tokens, width) = (x.shape[0], x.last());
    let ([inner, ..], experts) = (gate.sizes(), gate.shape[0]);
    let each = (slots * inner.max(width)).max(1);
    let most = (SCRATCH / each).clamp(1, tokens.max(1));
    let between = |elements| recorder.scratch(most * slots * elements);
    let (gates, ups, hidden, products) = (
        between(inner)?,
        between(inner)?,
        between(inner)?,
        between(width)?,
    );
    let hidden_floats = Floats::scratch(&hidden, vec![most * slots, inner]);
    let place = recorder.place(out)?;
    for first in (0..tokens).step_by(most as usize) {
        let count = most.min(tokens - first);
        let rows = count * slots;
        let product = |x: &Floats,
                       weight: &Weight,
                       [columns, k]: [u64; 2],
                       [first_x, slots_of_x]: [u64; 2]| {
            let product = Product {
                x,
                weight,
                rows,
                columns,
                k,
                batches: 1,
                part: [0, columns],
            };
            product.gemv(Some(&Routed {
                ids: &ids,
                first_id: first * slots,
                experts,
                first_x,
                slots: slots_of_x,
            }))
        };
        let of_tokens =
            |weight: &Weight| product(&x, weight, [inner, width], [first * width, slots]);
        recorder.dispatch(of_tokens(&gate).buffer(&gates))?;
        recorder.dispatch(of_tokens(&up).buffer(&ups))?;
        let elements = rows * inner;
        let gated = Launch::new("gated", elements.div_ceil(GROUP))
            .params([elements, is_rounded.into()])
            .buffer(&gates)
            .buffer(&ups)
            .buffer(&hidden);
        recorder.dispatch(gated)?;
        let of_hidden = product(&hidden_floats, &down, [width, inner], [0, 1]);
        recorder.dispatch(of_hidden.buffer(&products))?;
        let weighed = Launch::new("weighed", (count * width).div_ceil(GROUP))
            .params([count, width, slots, experts])
            .params([first])
            .buffer(&ids)
            .buffer(&weights)
            .buffer(&products)
            .buffer(&place);
        recorder.dispatch(weighed)?;
    }
    recorder.settle(&place, out)
}
