//! The Python that has PyTorch and Megatron-Core, and the checks that wait to be run in it.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::workspace::{Workspace, remove};

/// An interpreter that has the packages already.
const INTERPRETER: &str = "RIALTO_INTEROP_PYTHON";
const SCRIPTS: &str = "tests/interop";
const REQUIREMENTS: &str = "tests/interop/requirements.txt";

/// Checks in the order in which they will run, each a script and its arguments.
#[derive(Default)]
pub(crate) struct Checks(Vec<Vec<String>>);

impl Checks {
    /// Adds one.
    pub(crate) fn add<A: Into<OsString>>(
        &mut self,
        script: &str,
        arguments: impl IntoIterator<Item = A>,
    ) {
        let words = arguments
            .into_iter()
            .map(|word| word.into().to_string_lossy().into_owned());
        self.0
            .push([script.to_owned()].into_iter().chain(words).collect());
    }

    /// Runs all in one process, written down in `list` first. Errors: one that fails; the rest has been run then.
    pub(crate) fn run(&self, workspace: &Workspace, python: &OsString, list: &Path) -> Result<()> {
        fs::write(list, serde_json::to_vec_pretty(&self.0)?)?;
        let mut command = Command::new(python);
        command
            .arg(workspace.path(SCRIPTS).join("run_checks.py"))
            .arg(list);
        // What Megatron-Core misses on a machine without a GPU it says at every import.
        command
            .env("PYTHONWARNINGS", "ignore")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        workspace.run("python", &mut command)
    }
}

/// The interpreter that the user names, or that of an environment made from the requirements file.
pub(crate) fn interpreter(workspace: &Workspace) -> Result<OsString> {
    if let Some(named) = std::env::var_os(INTERPRETER).filter(|named| !named.is_empty()) {
        return Ok(named);
    }
    let folder = workspace.scratch("interop");
    let (environment, stamp) = (folder.join("environment"), folder.join("requirements.txt"));
    let python = environment.join("bin/python");
    let requirements = workspace.path(REQUIREMENTS);
    let wanted =
        fs::read(&requirements).with_context(|| format!("{REQUIREMENTS} cannot be read"))?;
    // The stamp is a copy of the file, written when everything is installed; the interpreter is gone after a system upgrade.
    if fs::read(&stamp).is_ok_and(|found| found == wanted) && starts(&python) {
        println!("python environment: {}", workspace.shown(&environment));
        return Ok(python.into_os_string());
    }
    remove(&environment)?;
    fs::create_dir_all(&folder)?;
    let mut create = Command::new("python3");
    create.args(["-m", "venv"]).arg(&environment);
    if let Err(error) = workspace.run("python3", &mut create) {
        bail!(
            "no Python environment ({error:#}): install CPython 3.11 to 3.13 with venv and pip \
             (on Debian: apt-get install python3-venv), or set {INTERPRETER}"
        );
    }
    let mut install = Command::new(&python);
    install
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--requirement",
        ])
        .arg(&requirements);
    workspace.run(&workspace.shown(&python), &mut install)?;
    fs::write(&stamp, wanted)?;
    Ok(python.into_os_string())
}

fn starts(python: &Path) -> bool {
    let status = Command::new(python)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}
