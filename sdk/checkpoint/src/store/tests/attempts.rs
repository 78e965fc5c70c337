//! What holds for every target that is continued, be it on disk or in memory.

use std::path::PathBuf;

use super::*;

/// A place where attempts at one target are made.
trait World {
    fn resume(&self) -> Box<dyn Target>;
    fn join(&self) -> Box<dyn Target>;
    /// What is left of a process that is killed.
    fn kill(&self, target: Box<dyn Target>);
    fn finished(&self) -> Option<Box<dyn Store>>;
    /// Whether nothing is left of any attempt.
    fn is_clean(&self) -> bool;
}

struct OnDisk(tempfile::TempDir);

impl OnDisk {
    fn out(&self) -> PathBuf {
        self.0.path().join("out")
    }

    fn partial(&self) -> PathBuf {
        self.0.path().join("out.partial")
    }
}

impl World for OnDisk {
    fn resume(&self) -> Box<dyn Target> {
        Box::new(LocalTarget::resume(self.out(), Overwrite::Replace).unwrap())
    }

    fn join(&self) -> Box<dyn Target> {
        Box::new(LocalTarget::join(self.out(), Overwrite::Replace).unwrap())
    }

    fn kill(&self, target: Box<dyn Target>) {
        // Forgetting it would keep its lock.
        let aside = self.0.path().join("aside");
        fs::rename(self.partial(), &aside).unwrap();
        drop(target);
        fs::rename(&aside, self.partial()).unwrap();
    }

    fn finished(&self) -> Option<Box<dyn Store>> {
        let store = LocalStore::open(self.out()).ok()?;
        Some(Box::new(store))
    }

    fn is_clean(&self) -> bool {
        !self.partial().exists()
    }
}

#[derive(Default)]
struct InMemory {
    slot: MemorySlot,
    partial: MemoryPartial,
}

impl World for InMemory {
    fn resume(&self) -> Box<dyn Target> {
        Box::new(MemoryTarget::resume(
            "out",
            self.slot.clone(),
            &self.partial,
        ))
    }

    fn join(&self) -> Box<dyn Target> {
        Box::new(MemoryTarget::join("out", &self.partial))
    }

    fn kill(&self, target: Box<dyn Target>) {
        std::mem::forget(target);
    }

    fn finished(&self) -> Option<Box<dyn Store>> {
        Some(Box::new(taken(&self.slot)?))
    }

    fn is_clean(&self) -> bool {
        let slot = MemorySlot::default();
        let rest = MemoryTarget::resume("rest", slot.clone(), &self.partial);
        let journals = rest.journals().unwrap();
        Box::new(rest).commit().unwrap();
        journals.is_empty() && texts(&taken(&slot).unwrap()).is_empty()
    }
}

fn worlds() -> [Box<dyn World>; 2] {
    [
        Box::new(OnDisk(tempfile::tempdir().unwrap())),
        Box::new(InMemory::default()),
    ]
}

