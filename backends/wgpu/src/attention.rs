//! The dispatches of attention over caches.

use rialto_backend::{Error, OpCall};
use rialto_program::Op;

use crate::cache::Pages;
use crate::recording::{Launch, Recorder};

/// Names of the operations of this module.
pub(crate) const OPS: &[&str] = &["rialto.sparse_mla/1", "rialto.gqa/1"];

/// Columns of a result that are a workgroup's.
const COLUMNS: u64 = 512;

/// Records a call of one of them. `None` for another. Errors: what it is given that no shader reads.
pub(crate) fn record(call: &OpCall, recorder: &mut Recorder) -> Option<Result<(), Error>> {
    Some(match call.op() {
        Op::SparseMla(op) => sparse_mla(call, recorder, op.scale),
        Op::Gqa(op) => gqa(call, recorder, op.groups, op.scale),
        _ => return None,
    })
}

fn sparse_mla(call: &OpCall, recorder: &mut Recorder, scale: f64) -> Result<(), Error> {
    let [q, q_rope, indices, cache, row_seq, row_pos, page_table] = call.inputs() else {
        unreachable!("the signature has seven inputs");
    };
    let (q, q_rope) = (recorder.floats(q)?, recorder.floats(q_rope)?);
    let (indices, cache) = (recorder.words(indices)?, recorder.floats(cache)?);
    let pages = Pages::new(&cache, [row_seq, row_pos, page_table], recorder)?;
    let [tokens, heads, latent] = *q.shape.as_slice() else {
        unreachable!("queries have three axes");
    };
    let of_head = latent.div_ceil(COLUMNS);
    let groups = tokens * heads * of_head;
    let launch = Launch::new("sparse_mla", groups)
        .params([heads, latent, q_rope.last(), indices.last()])
        .params(pages.shape)
        .params([(scale as f32).to_bits().into(), of_head, groups])
        .floats("q", &q)
        .floats("q_rope", &q_rope)
        .buffer(&recorder.buffer(&call.inputs()[2].values)?)
        .floats("cache", &cache);
    recorder.leave(pages.bind(launch), &call.outputs()[0])
}

fn gqa(call: &OpCall, recorder: &mut Recorder, groups: u64, scale: f64) -> Result<(), Error> {
    let [q, keys, values, row_seq, row_pos, page_table] = call.inputs() else {
        unreachable!("the signature has six inputs");
    };
    let (keys, values) = (recorder.floats(keys)?, recorder.floats(values)?);
    let q = recorder.floats(q)?;
    let pages = Pages::new(&keys, [row_seq, row_pos, page_table], recorder)?;
    let [tokens, heads, width] = *q.shape.as_slice() else {
        unreachable!("queries have three axes");
    };
    let of_head = width.div_ceil(COLUMNS);
    let workgroups = tokens * heads * of_head;
    let launch = Launch::new("gqa", workgroups)
        .params([heads, width, groups, 0])
        .params(pages.shape)
        .params([(scale as f32).to_bits().into(), of_head, workgroups])
        .floats("q", &q)
        .floats("keys", &keys)
        .floats("values", &values);
    recorder.leave(pages.bind(launch), &call.outputs()[0])
}
