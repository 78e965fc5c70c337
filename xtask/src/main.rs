//! The commands of this repository, as `cargo xtask COMMAND`.
//!
//! Stands beside the house: it drives the `rialto` binary as a user does, so what it compares is judged by other code than wrote
//! it. Of the repository's crates it imports the tests' library alone, which says where the fixtures are and
//! what a published checkpoint holds.
//!
//! | module | noun |
//! |---|---|
//! | [`demo`] | the main job on the checkpoint in the tree |
//! | [`suite`] | the tests |
//! | [`interop`] | our output in front of the real PyTorch and Megatron-Core |
//! | [`compare`] | two Hugging Face directories, byte for byte |
//! | [`fuzz`] | the parsers in front of what nobody would write |
//! | [`make`] | a checkpoint with weights, of chosen layers |
//! | [`ratio`] | whole conversions against floors and a rival |
//! | [`memory`] | how much memory an import takes, whatever its size |
//! | [`copier`] | a plain copy of a directory: the floor of a conversion |
//! | [`measured`] | one process: time, CPU and peak memory |
//! | [`machine`] | what is measured on: what it is, what it is doing, its caches |
//! | [`table`] | what these print in columns |
//! | [`sparse`] | a checkpoint of full size that takes no room |
//! | `fixtures` | a test that the fixtures are those of `ORIGIN.md` |
//! | [`workspace`] | where things are, and commands that are shown before they run |
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line program: its output is for people"
)]

mod compare;
mod copier;
mod demo;
#[cfg(test)]
mod fixtures;
mod fuzz;
mod interop;
mod machine;
mod make;
mod measured;
mod memory;
mod ratio;
mod sparse;
mod suite;
mod table;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// The commands of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build rialto and the GLM-5 plugin, plan the full GLM-5.2, import the checkpoint in the tree, export it, compare.
    Demo,
    /// Build everything and pass the tests.
    Test,
    /// Check our output with the real PyTorch and Megatron-Core, in a Python environment of its own.
    ///
    /// The environment is made in target/interop from tests/interop/requirements.txt and kept until that file changes.
    /// RIALTO_INTEROP_PYTHON names an interpreter that already has these packages; then none is made.
    Interop,
    /// Fuzz the parsers: docs/fuzzing.md says what each target checks.
    ///
    /// Without a name all targets run, two at a time. Needs a C++ compiler. Everything is kept in target/fuzz; an input that
    /// a target fails on is named at the end.
    Fuzz(fuzz::FuzzArguments),
    /// Write the checkpoint that a config was published with, at full size: headers and index are real, weights are holes.
    ///
    /// It takes the room of its headers and serves `rialto inspect` and `rialto plan`. Its weights read as zeros.
    Sparse(sparse::SparseArguments),
    /// Make a checkpoint of chosen layers of a published model: real names, widths and dtypes, weights that look trained.
    ///
    /// It is whole: rialto imports it. The same choice and seed give the same bytes.
    Make(make::MakeArguments),
    /// Copy a directory as fast as plain reads and writes do, and end when it is on the disk: the floor of a conversion.
    Copy(copier::CopyArguments),
    /// Compare whole conversions with plain copies and with PyTorch: speed, memory and CPU, and whether the bars are met.
    ///
    /// benches/record/README.md says what is compared and how a record is made. Ends with 1 if a bar is missed, and with 75 if
    /// others had too much of the machine for anything to be judged.
    Ratio(ratio::RatioArguments),
    /// Measure the peak memory of imports of two sizes at several budgets, from sources whose weights are holes.
    Memory(memory::MemoryArguments),
    /// Run one command and write down its time, CPU and peak memory.
    #[command(hide = true)]
    Measure(measured::MeasureArguments),
}

/// The exit code of what may go well another time (`EX_TEMPFAIL`).
const TRY_AGAIN: u8 = 75;

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            match error.is::<ratio::Disturbed>() {
                true => ExitCode::from(TRY_AGAIN),
                false => ExitCode::FAILURE,
            }
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    match &cli.command {
        Command::Demo => demo::run(&Workspace::find()?),
        Command::Test => suite::run(&Workspace::find()?),
        Command::Interop => interop::run(&Workspace::find()?),
        Command::Fuzz(arguments) => fuzz::run(&Workspace::find()?, arguments),
        Command::Sparse(arguments) => sparse::run(arguments),
        Command::Make(arguments) => make::run(arguments),
        Command::Copy(arguments) => copier::run(arguments),
        Command::Ratio(arguments) => ratio::run(&Workspace::find()?, arguments),
        Command::Memory(arguments) => memory::run(&Workspace::find()?, arguments),
        Command::Measure(arguments) => measured::run(arguments),
    }
}
