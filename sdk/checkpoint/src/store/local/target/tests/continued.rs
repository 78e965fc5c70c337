//! Attempts that continue each other and processes that join, where names on a disk are what they share.

use std::sync::Barrier;

use super::*;

type Way = fn(&Path, Overwrite) -> Result<LocalTarget, Error>;

const WAYS: [(&str, Way); 3] = [
    ("create", |path, overwrite| {
        LocalTarget::create(path, overwrite)
    }),
    ("resume", |path, overwrite| {
        LocalTarget::resume(path, overwrite)
    }),
    ("join", |path, overwrite| LocalTarget::join(path, overwrite)),
];

/// Where a run can be killed, in order of time.
const STEPS: [&str; 11] = [
    "nothing",
    "made",
    "marked",
    "written",
    "retired",
    "done",
    "exchanged",
    "moved aside",
    "replaced",
    "cleared",
    "moved away",
];

/// Leaves what a run that replaces `out=old` by `out=new` leaves if it is killed at a step; returns what `out` holds when
/// the next run has come.
fn killed_at(step: &str, scratch: &Path) -> &'static str {
    let (out, partial) = (scratch.join("out"), scratch.join("out.partial"));
    build(&out, Overwrite::Refuse, "old").unwrap();
    match step {
        "nothing" => {}
        "made" => fs::create_dir(&partial).unwrap(),
        "moved away" => {
            let removed = scratch.join("out.partial-removed");
            fs::create_dir(&removed).unwrap();
            fs::write(removed.join(MARKER), "").unwrap();
            fs::create_dir(removed.join("tree")).unwrap();
        }
        "marked" | "cleared" => {
            fs::create_dir(&partial).unwrap();
            fs::write(partial.join(MARKER), "").unwrap();
        }
        _ => {
            let target = LocalTarget::resume(&out, Overwrite::Replace).unwrap();
            write(&target, "a", "new");
            target.journal("j").unwrap().append(b"a is good").unwrap();
            let inside = |name: &str| partial.join(name);
            let rename = |from: &Path, to: &Path| fs::rename(from, to).unwrap();
            let at_least = |when: &str| {
                let place = |step| STEPS.iter().position(|&other| other == step);
                place(step) >= place(when)
            };
            if at_least("retired") {
                rename(&inside("journal"), &inside(SPENT));
            }
            if at_least("done") {
                rename(&inside("tree"), &inside(DONE));
            }
            match step {
                "exchanged" => {
                    let (done, flags) = (inside(DONE), RenameFlags::EXCHANGE);
                    renameat_with(CWD, &done, CWD, &out, flags).unwrap();
                }
                "moved aside" => rename(&out, &inside(OLD)),
                "replaced" => {
                    rename(&out, &inside(OLD));
                    rename(&inside(DONE), &out);
                }
                _ => {}
            }
            kill(target);
        }
    }
    match step {
        "exchanged" | "replaced" => "new",
        _ => "old",
    }
}

#[test]
fn fc_45_what_a_run_killed_at_any_step_leaves_is_accepted_by_every_next_one() {
    for step in STEPS {
        for (way, enter) in WAYS {
            let scratch = tempfile::tempdir().unwrap();
            let out = scratch.path().join("out");
            let expected = killed_at(step, scratch.path());
            let is_there = step != "moved aside" || way != "join";
            let seen = || fs::read_to_string(out.join("a")).ok();
            let target = enter(&out, Overwrite::Replace).unwrap();
            assert_eq!(
                seen(),
                is_there.then(|| expected.to_owned()),
                "{step} {way}"
            );
            // A journal is there with the tree that it speaks of, or not at all.
            let keeps = step == "written" && way != "create";
            let journals = target.journals().unwrap();
            assert_eq!(
                journals,
                if keeps { &["j"][..] } else { &[] },
                "{step} {way}"
            );
            let begun = fs::read_to_string(target.partial.tree().path("a")).ok();
            let is_new = keeps || (step == "retired" && way != "create");
            assert_eq!(begun.as_deref(), is_new.then_some("new"), "{step} {way}");
            drop(target);
            // Who joined has left all of it to whoever comes.
            build(&out, Overwrite::Replace, "newer").unwrap();
            assert_eq!(
                tree_of(scratch.path()),
                ["out/", "out/a=newer"],
                "{step} {way}"
            );
        }
    }
}

