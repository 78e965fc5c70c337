//! The dispatches that choose experts.

use rialto_backend::{Error, OpCall};
use rialto_program::Op;
use rialto_program::op::{Router, Scoring};

use crate::launch::{GROUP, Launch};
use crate::recorder::{Recorder, times};

/// Names of the operations of this module.
pub(crate) const OPS: &[&str] = &["rialto.router/1"];

/// Records a call of it. `None` for another. Errors: what it is given that no shader reads.
pub(crate) fn record(call: &OpCall, recorder: &mut Recorder) -> Option<Result<(), Error>> {
    match call.op() {
        Op::Router(op) => Some(router(call, recorder, op)),
        _ => None,
    }
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
