mod continued;

use std::os::unix::fs::symlink;

use super::*;
use crate::store::local::partial::{MARKER, SPENT};

/// Everything below, as sorted relative paths, files with their contents.
fn tree_of(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            if path.is_dir() {
                found.push(format!("{name}/"));
                directories.push(path);
            } else {
                found.push(format!("{name}={}", fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

fn write(target: &LocalTarget, name: &str, text: &str) {
    target
        .create(name)
        .unwrap()
        .write_at(0, text.as_bytes())
        .unwrap();
}

fn build(path: &Path, overwrite: Overwrite, text: &str) -> Result<(), Error> {
    let target = LocalTarget::create(path, overwrite)?;
    write(&target, "a", text);
    Box::new(target).commit()
}

#[test]
fn nothing_is_seen_before_the_commit_and_all_after() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("deep/down/out");
    let target = LocalTarget::create(&out, Overwrite::Refuse).unwrap();
    write(&target, "sub/b", "two");
    assert!(!out.exists());
    assert!(target.available_bytes().unwrap() > 0);
    Box::new(target).commit().unwrap();
    assert_eq!(
        tree_of(&scratch.path().join("deep/down")),
        ["out/", "out/sub/", "out/sub/b=two"]
    );
}

#[test]
fn dropping_leaves_nothing_not_even_the_directories_above() {
    let scratch = tempfile::tempdir().unwrap();
    fs::create_dir(scratch.path().join("kept")).unwrap();
    let target =
        LocalTarget::create(scratch.path().join("kept/x/y/out"), Overwrite::Refuse).unwrap();
    write(&target, "a", "1");
    drop(target);
    assert_eq!(tree_of(scratch.path()), ["kept/"]);
}

#[test]
fn an_empty_directory_may_be_filled_and_a_full_one_or_a_file_may_not() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    fs::create_dir(&out).unwrap();
    build(&out, Overwrite::Refuse, "one").unwrap();
    let error = build(&out, Overwrite::Refuse, "two").unwrap_err();
    assert!(matches!(error, Error::TargetExists { .. }), "{error}");
    assert!(error.help().unwrap().contains("--force"));
    // No advice to use force here: a file is never replaced.
    let error = build(&out.join("a"), Overwrite::Refuse, "two").unwrap_err();
    assert!(matches!(error, Error::NotDirectory { .. }), "{error}");
    assert_eq!(tree_of(scratch.path()), ["out/", "out/a=one"]);
}

#[test]
fn a_target_filled_by_somebody_else_meanwhile_is_refused_at_the_commit() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let target = LocalTarget::create(&out, Overwrite::Refuse).unwrap();
    fs::create_dir(&out).unwrap();
    fs::write(out.join("theirs"), "x").unwrap();
    write(&target, "a", "mine");
    target.journal("j").unwrap();
    let error = Box::new(target).commit().unwrap_err();
    assert!(matches!(error, Error::TargetExists { .. }), "{error}");
    assert_eq!(tree_of(&out), ["theirs=x"]);
    // What was made is kept for who says that theirs may go.
    assert!(matches!(
        LocalTarget::resume(&out, Overwrite::Refuse),
        Err(Error::TargetExists { .. })
    ));
    let target = LocalTarget::resume(&out, Overwrite::Replace).unwrap();
    Box::new(target).commit().unwrap();
    assert_eq!(tree_of(scratch.path()), ["out/", "out/a=mine"]);
}

#[test]
fn a_commit_that_fails_at_any_rename_keeps_tree_and_journals_for_the_next_attempt() {
    type Exchange<'a> = &'a dyn Fn(&Path, &Path) -> io::Result<()>;
    let refused: Exchange<'_> = &|_, _| Err(io::ErrorKind::PermissionDenied.into());
    // The older result is gone when it is to be moved aside.
    let vanished: Exchange<'_> = &|_, old| {
        fs::remove_dir_all(old)?;
        Err(io::ErrorKind::Unsupported.into())
    };
    // It is moved aside, and the new one cannot follow.
    let stuck: Exchange<'_> = &|new, _| {
        fs::rename(new, new.with_file_name("tree"))?;
        Err(io::ErrorKind::Unsupported.into())
    };
    for (exchange, begins, old) in [
        (
            refused,
            LocalTarget::create as fn(PathBuf, Overwrite) -> _,
            true,
        ),
        (refused, LocalTarget::resume, true),
        (vanished, LocalTarget::resume, false),
        (stuck, LocalTarget::resume, true),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let out = scratch.path().join("out");
        build(&out, Overwrite::Refuse, "old").unwrap();
        let target: LocalTarget = begins(out.clone(), Overwrite::Replace).unwrap();
        write(&target, "a", "new");
        target.journal("j").unwrap().append(b"a is good").unwrap();
        let error = target.commit_with(exchange).unwrap_err();
        assert!(matches!(error, Error::Write { .. }), "{error}");
        let seen = fs::read_to_string(out.join("a")).ok();
        assert_eq!(seen.as_deref(), old.then_some("old"));
        let target = LocalTarget::resume(&out, Overwrite::Replace).unwrap();
        assert_eq!(target.read_journal("j").unwrap(), b"a is good");
        assert_eq!(target.length("a").unwrap(), Some(3));
        Box::new(target).commit().unwrap();
        assert_eq!(tree_of(scratch.path()), ["out/", "out/a=new"]);
    }
}

