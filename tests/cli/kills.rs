//! Killed at any moment: the target is absent or complete, the source as it was, and what was done is gone on from.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::world::{command, contents, fixture, rialto, scratch, text};

/// Kills of one direction by one number of processes, of which there are four; `RIALTO_KILLS=50` makes it 200 in all.
fn kills() -> usize {
    let asked = std::env::var("RIALTO_KILLS").ok();
    asked.map_or(8, |kills| kills.parse().expect("RIALTO_KILLS is a number"))
}

/// Numbers that look random and are the same in every run.
struct Moments(u64);

impl Moments {
    /// A fraction of 1.
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A conversion by so many processes, what it makes, and where.
struct Conversion {
    direction: &'static str,
    source: PathBuf,
    target: PathBuf,
    ranks: usize,
}

impl Conversion {
    /// Starts all processes. Every unit becomes durable at once, so that there is something to go on from.
    fn start(&self, options: &[&str]) -> Vec<Child> {
        let start = |rank: usize| {
            let mut command = command();
            command
                .args([self.direction, text(&self.source), text(&self.target)])
                .args(["--sync-every", "0", "--files", "5", "--json"])
                .args(options)
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            if self.ranks > 1 {
                let (rank, size) = (rank.to_string(), self.ranks.to_string());
                command.args([
                    "--rank",
                    &rank,
                    "--world-size",
                    &size,
                    "--rank-timeout",
                    "5",
                ]);
            }
            command.spawn().unwrap()
        };
        (0..self.ranks).map(start).collect()
    }

    /// Runs to the end; returns what the first process said it found done.
    fn finish(&self, options: &[&str]) -> u64 {
        let outputs: Vec<_> = self
            .start(options)
            .into_iter()
            .map(|child| child.wait_with_output().unwrap())
            .collect();
        let mut found = 0;
        for output in outputs {
            let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(output.status.success(), "{}", document["error"]);
            // One that comes when the others are done has found nothing.
            found += document["result"]["bytes_found_done"]
                .as_u64()
                .unwrap_or_default();
        }
        found
    }

    fn kill_often(&self, seed: u64) {
        let before = contents(&self.source);
        let mut whole = Duration::MAX;
        let mut complete = Vec::new();
        for _ in 0..3 {
            // The first reads everything from the disk, the program too.
            let begin = Instant::now();
            self.finish(&[]);
            whole = whole.min(begin.elapsed());
            complete = contents(&self.target);
            std::fs::remove_dir_all(&self.target).unwrap();
        }
        let mut moments = Moments(seed);
        let (mut interrupted, mut continued) = (0, 0);
        for kill in 0..kills() {
            let mut children = self.start(&["--resume"]);
            sleep(whole.mul_f64(moments.next()));
            // One of them, or all.
            let victim = (moments.next() * (self.ranks + 1) as f64) as usize;
            for (rank, child) in children.iter_mut().enumerate() {
                if victim == rank || victim == self.ranks {
                    child.kill().unwrap();
                }
            }
            // Without one of them the others do not hang: the first sees that it is gone.
            let done: Vec<bool> = children
                .into_iter()
                .map(|child| child.wait_with_output().unwrap().status.success())
                .collect();
            interrupted += usize::from(done.contains(&false));
            if self.target.exists() {
                assert!(
                    done[0] || victim == 0 || victim == self.ranks,
                    "kill {kill}: {done:?}"
                );
                assert_eq!(
                    contents(&self.target),
                    complete,
                    "kill {kill}: there and not complete"
                );
            } else {
                assert!(
                    done.contains(&false),
                    "kill {kill}: nobody was killed and nothing is there"
                );
                let found = self.finish(&["--resume"]);
                continued += usize::from(found > 0);
                assert_eq!(
                    contents(&self.target),
                    complete,
                    "kill {kill}: after resuming"
                );
            }
            std::fs::remove_dir_all(&self.target).unwrap();
            let beside = std::fs::read_dir(self.target.parent().unwrap()).unwrap();
            let names: Vec<_> = beside.map(|entry| entry.unwrap().file_name()).collect();
            let is_left = names
                .iter()
                .any(|name| name.to_string_lossy().contains("target"));
            // A kill after the new name may leave what the next run for it clears away.
            assert!(!is_left || !done[0], "kill {kill}: {names:?}");
        }
        let _ = writeln!(
            std::io::stderr(),
            "{interrupted} of {} were interrupted, {continued} gone on from",
            kills()
        );
        assert!(interrupted > 0 && continued > 0);
        assert_eq!(contents(&self.source), before, "the source is only read");
    }
}

fn import(ranks: usize, seed: u64) {
    let scratch = scratch();
    let conversion = Conversion {
        direction: "import",
        source: fixture("glm52-tiny"),
        target: scratch.path().join("target"),
        ranks,
    };
    conversion.kill_often(seed);
}

fn export(ranks: usize, seed: u64) {
    let scratch = scratch();
    let (source, run) = (fixture("glm52-tiny"), scratch.path().join("run"));
    assert_eq!(rialto(["import", text(&source), text(&run)]).code, 0);
    let conversion = Conversion {
        direction: "export",
        source: run,
        target: scratch.path().join("target"),
        ranks,
    };
    conversion.kill_often(seed);
}

#[test]
fn fc_45_an_import_killed_at_any_moment_goes_on_to_the_same_bytes() {
    import(1, 1);
}

#[test]
fn fc_45_an_import_of_four_killed_at_any_moment_goes_on_to_the_same_bytes() {
    import(4, 2);
}

#[test]
fn fc_45_an_export_killed_at_any_moment_goes_on_to_the_same_bytes() {
    export(1, 3);
}

#[test]
fn fc_45_an_export_of_four_killed_at_any_moment_goes_on_to_the_same_bytes() {
    export(4, 4);
}

/// Without `--resume` a rerun begins anew, and an older result stays until the new one is there.
#[test]
fn fc_45_a_rerun_needs_no_cleaning_and_an_older_result_stays_until_then() {
    let scratch = scratch();
    let (source, target) = (fixture("glm52-tiny"), scratch.path().join("target"));
    assert_eq!(
        rialto(["import", text(&source), text(&target), "--mtp", "drop"]).code,
        0
    );
    let older = contents(&target);
    let arguments = ["import", text(&source), text(&target), "--force"];
    let renew = || assert_eq!(rialto(arguments.iter().chain(&["--mtp", "drop"])).code, 0);
    let mut moments = Moments(5);
    let mut interrupted = 0;
    for _ in 0..20 {
        let mut child = command()
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        sleep(Duration::from_millis(40).mul_f64(moments.next()));
        child.kill().unwrap();
        if child.wait().unwrap().success() {
            renew();
            continue;
        }
        interrupted += 1;
        if contents(&target) != older {
            // The exchange was done, and only the cleaning was not.
            let audit = rialto(["verify", text(&target), "--manifest"]);
            assert_eq!(audit.code, 0, "{audit:?}");
            renew();
        }
    }
    assert!(interrupted > 3, "only {interrupted} runs were interrupted");
    let whole = rialto(arguments);
    assert_eq!(whole.code, 0, "{whole:?}");
    assert_eq!(names(scratch.path()), ["target"]);
    assert_ne!(contents(&target), older);
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
