//! How many times as long dequantization takes as a copy of as many bytes, and as a plain loop over expanded scales.
//!
//! One line per ratio for people on stderr, one JSON document per ratio on stdout.

mod matrix;

use std::cell::RefCell;
use std::io::{Result, Write, stderr, stdout};
use std::time::{Duration, Instant};

use rialto_benches::{Contender, Ratio};

use crate::matrix::{Arena, copy, ours, rival};

const ROUNDS: usize = 15;

fn main() -> Result<()> {
    let arena = RefCell::new(Arena::set_up());
    let time = |contender: matrix::Contender| -> Duration {
        let mut arena = arena.borrow_mut();
        let begin = Instant::now();
        contender(&mut arena);
        begin.elapsed()
    };
    writeln!(stderr(), "{} bytes moved", arena.borrow().bytes_moved())?;
    let others: [(&str, matrix::Contender); 2] = [("copy", copy), ("plain", rival)];
    for (name, other) in others {
        let (mut a, mut b) = (|| time(ours), || time(other));
        let ratio = Ratio::measure(
            Contender::new("dequantize", &mut a),
            Contender::new(name, &mut b),
            ROUNDS,
        );
        writeln!(stderr(), "{ratio}")?;
        writeln!(stdout(), "{}", ratio.to_json())?;
    }
    Ok(())
}