#[test]
fn what_fails_once_the_target_is_published_says_that_it_is_whole() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    build(&out, Overwrite::Refuse, "old").unwrap();
    let target = LocalTarget::create(&out, Overwrite::Replace).unwrap();
    write(&target, "a", "new");
    let partial = target.partial.path.clone();
    let error = target.commit_with(|new, old| {
        fs::remove_dir_all(old)?;
        fs::rename(new, old)?;
        // Nothing of it can be found, to be synced or removed.
        fs::rename(&partial, scratch.path().join("aside"))
    });
    let error = error.unwrap_err();
    assert_eq!((error.code(), error.slug()), (5, "store/unsettled"));
    assert_eq!(tree_of(&out), ["a=new"]);
}

#[test]
fn a_file_above_a_path_is_named_as_what_is_no_directory() {
    let scratch = tempfile::tempdir().unwrap();
    let (file, source) = (scratch.path().join("file"), scratch.path().join("source"));
    fs::write(&file, "x").unwrap();
    fs::create_dir(&source).unwrap();
    for below in ["x", "x/y"] {
        let path = file.join(below);
        for error in [
            LocalTarget::create(&path, Overwrite::Refuse).unwrap_err(),
            LocalTarget::resume(&path, Overwrite::Replace).unwrap_err(),
            super::super::LocalStore::open(&path).unwrap_err(),
            super::super::refuse_overlap(&source, &path).unwrap_err(),
            super::super::refuse_overlap(&path, &source).unwrap_err(),
        ] {
            assert_eq!(error.slug(), "store/not-a-directory", "{error}");
            let named = format!("({})", file.display());
            assert!(error.to_string().ends_with(&named), "{error}");
        }
    }
    assert_eq!(tree_of(scratch.path()), ["file=x", "source/"]);
}

#[test]
fn replacing_is_as_a_whole_and_only_for_directories() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    fs::create_dir_all(out.join("stale")).unwrap();
    fs::write(out.join("stale/z"), "old").unwrap();
    let target = LocalTarget::create(&out, Overwrite::Replace).unwrap();
    write(&target, "a", "new");
    assert!(out.join("stale/z").exists());
    drop(target);
    assert_eq!(
        tree_of(scratch.path()),
        ["out/", "out/stale/", "out/stale/z=old"]
    );
    build(&out, Overwrite::Replace, "new").unwrap();
    assert_eq!(tree_of(scratch.path()), ["out/", "out/a=new"]);
    let error = build(&out.join("a"), Overwrite::Replace, "x").unwrap_err();
    assert!(matches!(error, Error::NotDirectory { .. }), "{error}");
    assert_eq!(tree_of(scratch.path()), ["out/", "out/a=new"]);
}

#[test]
fn without_an_exchange_two_renames_replace() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    build(&out, Overwrite::Refuse, "old").unwrap();
    let mut target = LocalTarget::create(&out, Overwrite::Replace).unwrap();
    write(&target, "a", "new");
    target
        .publish(|_, _| Err(io::ErrorKind::Unsupported.into()))
        .unwrap();
    assert_eq!(
        fs::read_to_string(target.partial.path.join("old/a")).unwrap(),
        "old"
    );
    target.remove().unwrap();
    drop(target);
    assert_eq!(tree_of(scratch.path()), ["out/", "out/a=new"]);
}

#[test]
fn an_exchange_that_is_refused_leaves_the_old_result() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    build(&out, Overwrite::Refuse, "old").unwrap();
    let target = LocalTarget::create(&out, Overwrite::Replace).unwrap();
    write(&target, "a", "new");
    let error = target.publish(|_, _| Err(io::ErrorKind::PermissionDenied.into()));
    assert!(matches!(error, Err(Error::Write { .. })), "{error:?}");
    drop(target);
    assert_eq!(tree_of(scratch.path()), ["out/", "out/a=old"]);
}

