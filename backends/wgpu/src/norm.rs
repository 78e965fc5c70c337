//! The dispatches of what goes over whole rows: norms, softmax, sums and maxima.

use rialto_backend::{Error, OpCall};
use rialto_program::Op;
use rialto_program::op::ReduceFunction;

use crate::recording::{Launch, Recorder};

/// Names of the operations of this module.
pub(crate) const OPS: &[&str] = &[
    "rialto.rms_norm/1",
    "rialto.layer_norm/1",
    "rialto.softmax/1",
    "rialto.reduce/1",
];

/// Records a call of one of them. `None` for another. Errors: what it is given that no shader reads.
pub(crate) fn record(call: &OpCall, recorder: &mut Recorder) -> Option<Result<(), Error>> {
    Some(match call.op() {
        Op::RmsNorm(op) => norm(call, recorder, op.eps),
        Op::LayerNorm(op) => norm(call, recorder, op.eps),
        Op::Softmax(_) => softmax(call, recorder),
        Op::Reduce(op) => reduce(call, recorder, op.function),
        _ => return None,
    })
}

/// A layer norm has a bias, the other has none.
fn norm(call: &OpCall, recorder: &mut Recorder, eps: f64) -> Result<(), Error> {
    let x = recorder.floats(&call.inputs()[0])?;
    let weight = recorder.floats(&call.inputs()[1])?;
    let bias = call.inputs().get(2);
    let centers = bias.is_some();
    let bias = match bias {
        Some(bias) => recorder.floats(bias)?,
        // Bound, and not read.
        None => weight.clone(),
    };
    let columns = x.last();
    let rows = x.elements().checked_div(columns).unwrap_or_default();
    let eps = (eps as f32).to_bits();
    let launch = Launch::new("norm", rows)
        .params([rows, columns, centers.into(), eps.into()])
        .floats("x", &x)
        .floats("weight", &weight)
        .floats("bias", &bias);
    recorder.leave(launch, &call.outputs()[0])
}

fn softmax(call: &OpCall, recorder: &mut Recorder) -> Result<(), Error> {
    let x = recorder.floats(&call.inputs()[0])?;
    let columns = x.last();
    let rows = x.elements().checked_div(columns).unwrap_or_default();
    let launch = Launch::new("softmax", rows)
        .params([rows, columns])
        .floats("x", &x);
    recorder.leave(launch, &call.outputs()[0])
}

fn reduce(call: &OpCall, recorder: &mut Recorder, function: ReduceFunction) -> Result<(), Error> {
    let x = recorder.floats(&call.inputs()[0])?;
    let out = &call.outputs()[0];
    // Rows of no columns have results, too.
    let rows = out.tensor().shape.extents().iter().product();
    let function = match function {
        ReduceFunction::Sum => 0,
        ReduceFunction::Mean => 1,
        ReduceFunction::Max => 2,
    };
    let launch = Launch::new("reduce", rows)
        .params([rows, x.last(), function])
        .floats("x", &x);
    recorder.leave(launch, out)
}