fn named(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// The files of a store with their text.
fn texts(store: &dyn Store) -> Vec<(String, String)> {
    let files = store.files().unwrap().into_iter();
    let text = |name: &str| String::from_utf8(read_whole(store, name, 100).unwrap()).unwrap();
    files
        .map(|file| (text(&file.name), file.name))
        .map(|(text, name)| (name, text))
        .collect()
}

fn is_write(result: Result<Box<dyn Sink>, Error>, kind: ErrorKind) -> bool {
    matches!(result, Err(Error::Write { source, .. }) if source.kind() == kind)
}

#[test]
fn what_a_suspended_or_killed_attempt_wrote_is_continued() {
    for is_killed in [false, true] {
        for world in worlds() {
            let first = world.resume();
            first
                .create("a/kept")
                .unwrap()
                .write_at(0, b"one...")
                .unwrap();
            first.reopen("cut").unwrap().write_at(0, b"gone").unwrap();
            first.create("stale").unwrap();
            let journal = first.journal("rank-0").unwrap();
            journal.append(b"a/kept ").unwrap();
            journal.append(b"is good").unwrap();
            journal.sync().unwrap();
            drop(journal);
            match is_killed {
                true => world.kill(first),
                false => first.suspend().unwrap(),
            }
            assert!(world.finished().is_none());

            let second = world.resume();
            assert_eq!(second.journals().unwrap(), ["rank-0"]);
            assert_eq!(second.read_journal("rank-0").unwrap(), b"a/kept is good");
            let journal = second.journal("rank-0").unwrap();
            journal.append(b", still").unwrap();
            let bytes = second.read_journal("rank-0").unwrap();
            assert_eq!(bytes, b"a/kept is good, still");
            second
                .reopen("a/kept")
                .unwrap()
                .write_at(3, b"two")
                .unwrap();
            second.create("cut").unwrap().write_at(1, b"x").unwrap();
            let names = named(&["a/kept", "cut", "never/made"]);
            second.retain(&names).unwrap();
            second.commit().unwrap();
            let finished = world.finished().unwrap();
            let expected = [("a/kept", "onetwo"), ("cut", "\0x")];
            assert_eq!(
                texts(&*finished),
                expected.map(|(n, t)| (n.into(), t.into()))
            );
            assert!(world.is_clean());
            let next = world.resume();
            assert_eq!(next.journals().unwrap(), [""; 0]);
            next.discard().unwrap();
        }
    }
}

#[test]
fn an_attempt_that_is_discarded_leaves_nothing_to_continue_and_one_that_is_dropped_all() {
    for world in worlds() {
        let first = world.resume();
        first.create("a").unwrap().write_at(0, b"1").unwrap();
        first.journal("j").unwrap().append(b"a").unwrap();
        first.suspend().unwrap();
        drop(world.resume());
        assert_eq!(world.resume().journals().unwrap(), ["j"]);
        world.resume().discard().unwrap();
        assert!(world.is_clean() && world.finished().is_none());
        let last = world.resume();
        assert_eq!(last.journals().unwrap(), [""; 0]);
        last.reopen("a").unwrap();
        last.commit().unwrap();
        assert_eq!(
            texts(&*world.finished().unwrap()),
            [("a".into(), "".into())]
        );
    }
}

#[test]
fn a_name_is_created_once_in_a_run_however_it_came_into_being() {
    for world in worlds() {
        let first = world.resume();
        first.create("created").unwrap();
        first.suspend().unwrap();
        let target = world.resume();
        for name in ["created", "dir/new"] {
            target.create(name).unwrap().write_at(0, b"1").unwrap();
            assert!(
                is_write(target.create(name), ErrorKind::AlreadyExists),
                "{name}"
            );
            target.reopen(name).unwrap().write_at(1, b"2").unwrap();
        }
        for _ in 0..2 {
            target.reopen("reopened").unwrap();
        }
        assert!(is_write(
            target.create("reopened"),
            ErrorKind::AlreadyExists
        ));
        // A directory, and a file in the place of one.
        for name in ["dir", "created/below"] {
            assert!(
                target.create(name).is_err() && target.reopen(name).is_err(),
                "{name}"
            );
        }
        // What has been removed is as if it had never been.
        target.retain(&named(&["dir/new"])).unwrap();
        for name in ["created", "reopened"] {
            target.create(name).unwrap();
        }
        assert!(is_write(target.create("dir/new"), ErrorKind::AlreadyExists));
        target.commit().unwrap();
        let expected = [("created", ""), ("dir/new", "12"), ("reopened", "")];
        let finished = world.finished().unwrap();
        assert_eq!(
            texts(&*finished),
            expected.map(|(n, t)| (n.into(), t.into()))
        );
    }
}

#[test]
fn room_is_taken_in_a_file_that_an_earlier_attempt_began() {
    for world in worlds() {
        let first = world.resume();
        first.create("f").unwrap().write_at(0, b"abcdef").unwrap();
        first.suspend().unwrap();
        let target = world.resume();
        let sink = target.reopen("f").unwrap();
        sink.reserve(8).unwrap();
        sink.write_at(7, b"x").unwrap();
        let shorter = target.create("g").unwrap();
        shorter.write_at(0, b"123").unwrap();
        shorter.reserve(2).unwrap();
        shorter.reserve(3).unwrap();
        target.commit().unwrap();
        let expected = [("f", "abcdef\0x"), ("g", "12\0")];
        let finished = world.finished().unwrap();
        assert_eq!(
            texts(&*finished),
            expected.map(|(n, t)| (n.into(), t.into()))
        );
    }
}

#[test]
fn what_is_not_named_is_removed_with_the_directories_that_held_it() {
    for world in worlds() {
        let target = world.resume();
        for name in ["a/b/c", "a/b/d", "a/e", "f/g/h", "i", "j"] {
            target.create(name).unwrap();
        }
        target
            .retain(&named(&["a/b/d", "i", "f/g", "a/b/c/x"]))
            .unwrap();
        // The place of a directory that is gone, too.
        target.create("f").unwrap();
        target.commit().unwrap();
        let files = texts(&*world.finished().unwrap());
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a/b/d", "f", "i"]);
    }
}

#[test]
fn a_journal_is_held_by_one_and_read_by_all() {
    for world in worlds() {
        let (target, other) = (world.resume(), world.join());
        for name in ["", ".", "..", "a/b", "/a", "a\0"] {
            let unsafe_name =
                |result: Result<(), Error>| matches!(result, Err(Error::UnsafeName { .. }));
            assert!(unsafe_name(target.journal(name).map(drop)), "{name:?}");
            assert!(unsafe_name(target.read_journal(name).map(drop)), "{name:?}");
            assert!(unsafe_name(target.is_held(name).map(drop)), "{name:?}");
        }
        for missing in [
            target.read_journal("z").map(drop),
            target.is_held("z").map(drop),
        ] {
            assert!(
                matches!(missing, Err(Error::NotFound { .. })),
                "{missing:?}"
            );
        }
        let journal = target.journal("b").unwrap();
        let mine = other.journal("a").unwrap();
        for asked in [&target, &other] {
            assert_eq!(asked.journals().unwrap(), ["a", "b"]);
            assert_eq!(asked.is_held("b").unwrap(), Some(true));
            let error = asked.journal("b").unwrap_err();
            assert!(matches!(error, Error::TargetBusy { .. }), "{error}");
            assert_eq!(asked.read_journal("b").unwrap(), b"");
        }
        drop(mine);
        assert_eq!(target.is_held("a").unwrap(), Some(false));
        journal.append(b"12").unwrap();
        journal.clear().unwrap();
        journal.append(b"34").unwrap();
        assert_eq!(other.read_journal("b").unwrap(), b"34");
        drop(journal);
        assert_eq!(other.is_held("b").unwrap(), Some(false));
        other.journal("b").unwrap().append(b"56").unwrap();
        assert_eq!(target.read_journal("b").unwrap(), b"3456");
    }
}

#[test]
fn what_several_threads_append_does_not_mix() {
    for world in worlds() {
        let target = world.resume();
        let journal = target.journal("j").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let journal = &journal;
                scope.spawn(move || {
                    for _ in 0..50 {
                        journal.append(&[thread; 100]).unwrap();
                    }
                });
            }
        });
        let bytes = target.read_journal("j").unwrap();
        assert_eq!(bytes.len(), 4 * 50 * 100);
        for entry in bytes.chunks(100) {
            assert!(entry.iter().all(|byte| *byte == entry[0]));
        }
    }
}