/// What a run leaves that is killed: its files stay, its lock ends.
fn kill(target: LocalTarget) {
    let path = target.partial.path.clone();
    let aside = path.with_extension("aside");
    fs::rename(&path, &aside).unwrap();
    drop(target);
    fs::rename(&aside, &path).unwrap();
}

#[test]
fn a_run_killed_at_any_step_is_cleared_away_by_the_next() {
    for step in ["empty", "marked", "written", "moved", "published"] {
        let scratch = tempfile::tempdir().unwrap();
        let out = scratch.path().join("out");
        let partial = scratch.path().join("out.partial");
        build(&out, Overwrite::Refuse, "old").unwrap();
        let expected = match step {
            "empty" => {
                fs::create_dir(&partial).unwrap();
                "old"
            }
            "marked" => {
                fs::create_dir(&partial).unwrap();
                fs::write(partial.join(MARKER), "").unwrap();
                "old"
            }
            _ => {
                let target = LocalTarget::create(&out, Overwrite::Replace).unwrap();
                write(&target, "a", "new");
                match step {
                    "moved" => fs::rename(&out, target.partial.path.join(OLD)).unwrap(),
                    "published" => target
                        .publish(|_, _| Err(io::ErrorKind::Unsupported.into()))
                        .unwrap(),
                    _ => {}
                }
                kill(target);
                assert!(partial.exists());
                if step == "published" { "new" } else { "old" }
            }
        };
        // Another run that gives up clears away what was left, and moves back what was moved away.
        drop(LocalTarget::create(&out, Overwrite::Replace).unwrap());
        assert_eq!(
            tree_of(scratch.path()),
            ["out/".to_owned(), format!("out/a={expected}")],
            "{step}"
        );
        build(&out, Overwrite::Replace, "newer").unwrap();
        assert_eq!(tree_of(scratch.path()), ["out/", "out/a=newer"], "{step}");
    }
}

#[test]
fn a_second_builder_of_the_same_target_is_refused_while_the_first_lives() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let first = LocalTarget::create(&out, Overwrite::Refuse).unwrap();
    let error = LocalTarget::create(&out, Overwrite::Refuse).unwrap_err();
    assert!(matches!(error, Error::TargetBusy { .. }), "{error}");
    write(&first, "a", "first");
    Box::new(first).commit().unwrap();
    assert_eq!(tree_of(scratch.path()), ["out/", "out/a=first"]);
}

#[test]
fn what_carries_no_marker_is_never_deleted() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let partial = scratch.path().join("out.partial");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("thesis"), "x").unwrap();
    let error = LocalTarget::create(&out, Overwrite::Replace).unwrap_err();
    assert!(matches!(error, Error::ForeignPartial { .. }), "{error}");
    assert_eq!(
        tree_of(scratch.path()),
        ["out.partial/", "out.partial/thesis=x"]
    );
    fs::remove_dir_all(&partial).unwrap();
    fs::write(&partial, "a file").unwrap();
    let error = LocalTarget::create(&out, Overwrite::Replace).unwrap_err();
    assert!(matches!(error, Error::ForeignPartial { .. }), "{error}");
}

#[test]
fn a_link_to_an_empty_directory_is_filled_where_it_leads() {
    let scratch = tempfile::tempdir().unwrap();
    let (disk, link) = (scratch.path().join("disk/out"), scratch.path().join("link"));
    fs::create_dir_all(&disk).unwrap();
    symlink(&disk, &link).unwrap();
    build(&link, Overwrite::Refuse, "one").unwrap();
    assert_eq!(tree_of(&scratch.path().join("disk")), ["out/", "out/a=one"]);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let nowhere = scratch.path().join("nowhere");
    symlink(scratch.path().join("later"), &nowhere).unwrap();
    let error = build(&nowhere, Overwrite::Refuse, "one").unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}

#[test]
fn a_path_without_a_last_part_is_refused() {
    for path in ["", "/", "/no-such-directory/.."] {
        let error = LocalTarget::create(path, Overwrite::Replace).unwrap_err();
        assert!(matches!(error, Error::UnsafeName { .. }), "{path}: {error}");
    }
}

#[test]
fn builders_that_race_get_a_whole_result_or_are_told_that_it_is_busy() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let race = &|builder: usize| {
        for round in 0..20 {
            match build(&out, Overwrite::Replace, &format!("{builder}.{round}")) {
                Ok(()) | Err(Error::TargetBusy { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    std::thread::scope(|scope| {
        for builder in 0..4 {
            scope.spawn(move || race(builder));
        }
    });
    let [directory, file] = &tree_of(scratch.path())[..] else {
        panic!("{:?}", tree_of(scratch.path()))
    };
    assert_eq!(directory, "out/");
    assert!(file.starts_with("out/a="), "{file}");
}
