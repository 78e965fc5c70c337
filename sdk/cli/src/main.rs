//! `rialto`: moves models between Hugging Face and Megatron-Core checkpoints, and runs them.
//!
//! The result goes to stdout, everything for people to stderr; `--json` makes the result one document.
#![forbid(unsafe_code)]

mod arguments;
mod bar;
mod command;
mod experts;
mod failure;
mod families;
mod interrupt;
mod model;
mod output;
mod places;
mod report;
mod world;

use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

use clap::error::ErrorKind;
use tracing_subscriber::filter::LevelFilter;

use crate::arguments::{Arguments, Command};
use crate::failure::Failure;
use crate::output::Output;

fn main() -> ExitCode {
    let arguments = match Arguments::read() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    arguments.common.color.write_global();
    listen(&arguments);
    let output = Output::new(&arguments.common);
    if let Err(error) = rialto_tensor::simd::check() {
        return output.finish(Err(rialto_engine::Error::from(error).into()));
    }
    let run = || match &arguments.command {
        Command::Import(import) => command::import::run(import, &arguments.common, &output),
        Command::Export(export) => command::export::run(export, &arguments.common, &output),
        Command::Plan(plan) => command::plan::run(plan, &arguments.common, &output),
        Command::Verify(verify) => command::verify::run(verify, &arguments.common, &output),
        Command::Inspect(inspect) => command::inspect::run(inspect, &output),
        Command::Run(run) => command::run::run(run, &arguments.common, &output),
        Command::Compare(compare) => command::compare::run(compare, &arguments.common, &output),
        Command::Plugin(plugin) => command::plugin::run(plugin, &arguments.common, &output),
        Command::Backend(backend) => command::backend::run(backend, &output),
    };
    // A panic is a fault of ours: it has been printed, and a machine gets its document all the same.
    let result = panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let message = payload.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| payload.downcast_ref::<&str>().copied());
        let message = message.unwrap_or("a panic without a message");
        Err(Failure::own(failure::INTERNAL, message.to_owned()))
    });
    output.finish(result)
}

/// Wrong usage, `--help` and `--version`. A machine that asked for JSON gets its document also now.
fn usage(error: &clap::Error) -> ExitCode {
    let asked_for_json = std::env::args_os().any(|argument| argument == "--json");
    if asked_for_json && error.use_stderr() {
        return Output::json().finish(Err(wrong_usage(error)));
    }
    // Nothing can be done about a closed terminal.
    let _ = error.print();
    if error.use_stderr() {
        ExitCode::from(failure::USAGE)
    } else {
        ExitCode::SUCCESS
    }
}

/// What clap prints over several lines, as one message and one help.
fn wrong_usage(error: &clap::Error) -> Failure {
    let rendered = error.render().to_string();
    let help = ["tip: ", "Usage: "].map(|start| {
        let mut lines = rendered.lines().map(str::trim);
        lines.find(|line| line.starts_with(start))
    });
    let help: Vec<&str> = help.into_iter().flatten().collect();
    let message = if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // All of the help stands in place of a message.
        "a command is missing".to_owned()
    } else {
        let mut lines = rendered.lines();
        let first = lines.next().unwrap_or_default();
        let names = lines.take_while(|line| line.starts_with(' '));
        let names: Vec<&str> = names.map(str::trim).collect();
        let message = format!(
            "{} {}",
            first.trim_start_matches("error: "),
            names.join(", ")
        );
        message.trim_end().to_owned()
    };
    let mut failure = Failure::own(failure::WRONG_USAGE, message);
    failure.help = (!help.is_empty()).then(|| help.join("; "));
    failure
}

fn listen(arguments: &Arguments) {
    let level = match (arguments.common.quiet, arguments.common.verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, 2) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .without_time()
        .init();
}
