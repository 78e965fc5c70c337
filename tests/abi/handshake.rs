//! One test for each way in which a file is not a usable plugin.

use std::mem::offset_of;

use rialto_abi::PluginDecl;
use rialto_abi::decl::{ABI_CRATE_VERSION, padded};
use rialto_host::check::Outcome;
use rialto_host::{Step, check, load};

use crate::library::{assert_answers, position, refused, toy, with_declaration, written};

#[test]
fn a_missing_file() {
    let folder = tempfile::tempdir().unwrap();
    refused(
        &folder.path().join("libnone.so"),
        "plugin/not-found",
        2,
        &["not there"],
    );
    let dangling = folder.path().join("libdangling.so");
    std::os::unix::fs::symlink(folder.path().join("gone"), &dangling).unwrap();
    refused(&dangling, "plugin/not-found", 2, &[]);
}

#[test]
fn a_directory_and_a_device() {
    let folder = tempfile::tempdir().unwrap();
    refused(folder.path(), "plugin/not-regular", 8, &["a directory"]);
    refused("/dev/null".as_ref(), "plugin/not-regular", 8, &["a device"]);
}

#[test]
fn an_empty_file_and_a_text_file() {
    let folder = tempfile::tempdir().unwrap();
    let empty = written(folder.path(), "libempty.so", b"");
    refused(&empty, "plugin/not-elf", 8, &["empty"]);
    let text = written(
        folder.path(),
        "libtext.so",
        b"#!/bin/sh\necho not a library\n",
    );
    refused(&text, "plugin/not-elf", 8, &["ELF magic"]);
}

#[test]
fn an_executable_is_not_a_plugin() {
    let executable = std::env::current_exe().unwrap();
    let error = load(&executable)
        .map(|plugin| plugin.package().to_owned())
        .unwrap_err();
    // A position-independent executable is a shared object to ELF; glibc refuses to open it.
    assert_eq!(error.slug(), "plugin/open", "{error}");
}

#[test]
fn another_machine_and_another_class() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read(toy()).unwrap();
    bytes[18..20].copy_from_slice(&[8, 0]);
    let mips = written(folder.path(), "libmips.so", &bytes);
    refused(
        &mips,
        "plugin/machine",
        8,
        &["mips", std::env::consts::ARCH],
    );
    bytes[4] = 1;
    let narrow = written(folder.path(), "libnarrow.so", &bytes);
    refused(&narrow, "plugin/not-elf", 8, &["64-bit"]);
}

/// The end of the last byte that a program header names, read on its own account.
fn needed(bytes: &[u8]) -> usize {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let half = |at: usize| usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()));
    let (table, count) = (word(32), half(56));
    (0..count)
        .map(|segment| table + 56 * segment)
        .map(|header| word(header + 8) + word(header + 32))
        .max()
        .unwrap()
}

#[test]
fn every_truncation_that_loses_a_segment_is_refused_before_it_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(toy()).unwrap();
    let needed = needed(&bytes);
    let steps = (1..200).map(|step| needed * step / 200);
    for len in [4, 16, 63, 64, 65, 500, 4096, needed - 4096, needed - 1]
        .into_iter()
        .chain(steps)
    {
        let cut = written(folder.path(), "libcut.so", &bytes[..len]);
        let report = check(&cut);
        let error = report.error.unwrap();
        assert_eq!(error.slug(), "plugin/truncated", "{len} bytes: {error}");
        assert!(
            error.to_string().contains(&format!("found {len}")),
            "{error}"
        );
        assert_eq!(report.steps[1].outcome, Outcome::Failed, "{len}");
        assert_eq!(report.steps[2].outcome, Outcome::NotReached, "{len}");
    }
    let whole_segments = written(folder.path(), "libsegments.so", &bytes[..needed]);
    assert_answers(&load(&whole_segments).unwrap());
}

#[test]
fn a_library_that_the_loader_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read(toy()).unwrap();
    // Names a library that it needs and that is nowhere: the loader's own words come through.
    let at = position(&bytes, b"libc.so.6\0");
    bytes[at..at + 9].copy_from_slice(b"libno.so.");
    let orphan = written(folder.path(), "liborphan.so", &bytes);
    refused(&orphan, "plugin/open", 8, &["libno.so."]);
}

#[test]
fn another_library_is_not_a_plugin() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|file| {
            file.rsplit('/')
                .next()
                .is_some_and(|name| name.starts_with("libc.") || name.starts_with("libc-"))
        });
    let libc = libc.expect("this process uses libc");
    refused(libc.as_ref(), "plugin/symbol", 8, &["rialto_plugin_v1"]);
}

/// Loads a copy of the toy after its declaration was edited, and expects this.
fn refused_declaration(edit: impl FnOnce(&mut [u8]), slug: &str, words: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let file = with_declaration(folder.path(), &toy(), edit);
    refused(&file, slug, 8, words);
}

