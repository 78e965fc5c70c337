//! The binary, the family's library, fixtures and scratch directories.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// The family's library: beside the test executable or one folder up, where cargo puts it.
pub(crate) fn family() -> PathBuf {
    let executable = std::env::current_exe().unwrap();
    let folders = executable.ancestors().skip(1).take(2);
    let file = folders
        .map(|folder| folder.join("librialto_glm5.so"))
        .find(|file| file.is_file());
    file.expect("the family's library was built")
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures")
        .join(name)
}

pub(crate) fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// What a run of the binary gave.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// The one document on stdout.
    pub(crate) fn document(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The document of a success.
    pub(crate) fn result(&self) -> Value {
        let document = self.document();
        assert_eq!(
            (self.code, &document["ok"], &document["schema"]),
            (0, &Value::from(true), &Value::from(1)),
            "{self:?}"
        );
        document["result"].clone()
    }

    /// The document of a failure, with its exit code.
    pub(crate) fn error(&self, code: i32, slug: &str) -> Value {
        let document = self.document();
        assert_eq!(
            (self.code, &document["ok"]),
            (code, &Value::from(false)),
            "{self:?}"
        );
        assert_eq!(document["error"]["slug"], slug, "{self:?}");
        assert!(
            self.stderr.contains("error:"),
            "a person reads it too: {self:?}"
        );
        document["error"].clone()
    }
}

/// Runs the binary with the family found through the environment, and nothing else.
pub(crate) fn rialto<I: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = I>) -> Run {
    run(command().args(arguments))
}

pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rialto"));
    command
        .env("RIALTO_PLUGIN_PATH", family())
        .env_remove("XDG_DATA_HOME")
        .env_remove("HOME")
        .env_remove("CLICOLOR_FORCE");
    command
}

pub(crate) fn run(command: &mut Command) -> Run {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    Run {
        code: status.code().unwrap_or(-1),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

/// Every file below a directory with its bytes, but for the report of a run, which says when it was and how long it took.
pub(crate) fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with("rialto-report.json") {
                continue;
            }
            if path.is_dir() {
                open.push(path);
            } else {
                found.push((
                    path.strip_prefix(directory).unwrap().to_owned(),
                    std::fs::read(&path).unwrap(),
                ));
            }
        }
    }
    found.sort();
    found
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
