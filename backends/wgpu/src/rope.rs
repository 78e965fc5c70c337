//! The dispatch of rotary position embedding.

use std::f64::consts::FRAC_1_PI;

use rialto_backend::{Error, OpCall};
use rialto_program::Op;
use rialto_program::op::{Pairing, Rope};

use crate::launch::Launch;
use crate::recorder::{Recorder, times};

/// Names of the operations of this module.
pub(crate) const OPS: &[&str] = &["rialto.rope/1"];

/// Work of an element, in multiplications.
const WORK: u64 = 64;

/// Records a call of it. `None` for another. Errors: what it is given that no shader reads.
pub(crate) fn record(call: &OpCall, recorder: &mut Recorder) -> Option<Result<(), Error>> {
    match call.op() {
        Op::Rope(op) => Some(rope(call, recorder, op)),
        _ => None,
    }
}

fn rope(call: &OpCall, recorder: &mut Recorder, op: &Rope) -> Result<(), Error> {
    let x = recorder.floats(&call.inputs()[0])?;
    let positions = recorder.memory(&call.inputs()[1].values)?;
    let pairs = op.dims / 2;
    let frequencies: Vec<u32> = (0..pairs)
        .map(|pair| turns(op.theta.powf(-2.0 * pair as f64 / op.dims as f64)))
        .flat_map(|turns| [(turns >> 32) as u32, turns as u32])
        .collect();
    let frequencies = recorder.table(&frequencies)?;
    let of_token: u64 = x.shape[1..].iter().product();
    let are_neighbours = op.pairing == Pairing::Interleaved;
    let tokens = x.shape.first().copied().unwrap_or_default();
    let sizes = [x.elements(), of_token, x.last(), are_neighbours.into()];
    let most = recorder.most(WORK * of_token);
    let operands = [(&*x.memory, of_token), (&*positions, 1)];
    let out = &call.outputs()[0];
    recorder.leave(out, (tokens, of_token), most, &operands, |part| {
        let elements = times(part, of_token);
        Launch::elements("rope", &elements, WORK)
            .params(sizes)
            .params([op.first, pairs])
            .floats("x", &x, elements)
            .words(&positions, part.clone())
            .whole(&frequencies)
    })
}

/// An angle in turns, of which whole ones fall out, in 64 digits behind the point.
fn turns(radians: f64) -> u64 {
    /// `1 / (2 pi)` less the nearest F64.
    const REST: f64 = -9.839_338_337_591_243e-18;
    const NEAREST: f64 = FRAC_1_PI / 2.0;
    const ONE: f64 = 18_446_744_073_709_551_616.0;

    let turns = radians * NEAREST;
    // What the product lost.
    let lost = radians.mul_add(NEAREST, -turns) + radians * REST;
    ((turns.fract() * ONE) as u64).wrapping_add_signed((lost * ONE).round() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_exact_to_the_last_place_of_64_digits() {
        // 2^64 / (2 pi) is 2935890503282001226.496.
        assert_eq!(turns(1.0), 2_935_890_503_282_001_226);
        assert_eq!(turns(0.0), 0);
        assert_eq!(turns(0.5), 1_467_945_251_641_000_613);
    }
}