#[test]
fn fc_45_a_continued_run_ends_as_one_that_was_never_killed() {
    for step in STEPS {
        let scratch = tempfile::tempdir().unwrap();
        let out = scratch.path().join("out");
        killed_at(step, scratch.path());
        let joined = LocalTarget::join(&out, Overwrite::Replace).unwrap();
        let target = LocalTarget::resume(&out, Overwrite::Replace).unwrap();
        write(&joined, "b", "joined");
        let names = ["a", "b"].map(str::to_owned).into();
        target.retain(&names).unwrap();
        if target.journals().unwrap().is_empty() {
            write(&target, "a", "newer");
        }
        joined.journal("other").unwrap();
        Box::new(target).commit().unwrap();
        drop(joined);
        let a = if step == "written" { "new" } else { "newer" };
        assert_eq!(
            tree_of(scratch.path()),
            ["out/", &format!("out/a={a}"), "out/b=joined"],
            "{step}"
        );
    }
}

#[test]
fn creating_clears_what_was_suspended_and_refuses_while_a_journal_is_held() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let first = LocalTarget::resume(&out, Overwrite::Refuse).unwrap();
    write(&first, "a", "1");
    let journal = first.journal("j").unwrap();
    for (_, enter) in &WAYS[..2] {
        let error = enter(&out, Overwrite::Refuse).unwrap_err();
        assert!(matches!(error, Error::TargetBusy { .. }), "{error}");
    }
    Box::new(first).suspend().unwrap();
    // The one that suspended it is gone, but one that joined it is not.
    let before = tree_of(scratch.path());
    let error = LocalTarget::create(&out, Overwrite::Refuse).unwrap_err();
    assert!(matches!(error, Error::TargetBusy { .. }), "{error}");
    assert_eq!(tree_of(scratch.path()), before);
    LocalTarget::resume(&out, Overwrite::Refuse)
        .map(|target| Box::new(target).suspend().unwrap())
        .unwrap();
    drop(journal);
    let target = LocalTarget::create(&out, Overwrite::Refuse).unwrap();
    assert_eq!(target.journals().unwrap(), [""; 0]);
    write(&target, "b", "2");
    Box::new(target).commit().unwrap();
    assert_eq!(tree_of(scratch.path()), ["out/", "out/b=2"]);
}

#[test]
fn fc_47_what_must_stay_is_not_continued_over_and_nothing_of_the_attempt_is_lost() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let first = LocalTarget::resume(&out, Overwrite::Refuse).unwrap();
    write(&first, "a", "1");
    Box::new(first).suspend().unwrap();
    fs::create_dir(&out).unwrap();
    fs::write(out.join("theirs"), "x").unwrap();
    let before = tree_of(scratch.path());
    for (_, enter) in WAYS {
        let error = enter(&out, Overwrite::Refuse).unwrap_err();
        assert!(matches!(error, Error::TargetExists { .. }), "{error}");
    }
    assert_eq!(tree_of(scratch.path()), before);
    // What a killed run moved aside comes back, and is there then.
    fs::rename(&out, scratch.path().join("out.partial/old")).unwrap();
    let error = LocalTarget::resume(&out, Overwrite::Refuse).unwrap_err();
    assert!(matches!(error, Error::TargetExists { .. }), "{error}");
    assert_eq!(tree_of(scratch.path()), before);
}

#[test]
fn directories_above_stay_for_those_who_continue() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("x/y/out");
    let joined = LocalTarget::join(&out, Overwrite::Refuse).unwrap();
    drop(joined);
    let target = LocalTarget::resume(&out, Overwrite::Refuse).unwrap();
    Box::new(target).suspend().unwrap();
    let partial = tree_of(&scratch.path().join("x/y/out.partial"));
    let sign = "rialto builds a checkpoint here; it continues or removes this directory itself";
    assert_eq!(
        partial,
        [&format!("{MARKER}={sign}\n"), "journal/", "tree/"]
    );
    discard(LocalTarget::resume(&out, Overwrite::Refuse).unwrap());
    assert_eq!(tree_of(scratch.path()), ["x/", "x/y/"]);
    // One who joins removes them not even when they are empty.
    let out = scratch.path().join("x/y/z/out");
    let joined = LocalTarget::join(&out, Overwrite::Refuse).unwrap();
    discard(LocalTarget::resume(&out, Overwrite::Refuse).unwrap());
    drop(joined);
    assert_eq!(tree_of(scratch.path()), ["x/", "x/y/", "x/y/z/"]);
}

fn discard(target: LocalTarget) {
    Box::new(target).discard().unwrap();
}

#[test]
fn when_the_tree_appears_no_journal_speaks_of_it_and_nobody_builds_in_it() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    build(&out, Overwrite::Refuse, "old").unwrap();
    let target = LocalTarget::resume(&out, Overwrite::Replace).unwrap();
    let joined = LocalTarget::join(&out, Overwrite::Replace).unwrap();
    write(&target, "a", "new");
    target.journal("j").unwrap();
    let publishing = target.publish(|from, to| {
        assert_eq!(tree_of(from), ["a=new"]);
        assert_eq!(to, out.canonicalize().unwrap());
        assert!(joined.journals().is_err() && joined.create("b").is_err());
        Err(io::ErrorKind::PermissionDenied.into())
    });
    assert!(publishing.is_err());
    discard(target);
    assert_eq!(tree_of(scratch.path()), ["out/", "out/a=old"]);
}

