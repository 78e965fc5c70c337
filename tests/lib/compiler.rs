//! The C and C++ compilers of the machine, as an author of a plugin runs them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What every source of ours must pass without a word.
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// The folder of `rialto.h`.
#[must_use]
pub fn headers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/abi/include")
}

/// Compiles one file to a shared library, in the language that its name ends in and by a standard (`c11`, `c++17`).
///
/// # Panics
///
/// If there is no compiler, or if it says anything.
pub fn compile(source: &Path, standard: &str, library: &Path) {
    let compiler = if standard.contains("++") { "c++" } else { "cc" };
    let output = Command::new(compiler)
        .arg(format!("-std={standard}"))
        .args(STRICT)
        .args(["-fPIC", "-shared", "-I"])
        .arg(headers())
        .arg("-o")
        .args([library, source])
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
