//! The dispatches of choosing the next token.

use rialto_backend::{Error, OpCall};
use rialto_program::Op;

use crate::recording::{Launch, Recorder};

/// Names of the operations of this module.
pub(crate) const OPS: &[&str] = &["rialto.argmax/1", "rialto.sample/1"];

/// Records a call of one of them. `None` for another. Errors: what it is given that no shader reads.
pub(crate) fn record(call: &OpCall, recorder: &mut Recorder) -> Option<Result<(), Error>> {
    Some(match call.op() {
        Op::Argmax(_) => choose(call, recorder, "argmax"),
        Op::Sample(_) => choose(call, recorder, "sample"),
        _ => return None,
    })
}

fn choose(call: &OpCall, recorder: &mut Recorder, shader: &'static str) -> Result<(), Error> {
    let &[rows, columns] = call.inputs()[0].values.tensor().shape.extents() else {
        unreachable!("logits have two axes");
    };
    // Of the last place, and an even number of them: two are found at a time.
    let digits = u64::from(u64::BITS - columns.saturating_sub(1).leading_zeros());
    let digits = digits.next_multiple_of(2);
    let mut launch = Launch::new(shader, rows).params([rows, columns, digits]);
    for input in call.inputs() {
        launch = launch.buffer(&recorder.buffer(&input.values)?);
    }
    if matches!(call.op(), Op::Sample(_)) {
        launch = launch.buffer(&recorder.scratch(rows * columns)?);
    }
    recorder.leave(launch, &call.outputs()[0])
}
