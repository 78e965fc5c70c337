//! Ctrl-C: the conversion stops with its exit code and its document, keeps what is done, and says how to go on.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::world::{Run, command, contents, fixture, rialto, scratch, text};

/// Interrupts in all; a delay for each part of a whole run's time.
const INTERRUPTS: u32 = 20;

/// A run that gets the signal once, after a while; nothing if the signal ended it before it listened.
fn interrupted(arguments: &[&str], after: Duration) -> Option<Run> {
    let child = command()
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    sleep(after);
    // It may be over already: nobody has waited for it, so that the number is still its own.
    let id = child.id().to_string();
    Command::new("kill").args(["-INT", &id]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    Some(Run {
        code: output.status.code()?,
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    })
}

/// An import of which every unit is durable at once.
fn resumable<'a>(source: &'a Path, target: &'a Path) -> [&'a str; 7] {
    let (source, target) = (text(source), text(target));
    [
        "import",
        source,
        target,
        "--json",
        "--sync-every",
        "0",
        "--resume",
    ]
}

#[test]
fn an_interrupted_import_says_so_and_how_to_go_on() {
    let scratch = scratch();
    let (source, target) = (fixture("glm52-tiny"), scratch.path().join("target"));
    let arguments = resumable(&source, &target);
    let begin = Instant::now();
    assert_eq!(rialto(arguments).code, 0);
    let whole = begin.elapsed();
    let complete = contents(&target);
    std::fs::remove_dir_all(&target).unwrap();

    let (mut stopped, mut kept) = (0, 0);
    for number in 0..INTERRUPTS {
        let Some(run) = interrupted(&arguments, whole * number / INTERRUPTS) else {
            continue;
        };
        let names: Vec<_> = std::fs::read_dir(scratch.path()).unwrap().collect();
        let names: Vec<_> = names
            .into_iter()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        if run.code == 0 {
            assert_eq!(run.document()["ok"], Value::from(true));
        } else {
            stopped += 1;
            let error = run.error(130, "engine/cancelled");
            assert_eq!(error["code"], 9);
            if !names.is_empty() {
                // What is done is kept, and said to be.
                assert_eq!(names, ["target.partial"], "interrupt {number}");
                let help = error["help"].as_str().unwrap();
                assert!(
                    help.contains("target.partial: run again with `--resume`"),
                    "{help}"
                );
                let again = rialto(arguments).result();
                assert!(again["bytes_found_done"].as_u64() > Some(0), "{again:#}");
                kept += 1;
            }
        }
        if target.exists() {
            assert_eq!(contents(&target), complete, "interrupt {number}");
            std::fs::remove_dir_all(&target).unwrap();
        }
        assert_eq!(
            std::fs::read_dir(scratch.path()).unwrap().count(),
            0,
            "interrupt {number}"
        );
    }
    assert!(
        stopped > 0 && kept > 0,
        "{stopped} runs were stopped, {kept} gone on from"
    );
}

#[test]
fn an_interrupted_probe_says_so_and_leaves_nothing() {
    let scratch = scratch();
    let (source, target) = (fixture("glm52-tiny"), scratch.path().join("not/yet/there"));
    let arguments = ["plan", text(&source), "--probe", text(&target), "--json"];
    let begin = Instant::now();
    assert_eq!(rialto(arguments).code, 0);
    let whole = begin.elapsed();
    let mut stopped = 0;
    for number in 0..INTERRUPTS {
        let Some(run) = interrupted(&arguments, whole * number / INTERRUPTS) else {
            continue;
        };
        if run.code != 0 {
            stopped += 1;
            run.error(130, "engine/cancelled");
        }
        let names: Vec<_> = std::fs::read_dir(scratch.path()).unwrap().collect();
        assert!(names.is_empty(), "interrupt {number}: {names:?}");
    }
    assert!(stopped > 0, "no run was stopped");
}

/// What hours have made must not go by a slip of the hand.
#[test]
fn a_mistake_with_resume_keeps_what_is_done() {
    let scratch = scratch();
    let (source, target) = (fixture("glm52-tiny"), scratch.path().join("target"));
    let partial = scratch.path().join("target.partial");
    let arguments = resumable(&source, &target);
    let mut after = Duration::from_millis(20);
    for attempt in 0.. {
        assert!(attempt < 100, "no run was stopped with something done");
        let _ = interrupted(&arguments, after);
        if partial.exists() {
            break;
        }
        // Too late, or before anything was done.
        let was_late = target.exists();
        if was_late {
            std::fs::remove_dir_all(&target).unwrap();
        }
        after = after.mul_f64(if was_late { 0.8 } else { 1.1 });
    }
    for (wrong, slug) in [
        (&["--memory-budget", "1MiB"][..], "engine/budget"),
        (&["--dtype", "bf16", "--tp", "2"], "engine/other-plan"),
        (&["--rank", "3", "--world-size", "2"], "cli/usage"),
    ] {
        let refused = rialto(arguments.iter().chain(wrong));
        let error = refused.document()["error"].clone();
        assert_eq!(error["slug"], slug, "{error}");
        assert!(partial.exists(), "{slug}");
    }
    let resumed = rialto(arguments).result();
    assert!(
        resumed["bytes_found_done"].as_u64() > Some(0),
        "{resumed:#}"
    );
    // A rerun without it begins anew and needs no cleaning.
    assert!(!partial.exists() && target.exists());
}
