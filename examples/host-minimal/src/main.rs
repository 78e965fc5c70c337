//! The smallest application that brings a model across: `host-minimal HUGGING_FACE_DIRECTORY TARGET_DIRECTORY`.
//!
//! It knows no model. A plugin does, and is found where `RIALTO_PLUGIN_PATH` says, beside this executable, or in the user's
//! data directory.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "talks to its user"
)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use rialto_checkpoint::store::{LocalStore, LocalTarget, Overwrite, refuse_overlap};
use rialto_engine::{ImportPlan, Options, Progress, source_config};
use rialto_host::{Registry, SearchPath};

fn main() -> ExitCode {
    let Err(error) = convert() else {
        return ExitCode::SUCCESS;
    };
    eprintln!("error: {error}");
    // The message says what is wrong; the slug is for programs and never changes, the help is what to do about it.
    if let Some((slug, help)) = advice(&error) {
        eprintln!("kind: {slug}");
        help.inspect(|help| eprintln!("help: {help}"));
    }
    ExitCode::FAILURE
}

fn convert() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let source = arguments
        .next()
        .context("no Hugging Face directory given")?;
    let target = arguments.next().context("no target directory given")?;
    let store = Arc::new(LocalStore::open(&source)?);
    refuse_overlap(source.as_ref(), target.as_ref())?;

    let registry = Registry::search(&SearchPath::from_environment())?;
    let claimed = registry.claim(&source_config(store.as_ref())?)?;
    println!(
        "{} by plugin {}",
        claimed.release,
        claimed.plugin.description().name
    );

    let family = claimed.plugin.bridge();
    let plan = ImportPlan::new(family.as_ref(), store, &Options::default())?;
    let (from, to) = (&plan.summary().source, &plan.summary().target);
    println!(
        "{} tensors become {} params and {} objects",
        from.tensors, to.tensors, to.objects
    );

    let (total, done) = (to.bytes, AtomicU64::new(0));
    let target = LocalTarget::create(target, Overwrite::Refuse)?;
    Ok(plan.run(family.as_ref(), Box::new(target), &Percent { total, done })?)
}

/// Tells the user about every tenth part; the engine calls it as it writes.
struct Percent {
    total: u64,
    done: AtomicU64,
}

impl Progress for Percent {
    fn advance(&self, bytes: u64) {
        let before = self.done.fetch_add(bytes, Ordering::Relaxed);
        let tenths = |done| 10 * done / self.total;
        if tenths(before + bytes) > tenths(before) {
            println!("{} % of {} bytes", 10 * tenths(before + bytes), self.total);
        }
    }
}

/// Slug and help: each crate of the SDK has one error type, and all have both.
fn advice(error: &anyhow::Error) -> Option<(&str, Option<String>)> {
    if let Some(error) = error.downcast_ref::<rialto_host::Error>() {
        return Some((error.slug(), error.help()));
    }
    if let Some(error) = error.downcast_ref::<rialto_engine::Error>() {
        return Some((error.slug(), error.help()));
    }
    let error = error.downcast_ref::<rialto_checkpoint::Error>()?;
    Some((error.slug(), error.help()))
}