#[test]
fn after_the_end_of_the_target_those_who_joined_write_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    for commits in [true, false] {
        let joined = LocalTarget::join(&out, Overwrite::Replace).unwrap();
        let target = LocalTarget::resume(&out, Overwrite::Replace).unwrap();
        write(&target, "a", "1");
        match commits {
            true => Box::new(target).commit().unwrap(),
            false => discard(target),
        }
        assert!(joined.create("b").is_err() && joined.reopen("c/d").is_err());
        assert!(joined.journal("j").is_err() && joined.journals().is_err());
        assert_eq!(tree_of(scratch.path()), ["out/", "out/a=1"]);
        // Not into the next attempt at it either.
        let next = LocalTarget::resume(&out, Overwrite::Replace).unwrap();
        write(&next, "b", "2");
        assert!(joined.create("b").is_err() && joined.reopen("c/d").is_err());
        assert!(joined.journal("j").is_err() && joined.journals().is_err());
        assert!(joined.retain(&BTreeSet::new()).is_err());
        Box::new(next).commit().unwrap();
        assert_eq!(tree_of(scratch.path()), ["out/", "out/b=2"]);
        build(&out, Overwrite::Replace, "1").unwrap();
    }
}

#[test]
fn processes_of_a_run_come_in_any_order() {
    for round in 0..40 {
        let scratch = tempfile::tempdir().unwrap();
        // Directories above, a killed run, or one that was suspended.
        let out = match round % 3 {
            0 => scratch.path().join("x/y/out"),
            _ => scratch.path().join("out"),
        };
        let mut commit = vec![];
        if round % 3 == 1 {
            killed_at(STEPS[round / 3 % STEPS.len()], scratch.path());
        }
        let processes = 5;
        let (barrier, written) = (Barrier::new(processes), Barrier::new(processes));
        let run = |rank: usize| {
            barrier.wait();
            let target = match rank {
                0 => LocalTarget::resume(&out, Overwrite::Replace),
                _ => LocalTarget::join(&out, Overwrite::Replace),
            };
            let begun = target.and_then(|target| {
                let journal = target.journal(&format!("rank-{rank}"))?;
                let sink = target.create(&format!("shards/{rank}"))?;
                sink.write_at(0, rank.to_string().as_bytes())?;
                journal.append(b"done")?;
                Ok((target, journal))
            });
            // Before anybody is disappointed, so that nobody waits for ever.
            written.wait();
            let (target, _journal) = begun.unwrap();
            assert!(target.journals().unwrap().len() >= processes);
            (rank == 0).then_some(target)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..processes)
                .map(|rank| scope.spawn(move || run(rank)))
                .collect();
            for thread in threads {
                commit.extend(thread.join().unwrap());
            }
        });
        let target = commit.pop().unwrap();
        let names = (0..processes).map(|rank| format!("shards/{rank}"));
        target.retain(&names.collect()).unwrap();
        Box::new(target).commit().unwrap();
        let mut expected = vec!["shards/".to_owned()];
        expected.extend((0..processes).map(|rank| format!("shards/{rank}={rank}")));
        assert_eq!(tree_of(&out), expected, "{round}");
        assert!(!out.with_extension("partial").exists());
    }
}

#[test]
fn those_who_join_while_others_give_up_are_told_and_leave_nothing_foreign() {
    let scratch = tempfile::tempdir().unwrap();
    let out = &scratch.path().join("out");
    let may_fail = |error: &Error| {
        matches!(
            error,
            Error::Write { .. } | Error::TargetBusy { .. } | Error::NotFound { .. }
        )
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..150 {
                    match LocalTarget::resume(out, Overwrite::Refuse) {
                        Ok(target) => drop(target),
                        Err(error) => assert!(may_fail(&error), "{error}"),
                    }
                }
            });
        }
        for rank in 0..2 {
            scope.spawn(move || {
                for _ in 0..150 {
                    let target = match LocalTarget::join(out, Overwrite::Refuse) {
                        Ok(target) => target,
                        Err(error) => {
                            assert!(may_fail(&error), "{error}");
                            continue;
                        }
                    };
                    for error in [
                        target.journal(&format!("{rank}")).map(drop).err(),
                        target.reopen(&format!("{rank}/a")).map(drop).err(),
                    ] {
                        assert!(error.as_ref().is_none_or(may_fail), "{error:?}");
                    }
                }
            });
        }
    });
    build(out, Overwrite::Refuse, "1").unwrap();
    assert_eq!(tree_of(scratch.path()), ["out/", "out/a=1"]);
}
