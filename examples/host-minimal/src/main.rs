//! The smallest application that brings a model across: `host-minimal HUGGING_FACE_DIRECTORY TARGET_DIRECTORY`.
//!
//! It knows no model. A plugin does, and is found where `RIALTO_PLUGIN_PATH` says, beside this executable, or in the user's
//! data directory.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an application talks to its user"
)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rialto_checkpoint::store::{LocalStore, LocalTarget, Overwrite, refuse_overlap};
use rialto_engine::{ImportPlan, Options, Progress, source_config};
use rialto_host::{Registry, SearchPath};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, target] = arguments.as_slice() else {
        eprintln!("usage: host-minimal HUGGING_FACE_DIRECTORY TARGET_DIRECTORY");
        return ExitCode::from(2);
    };
    let Err(error) = convert(source, target) else {
        return ExitCode::SUCCESS;
    };
    eprintln!("error: {error}");
    // The message says what is wrong; the slug is for programs and never changes, the help is what to do about it.
    if let Some((slug, help)) = advice(&error) {
        eprintln!("kind: {slug}");
        help.into_iter().for_each(|help| eprintln!("help: {help}"));
    }
    ExitCode::FAILURE
}

fn convert(source: &str, target: &str) -> anyhow::Result<()> {
    let store = Arc::new(LocalStore::open(source)?);
    refuse_overlap(source.as_ref(), target.as_ref())?;
    let registry = Registry::search(&SearchPath::from_environment())?;
    let claimed = registry.claim(&source_config(store.as_ref())?)?;
    println!(
        "{}, by plugin {}",
        claimed.release,
        claimed.plugin.description().name
    );

    let family = claimed.plugin.bridge();
    let plan = ImportPlan::new(family.as_ref(), store, &Options::default())?;
    let (read, written) = (&plan.summary().source, &plan.summary().target);
    println!(
        "{} tensors become {} params and {} objects",
        read.tensors, written.tensors, written.objects
    );

    let target = LocalTarget::create(target, Overwrite::Refuse)?;
    plan.run(family.as_ref(), Box::new(target), &Percent::default())?;
    println!("done");
    Ok(())
}

/// Tells the user about every tenth part.
#[derive(Default)]
struct Percent {
    total: AtomicU64,
    done: AtomicU64,
}

impl Progress for Percent {
    fn begin(&self, what: &str, total_bytes: u64) {
        println!("{what} of {total_bytes} bytes");
        self.total.store(total_bytes.max(1), Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) {
        let before = self.done.fetch_add(bytes, Ordering::Relaxed);
        let tenths = |done| 10 * done / self.total.load(Ordering::Relaxed);
        if tenths(before + bytes) > tenths(before) {
            println!("{} %", 10 * tenths(before + bytes));
        }
    }
}

fn advice(error: &anyhow::Error) -> Option<(String, Option<String>)> {
    let host = error
        .downcast_ref()
        .map(|error: &rialto_host::Error| (error.slug().to_owned(), error.help()));
    let engine = || {
        error
            .downcast_ref()
            .map(|error: &rialto_engine::Error| (error.slug().to_owned(), error.help()))
    };
    let store = || {
        error
            .downcast_ref()
            .map(|error: &rialto_checkpoint::Error| (error.slug().to_owned(), error.help()))
    };
    host.or_else(engine).or_else(store)
}
