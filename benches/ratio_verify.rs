//! How many times as long a comparison takes as reading the same bytes, and as the `safetensors` crate.
//!
//! One line per ratio for people on stderr, one JSON document per ratio on stdout.

// Of what converts this bench takes two.
#[allow(
    dead_code,
    reason = "one file serves several benches, each with a part of it"
)]
mod contenders;
mod readers;
mod synthetic;

use std::io::{Write, stderr, stdout};
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use rialto_benches::{Contender, MIN_ROUNDS, Ratio};

use crate::contenders::{Arena, export};
use crate::readers::{compare, read, verify};
use crate::synthetic::Size;

fn main() -> Result<()> {
    let size = Size::from_arguments();
    let arena = Arena::set_up(size)?;
    let rounds = match size {
        Size::Full => 9,
        Size::Smoke => MIN_ROUNDS,
    };
    let (hugging_face, megatron) = (arena.hugging_face(), arena.megatron());
    let exported = megatron.with_file_name("exported");
    export(&megatron, &exported)?;
    let time = |contender: fn(&Path, &Path) -> Result<()>, other: &Path| {
        let begin = Instant::now();
        contender(&hugging_face, other).expect("a contender that fails has no time");
        begin.elapsed()
    };
    type Contest = (&'static str, fn(&Path, &Path) -> Result<()>);
    let across: Contest = ("verify hugging face, megatron", verify);
    let within: Contest = ("verify hugging face, hugging face", verify);
    let pairs: [(Contest, Contest, &Path); 3] = [
        (across, ("read", read), &megatron),
        (within, ("read", read), &exported),
        (within, ("compare", compare), &exported),
    ];
    writeln!(stderr(), "{} bytes of tensors on each side", arena.bytes)?;
    for ((ours, contender), (other, rival), directory) in pairs {
        let mut a = || time(contender, directory);
        let mut b = || time(rival, directory);
        let ratio = Ratio::measure(
            Contender::new(ours, &mut a),
            Contender::new(other, &mut b),
            rounds,
        );
        writeln!(stderr(), "{ratio}")?;
        writeln!(stdout(), "{}", ratio.to_json())?;
    }
    Ok(())
}
