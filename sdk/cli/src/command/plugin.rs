//! `rialto plugin list` and `rialto plugin check PATH`.

use rialto_host::{CheckReport, Listing, Outcome};
use serde::Serialize;

use crate::arguments::{Common, Plugin, PluginCommand};
use crate::failure::Failure;
use crate::families;
use crate::output::{Output, Report};

pub(crate) fn run(plugin: &Plugin, common: &Common, output: &Output) -> Result<(), Failure> {
    match &plugin.command {
        PluginCommand::List => output.result(&List(families::registry(common)?.list())),
        PluginCommand::Check { path } => {
            let report = rialto_host::check(path);
            let failure = report.error.clone().map(Failure::from);
            output.checked(&Checked(report), failure)
        }
    }
}

/// The plugins found, in search order.
#[derive(Serialize)]
#[serde(transparent)]
struct List(Vec<Listing>);

impl Report for List {
    fn lines(&self) -> Vec<String> {
        if self.0.is_empty() {
            return vec![
                "no plugin found; `rialto help` says where they are looked for".to_owned(),
            ];
        }
        self.0.iter().map(line).collect()
    }
}

fn line(listing: &Listing) -> String {
    let file = listing.file.display();
    let Some(name) = &listing.name else {
        return format!(
            "{file}: refused: {}",
            listing.reason.as_deref().unwrap_or("no reason given")
        );
    };
    let version = listing.version.as_deref().unwrap_or_default();
    let mut line = format!(
        "{name} {version} {file}: {}",
        listing.architectures.join(", ")
    );
    if let Some(first) = &listing.shadowed_by {
        line.push_str(&format!(" (shadowed by {first})"));
    }
    line
}

/// Every step of loading one library.
#[derive(Serialize)]
#[serde(transparent)]
struct Checked(CheckReport);

impl Report for Checked {
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.0.file.display().to_string()];
        lines.extend(self.0.steps.iter().map(|step| {
            let mark = match step.outcome {
                Outcome::Passed => "ok    ",
                Outcome::Failed => "FAILED",
                Outcome::NotReached => "-     ",
            };
            let name = serde_json::json!(step.step);
            format!(
                "{mark} {:<15} {}",
                name.as_str().unwrap_or_default(),
                step.detail
            )
            .trim_end()
            .to_owned()
        }));
        lines
    }
}
