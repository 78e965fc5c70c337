//! Whole conversions against floors and a rival: each contender a process of its own, in turn first in its round, every
//! source cold, every target deleted before the next one runs.
//!
//! | module | noun |
//! |---|---|
//! | [`subject`] | what is compared: who runs, and which bars are to be met |
//! | [`outcome`] | what was measured, and what follows from it |
//! | [`report`] | the outcome for people, programs and the records |

mod outcome;
mod report;
mod subject;

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rialto_benches::{MIN_ROUNDS, order};
use rialto_tests::random::Random;
use serde_json::Value;

use self::outcome::{Outcome, Round, Run};
use self::report::Report;
use self::subject::{Contender, Stage, Subject};
use crate::interop;
use crate::machine::{Cold, Machine, Moment, bytes_below, cool, is_memory};
use crate::measured::Measured;
use crate::workspace::{Workspace, remove};

/// What `cargo xtask ratio` is asked for.
#[derive(clap::Args)]
pub(crate) struct RatioArguments {
    /// What to compare.
    subject: Subject,
    /// Hugging Face directory to convert, such as `cargo xtask make` makes. For an export it is imported first, unmeasured.
    #[arg(long, value_name = "DIR")]
    source: PathBuf,
    /// Directory for what is written; everything in it that is ours is deleted in the end.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// Rounds, in each of which every contender runs once.
    #[arg(long, default_value_t = MIN_ROUNDS, value_name = "N")]
    rounds: usize,
    /// Arguments for rialto instead of the subject's own, which say how to hash; separated by spaces, and there may be none.
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    rialto_args: Option<String>,
    /// A contender to leave out: cp, copy or rival; may be given more than once.
    #[arg(long, value_name = "NAME")]
    without: Vec<String>,
    /// Write the outcome as one JSON document.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Append the outcome as a section of Markdown, as benches/record keeps them.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Report also what others disturbed too much to be judged, marked as such.
    #[arg(long)]
    force_report: bool,
}

/// Why there is no verdict: others had too much of the machine.
#[derive(Debug)]
pub(crate) struct Disturbed(String);

impl fmt::Display for Disturbed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "not judged: {}; run it again on a machine at rest, or see what was measured with --force-report",
            self.0
        )
    }
}

impl std::error::Error for Disturbed {}

/// Compares. Errors: a contender that fails; [`Disturbed`]; bars that are missed, after the report.
pub(crate) fn run(workspace: &Workspace, arguments: &RatioArguments) -> Result<()> {
    let RatioArguments {
        subject,
        source,
        work,
        ..
    } = arguments;
    ensure!(
        arguments.rounds >= MIN_ROUNDS,
        "{} rounds, expected at least {MIN_ROUNDS}: fewer have no median",
        arguments.rounds
    );
    check_place(*subject, source)?;
    check_place(*subject, work)?;
    let rialto = workspace.build_release()?;
    let room = tempfile::Builder::new()
        .prefix("ratio-")
        .tempdir_in(work)
        .with_context(|| work.display().to_string())?;
    let stage = set(workspace, arguments, &rialto, room.path())?;
    let contenders = subject.contenders(&stage);
    let mut outcome = Outcome::new(contenders.iter().map(|contender| contender.name));
    let cores = std::thread::available_parallelism()?.get();
    let mut cold = Cold::Memory;
    for round in 0..arguments.rounds {
        let (measured, how) = run_round(&stage, &contenders, round, cores, subject.hashes())?;
        cold = how;
        eprintln!(
            "round {} of {}: {}",
            round + 1,
            arguments.rounds,
            outcome.line(&measured)
        );
        outcome.push(measured);
    }
    let report = Report {
        subject: *subject,
        command: shown_command(arguments),
        commit: commit(workspace)?,
        date: said_by("date", &["+%F"], Path::new("/"))?,
        machine: Machine::read(work)?,
        source: stage.says,
        cold,
        contenders: contenders
            .iter()
            .map(|contender| (contender.name, contender.says.clone()))
            .collect(),
        outcome: &outcome,
    };
    let refusal = outcome.refusal();
    if let Some(reason) = refusal.filter(|_| !arguments.force_report) {
        return Err(Disturbed(reason).into());
    }
    print!("{}", report.text());
    if let Some(file) = &arguments.json {
        fs::write(file, format!("{:#}\n", report.to_json()))
            .with_context(|| file.display().to_string())?;
    }
    if let Some(file) = &arguments.record {
        report.append(file)?;
    }
    match report.missed() {
        0 => Ok(()),
        missed => bail!("{missed} of {} bars missed", subject.bars().len()),
    }
}

