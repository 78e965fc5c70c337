//! Conversions by several processes, and by some that are killed: what they wrote is held against the same as any other result, and has the
//! bytes that one process wrote undisturbed.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::matrix::{Import, Model};
use super::{Conversions, import_words};
use crate::workspace::remove;

/// How many processes convert, and what becomes of them.
pub(crate) struct Course {
    /// For the names of files.
    pub(crate) name: &'static str,
    /// Processes that begin.
    processes: usize,
    /// They are killed, and so many others go on.
    resumed_by: Option<usize>,
}

/// The first is what the others are compared with.
pub(crate) const COURSES: [Course; 4] = [
    Course {
        name: "alone",
        processes: 1,
        resumed_by: None,
    },
    Course {
        name: "together",
        processes: 4,
        resumed_by: None,
    },
    Course {
        name: "resumed",
        processes: 1,
        resumed_by: Some(1),
    },
    Course {
        name: "resumed-together",
        processes: 4,
        resumed_by: Some(2),
    },
];

/// Files of a result: more than processes, and no multiple.
const FILES: &str = "5";

/// Units that are done when the processes are killed, at least.
const DONE: usize = 8;

/// How often processes may be done before they are killed.
const ATTEMPTS: usize = 20;

impl Conversions<'_> {
    /// Imports, and exports of these, in every course.
    pub(crate) fn courses(&mut self, model: &Model, import: &Import, source: &Path) -> Result<()> {
        let [alone, others @ ..] = &COURSES;
        let (run, exported) = self.course(model, import, source, alone)?;
        for course in others {
            let (other_run, other_exported) = self.course(model, import, source, course)?;
            self.check_run(model, import, &other_run);
            self.checks.add("check_same", [&run, &other_run]);
            self.check_export(model, &other_exported, &[]);
            self.checks.add("check_same", [&exported, &other_exported]);
        }
        Ok(())
    }

    fn course(
        &mut self,
        model: &Model,
        import: &Import,
        source: &Path,
        course: &Course,
    ) -> Result<(PathBuf, PathBuf)> {
        let name = |kind| self.named(&format!("{kind}-{}", course.name), model, import);
        let (run, exported) = (name("run"), name("exported"));
        let words = import_words(model, import, source, &run);
        self.take(course, model, words, &run)?;
        let words = vec!["export".into(), run.clone().into(), exported.clone().into()];
        self.take(course, model, words, &exported)?;
        Ok((run, exported))
    }

    /// Runs one conversion in its course. Errors: a process that fails, one that is always done too soon to be killed, and one that goes on
    /// and finds nothing done.
    fn take(
        &mut self,
        course: &Course,
        model: &Model,
        mut words: Vec<OsString>,
        target: &Path,
    ) -> Result<()> {
        self.count += 1;
        words.extend(self.plugin(model));
        // What is done is durable at once, so that there is something to go on from.
        words.extend(["--files", FILES, "--sync-every", "0", "--json", "--quiet"].map(Into::into));
        let processes = course.processes;
        let Some(successors) = course.resumed_by else {
            println!("\n{processes} at once:");
            finish(self.start(&words, processes)?)?;
            return Ok(());
        };
        for _ in 0..ATTEMPTS {
            println!("\n{processes} at once, killed:");
            if !kill(self.start(&words, processes)?, target)? {
                remove(target)?;
                remove(&partial(target))?;
                continue;
            }
            println!("{successors} to go on:");
            words.push("--resume".into());
            let (found, all) = finish(self.start(&words, successors)?)?;
            println!("{found} of {all} bytes were done");
            ensure!(found > 0, "{}: nothing was done before", target.display());
            if found < all {
                return Ok(());
            }
            words.pop();
            remove(target)?;
        }
        bail!("{}: done before it was killed", target.display())
    }

    fn start(&self, words: &[OsString], processes: usize) -> Result<Vec<Child>> {
        let start = |rank: usize| {
            let mut command = self.workspace.rialto_command(words);
            let [rank, size] = [rank, processes].map(|number| number.to_string());
            // A launcher that this itself is run by has nothing to say.
            command.args(["--rank", &rank, "--world-size", &size]);
            command.args(["--rank-timeout", "60"]);
            command.stdout(Stdio::piped()).stderr(Stdio::null());
            self.workspace.spawn("rialto", &mut command)
        };
        (0..processes).map(start).collect()
    }
}

/// Kills processes when enough units are in the journals. Returns whether there is something to go on from.
fn kill(mut children: Vec<Child>, target: &Path) -> Result<bool> {
    let partial = partial(target);
    while units(&partial) < DONE {
        let mut ended = true;
        for child in &mut children {
            ended &= child.try_wait()?.is_some();
        }
        if ended {
            break;
        }
        sleep(Duration::from_micros(200));
    }
    for child in &mut children {
        child.kill()?;
    }
    for mut child in children {
        child.wait()?;
    }
    Ok(!target.exists() && units(&partial) > 0)
}

/// Waits until all are done. Returns the bytes that they found done, and those of all tensors. Errors: one that fails.
fn finish(children: Vec<Child>) -> Result<(u64, u64)> {
    let (mut found, mut all) = (0, 0);
    for child in children {
        let output = child.wait_with_output()?;
        let document: serde_json::Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("rialto ended with {}", output.status))?;
        ensure!(
            output.status.success(),
            "rialto ended with {}: {}",
            output.status,
            document["error"]
        );
        let number = |pointer| document.pointer(pointer)?.as_u64();
        // A process that comes when all is done has found nothing.
        found += number("/result/bytes_found_done").unwrap_or_default();
        all = all.max(number("/result/target/bytes").unwrap_or_default());
    }
    Ok((found, all))
}

/// Where a result is until it is complete.
fn partial(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// How many units of tensors the journals of every plan have. Their other records are of headers and objects, which come first where several
/// processes begin at once, and hold no byte of a tensor.
fn units(partial: &Path) -> usize {
    let plans = fs::read_dir(partial).into_iter().flatten().flatten();
    let journals = plans.filter_map(|plan| fs::read_dir(plan.path().join("journal")).ok());
    let count = |entry: fs::DirEntry| {
        let bytes = fs::read(entry.path()).ok()?;
        let lines = bytes.split_inclusive(|&byte| byte == b'\n');
        Some(lines.filter(|line| is_unit(line)).count())
    };
    journals.flatten().flatten().filter_map(count).sum()
}

/// Whether a line of a journal, with its end, is a unit's.
fn is_unit(line: &[u8]) -> bool {
    let text = line.strip_suffix(b"\n").and_then(|line| line.get(9..));
    let record: Option<serde_json::Value> = text.and_then(|text| serde_json::from_slice(text).ok());
    record.is_some_and(|record| record.get("u").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_line_of_a_unit_is_something_to_go_on_from() {
        let unit = b"01234567 {\"g\":0,\"u\":3,\"p\":[]}\n";
        assert!(is_unit(unit));
        let others: [&[u8]; 5] = [
            b"01234567 {\"journal\":1,\"plan\":\"u\"}\n",
            b"01234567 {\"w\":4}\n",
            b"01234567 {\"f\":2}\n",
            b"\n",
            &unit[..unit.len() - 1],
        ];
        for line in others {
            assert!(!is_unit(line), "{}", String::from_utf8_lossy(line));
        }
    }
}
