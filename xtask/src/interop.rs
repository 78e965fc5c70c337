//! Our output in front of the code it is for: PyTorch, Megatron-Core and the safetensors package, in Python.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use safetensors::SafeTensors;

use crate::workspace::{CHECKPOINT, Workspace, remove};

/// An interpreter that has the packages already.
const INTERPRETER: &str = "RIALTO_INTEROP_PYTHON";
const SCRIPTS: &str = "tests/interop";
const REQUIREMENTS: &str = "tests/interop/requirements.txt";
/// What the real Megatron-Core wrote for the checkpoint in the tree, with multi-token prediction and without.
const KEPT: &str = "tests/fixtures/megatron/glm52-tiny-mtp-tp1";
const DROPPED: &str = "tests/fixtures/megatron/glm52-tiny-tp1";

/// Imports with multi-token prediction kept and dropped, exports both and what the real Megatron-Core wrote, and has each
/// result checked. Errors: a command or a
/// check that fails; a planted fault that no check sees.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let python = interpreter(workspace)?;
    let folder = workspace.scratch("interop").join("work");
    remove(&folder)?;
    fs::create_dir_all(&folder)?;
    workspace.build_rialto()?;

    let source = workspace.path(CHECKPOINT);
    let expected = workspace.path(KEPT).join("expected.safetensors");
    let expected_dropped = folder.join("expected-without-mtp.safetensors");
    leave_out(&expected, "mtp.", &expected_dropped)?;

    let check = |script: &str, arguments: &[&Path], flags: &[&str]| {
        let mut command = Command::new(&python);
        command
            .arg(workspace.path(SCRIPTS).join(script))
            .args(arguments)
            .args(flags);
        // What Megatron-Core misses on a machine without a GPU it says at every import.
        command
            .env("PYTHONWARNINGS", "ignore")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        workspace.run("python", &mut command)
    };
    for (mtp, expected, fixture) in [
        ("keep", &expected, KEPT),
        ("drop", &expected_dropped, DROPPED),
    ] {
        let fixture = workspace.path(fixture);
        let (run, exported) = (
            folder.join(format!("run-{mtp}")),
            folder.join(format!("exported-{mtp}")),
        );
        let flags: &[&str] = if mtp == "drop" {
            &["--without-mtp"]
        } else {
            &[]
        };
        workspace.rialto([
            "import".as_ref(),
            source.as_os_str(),
            run.as_os_str(),
            "--mtp".as_ref(),
            mtp.as_ref(),
        ])?;
        check(
            "check_torch_dist.py",
            &[&run, expected],
            &["--mcore", "--pages"],
        )?;
        check("check_import.py", &[&run, &fixture], &[])?;
        workspace.rialto(["export".as_ref(), run.as_os_str(), exported.as_os_str()])?;
        check("check_export.py", &[&exported, &source], flags)?;

        // The real checkpoint keeps no config: the reference gives it.
        let (theirs, exported) = (
            fixture.join("ckpt"),
            folder.join(format!("exported-fixture-{mtp}")),
        );
        let reference = ["--reference".as_ref(), source.as_os_str()];
        workspace.rialto(
            ["export".as_ref(), theirs.as_os_str(), exported.as_os_str()]
                .into_iter()
                .chain(reference),
        )?;
        check("check_export.py", &[&exported, &source], flags)?;
    }
    // A check that cannot fail proves nothing.
    let faults = [
        &folder.join("run-keep"),
        &workspace.path(KEPT),
        &folder.join("exported-keep"),
        &source,
    ];
    check("plant_faults.py", &faults.map(PathBuf::as_path), &[])?;
    println!("\ninterop: all checks passed, every planted fault was seen");
    Ok(())
}

/// Copies a safetensors file without the tensors whose names begin so.
fn leave_out(file: &Path, prefix: &str, target: &Path) -> Result<()> {
    let bytes = fs::read(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let tensors = SafeTensors::deserialize(&bytes)?;
    let kept: BTreeMap<_, _> = tensors
        .iter()
        .filter(|(name, _)| !name.starts_with(prefix))
        .collect();
    Ok(safetensors::serialize_to_file(kept, None, target)?)
}

/// The interpreter that the user names, or that of an environment made from the requirements file.
fn interpreter(workspace: &Workspace) -> Result<OsString> {
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
