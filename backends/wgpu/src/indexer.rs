//! The dispatches that choose which positions sparse attention reads.

use rialto_backend::{Error, OpCall};
use rialto_program::Op;
use rialto_program::op::IndexerScores;

use crate::cache::Pages;
use crate::recording::{GROUP, Launch, Recorder};

/// Names of the operations of this module.
pub(crate) const OPS: &[&str] = &["rialto.indexer_scores/1", "rialto.topk/1"];

/// Records a call of one of them. `None` for another. Errors: what it is given that no shader reads.
pub(crate) fn record(call: &OpCall, recorder: &mut Recorder) -> Option<Result<(), Error>> {
    Some(match call.op() {
        Op::IndexerScores(op) => indexer_scores(call, recorder, op),
        Op::TopK(op) => topk(call, recorder, op.k),
        _ => return None,
    })
}

fn indexer_scores(call: &OpCall, recorder: &mut Recorder, op: &IndexerScores) -> Result<(), Error> {
    let [q, weights, keys, row_seq, row_pos, page_table] = call.inputs() else {
        unreachable!("the signature has six inputs");
    };
    let (q, keys) = (recorder.floats(q)?, recorder.floats(keys)?);
    let pages = Pages::new(&keys, [row_seq, row_pos, page_table], recorder)?;
    let [tokens, heads, width] = *q.shape.as_slice() else {
        unreachable!("queries have three axes");
    };
    let out = &call.outputs()[0];
    let context = out.tensor().shape.extents().last().copied().unwrap_or(1);
    let of_token = context.div_ceil(GROUP);
    let groups = tokens * of_token;
    let launch = Launch::new("indexer_scores", groups)
        .params([heads, width, context, of_token])
        .params(pages.shape)
        .params([op.scale, op.head_scale].map(|factor| (factor as f32).to_bits().into()))
        .params([groups])
        .floats("q", &q)
        .buffer(&recorder.buffer(&weights.values)?)
        .floats("keys", &keys);
    recorder.leave(pages.bind(launch), out)
}

fn topk(call: &OpCall, recorder: &mut Recorder, k: u64) -> Result<(), Error> {
    let scores = recorder.floats(&call.inputs()[0])?;
    let rows = scores.shape.first().copied().unwrap_or_default();
    let launch = Launch::new("topk", rows)
        .params([rows, scores.last(), k])
        .buffer(&recorder.buffer(&call.inputs()[0].values)?)
        .buffer(&recorder.buffer(&call.outputs()[0])?);
    recorder.dispatch(launch)
}
