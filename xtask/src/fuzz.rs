//! Fuzzing: builds the targets in `fuzz/`, gives them seeds, runs them, and says what came of it.
//!
//! The stable toolchain and a C++ compiler are enough: coverage is a pass of LLVM that `-Cpasses` names, and libFuzzer is
//! built from the sources that libfuzzer-sys carries. Everything is kept in `target/fuzz`:
//!
//! ```text
//! build/     the programs, instrumented
//! seeds/     made from the fixtures at the beginning of a run
//! corpus/    inputs that reached something new; kept from run to run
//! findings/  inputs that a target failed on
//! log/       what libFuzzer printed
//! ```

mod seeds;
mod session;

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::fuzz::session::{Outcome, Session};
use crate::workspace::Workspace;

/// What `cargo xtask fuzz` is asked for.
#[derive(Args)]
pub(crate) struct FuzzArguments {
    /// The targets to run; all if none is named.
    targets: Vec<String>,
    /// Seconds for each target.
    #[arg(long, env = "RIALTO_FUZZ_SECONDS", default_value_t = 60)]
    seconds: u64,
    /// Targets that run at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
}

/// A parser to be fuzzed.
pub(crate) struct Target {
    /// The program in `fuzz/targets`, and the folder of its seeds.
    name: &'static str,
    /// Longest input in bytes: short ones are tried faster, and what breaks a parser is rarely long.
    max_len: usize,
    /// The words that it is worth putting together, a file in `fuzz/dictionaries`.
    dictionary: &'static str,
}

const TARGETS: [Target; 7] = [
    target("safetensors_header", 4096, "safetensors"),
    target("index", 4096, "index"),
    target("pickle", 4096, "pickle"),
    target("zip_item", 8192, "pickle"),
    target("metadata", 8192, "pickle"),
    target("config", 4096, "config"),
    target("document", 4096, "document"),
];

const fn target(name: &'static str, max_len: usize, dictionary: &'static str) -> Target {
    Target {
        name,
        max_len,
        dictionary,
    }
}

/// Builds, makes the seeds, runs. Errors: an unknown target; a build that fails; findings, each with its file.
pub(crate) fn run(workspace: &Workspace, arguments: &FuzzArguments) -> Result<()> {
    let targets = chosen(&arguments.targets)?;
    let programs = build(workspace)?;
    for target in &targets {
        let folder = workspace.scratch("fuzz/seeds").join(target.name);
        seeds::write(workspace, target, &folder)?;
    }
    println!("\n{}", session::HEADING);
    let sessions = targets.iter().map(|target| Session {
        workspace,
        target,
        program: programs.join(target.name),
        time: Duration::from_secs(arguments.seconds),
    });
    let queue = Mutex::new(sessions);
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    // The lock is let go before the session begins.
                    let next = queue.lock().expect("nobody panics with it").next();
                    let Some(session) = next else { break };
                    let outcome = session.run();
                    if let Ok(Outcome::Clean(record)) = &outcome {
                        println!("{record}");
                    }
                    let outcome = (session.target.name, outcome);
                    outcomes
                        .lock()
                        .expect("nobody panics with it")
                        .push(outcome);
                }
            });
        }
    });
    let mut failed = Vec::new();
    for (name, outcome) in outcomes.into_inner().expect("nobody panics with it") {
        if let Outcome::Failed { log, inputs } = outcome.with_context(|| name.to_owned())? {
            println!("\n{name} FAILED:\n{log}");
            for input in inputs {
                let program = programs.join(name);
                println!("input: {}", workspace.shown(&input));
                println!(
                    "again: {} {}",
                    workspace.shown(&program),
                    workspace.shown(&input)
                );
            }
            failed.push(name);
        }
    }
    ensure!(
        failed.is_empty(),
        "fuzz: findings in {}; docs/fuzzing.md says how one becomes a regression test",
        failed.join(", ")
    );
    println!("\nfuzz: no findings");
    Ok(())
}

fn chosen(names: &[String]) -> Result<Vec<&'static Target>> {
    if names.is_empty() {
        return Ok(TARGETS.iter().collect());
    }
    let find = |name: &String| TARGETS.iter().find(|target| target.name == name);
    let known = || TARGETS.map(|target| target.name).join(", ");
    names
        .iter()
        .map(|name| {
            find(name).with_context(|| format!("no fuzz target {name}; there are {}", known()))
        })
        .collect()
}

/// The flags that count which edges run and which values are compared: those of cargo-fuzz without a sanitizer.
const INSTRUMENTATION: [&str; 7] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
];

/// Builds all targets and says in which folder they are.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    let host = host()?;
    let folder = workspace.scratch("fuzz/build");
    let mut command = workspace.cargo_command();
    command
        .args(["build", "--locked", "--release", "--bins"])
        .arg("--manifest-path")
        .arg(workspace.path("fuzz/Cargo.toml"))
        // With a target named, build scripts and macros are built without the flags.
        .args(["--target", &host])
        .arg("--target-dir")
        .arg(&folder)
        .env("CARGO_ENCODED_RUSTFLAGS", INSTRUMENTATION.join("\u{1f}"));
    workspace.run("cargo", &mut command)?;
    Ok(folder.join(host).join("release"))
}

/// The target triple of this machine.
fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = std::process::Command::new(rustc).arg("-vV").output();
    let output = output.context("rustc could not be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().find_map(|line| line.strip_prefix("host: ")) {
        Some(host) => Ok(host.to_owned()),
        None => bail!("rustc -vV names no host"),
    }
}