#[test]
fn asking_whether_a_journal_is_held_keeps_nobody_from_it() {
    for world in worlds() {
        let target = world.resume();
        drop(target.journal("j").unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200 {
                    drop(target.journal("j").unwrap());
                }
            });
            for _ in 0..500 {
                target.is_held("j").unwrap();
            }
        });
    }
}

#[test]
fn who_joins_writes_and_leaves_and_does_not_commit() {
    for world in worlds() {
        // In either order.
        let early = world.join();
        early.create("early").unwrap().write_at(0, b"1").unwrap();
        let owner = world.resume();
        let late = world.join();
        late.create("late").unwrap().write_at(0, b"2").unwrap();
        owner.create("own").unwrap().write_at(0, b"3").unwrap();
        let error = world.join().commit().unwrap_err();
        assert!(matches!(error, Error::TargetJoined { .. }), "{error}");
        assert_eq!((error.code(), error.slug()), (1, "store/target-joined"));
        drop(early);
        late.suspend().unwrap();
        owner.commit().unwrap();
        let expected = [("early", "1"), ("late", "2"), ("own", "3")];
        let finished = world.finished().unwrap();
        assert_eq!(
            texts(&*finished),
            expected.map(|(n, t)| (n.into(), t.into()))
        );
        assert!(world.is_clean());
    }
}

/// Every call that a wrapper has to pass on.
fn all_calls(store: &dyn Store, target: Box<dyn Target>) -> Result<Vec<u8>, Error> {
    let stamp = store.stamp("a.txt")?;
    let sink = target.create("new")?;
    sink.reserve(stamp.len)?;
    sink.write_at(0, b"1")?;
    target.reopen("new")?.sync()?;
    target.create("stray")?;
    target.retain(&named(&["new"]))?;
    let journal = target.journal("j")?;
    journal.append(b"old")?;
    journal.clear()?;
    journal.append(b"next")?;
    journal.sync()?;
    assert_eq!(target.journals()?, ["j"]);
    assert_eq!(target.is_held("j")?, Some(true));
    target.require_bytes(1)?;
    let bytes = target.read_journal("j")?;
    drop(journal);
    target.suspend()?;
    Ok(bytes)
}

