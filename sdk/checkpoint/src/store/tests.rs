//! What holds for every store and target, be they on disk, in memory, a part of another, or wrapped.

mod attempts;

use std::fs;
use std::io::ErrorKind;
use std::sync::{Arc, PoisonError};

use super::faulty::Call;
use super::memory::MemorySlot;
use super::*;

/// The files every store under test holds.
const FILES: [(&str, &[u8]); 4] = [
    ("a-b", b"dash"),
    ("a.txt", b"0123456789"),
    ("a/b/c", b"deep"),
    ("empty", b""),
];

fn fill(target: &dyn Target) -> Result<(), Error> {
    for (name, bytes) in FILES {
        let sink = target.create(name)?;
        // Back to front and in two writes: order does not matter.
        let half = bytes.len() / 2;
        sink.write_at(half as u64, &bytes[half..])?;
        sink.write_at(0, &bytes[..half])?;
        sink.sync()?;
    }
    Ok(())
}

fn check_store(store: &dyn Store) {
    let files = store.files().unwrap();
    let names: Vec<(&str, u64)> = files.iter().map(|f| (f.name.as_str(), f.len)).collect();
    let expected = FILES.map(|(name, bytes)| (name, bytes.len() as u64));
    assert_eq!(names, expected);
    for (name, bytes) in FILES {
        assert_eq!(read_whole(store, name, 100).unwrap(), bytes);
        let source = store.open(name).unwrap();
        assert!(source.name().starts_with(store.name()) && source.name().ends_with(name));
        assert_eq!(source.is_empty(), bytes.is_empty());
        assert_eq!(store.stamp(name).unwrap().len, bytes.len() as u64);
        assert_eq!(store.stamp(name).unwrap(), store.stamp(name).unwrap());
    }

    let source = store.open("a.txt").unwrap();
    let mut middle = [0; 4];
    source.read_at(3, &mut middle).unwrap();
    assert_eq!(&middle, b"3456");
    source.read_at(10, &mut []).unwrap();
    for offset in [7, 10, 11, u64::MAX - 1, u64::MAX] {
        let error = source.read_at(offset, &mut middle).unwrap_err();
        assert!(matches!(error, Error::ShortRead { len: 10, .. }), "{error}");
    }

    let error = store.open("missing").unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    let error = read_whole(store, "a.txt", 9).unwrap_err();
    assert!(
        matches!(
            error,
            Error::FileTooLarge {
                len: 10,
                limit: 9,
                ..
            }
        ),
        "{error}"
    );
    for name in [
        "",
        "/a.txt",
        "../a.txt",
        "a/../a.txt",
        "./a.txt",
        "a//b/c",
        "a/b/",
        "a\0",
    ] {
        for error in [
            store.open(name).unwrap_err(),
            store.stamp(name).unwrap_err(),
        ] {
            assert!(
                matches!(error, Error::UnsafeName { .. }),
                "{name:?}: {error}"
            );
        }
    }
    let error = store.stamp("missing").unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}

fn check_target(target: &dyn Target) {
    for name in ["", "/x", "../x", "x/..", "x//y", "\0"] {
        for error in [
            target.create(name).unwrap_err(),
            target.reopen(name).unwrap_err(),
        ] {
            assert!(
                matches!(error, Error::UnsafeName { .. }),
                "{name:?}: {error}"
            );
        }
    }
    for name in ["a.txt", "a", "a.txt/below"] {
        let error = target.create(name).unwrap_err();
        assert!(matches!(error, Error::Write { .. }), "{name:?}: {error}");
    }
}

fn taken(slot: &MemorySlot) -> Option<MemoryStore> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn memory_store() -> MemoryStore {
    let store = MemoryStore::new("ckpt");
    for (name, bytes) in FILES {
        store.insert(name, bytes).unwrap();
    }
    store
}

