//! The dispatches of what goes over whole rows: norms, softmax, sums and maxima.

use rialto_backend::{Error, OpCall};
use rialto_program::Op;
use rialto_program::op::ReduceFunction;

use crate::launch::{Floats, GROUP, Launch};
use crate::recorder::{Recorder, times};

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
    let eps = (eps as f32).to_bits();
    let sizes = [x.rows(), x.last(), centers.into(), eps.into()];
    of_rows(call, recorder, "norm", (&x, x.rows(), sizes), |launch| {
        launch.all("weight", &weight).all("bias", &bias)
    })
}

fn softmax(call: &OpCall, recorder: &mut Recorder) -> Result<(), Error> {
    let x = recorder.floats(&call.inputs()[0])?;
    let sizes = [x.rows(), x.last(), 0, 0];
    of_rows(call, recorder, "softmax", (&x, x.rows(), sizes), |launch| {
        launch
    })
}

fn reduce(call: &OpCall, recorder: &mut Recorder, function: ReduceFunction) -> Result<(), Error> {
    let x = recorder.floats(&call.inputs()[0])?;
    let out = &call.outputs()[0];
    // Rows of no columns have results, too.
    let rows: u64 = out.tensor().shape.extents().iter().product();
    let function = match function {
        ReduceFunction::Sum => 0,
        ReduceFunction::Mean => 1,
        ReduceFunction::Max => 2,
    };
    let sizes = [rows, x.last(), function, 0];
    of_rows(call, recorder, "reduce", (&x, rows, sizes), |launch| launch)
}

/// A shader with a workgroup for each row of x.
fn of_rows(
    call: &OpCall,
    recorder: &mut Recorder,
    shader: &'static str,
    (x, rows, sizes): (&Floats, u64, [u64; 4]),
    bind: impl Fn(Launch) -> Launch,
) -> Result<(), Error> {
    let (out, columns) = (&call.outputs()[0], x.last());
    let elements: u64 = out.tensor().shape.extents().iter().product();
    let of_out = elements.checked_div(rows).unwrap_or_default();
    let work = 8 * columns;
    let most = recorder.most(work);
    recorder.leave(out, (rows, of_out), most, &[(&x.memory, columns)], |part| {
        let launch = Launch::units(shader, part, work)
            .loops(3 * columns.div_ceil(GROUP) + 12)
            .params(sizes);
        bind(launch.floats("x", x, times(part, columns)))
    })
}
