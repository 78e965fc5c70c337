//! What the suites share.

pub mod adapters;
pub mod compiler;
pub mod counting;
pub mod device;
pub mod excerpt;
pub mod published;
pub mod random;
pub mod shapes;
pub mod shards;
pub mod sparse;
pub mod weights;

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// A fixture by its path below `tests/fixtures`, whose `ORIGIN.md` says what each is.
///
/// # Panics
///
/// If there is none.
#[must_use]
pub fn fixture(name: &str) -> PathBuf {
    existing(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fixtures")
            .join(name),
    )
}

/// A Megatron checkpoint by its name: a folder with the run directory `ckpt`, and mostly a `manifest.json`.
///
/// Some lie in `fixtures/megatron` and the others packed in its `topologies.tar.xz`, unpacked by this package's build script.
///
/// # Panics
///
/// If there is none.
#[must_use]
pub fn megatron(name: &str) -> PathBuf {
    let unpacked = Path::new(env!("OUT_DIR")).join("megatron").join(name);
    if unpacked.is_dir() {
        return unpacked;
    }
    fixture(&format!("megatron/{name}"))
}

/// What a forward pass gave, as a safetensors file, by the name of its model; packed in `fixtures/goldens.tar.xz`.
///
/// # Panics
///
/// If there is none.
#[must_use]
pub fn golden(name: &str) -> PathBuf {
    let file = format!("{name}.safetensors");
    existing(Path::new(env!("OUT_DIR")).join("goldens").join(file))
}

/// The SHA-256 of bytes in hexadecimal, as manifests and `ORIGIN.md` have it.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn existing(path: PathBuf) -> PathBuf {
    assert!(path.exists(), "no fixture {}", path.display());
    path
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_megatron_checkpoint_is_where_its_tracker_says() {
        for (name, iteration) in [
            ("glm52-tiny-tp1", "0"),
            ("glm52-tiny-mtp-tp1", "0"),
            ("glm52-tiny-mtp-tp2pp2ep2", "0"),
            ("glm52-tiny-mtp-tp2ep2etp2", "0"),
            ("glm5-tiny-pp3ep2", "0"),
            ("glm53-tiny-mtp-ep5", "0"),
            ("mini-train-adam", "7"),
            ("mini-train-distadam", "7"),
            ("qwen3-tied-tp1", "0"),
            ("qwen3-tied-tp2pp3", "0"),
            ("qwen3-untied-tp1", "0"),
            ("qwen3-untied-tp2", "0"),
            ("qwen3-untied-perlayer-tp1", "0"),
        ] {
            let run = megatron(name).join("ckpt");
            let tracker = std::fs::read_to_string(run.join("latest_checkpointed_iteration.txt"));
            assert_eq!(tracker.expect("a tracker"), iteration, "{name}");
            let metadata = run.join(format!("iter_000000{iteration}/.metadata"));
            assert!(metadata.is_file(), "{name}");
        }
    }

    #[test]
    #[should_panic(expected = "no fixture")]
    fn a_name_that_is_no_fixture_is_named() {
        let _ = megatron("glm52-tiny-tp3");
    }
}