#[test]
fn a_local_target_becomes_a_local_store() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let target = LocalTarget::create(&out, Overwrite::Refuse).unwrap();
    fill(&target).unwrap();
    check_target(&target);
    Box::new(target).commit().unwrap();
    check_store(&LocalStore::open(&out).unwrap());
}

#[test]
fn a_memory_target_becomes_a_memory_store() {
    let slot = MemorySlot::default();
    let target = MemoryTarget::new("ckpt", slot.clone());
    fill(&target).unwrap();
    check_target(&target);
    assert!(taken(&slot).is_none());
    Box::new(target).commit().unwrap();
    check_store(&taken(&slot).unwrap());
    check_store(&memory_store());
}

#[test]
fn a_subdirectory_and_a_wrapper_without_faults_are_stores_too() {
    let outer = MemoryStore::new("ckpt");
    for (name, bytes) in FILES {
        outer.insert(&format!("iter/1/{name}"), bytes).unwrap();
    }
    for other in ["iter/10", "iter/1.txt", "iter", "z"] {
        outer.insert(other, "no part of it").unwrap();
    }
    let part = Subdirectory::new(Arc::new(outer.clone()), "iter/1").unwrap();
    assert_eq!(part.name(), "ckpt/iter/1");
    check_store(&part);
    let nowhere = Subdirectory::new(Arc::new(outer.clone()), "nowhere").unwrap();
    assert_eq!(nowhere.files().unwrap(), []);
    let error = Subdirectory::new(Arc::new(outer), "../up").unwrap_err();
    assert!(matches!(error, Error::UnsafeName { .. }), "{error}");
    check_store(&FaultyStore::new(Arc::new(memory_store()), Faults::none()));
}

#[test]
fn bytes_between_written_ranges_read_as_zero() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let slot = MemorySlot::default();
    let targets: [Box<dyn Target>; 2] = [
        Box::new(LocalTarget::create(&out, Overwrite::Refuse).unwrap()),
        Box::new(MemoryTarget::new("ckpt", slot.clone())),
    ];
    for target in targets {
        target.create("f").unwrap().write_at(3, b"x").unwrap();
        target.commit().unwrap();
    }
    let local = LocalStore::open(&out).unwrap();
    assert_eq!(read_whole(&local, "f", 9).unwrap(), b"\0\0\0x");
    assert_eq!(taken(&slot).unwrap().bytes("f").unwrap(), b"\0\0\0x");
}

#[test]
fn fc_41_a_memory_file_that_shrinks_or_goes_while_open_is_a_short_read() {
    let store = memory_store();
    let source = store.open("a.txt").unwrap();
    store.insert("a.txt", "01234").unwrap();
    source.read_at(1, &mut [0; 4]).unwrap();
    let error = source.read_at(4, &mut [0; 4]).unwrap_err();
    assert!(matches!(error, Error::ShortRead { len: 5, .. }), "{error}");
    store.remove("a.txt").unwrap();
    let error = source.read_at(0, &mut [0; 4]).unwrap_err();
    assert!(matches!(error, Error::ShortRead { len: 0, .. }), "{error}");
}

#[test]
fn a_write_beyond_memory_is_an_error() {
    let target = MemoryTarget::new("ckpt", MemorySlot::default());
    let sink = target.create("f").unwrap();
    for offset in [u64::MAX, u64::MAX / 2] {
        let error = sink.write_at(offset, b"x").unwrap_err();
        assert!(matches!(error, Error::Write { .. }), "{error}");
    }
}

/// Copies a store into a target, and commits.
fn copy(store: &dyn Store, target: Box<dyn Target>) -> Result<(), Error> {
    for file in store.files()? {
        let sink = target.create(&file.name)?;
        sink.write_at(0, &read_whole(store, &file.name, 100)?)?;
        sink.sync()?;
    }
    target.commit()
}

