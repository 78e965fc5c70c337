//! How many times as long import and export take as a copy of the same bytes, and as the `safetensors` crate.
//!
//! One line per ratio for people on stderr, one JSON document per ratio on stdout.

mod contenders;
mod synthetic;

use std::io::{Write, stderr, stdout};

use anyhow::Result;
use rialto_benches::{Contender, MIN_ROUNDS, Ratio};

use crate::contenders::{Arena, copy, export, import, rewrite};
use crate::synthetic::Size;

fn main() -> Result<()> {
    let size = Size::from_arguments();
    let arena = Arena::set_up(size)?;
    let rounds = match size {
        Size::Full => 9,
        Size::Smoke => MIN_ROUNDS,
    };
    let (hugging_face, megatron) = (arena.hugging_face(), arena.megatron());
    let mut import_it = || arena.time(import, &hugging_face);
    let mut export_it = || arena.time(export, &megatron);
    let mut copy_shards = || arena.time(copy, &hugging_face);
    let mut copy_run = || arena.time(copy, &megatron);
    let mut rewrite_shards = || arena.time(rewrite, &hugging_face);

    let ours = |name, work| Contender::new(name, work);
    report(&Ratio::measure(
        ours("import", &mut import_it),
        Contender::new("copy", &mut copy_shards),
        rounds,
    ))?;
    report(&Ratio::measure(
        ours("import", &mut import_it),
        Contender::new("rewrite", &mut rewrite_shards),
        rounds,
    ))?;
    report(&Ratio::measure(
        ours("export", &mut export_it),
        Contender::new("copy", &mut copy_run),
        rounds,
    ))?;
    report(&Ratio::measure(
        ours("export", &mut export_it),
        Contender::new("rewrite", &mut rewrite_shards),
        rounds,
    ))
}

fn report(ratio: &Ratio) -> Result<()> {
    writeln!(stderr(), "{ratio}")?;
    Ok(writeln!(stdout(), "{}", ratio.to_json())?)
}