#[test]
fn another_magic() {
    let edit = |decl: &mut [u8]| decl[..8].copy_from_slice(b"RIALTOV9");
    refused_declaration(edit, "plugin/magic", &["RIALTOV9", "RIALTOV1"]);
}

#[test]
fn another_size() {
    let at = offset_of!(PluginDecl, struct_size);
    let expected = PluginDecl::SIZE.to_string();
    for size in [16, PluginDecl::SIZE - 8, PluginDecl::SIZE + 8] {
        let edit = |decl: &mut [u8]| decl[at..at + 4].copy_from_slice(&size.to_ne_bytes());
        refused_declaration(edit, "plugin/size", &[&size.to_string(), &expected]);
    }
}

#[test]
fn another_major_version() {
    let at = offset_of!(PluginDecl, abi_major);
    let edit = |decl: &mut [u8]| decl[at..at + 4].copy_from_slice(&2u32.to_ne_bytes());
    let words = ["rialto-toy-plugin 0.1.0", "abi 2.1", "abi 1.1"];
    refused_declaration(edit, "plugin/major", &words);
}

#[test]
fn a_newer_minor_version_loads() {
    let folder = tempfile::tempdir().unwrap();
    let at = offset_of!(PluginDecl, abi_minor);
    let edit = |decl: &mut [u8]| decl[at..at + 4].copy_from_slice(&7u32.to_ne_bytes());
    let newer = load(&with_declaration(folder.path(), &toy(), edit)).unwrap();
    assert_eq!(newer.abi(), "1.7");
    assert_answers(&newer);
}

#[test]
fn another_target() {
    let at = offset_of!(PluginDecl, target);
    let other = padded::<64>("mips64-unknown-none");
    let edit = |decl: &mut [u8]| decl[at..at + 64].copy_from_slice(&other);
    let words = [
        "rialto-toy-plugin 0.1.0",
        "mips64-unknown-none",
        rialto_abi::TARGET,
    ];
    refused_declaration(edit, "plugin/target", &words);
}

#[test]
fn a_panic_strategy_that_ends_the_process() {
    let at = offset_of!(PluginDecl, panic_strategy);
    for (strategy, word) in [(2u32, "abort"), (77, "77")] {
        let edit = |decl: &mut [u8]| decl[at..at + 4].copy_from_slice(&strategy.to_ne_bytes());
        refused_declaration(
            edit,
            "plugin/panic-strategy",
            &[word, "rialto-toy-plugin 0.1.0"],
        );
    }
}

#[test]
fn tables_of_another_layout() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read(toy()).unwrap();
    // The report holds the names of a table's fields in one text.
    let names = b"capabilities;context;log;";
    let at = position(&bytes, names);
    bytes[at..at + 12].copy_from_slice(b"compatibilit");
    let file = written(folder.path(), "libother_layout.so", &bytes);
    let version = format!("rialto-abi {ABI_CRATE_VERSION}");
    let words = [
        "rialto-toy-plugin 0.1.0",
        version.as_str(),
        "types that differ: ",
    ];
    let error = refused(&file, "plugin/layout", 8, &words);
    let report = error.layout_report().unwrap();
    assert!(
        report.lines().count() > 20 && report.contains("compatibilit"),
        "{report}"
    );
}

#[test]
fn a_report_of_another_kind_or_none_is_not_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let at = offset_of!(PluginDecl, layout_version);
    let edit = |decl: &mut [u8]| decl[at..at + 32].copy_from_slice(&padded::<32>("stabby 72"));
    let other = load(&with_declaration(folder.path(), &toy(), edit)).unwrap();
    assert_answers(&other);
}

#[test]
fn a_check_tells_every_step() {
    let report = check(&toy());
    assert!(report.error.is_none() && report.plugin.is_some());
    let steps: Vec<Step> = report.steps.iter().map(|step| step.step).collect();
    assert_eq!(steps, Step::ALL);
    assert!(
        report
            .steps
            .iter()
            .all(|step| step.outcome == Outcome::Passed)
    );
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["steps"][8]["step"], "panic-strategy");
    assert_eq!(json["steps"][8]["detail"], "unwind");
    assert_eq!(json["steps"][12]["detail"], "dequantize/1, program/1");
}

#[test]
fn the_same_file_twice_is_two_instances_of_one_library() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("libalias.so");
    std::os::unix::fs::symlink(toy(), &link).unwrap();
    let (first, second) = (load(&toy()).unwrap(), load(&link).unwrap());
    assert_eq!(check(&link).steps[2].detail, "loaded before");
    assert_answers(&first);
    drop(first);
    assert_answers(&second);
}

#[test]
fn many_threads_load_and_ask_at_once() {
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| (0..8).for_each(|_| assert_answers(&load(&toy()).unwrap())));
        }
    });
}

#[test]
fn a_library_may_be_deleted_after_it_was_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let copy = written(
        folder.path(),
        "libtoy_copy.so",
        &std::fs::read(toy()).unwrap(),
    );
    let plugin = load(&copy).unwrap();
    drop(folder);
    assert_answers(&plugin);
}
