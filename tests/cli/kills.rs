//! Killed at any moment: the target is absent or complete, the source as it was, and a rerun needs no cleaning.

use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Instant;

use crate::world::{command, contents, fixture, rialto, scratch, text};

/// Kills in one direction; a delay for each part of a whole run's time.
const KILLS: u32 = 20;

#[test]
fn fc_45_an_import_killed_at_any_moment_leaves_no_half_target() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    for (name, bytes) in contents(&fixture("glm52-tiny")) {
        std::fs::write(source.join(name), bytes).unwrap();
    }
    // Long enough that most kills fall into the writing.
    std::fs::write(source.join("large.bin2"), vec![0x5a; 24 << 20]).unwrap();
    kill_often("import", &source, &scratch.path().join("target"));
}

#[test]
fn fc_45_an_export_killed_at_any_moment_leaves_no_half_target() {
    let scratch = scratch();
    let (source, run) = (fixture("glm52-tiny"), scratch.path().join("run"));
    assert_eq!(rialto(["import", text(&source), text(&run)]).code, 0);
    std::fs::write(
        run.join("iter_0000000/rialto/source/large.bin2"),
        vec![0x5a; 24 << 20],
    )
    .unwrap();
    kill_often("export", &run, &scratch.path().join("target"));
}

fn kill_often(direction: &str, source: &Path, target: &Path) {
    let before = contents(source);
    let begin = Instant::now();
    assert_eq!(rialto([direction, text(source), text(target)]).code, 0);
    let whole = begin.elapsed();
    let complete = contents(target);
    std::fs::remove_dir_all(target).unwrap();

    let (mut interrupted, mut replaced) = (0, 0);
    for kill in 0..KILLS {
        let is_there = target.exists();
        let mut command = command();
        command
            .args([direction, text(source), text(target)])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if is_there {
            command.arg("--force");
        }
        let mut child = command.spawn().unwrap();
        sleep(whole * kill / KILLS);
        child.kill().unwrap();
        let finished = child.wait().unwrap().success();
        interrupted += u32::from(!finished);
        replaced += u32::from(is_there);
        if target.exists() {
            assert_eq!(
                contents(target),
                complete,
                "kill {kill}: the target is there and not complete"
            );
        } else {
            assert!(
                !finished && !is_there,
                "kill {kill}: a target that was there is gone"
            );
        }
        if kill % 4 == 3 {
            // A rerun takes over what the kills left, and leaves nothing of it.
            assert_eq!(
                rialto([direction, text(source), text(target), "--force"]).code,
                0
            );
            assert_eq!(contents(target), complete);
            if kill % 8 == 3 {
                std::fs::remove_dir_all(target).unwrap();
            }
        }
    }
    assert!(
        interrupted > KILLS / 4,
        "only {interrupted} runs were interrupted"
    );
    assert!(
        replaced > 0,
        "no run was killed while it replaced an older target"
    );
    assert_eq!(
        rialto([direction, text(source), text(target), "--force"]).code,
        0
    );
    let beside = std::fs::read_dir(target.parent().unwrap()).unwrap();
    let names: Vec<String> = beside
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(
        names.iter().all(|name| !name.contains("partial")),
        "{names:?}"
    );
    assert_eq!(contents(source), before, "the source is only read");
}
