//! `rialto plugin list` and `rialto plugin check PATH`.

use std::path::PathBuf;

use rialto_host::{CheckReport, Listing, Origin, Outcome};
use serde::Serialize;

use crate::arguments::{Common, Plugin, PluginCommand};
use crate::failure::Failure;
use crate::families;
use crate::output::{Output, Report};

pub(crate) fn run(plugin: &Plugin, common: &Common, output: &Output) -> Result<(), Failure> {
    match &plugin.command {
        PluginCommand::List => output.result(&List {
            listings: families::registry(common)?.list(),
            places: families::search_path(common).places(),
        }),
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
struct List {
    listings: Vec<Listing>,
    /// Where they were looked for, to be told when there are none.
    #[serde(skip)]
    places: Vec<(Origin, PathBuf)>,
}

impl Report for List {
    fn lines(&self) -> Vec<String> {
        if !self.listings.is_empty() {
            return self.listings.iter().map(line).collect();
        }
        let mut lines = vec!["no plugin found; looked for in this order:".to_owned()];
        for (origin, what) in PLACES {
            let places = self.places.iter().filter(|(found, _)| *found == origin);
            let names: Vec<String> = places
                .map(|(_, place)| place.display().to_string())
                .collect();
            let names = if names.is_empty() {
                "none given".to_owned()
            } else {
                names.join(", ")
            };
            lines.push(format!("  {what}: {names}"));
        }
        lines
    }
}

/// The places of the search, in its order, as a person knows them.
const PLACES: [(Origin, &str); 5] = [
    (Origin::Explicit, "--plugin"),
    (Origin::Variable, "RIALTO_PLUGIN_PATH"),
    (Origin::ExecutableFolder, "librialto_*.so beside rialto"),
    (Origin::PluginsFolder, "plugins beside rialto"),
    (Origin::DataFolder, "XDG_DATA_HOME or HOME/.local/share"),
];

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
