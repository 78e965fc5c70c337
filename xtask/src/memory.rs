//! How much memory an import takes at its peak, and that it is the same for a small and a large checkpoint.
//!
//! The sources are excerpts of a published model whose weights are holes, so they take no room; what is imported does, and is
//! deleted at once.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use rialto_tests::excerpt::Excerpt;
use serde_json::Value;

use crate::make::make;
use crate::measured::Measured;
use crate::table::table;
use crate::workspace::{Workspace, remove};

/// The most in bytes beside what a plan says that its index takes, at the default budget.
const MOST_BESIDE_INDEX: u64 = 350_000_000;

/// By how much peaks of one budget may differ, the largest against the smallest.
const MOST_GROWTH: f64 = 1.10;

/// The word for a run without a budget given.
const DEFAULT: &str = "default";

/// What `cargo xtask memory` is asked for.
#[derive(clap::Args)]
pub(crate) struct MemoryArguments {
    /// Directory for sources and targets, with room for one import of the largest size; all is deleted in the end.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// Directory with the config.json of the release that is cut; GLM-5.2, if not given.
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
    /// Layers of the release.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0,6",
        value_name = "NUMBERS"
    )]
    layers: Vec<u64>,
    /// Sizes of the sources.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "2GB,16GB",
        value_name = "SIZES"
    )]
    sizes: Vec<ByteSize>,
    /// Memory budgets for rialto; `default` gives none.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "default,64MiB,256MiB",
        value_name = "BUDGETS"
    )]
    budgets: Vec<String>,
    /// More arguments for rialto, separated by spaces.
    #[arg(
        long,
        default_value = "",
        value_name = "ARGUMENTS",
        allow_hyphen_values = true
    )]
    rialto_args: String,
}

/// One import.
#[derive(Clone, Debug)]
struct Import {
    budget: String,
    source_bytes: u64,
    /// What its plan says that the index takes.
    index_bytes: u64,
    peak_bytes: u64,
}

/// Imports every size at every budget. Errors: an import that fails; a bar that is missed, after the table.
pub(crate) fn run(workspace: &Workspace, arguments: &MemoryArguments) -> Result<()> {
    let rialto = workspace.build_release()?;
    let room = tempfile::Builder::new()
        .prefix("memory-")
        .tempdir_in(&arguments.work)
        .with_context(|| arguments.work.display().to_string())?;
    let published = workspace.path("tests/fixtures/configs/glm-5.2");
    let config = arguments.config.as_ref().unwrap_or(&published);
    let mut imports = Vec::new();
    for size in &arguments.sizes {
        imports.extend(of_size(arguments, config, *size, &rialto, room.path())?);
    }
    let findings = judge(&imports);
    print!("\n{}\n{}", shown(&imports), listed(&findings));
    match findings.iter().filter(|finding| !finding.is_met).count() {
        0 => Ok(()),
        missed => bail!("{missed} of {} bars missed", findings.len()),
    }
}

fn of_size(
    arguments: &MemoryArguments,
    config: &Path,
    size: ByteSize,
    rialto: &Path,
    room: &Path,
) -> Result<Vec<Import>> {
    let (source, target) = (room.join("source"), room.join("target"));
    let excerpt = Excerpt {
        layers: arguments.layers.clone(),
        experts: None,
        vocabulary: None,
    };
    let made = make(config, excerpt, Some(size.as_u64()), None, &source)?;
    let index_bytes = index_bytes(rialto, &source, room)?;
    let mut imports = Vec::new();
    for budget in &arguments.budgets {
        let mut command: Vec<OsString> = vec![rialto.into(), "import".into()];
        command.extend([&source, &target].map(OsString::from));
        command.push("--quiet".into());
        if budget != DEFAULT {
            command.extend(["--memory-budget".into(), budget.into()]);
        }
        command.extend(arguments.rialto_args.split_whitespace().map(OsString::from));
        let (measured, _) = Measured::of(&command, room)?;
        remove(&target)?;
        eprintln!(
            "{size} at {budget}: {:.1} MB in {:.1} s",
            measured.peak_bytes as f64 / 1e6,
            measured.seconds
        );
        imports.push(Import {
            budget: budget.clone(),
            source_bytes: made.written.bytes,
            index_bytes,
            peak_bytes: measured.peak_bytes,
        });
    }
    remove(&source)?;
    Ok(imports)
}

fn index_bytes(rialto: &Path, source: &Path, room: &Path) -> Result<u64> {
    let command: [OsString; 4] = [rialto.into(), "plan".into(), source.into(), "--json".into()];
    let (_, printed) = Measured::of(&command, room)?;
    let plan: Value = serde_json::from_str(&printed)?;
    let bytes = plan["result"]["index_bytes"].as_u64();
    bytes.context("rialto plan --json says no index_bytes")
}

