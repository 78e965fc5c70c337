//! How many times as long import and export take as a copy of the same bytes, and as the `safetensors` crate.
//!
//! One line per ratio for people on stderr, one JSON document per ratio on stdout.

mod contenders;
mod synthetic;

use std::io::{Write, stderr, stdout};
use std::path::Path;

use anyhow::Result;
use rialto_benches::{Contender, MIN_ROUNDS, Ratio};

use crate::contenders::{Arena, copy, export, import, rewrite};
use crate::synthetic::Size;

type Side<'a> = (&'a str, fn(&Path, &Path) -> Result<()>, &'a Path);

fn main() -> Result<()> {
    let size = Size::from_arguments();
    let arena = Arena::set_up(size)?;
    let rounds = match size {
        Size::Full => 9,
        Size::Smoke => MIN_ROUNDS,
    };
    let (hugging_face, megatron) = (arena.hugging_face(), arena.megatron());
    let rival: Side<'_> = ("rewrite", rewrite, &hugging_face);
    let pairs: [(Side<'_>, Side<'_>); 4] = [
        (
            ("import", import, &hugging_face),
            ("copy", copy, &hugging_face),
        ),
        (("import", import, &hugging_face), rival),
        (("export", export, &megatron), ("copy", copy, &megatron)),
        (("export", export, &megatron), rival),
    ];
    writeln!(stderr(), "{} bytes of tensors", arena.bytes)?;
    for ((ours, convert, from), (other, contender, source)) in pairs {
        let mut a = || arena.time(convert, from);
        let mut b = || arena.time(contender, source);
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
