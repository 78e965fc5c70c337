//! The dispatches of choosing the next token.

use std::sync::Arc;

use rialto_backend::{Error, OpCall};
use rialto_program::Op;

use crate::launch::Launch;
use crate::recorder::{Recorder, times};
use crate::storage::Memory;

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
    let is_drawn = matches!(call.op(), Op::Sample(_));
    // Of one that is drawn, the likelihood of each token is read for each digit.
    let work = columns * if is_drawn { 512 } else { 4 };
    let inputs = call.inputs().iter();
    let inputs = inputs.map(|input| recorder.memory(&input.values));
    let inputs: Vec<Arc<Memory>> = inputs.collect::<Result<_, _>>()?;
    let out = recorder.memory(&call.outputs()[0])?;
    // Rows of logits, and one of each of the others.
    let each = |number| if number == 0 { columns } else { 1 };
    let mut operands: Vec<(&Memory, u64)> = vec![(&out, 1)];
    operands.extend(
        (0..)
            .zip(&inputs)
            .map(|(number, input)| (&**input, each(number))),
    );
    let most = recorder.most(work);
    let most = match is_drawn {
        true => most
            .min(recorder.binding_bytes() / (4 * columns).max(1))
            .max(1),
        false => most,
    };
    let parts = recorder.parts(rows, most, &operands)?;
    let longest = parts.iter().map(|part| part.end - part.start).max();
    let likely = match is_drawn {
        true => Some(recorder.scratch(longest.unwrap_or_default(), columns)?),
        false => None,
    };
    let lanes = u64::from(recorder.lanes());
    // A token is drawn in three cuts at most, each of which finds a key's digits and a place's, two at a time; and in two sums.
    let sums = if is_drawn {
        3 * (15 + digits / 2) + 2
    } else {
        0
    };
    let loops = 2 * columns.div_ceil(lanes) + 9 + sums * (columns.div_ceil(4 * lanes) + 10);
    for part in parts {
        let mut launch = Launch::units(shader, &part, work)
            .loops(loops)
            .constant("LANES", recorder.lanes())
            .params([rows, columns, digits]);
        for (number, input) in (0..).zip(&inputs) {
            launch = launch.words(input, times(&part, each(number)));
        }
        if let Some(likely) = &likely {
            launch = launch.whole(likely);
        }
        recorder.dispatch(launch.words(&out, part))?;
    }
    Ok(())
}