/// A bar, and what was measured of it.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    bar: String,
    measured: String,
    is_met: bool,
}

/// Every import without a budget beside its index, and for each budget the largest peak beside the smallest.
fn judge(imports: &[Import]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for import in imports.iter().filter(|import| import.budget == DEFAULT) {
        let most = MOST_BESIDE_INDEX + import.index_bytes;
        findings.push(Finding {
            bar: format!(
                "{}: at most {} beside the index",
                gigabytes(import.source_bytes),
                megabytes(MOST_BESIDE_INDEX)
            ),
            measured: format!("{} of {}", megabytes(import.peak_bytes), megabytes(most)),
            is_met: import.peak_bytes <= most,
        });
    }
    let mut budgets: Vec<&String> = Vec::new();
    for import in imports {
        if !budgets.contains(&&import.budget) {
            budgets.push(&import.budget);
        }
    }
    for budget in budgets {
        let peaks = imports.iter().filter(|import| import.budget == *budget);
        let peaks = peaks.map(|import| import.peak_bytes as f64);
        let (smallest, largest) = peaks.fold((f64::INFINITY, 0.0), |(low, high), peak| {
            (f64::min(low, peak), f64::max(high, peak))
        });
        let growth = largest / smallest;
        findings.push(Finding {
            bar: format!("budget {budget}: peaks within {MOST_GROWTH} times between sizes"),
            measured: format!("{growth:.3}"),
            is_met: growth <= MOST_GROWTH,
        });
    }
    findings
}

fn shown(imports: &[Import]) -> String {
    let mut rows = vec![
        ["source", "budget", "index, as planned", "peak memory"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(imports.iter().map(|import| {
        vec![
            gigabytes(import.source_bytes),
            import.budget.clone(),
            megabytes(import.index_bytes),
            megabytes(import.peak_bytes),
        ]
    }));
    table(&rows)
}

fn listed(findings: &[Finding]) -> String {
    let mut rows = vec![["bar", "measured", ""].map(str::to_owned).to_vec()];
    rows.extend(findings.iter().map(|finding| {
        let verdict = if finding.is_met { "met" } else { "MISSED" };
        vec![
            finding.bar.clone(),
            finding.measured.clone(),
            verdict.to_owned(),
        ]
    }));
    table(&rows)
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn import(budget: &str, source_bytes: u64, peak_bytes: u64) -> Import {
        Import {
            budget: budget.to_owned(),
            source_bytes,
            index_bytes: 5_000_000,
            peak_bytes,
        }
    }

    fn are_met(imports: &[Import]) -> Vec<bool> {
        judge(imports)
            .iter()
            .map(|finding| finding.is_met)
            .collect()
    }

    #[test]
    fn an_import_without_a_budget_has_so_much_beside_its_index() {
        let at = |peak| are_met(&[import(DEFAULT, 2_000_000_000, peak)]);
        assert_eq!(at(355_000_000), [true, true]);
        assert_eq!(at(355_000_001), [false, true]);
        // A budget has no such bar: it is smaller or larger than the default.
        assert_eq!(
            are_met(&[import("1GiB", 2_000_000_000, 900_000_000)]),
            [true]
        );
    }

    #[test]
    fn peaks_of_one_budget_may_not_grow_with_the_size_and_of_two_they_may() {
        let of = |peaks: [u64; 4]| {
            let sizes = [2_000_000_000, 16_000_000_000];
            let [a, b, c, d] = peaks;
            are_met(&[
                import("64MiB", sizes[0], a),
                import("256MiB", sizes[0], b),
                import("64MiB", sizes[1], c),
                import("256MiB", sizes[1], d),
            ])
        };
        assert_eq!(of([100, 300, 110, 300]), [true, true]);
        assert_eq!(of([100, 300, 111, 300]), [false, true]);
        // One that shrinks is as far from the other.
        assert_eq!(of([100, 400, 100, 300]), [true, false]);
    }

    #[test]
    fn bars_are_printed_with_what_was_measured() {
        let imports = [import(DEFAULT, 2_000_000_000, 400_000_000)];
        let text = listed(&judge(&imports));
        let line = "| 2.00 GB: at most 350.0 MB beside the index           | 400.0 MB of 355.0 MB | MISSED |";
        assert!(text.contains(line), "{text}");
        assert!(
            shown(&imports).contains("| 2.00 GB | default | 5.0 MB            | 400.0 MB    |")
        );
    }
}