fn check_place(subject: Subject, directory: &Path) -> Result<()> {
    let found = is_memory(directory)?;
    let named = |memory: bool| if memory { "in memory" } else { "on a disk" };
    ensure!(
        found == subject.is_in_memory(),
        "{} lies {}, expected one {} for {subject}",
        directory.display(),
        named(found),
        named(!found),
    );
    Ok(())
}

/// Everything that contenders need, made before the first of them runs.
fn set(
    workspace: &Workspace,
    arguments: &RatioArguments,
    rialto: &Path,
    room: &Path,
) -> Result<Stage> {
    let subject = arguments.subject;
    let known = [subject::CP, subject::COPY, subject::RIVAL];
    for name in &arguments.without {
        ensure!(
            known.contains(&name.as_str()),
            "--without {name}, expected one of {known:?}"
        );
    }
    let source = arguments.source.canonicalize()?;
    let planned: Value = {
        let words: [OsString; 4] = [
            rialto.into(),
            "plan".into(),
            source.clone().into(),
            "--json".into(),
        ];
        let (_, printed) = Measured::of(&words, room)?;
        serde_json::from_str(&printed).context("rialto plan --json printed no JSON")?
    };
    let plan = &planned["result"];
    let volume = |side: &str| {
        plan[side]["bytes"]
            .as_u64()
            .context("a plan has bytes of both sides")
    };
    let (read, written) = (volume("source")?, volume("target")?);
    let source = match subject.is_export() {
        false => source,
        true => {
            let run = room.join("run");
            let words: [OsString; 5] = [
                rialto.into(),
                "import".into(),
                source.into(),
                run.clone().into(),
                "--quiet".into(),
            ];
            Measured::of(&words, room)?;
            run
        }
    };
    let python = match arguments.without.iter().any(|name| name == subject::RIVAL) {
        true => None,
        false => Some(interop::interpreter(workspace)?),
    };
    Ok(Stage {
        source,
        target: room.join("target"),
        scratch: room.to_owned(),
        rialto: rialto.to_owned(),
        rialto_args: rialto_args(arguments),
        this: std::env::current_exe().context("this program's own path")?,
        python,
        rival: workspace.path("benches/rival.py"),
        without: arguments.without.clone(),
        write_factor: written as f64 / read as f64,
        says: format!(
            "{}, layers {}, prediction layers {}, tensors {}; {read} bytes in, {written} bytes out",
            plan["release"].as_str().unwrap_or_default(),
            plan["layers"],
            plan["mtp_layers"],
            plan["source"]["tensors"],
        ),
    })
}

fn rialto_args(arguments: &RatioArguments) -> Vec<String> {
    match &arguments.rialto_args {
        Some(words) => words.split_whitespace().map(str::to_owned).collect(),
        None => arguments
            .subject
            .rialto_args()
            .iter()
            .map(|&word| word.to_owned())
            .collect(),
    }
}

fn run_round(
    stage: &Stage,
    contenders: &[Contender],
    round: usize,
    cores: usize,
    hashes: bool,
) -> Result<(Round, Cold)> {
    let begin = Moment::now()?;
    let mut runs: Vec<Option<Run>> = contenders.iter().map(|_| None).collect();
    let mut cold = Cold::Memory;
    for place in order(round, contenders.len()) {
        cold = cool(&stage.source)?;
        let contender = &contenders[place];
        let (before, clock) = (Moment::now()?, Instant::now());
        let (measured, printed) = Measured::of(&contender.command, &stage.scratch)
            .with_context(|| format!("{} failed", contender.name))?;
        let elapsed = clock.elapsed().as_secs_f64();
        let others = Moment::now()?.others_since(&before, cores, elapsed, measured.cpu_seconds);
        let seconds = match contender.says_seconds {
            true => said_seconds(&printed)
                .with_context(|| format!("{} says no seconds", contender.name))?,
            false => measured.seconds,
        };
        let target_bytes = bytes_below(&stage.target)?;
        remove(&stage.target)?;
        runs[place] = Some(Run {
            measured,
            seconds,
            others,
            target_bytes,
        });
    }
    let round = Round {
        runs: runs.into_iter().flatten().collect(),
        load: begin.load,
        available_bytes: begin.available_bytes,
        hash_rate: hashes.then(hash_rate),
    };
    Ok((round, cold))
}

