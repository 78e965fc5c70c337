//! Runs the application on the tiny fixture, with the family's library as cargo built it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The family's library: beside the test executable or one folder up, where cargo puts it.
fn family() -> PathBuf {
    let executable = std::env::current_exe().expect("a test has an executable");
    let folders = executable.ancestors().skip(1).take(2);
    let file = folders
        .map(|folder| folder.join("librialto_glm5.so"))
        .find(|file| file.is_file());
    file.expect("the family's library was built")
}

fn run(source: &Path, target: &Path) -> (Output, String) {
    run_with(&[source, target], None)
}

fn run_with(directories: &[&Path], stop_at: Option<u64>) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_host-minimal"))
        .args(directories)
        .envs(stop_at.map(|bytes| ("HOST_MINIMAL_STOP_AT", bytes.to_string())))
        .env("RIALTO_PLUGIN_PATH", family())
        .env_remove("XDG_DATA_HOME")
        .env_remove("HOME")
        .output()
        .expect("cargo built the application");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (output, text)
}

#[test]
fn the_fixture_is_imported_once_and_the_second_time_refused_with_advice() {
    let scratch = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/glm52-tiny");
    let target = scratch.path().join("run");

    let (output, text) = run(&source, &target);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("by plugin glm5"), "{text}");
    assert!(
        text.contains("become 155 params and 218 objects"),
        "as Megatron wrote it: {text}"
    );
    assert!(text.contains("100 % of 1"), "{text}");
    assert!(target.join("latest_checkpointed_iteration.txt").is_file());
    assert!(target.join("iter_0000000/.metadata").is_file());

    let (output, text) = run(&source, &target);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("kind: store/target-exists\nhelp: "), "{text}");
}

#[test]
fn a_directory_that_is_not_there_is_an_error_of_its_kind() {
    let scratch = tempfile::tempdir().unwrap();
    let (output, text) = run(&scratch.path().join("nowhere"), &scratch.path().join("run"));
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("kind: store/not-found\n"), "{text}");
    assert!(!scratch.path().join("run").exists());
}

#[test]
fn without_a_target_the_params_come_one_after_the_other() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/glm52-tiny");
    let (output, text) = run_with(&[&source], None);
    assert!(output.status.success(), "{text}");
    let params = text
        .lines()
        .filter(|line| line.ends_with(" bytes") && line.contains(": "));
    assert_eq!(params.count(), 155, "as Megatron wrote it: {text}");
    let line = "embedding.word_embeddings.weight BF16 [";
    assert!(
        text.lines().any(|line_of| line_of.starts_with(line)),
        "{text}"
    );
}

#[test]
fn an_application_that_asks_to_stop_is_obeyed_in_either_way() {
    let scratch = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/glm52-tiny");
    let target = scratch.path().join("run");
    for directories in [&[source.as_path(), target.as_path()][..], &[&source]] {
        let (output, text) = run_with(directories, Some(1));
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("kind: engine/cancelled\n"), "{text}");
        assert!(!target.exists());
    }
}
