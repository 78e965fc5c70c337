//! How many times as long dequantization takes as a copy of as many bytes, in every tier of this processor; how much of its time
//! is left on two cores; and how it stands to a plain loop over expanded scales.
//!
//! One line per ratio for people on stderr, one JSON document per ratio on stdout.

mod matrix;

use std::cell::RefCell;
use std::io::{Result, Write, stderr, stdout};
use std::time::{Duration, Instant};

use rialto_benches::{Contender, Ratio};
use rialto_tensor::simd::Tier;

use crate::matrix::{Arena, copy, ours, rival};

const ROUNDS: usize = 21;

fn main() -> Result<()> {
    let arena = RefCell::new(Arena::set_up());
    let time = |contender: &matrix::Contender| -> Duration {
        let mut arena = arena.borrow_mut();
        let begin = Instant::now();
        contender(&mut arena);
        begin.elapsed()
    };
    writeln!(stderr(), "{} bytes moved", arena.borrow().bytes_moved())?;
    let compare = |a: (&str, matrix::Contender), b: (&str, matrix::Contender)| -> Result<()> {
        let (mut first, mut second) = (|| time(&a.1), || time(&b.1));
        let ratio = Ratio::measure(
            Contender::new(a.0, &mut first),
            Contender::new(b.0, &mut second),
            ROUNDS,
        );
        writeln!(stderr(), "{ratio}")?;
        writeln!(stdout(), "{}", ratio.to_json())
    };
    compare(("copy on two cores", copy(2)), ("copy", copy(1)))?;
    let mut best = Tier::Scalar;
    for tier in Tier::available() {
        let one = format!("dequantize {tier}");
        let two = format!("{one} on two cores");
        compare((&one, ours(tier, 1)), ("copy", copy(1)))?;
        compare((&two, ours(tier, 2)), (&one, ours(tier, 1)))?;
        best = tier;
    }
    let one = format!("dequantize {best}");
    compare((&one, ours(best, 1)), ("plain", Box::new(rival)))
}