/// What a contender said last: `seconds N`.
fn said_seconds(printed: &str) -> Option<f64> {
    printed
        .lines()
        .last()?
        .strip_prefix("seconds ")?
        .parse()
        .ok()
}

/// Bytes that one core hashes in a second with BLAKE3, from memory.
fn hash_rate() -> f64 {
    const BYTES: usize = 64 << 20;
    let mut random = Random(3);
    let buffer: Vec<u8> = (0..BYTES / 8)
        .flat_map(|_| random.bits().to_le_bytes())
        .collect();
    let (begin, mut hashed) = (Instant::now(), 0u64);
    while begin.elapsed() < Duration::from_millis(500) {
        std::hint::black_box(blake3::hash(std::hint::black_box(&buffer)));
        hashed += BYTES as u64;
    }
    hashed as f64 / begin.elapsed().as_secs_f64()
}

/// The command without the paths of this machine, which mean nothing on another.
fn shown_command(arguments: &RatioArguments) -> String {
    let mut words = format!(
        "cargo xtask ratio {} --source SOURCE --work WORK --rounds {}",
        arguments.subject, arguments.rounds
    );
    if let Some(given) = &arguments.rialto_args {
        words += &format!(" --rialto-args \"{given}\"");
    }
    for name in &arguments.without {
        words += &format!(" --without {name}");
    }
    words
}

fn commit(workspace: &Workspace) -> Result<String> {
    let root = workspace.path("");
    let commit = said_by("git", &["rev-parse", "--short", "HEAD"], &root)?;
    let changes = said_by(
        "git",
        &["status", "--porcelain", "--untracked-files=no"],
        &root,
    )?;
    Ok(match changes.is_empty() {
        true => commit,
        false => format!("{commit} with local changes"),
    })
}

fn said_by(program: &str, arguments: &[&str], folder: &Path) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .output()
        .with_context(|| format!("{program} could not be started"))?;
    ensure!(
        output.status.success(),
        "{program} ended with {}",
        output.status
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_says_the_seconds_of_one_that_measures_itself() {
        assert_eq!(said_seconds("warning\nseconds 1.5\n"), Some(1.5));
        assert_eq!(said_seconds("seconds 1.5\nsomething else\n"), None);
        assert_eq!(said_seconds(""), None);
    }

    #[test]
    fn given_arguments_stand_for_the_subjects_own_also_when_there_are_none() {
        let of = |words: &[&str]| {
            let command = <RatioArguments as clap::Args>::augment_args(clap::Command::new("ratio"));
            let required = [
                "ratio",
                "import-tmpfs-unhashed",
                "--source",
                "a",
                "--work",
                "b",
            ];
            let matches = command
                .try_get_matches_from(required.iter().chain(words))
                .unwrap();
            let arguments =
                <RatioArguments as clap::FromArgMatches>::from_arg_matches(&matches).unwrap();
            (rialto_args(&arguments), shown_command(&arguments))
        };
        let shown =
            "cargo xtask ratio import-tmpfs-unhashed --source SOURCE --work WORK --rounds 5";
        assert_eq!(
            of(&[]),
            (vec!["--hash".into(), "none".into()], shown.into())
        );
        assert_eq!(
            of(&["--rialto-args", ""]),
            (vec![], format!("{shown} --rialto-args \"\""))
        );
        let (words, _) = of(&["--rialto-args", "--threads 2"]);
        assert_eq!(words, ["--threads", "2"]);
    }
}
