//! One run of one target.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Target;
use crate::workspace::Workspace;

/// Lines of the log that are shown when a target fails.
const SHOWN_LINES: usize = 25;
/// Anything slower than this is a finding.
const TIMEOUT_SECONDS: u64 = 1;
/// Memory in MiB that a target may take in all, libFuzzer's own included.
const MEMORY_MIB: u64 = 1024;

/// The columns of [`Record`].
pub(super) const HEADING: &str =
    "target                 executions   seconds    edges   inputs  peak MiB  slowest s";

pub(super) struct Session<'a> {
    pub(super) workspace: &'a Workspace,
    pub(super) target: &'a Target,
    pub(super) program: PathBuf,
    pub(super) time: Duration,
}

pub(super) enum Outcome {
    Clean(Record),
    Failed {
        /// The end of what libFuzzer printed.
        log: String,
        /// The files it wrote.
        inputs: Vec<PathBuf>,
    },
}

/// What a run did.
pub(super) struct Record {
    name: &'static str,
    executions: u64,
    seconds: f64,
    edges: u64,
    inputs: u64,
    peak_mib: u64,
    slowest: u64,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<20} {:>12} {:>9.0} {:>8} {:>8} {:>9} {:>10}",
            self.name,
            self.executions,
            self.seconds,
            self.edges,
            self.inputs,
            self.peak_mib,
            self.slowest
        )
    }
}

impl Session<'_> {
    /// Runs the target for its time, from the corpus of earlier runs and the seeds.
    pub(super) fn run(&self) -> Result<Outcome> {
        let name = self.target.name;
        let folder = |kind: &str| self.workspace.scratch("fuzz").join(kind).join(name);
        let (corpus, seeds, findings) = (folder("corpus"), folder("seeds"), folder("findings"));
        for folder in [&corpus, &findings] {
            fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        let log = folder("log").with_extension("txt");
        if let Some(parent) = log.parent() {
            fs::create_dir_all(parent)?;
        }
        let words = format!("fuzz/dictionaries/{}.dict", self.target.dictionary);
        let mut artifacts = OsString::from("-artifact_prefix=");
        artifacts.push(findings.join(""));

        let before = files(&findings)?;
        let begin = Instant::now();
        let status = Command::new(&self.program)
            .arg(format!("-max_total_time={}", self.time.as_secs()))
            .arg(format!("-max_len={}", self.target.max_len))
            .arg(format!("-timeout={TIMEOUT_SECONDS}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
            .arg(format!("-dict={}", self.workspace.path(&words).display()))
            .arg(artifacts)
            .arg("-print_final_stats=1")
            .args([&corpus, &seeds])
            // The message of a panic is to stand among the last lines.
            .env("RUST_BACKTRACE", "0")
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(fs::File::create(&log)?)
            .status()
            .with_context(|| format!("{} could not be started", self.program.display()))?;
        let seconds = begin.elapsed().as_secs_f64();
        let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        if !status.success() {
            let lines: Vec<&str> = text.lines().collect();
            let shown = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
            let inputs = files(&findings)?.difference(&before).cloned().collect();
            return Ok(Outcome::Failed {
                log: format!("{}\n(it ended with {status})", shown.join("\n")),
                inputs,
            });
        }
        Ok(Outcome::Clean(Record {
            name,
            executions: statistic(&text, "stat::number_of_executed_units:"),
            seconds,
            edges: statistic(&text, " cov: "),
            inputs: statistic(&text, " corp: "),
            peak_mib: statistic(&text, "stat::peak_rss_mb:"),
            slowest: statistic(&text, "stat::slowest_unit_time_sec:"),
        }))
    }
}

/// The number after the last occurrence of a word, 0 if there is none.
fn statistic(log: &str, word: &str) -> u64 {
    let after = log
        .rfind(word)
        .map(|at| log[at + word.len()..].trim_start());
    let digits = after.map(|text| {
        let end = text.find(|c: char| !c.is_ascii_digit());
        &text[..end.unwrap_or(text.len())]
    });
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

fn files(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    Ok(entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_of_a_log_counts() {
        let log = "#2 INITED cov: 7 ft: 8 corp: 1/1b\n#9 NEW cov: 12 ft: 30 corp: 4/18Kb\nstat::peak_rss_mb:              31\n";
        assert_eq!(statistic(log, " cov: "), 12);
        assert_eq!(statistic(log, " corp: "), 4);
        assert_eq!(statistic(log, "stat::peak_rss_mb:"), 31);
        assert_eq!(statistic(log, "stat::none:"), 0);
    }
}
