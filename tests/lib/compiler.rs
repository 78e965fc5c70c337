//! The C and C++ compilers of the machine, as an author of a plugin runs them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of `rialto.h`.
#[must_use]
pub fn headers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/abi/include")
}

/// The folder of the plugin in C, with its checkpoint `toy-dense`.
#[must_use]
pub fn plugin_c() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/plugin-c")
}

/// Compiles one file to a shared library, by a standard (`c11`, `c++17`).
///
/// # Panics
///
/// If there is no compiler, or if it says anything.
pub fn library(source: &Path, standard: &str, made: &Path) {
    compile(source, standard, &["-fPIC", "-shared"], made);
}

/// Compiles one file to a program, as above.
///
/// # Panics
///
/// As above.
pub fn program(source: &Path, standard: &str, made: &Path) {
    compile(source, standard, &[], made);
}

fn compile(source: &Path, standard: &str, kind: &[&str], made: &Path) {
    let compiler = if standard.contains("++") { "c++" } else { "cc" };
    let output = Command::new(compiler)
        .arg(format!("-std={standard}"))
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic"])
        .args(kind)
        .arg("-I")
        .arg(headers())
        .arg("-I")
        .arg(plugin_c())
        .arg("-o")
        .args([made, source])
        .output();
    let output = output.unwrap_or_else(|error| {
        panic!("{compiler} does not run ({error}): `.ci/run setup` installs it")
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.is_empty(),
        "{compiler} -std={standard}: {said}"
    );
}