#[test]
fn every_call_is_passed_on_and_may_fail() {
    let run = |faults: &Faults| {
        let (slot, partial) = (MemorySlot::default(), MemoryPartial::default());
        let store = FaultyStore::new(Arc::new(memory_store()), faults.clone());
        let target = MemoryTarget::resume("out", slot.clone(), &partial);
        let target = FaultyTarget::new(Box::new(target), faults.clone());
        let result = all_calls(&store, Box::new(target));
        let target = Box::new(MemoryTarget::resume("out", slot.clone(), &partial));
        let journal = target.read_journal("j").ok();
        target.commit().unwrap();
        (result, journal, texts(&taken(&slot).unwrap()))
    };
    let clean = Faults::none();
    let (result, journal, files) = run(&clean);
    assert_eq!(
        (result.unwrap(), journal.unwrap()),
        (b"next".into(), b"next".into())
    );
    assert_eq!(files, [("new".into(), "1\0\0\0\0\0\0\0\0\0".into())]);
    let calls = clean.calls();
    let expected = [
        Call::Stamp,
        Call::Create,
        Call::Reserve,
        Call::Write,
        Call::Reopen,
        Call::Sync,
        Call::Create,
        Call::Retain,
        Call::Journal,
        Call::Append,
        Call::Clear,
        Call::Append,
        Call::JournalSync,
        Call::Journals,
        Call::IsHeld,
        Call::ReadJournal,
        Call::Suspend,
    ];
    assert_eq!(calls, expected);
    for call in 0..calls.len() {
        let (result, journal, files) = run(&Faults::at(call, Fault::Error(ErrorKind::Other)));
        assert_eq!(result.unwrap_err().code(), 5);
        // What was made by then is there for the next attempt.
        let is_begun = |kind| calls[..call].contains(&kind);
        let found = (journal.is_some(), !files.is_empty());
        assert_eq!(
            found,
            (is_begun(Call::Journal), is_begun(Call::Create)),
            "{call}"
        );
        let (result, ..) = run(&Faults::at(call, Fault::Vanish));
        assert!(matches!(result.unwrap_err().code(), 2 | 5));
    }

    let short = |kind| run(&Faults::at_nth(kind, 0, Fault::Short));
    assert_eq!(short(Call::ReadJournal).0.unwrap(), b"ne");
    assert_eq!(short(Call::Stamp).2, [("new".into(), "1\0\0\0\0".into())]);
    let partial = MemoryPartial::default();
    let target = MemoryTarget::join("out", &partial);
    let faulty = FaultyTarget::new(
        Box::new(target),
        Faults::at_nth(Call::Append, 1, Fault::Short),
    );
    let journal = faulty.journal("j").unwrap();
    journal.append(b"one.").unwrap();
    let error = journal.append(b"half").unwrap_err();
    assert!(
        matches!(&error, Error::Write { source, .. } if source.kind() == ErrorKind::StorageFull),
        "{error}"
    );
    assert_eq!(faulty.read_journal("j").unwrap(), b"one.ha");
}

#[test]
fn what_is_made_of_two_plans_lies_apart_and_only_who_is_at_none_of_it_goes() {
    for world in worlds() {
        let mut first = world.resume();
        first.enter("p").unwrap();
        assert_eq!(first.other_plans().unwrap(), [""; 0]);
        first.reopen("a").unwrap().write_at(0, b"of p").unwrap();
        first.journal("0").unwrap().append(b"p").unwrap();
        assert_eq!(first.length("a").unwrap(), Some(4));
        first.suspend().unwrap();

        let mut second = world.resume();
        second.enter("q").unwrap();
        assert_eq!(second.other_plans().unwrap(), ["p"]);
        assert_eq!(
            (second.length("a").unwrap(), second.journals().unwrap()),
            (None, vec![])
        );
        second.reopen("a").unwrap().write_at(0, b"q").unwrap();
        // Somebody is at work at the other one still.
        let mut other = world.join();
        other.enter("p").unwrap();
        let held = other.journal("1").unwrap();
        let error = second.remove_other_plans().unwrap_err();
        assert!(matches!(error, Error::TargetBusy { .. }), "{error}");
        drop(held);
        second.enter("p").unwrap();
        assert_eq!(second.read_journal("0").unwrap(), b"p");
        second.enter("q").unwrap();
        second.remove_other_plans().unwrap();
        assert_eq!(second.other_plans().unwrap(), [""; 0]);
        second.commit().unwrap();
        assert_eq!(
            texts(&*world.finished().unwrap()),
            [("a".to_owned(), "q".to_owned())]
        );
        drop(other);
        assert!(world.is_clean());
    }
}
