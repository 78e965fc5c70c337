//! One process, measured: time, CPU and peak memory, its own and nobody else's.
//!
//! What the kernel tells of a process that has ended is the sum, and of memory the most, of all children so far; and a child begins
//! with the memory of its parent. So a contender is not started by the command that compares it: that starts this program
//! again, which starts the contender, as its only child and itself small, and writes down what the kernel says.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use serde_json::{Value, json};

/// What `cargo xtask measure` is asked for; people have no use for it.
#[derive(clap::Args)]
pub(crate) struct MeasureArguments {
    /// The file to write the numbers to.
    #[arg(long)]
    into: PathBuf,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// What a process took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measured {
    /// From its start to its end.
    pub(crate) seconds: f64,
    /// CPU in the program and in the kernel for it.
    pub(crate) cpu_seconds: f64,
    pub(crate) peak_bytes: u64,
}

/// Runs the command, passing on its output and its failure. Errors: it fails or cannot be started.
pub(crate) fn run(arguments: &MeasureArguments) -> Result<()> {
    let [program, rest @ ..] = arguments.command.as_slice() else {
        bail!("no command");
    };
    let begin = Instant::now();
    let status = Command::new(program)
        .args(rest)
        .status()
        .with_context(|| format!("{} could not be started", program.display()))?;
    let seconds = begin.elapsed().as_secs_f64();
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    check(program, status)?;
    let measured = Measured {
        seconds,
        cpu_seconds: to_seconds(usage.user_time()) + to_seconds(usage.system_time()),
        peak_bytes: u64::try_from(usage.max_rss())? * 1024,
    };
    fs::write(&arguments.into, measured.to_json().to_string())?;
    Ok(())
}

fn check(program: &OsString, status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("{} ended with {status}", program.display());
    }
    Ok(())
}

fn to_seconds(time: TimeVal) -> f64 {
    time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
}

impl Measured {
    /// Measures a command, and returns what it printed on stdout. Errors: it fails, with the end of what it printed.
    pub(crate) fn of(command: &[OsString], scratch: &Path) -> Result<(Measured, String)> {
        let into = scratch.join("measured.json");
        let this = std::env::current_exe().context("this program's own path")?;
        let output = Command::new(this)
            .arg("measure")
            .arg("--into")
            .arg(&into)
            .arg("--")
            .args(command)
            .env_remove("RIALTO_PLUGIN_PATH")
            .output()?;
        if !output.status.success() {
            let shown: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
            let printed = String::from_utf8_lossy(&output.stderr);
            bail!("{}\n{}", shown.join(" "), printed.trim_end());
        }
        let numbers = serde_json::from_slice(&fs::read(&into)?)?;
        fs::remove_file(&into)?;
        let measured = Measured::from_json(&numbers).context("what was measured is no number")?;
        Ok((
            measured,
            String::from_utf8_lossy(&output.stdout).into_owned(),
        ))
    }

    pub(crate) fn to_json(self) -> Value {
        json!({
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "peak_bytes": self.peak_bytes,
        })
    }

    fn from_json(numbers: &Value) -> Option<Measured> {
        Some(Measured {
            seconds: numbers["seconds"].as_f64()?,
            cpu_seconds: numbers["cpu_seconds"].as_f64()?,
            peak_bytes: numbers["peak_bytes"].as_u64()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_took_is_written_down() {
        let room = tempfile::tempdir().unwrap();
        let into = room.path().join("numbers");
        let script = "x=$(head -c 30000000 /dev/zero | tr '\\0' a); sleep 0.1; : ${#x}";
        let arguments = |script: &str| MeasureArguments {
            into: into.clone(),
            command: ["sh", "-c", script].map(OsString::from).to_vec(),
        };
        run(&arguments(script)).unwrap();
        let numbers = serde_json::from_slice(&fs::read(&into).unwrap()).unwrap();
        let measured = Measured::from_json(&numbers).unwrap();
        assert!(
            measured.seconds >= 0.1 && measured.cpu_seconds > 0.0,
            "{measured:?}"
        );
        assert!(measured.peak_bytes >= 30_000_000, "{measured:?}");

        fs::remove_file(&into).unwrap();
        let error = run(&arguments("exit 3")).unwrap_err();
        assert_eq!(error.to_string(), "sh ended with exit status: 3");
        assert!(!into.exists());
    }
}
