//! Where cargo puts the library that a test loads.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::path::PathBuf;

/// The library that cargo built for a test, by the name of its library target (`rialto_qwen3`).
///
/// For an integration test (`tests/*.rs`) cargo builds the package's own library in every crate type, and puts it beside the
/// test; the one that `cargo build` leaves a folder above may be older, and is taken only if there is no other.
///
/// # Panics
///
/// If there is none: the crate type `cdylib` is missing, or the test is a unit test of the library itself.
#[must_use]
pub fn built_library(name: &str) -> PathBuf {
    let executable = std::env::current_exe().expect("a test has an executable");
    let file = format!("{DLL_PREFIX}{name}{DLL_SUFFIX}");
    let folders = executable.ancestors().skip(1).take(2);
    let mut candidates = folders.map(|folder| folder.join(&file));
    candidates
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| {
            panic!(
                "{file} is not beside {}; a library that cargo builds for its tests/ has crate-type = [\"cdylib\", \"rlib\"]",
                executable.display()
            )
        })
}
