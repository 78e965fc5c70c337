//! The smallest application that brings a model across: `host-minimal HUGGING_FACE_DIRECTORY TARGET_DIRECTORY`. Without a
//! target it takes the tensors into memory one after the other, as an application does that puts them to use at once.
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
use rialto_bridge::Bridge;
use rialto_checkpoint::store::{LocalStore, LocalTarget, Overwrite, refuse_overlap};
use rialto_engine::{ImportPlan, Names, Options, Progress, RunOptions, source_config};
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
    let target = arguments.next();
    let store = Arc::new(LocalStore::open(&source)?);
    if let Some(target) = &target {
        refuse_overlap(source.as_ref(), target.as_ref())?;
    }

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

    let progress = Percent {
        total: to.bytes,
        done: AtomicU64::new(0),
    };
    let Some(target) = target else {
        return list(Arc::new(plan), family, progress);
    };
    let target = Box::new(LocalTarget::create(target, Overwrite::Refuse)?);
    plan.run(family.as_ref(), target, &RunOptions::default(), &progress)?;
    Ok(())
}

/// What is taken into memory at a time.
const PART_BYTES: u64 = 64 << 20;

/// Goes through the params under the names that Megatron gives them. A part is the caller's: it could go to a device here.
fn list(plan: Arc<ImportPlan>, family: Arc<dyn Bridge>, progress: Percent) -> anyhow::Result<()> {
    for part in plan.stream(family, Names::Target, PART_BYTES, Arc::new(progress)) {
        let part = part?;
        let (name, dtype, bytes) = (&part.name, part.dtype, part.bytes.len());
        println!("{name} {dtype} {}: {bytes} bytes", part.shape);
    }
    Ok(())
}

/// Tells the user about every tenth part; the engine calls it as it works, from several threads.
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

    /// Asked between two pieces of work: an application with a button for it says so here.
    fn is_cancelled(&self) -> bool {
        std::env::var_os("HOST_MINIMAL_STOP_AT").is_some_and(|bytes| {
            let bytes = bytes.to_str().and_then(|bytes| bytes.parse().ok());
            bytes.is_some_and(|bytes: u64| self.done.load(Ordering::Relaxed) >= bytes)
        })
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
