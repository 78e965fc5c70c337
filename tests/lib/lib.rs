//! What the suites share.

use std::path::PathBuf;

/// The library that cargo built for a package, by its lib name (`toy_plugin`).
///
/// Cargo puts the libraries of dependencies beside the test executable and those it was asked for by name one folder up.
///
/// # Panics
///
/// If it was not built.
#[must_use]
pub fn built_library(name: &str) -> PathBuf {
    let executable = std::env::current_exe().expect("a test has an executable");
    let file = format!("lib{name}.so");
    let folders = executable.ancestors().skip(1).take(2);
    let mut candidates = folders.map(|folder| folder.join(&file));
    candidates
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| panic!("{file} was not built beside {}", executable.display()))
}