#[test]
fn a_copy_that_fails_at_any_call_leaves_no_target_and_the_source_as_it_was() {
    let scratch = tempfile::tempdir().unwrap();
    let (from, out) = (scratch.path().join("from"), scratch.path().join("out"));
    let target = LocalTarget::create(&from, Overwrite::Refuse).unwrap();
    fill(&target).unwrap();
    Box::new(target).commit().unwrap();
    let run = |faults: &Faults| {
        let store = FaultyStore::new(Arc::new(LocalStore::open(&from)?), faults.clone());
        let target = Box::new(LocalTarget::create(&out, Overwrite::Refuse)?);
        copy(&store, Box::new(FaultyTarget::new(target, faults.clone())))
    };
    let clean = Faults::none();
    run(&clean).unwrap();
    let calls = clean.calls();
    assert_eq!(calls.len(), 1 + 5 * FILES.len() + 1);
    assert_eq!(
        (calls[0], calls[calls.len() - 1]),
        (Call::List, Call::Commit)
    );
    fs::remove_dir_all(&out).unwrap();

    for (call, &kind) in calls.iter().enumerate() {
        for fault in [
            Fault::Error(ErrorKind::StorageFull),
            Fault::Short,
            Fault::Vanish,
        ] {
            let result = run(&Faults::at(call, fault));
            // Half of a file opened looks like a whole, shorter file; only a format can tell.
            if (kind, fault) == (Call::Open, Fault::Short) {
                result.unwrap();
                fs::remove_dir_all(&out).unwrap();
                continue;
            }
            let error = result.unwrap_err();
            assert!(
                matches!(
                    error,
                    Error::Read { .. }
                        | Error::Write { .. }
                        | Error::ShortRead { .. }
                        | Error::NotFound { .. }
                ),
                "{error}"
            );
            assert_eq!(
                fs::read_dir(scratch.path()).unwrap().count(),
                1,
                "{call} {fault:?}"
            );
        }
    }
    check_store(&LocalStore::open(&from).unwrap());
}

#[test]
fn a_fault_may_be_chosen_by_the_kind_of_call() {
    let store = FaultyStore::new(
        Arc::new(memory_store()),
        Faults::at_nth(Call::Read, 1, Fault::Short),
    );
    let source = store.open("a.txt").unwrap();
    let mut buffer = [0; 4];
    source.read_at(0, &mut buffer).unwrap();
    let error = source.read_at(4, &mut buffer).unwrap_err();
    assert!(matches!(error, Error::ShortRead { len: 6, .. }), "{error}");
    assert_eq!(&buffer, b"4523");
    source.read_at(4, &mut buffer).unwrap();
}

#[test]
fn a_full_disk_is_told_with_file_and_bytes() {
    let target = FaultyTarget::new(
        Box::new(MemoryTarget::new("out", MemorySlot::default())),
        Faults::at_nth(Call::Write, 0, Fault::Short),
    );
    let error = target
        .create("w")
        .unwrap()
        .write_at(8, &[0; 4])
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("cannot write (out/w, bytes 8..12): "),
        "{error}"
    );
    assert_eq!((error.code(), error.slug()), (5, "store/write"));
    assert!(error.help().unwrap().contains("space"));
}

#[test]
fn a_link_that_leads_nowhere_is_an_error_and_a_linked_directory_is_named() {
    let scratch = tempfile::tempdir().unwrap();
    let (store, elsewhere) = (
        scratch.path().join("store"),
        scratch.path().join("elsewhere"),
    );
    fs::create_dir(&store).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("inside"), b"x").unwrap();
    std::os::unix::fs::symlink(&elsewhere, store.join("extra")).unwrap();
    std::os::unix::fs::symlink(elsewhere.join("inside"), store.join("file")).unwrap();
    let opened = LocalStore::open(&store).unwrap();
    let names: Vec<String> = opened
        .files()
        .unwrap()
        .into_iter()
        .map(|file| file.name)
        .collect();
    assert_eq!(names, ["file"]);
    assert_eq!(opened.linked_directories().unwrap(), ["extra"]);
    std::os::unix::fs::symlink("/nowhere/at/all", store.join("tokenizer.json")).unwrap();
    let error = opened.files().unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
}
