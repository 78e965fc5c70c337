//! The dispatches of plain operations: functions of elements, and rows put together anew.

use std::ops::Range;

use rialto_backend::{Error, OpCall};
use rialto_program::Op;
use rialto_program::op::{BinaryFunction, Slice, UnaryFunction};

use crate::launch::{Floats, Launch};
use crate::recorder::{Recorder, times};

/// Names of the operations of this module.
pub(crate) const OPS: &[&str] = &[
    "rialto.embed/1",
    "rialto.swiglu/1",
    "rialto.unary/1",
    "rialto.binary/1",
    "rialto.scale/1",
    "rialto.gather/1",
    "rialto.concat/1",
    "rialto.slice/1",
    "rialto.reshape/1",
    "rialto.cast/1",
];

/// Work of an element, in multiplications.
const WORK: u64 = 8;

/// Records a call of one of them. `None` for another. Errors: what it is given that no shader reads.
pub(crate) fn record(call: &OpCall, recorder: &mut Recorder) -> Option<Result<(), Error>> {
    Some(match call.op() {
        Op::Unary(op) => {
            let function = match op.function {
                UnaryFunction::Silu => 1,
                UnaryFunction::Sigmoid => 2,
                UnaryFunction::Relu => 3,
                UnaryFunction::Tanh => 4,
                UnaryFunction::Exp => 5,
            };
            elementwise(call, recorder, function, 0.0)
        }
        Op::Binary(op) => {
            let function = match op.function {
                BinaryFunction::Add => 6,
                BinaryFunction::Subtract => 7,
                BinaryFunction::Multiply => 8,
                BinaryFunction::Divide => 9,
            };
            elementwise(call, recorder, function, 0.0)
        }
        Op::Scale(op) => elementwise(call, recorder, 10, op.factor as f32),
        Op::SwiGlu(_) => elementwise(call, recorder, 11, 0.0),
        Op::Reshape(_) | Op::Cast(_) => elementwise(call, recorder, 0, 0.0),
        Op::Concat(_) => concat(call, recorder),
        Op::Slice(op) => slice(call, recorder, op),
        Op::Embed(_) => looked_up(call, recorder, 1, 0),
        Op::Gather(_) => looked_up(call, recorder, 0, 1),
        _ => return None,
    })
}

fn concat(call: &OpCall, recorder: &mut Recorder) -> Result<(), Error> {
    let [x, y] = call.inputs() else {
        unreachable!("the signature has two inputs");
    };
    let (x, y) = (recorder.floats(x)?, recorder.floats(y)?);
    let part = Rows {
        of_x: x.last(),
        start: 0,
        looked_up: None,
    };
    rows(call, recorder, part, &x, &y)
}

fn slice(call: &OpCall, recorder: &mut Recorder, op: &Slice) -> Result<(), Error> {
    let x = recorder.floats(&call.inputs()[0])?;
    let part = Rows {
        of_x: op.length,
        start: op.start,
        looked_up: None,
    };
    rows(call, recorder, part, &x, &x)
}

fn elementwise(
    call: &OpCall,
    recorder: &mut Recorder,
    function: u64,
    factor: f32,
) -> Result<(), Error> {
    let x = recorder.floats(&call.inputs()[0])?;
    let y = match call.inputs().get(1) {
        Some(y) => recorder.floats(y)?,
        None => x.clone(),
    };
    let elements = x.elements();
    // What is repeated is bound whole.
    let of_y = u64::from(y.elements() == elements);
    let (memory_x, memory_y) = (&*x.memory, &*y.memory);
    let operands = [(memory_x, 1), (memory_y, of_y)];
    let (out, most) = (&call.outputs()[0], recorder.most(WORK));
    recorder.leave(out, (elements, 1), most, &operands, |part| {
        let launch = Launch::elements("elementwise", part, WORK)
            .params([elements, y.elements().max(1), function, 0])
            .params([factor.to_bits().into()])
            .floats("x", &x, part.clone());
        match of_y {
            0 => launch.all("y", &y),
            _ => launch.floats("y", &y, part.clone()),
        }
    })
}

/// Which elements of x make rows.
struct Rows {
    /// Columns that are x's.
    of_x: u64,
    /// The first of them in a row of x.
    start: u64,
    /// The input that says which row of x each is.
    looked_up: Option<usize>,
}

/// Rows of one input by the numbers of another.
fn looked_up(
    call: &OpCall,
    recorder: &mut Recorder,
    x: usize,
    indices: usize,
) -> Result<(), Error> {
    let mut x = recorder.words(&call.inputs()[x])?;
    let of_x: u64 = x.shape[1..].iter().product();
    x.shape = vec![x.shape[0], of_x];
    let part = Rows {
        of_x,
        start: 0,
        looked_up: Some(indices),
    };
    rows(call, recorder, part, &x, &x)
}

fn rows(
    call: &OpCall,
    recorder: &mut Recorder,
    part: Rows,
    x: &Floats,
    y: &Floats,
) -> Result<(), Error> {
    let out = &call.outputs()[0];
    let elements: u64 = out.tensor().shape.extents().iter().product();
    let columns = match part.looked_up {
        Some(_) => part.of_x,
        None => out.tensor().shape.extents().last().copied().unwrap_or(1),
    };
    let count = elements.checked_div(columns).unwrap_or_default();
    let of_x = x.shape.first().copied().unwrap_or_default();
    let launch = |rows: &Range<u64>, table: &Range<u64>| {
        let rows = times(rows, columns);
        Launch::elements("rows", &rows, WORK)
            .across(table)
            .params([count, columns, x.last(), part.of_x, part.start, of_x])
            .params([part.looked_up.is_some().into()])
    };
    let place = recorder.place(out)?;
    let most = recorder.most(columns * WORK);
    match part.looked_up {
        None => {
            let (of_x, of_y) = (x.last(), columns - part.of_x);
            let operands = [(&*x.memory, of_x), (&*y.memory, of_y), (&*place, columns)];
            for rows in recorder.parts(count, most, &operands)? {
                let launch = launch(&rows, &(0..0))
                    .floats("x", x, times(&rows, of_x))
                    .floats("y", y, times(&rows, of_y))
                    // Bound, and not read.
                    .words(&x.memory, times(&rows, of_x));
                recorder.dispatch(launch.words(&place, times(&rows, columns)))?;
            }
        }
        Some(input) => {
            let indices = recorder.memory(&call.inputs()[input].values)?;
            let operands = [(&*indices, 1), (&*place, columns)];
            let tables = recorder.windows(of_x, &[(&*x.memory, x.last())])?;
            for rows in recorder.parts(count, most, &operands)? {
                for table in &tables {
                    let launch = launch(&rows, table)
                        .floats("x", x, times(table, x.last()))
                        .floats("y", x, times(table, x.last()))
                        .words(&indices, rows.clone());
                    recorder.dispatch(launch.words(&place, times(&rows, columns)))?;
                }
            }
        }
    }
    recorder.settle(&place, out)
}
