//! Behaviors that users needed, as a user meets them: the numbers are those of `spec/field-cases.md`'s kind, one test a case.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::world::{command, contents, family, fixture, rialto, run, scratch, text};

/// A file system of so many KiB of memory, for as long as it lives.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// None where this user may not mount.
    fn new(kib: u32) -> Option<SmallDisk> {
        let scratch = scratch();
        let size = format!("size={kib}k");
        let mounted = Command::new("mount")
            .args([
                "-t",
                "tmpfs",
                "-o",
                &size,
                "rialto-test",
                text(scratch.path()),
            ])
            .output()
            .unwrap();
        mounted.status.success().then_some(SmallDisk(scratch))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn fc_46_a_disk_that_is_too_small_is_refused_with_the_sizes_and_left_empty() {
    let Some(disk) = SmallDisk::new(1024) else {
        assert!(
            std::env::var_os("CI").is_none(),
            "continuous integration may mount"
        );
        return;
    };
    let target = disk.0.path().join("target");
    for direction in ["import", "export"] {
        let scratch = scratch();
        let mut source = fixture("glm52-tiny");
        if direction == "export" {
            let imported = scratch.path().join("run");
            assert_eq!(rialto(["import", text(&source), text(&imported)]).code, 0);
            source = imported;
        }
        let before = contents(&source);
        let refused = rialto([direction, text(&source), text(&target), "--json"]);
        let error = refused.error(6, "store/no-space");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains(text(&target)) && message.contains("bytes"),
            "{message}"
        );
        assert_eq!(std::fs::read_dir(disk.0.path()).unwrap().count(), 0);
        assert_eq!(contents(&source), before);
    }
}

/// Room for some of it, taken by somebody else after the preflight: the ranks of a world each ask for their own files.
#[test]
fn fc_46_a_disk_that_fills_up_is_one_error_and_what_is_done_is_gone_on_from() {
    let Some(disk) = SmallDisk::new(1600) else {
        assert!(
            std::env::var_os("CI").is_none(),
            "continuous integration may mount"
        );
        return;
    };
    let (source, target) = (fixture("glm52-tiny"), disk.0.path().join("target"));
    let arguments = [
        "import",
        text(&source),
        text(&target),
        "--files",
        "4",
        "--sync-every",
        "0",
        "--json",
    ];
    let rank = |rank: &str| {
        let mut command = command();
        command
            .args(arguments)
            .args(["--rank", rank, "--world-size", "2", "--rank-timeout", "1"]);
        run(&mut command)
    };
    // The first to come finds room for its files, the second does not.
    assert_eq!(rank("1").code, 0);
    let error = rank("0").error(6, "store/no-space");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(text(&target)), "{message}");
    assert!(!target.exists());
    // With more room the same command goes on.
    let grown = Command::new("mount")
        .args(["-o", "remount,size=8m", text(disk.0.path())])
        .status();
    assert!(grown.unwrap().success());
    let (second, first) = (rank("1"), rank("0"));
    assert!(second.result()["bytes_found_done"].as_u64() > Some(0));
    first.result();
    assert_eq!(rialto(["verify", text(&source), text(&target)]).code, 0);
    assert_eq!(rialto(["verify", text(&target), "--manifest"]).code, 0);
}

#[test]
fn fc_50_a_conversion_says_how_fast_it_was() {
    let scratch = scratch();
    let target = scratch.path().join("run");
    let plain = rialto(["import", text(&fixture("glm52-tiny")), text(&target)]);
    let line = plain.stdout.lines().find(|line| line.starts_with("wrote "));
    assert!(
        line.is_some_and(|line| line.contains(" s, ") && line.contains("B/s: ")),
        "{plain:?}"
    );
}

/// The loader of the system says which libraries it looks for.
#[test]
fn fc_52_no_command_looks_for_a_library_of_a_gpu() {
    let scratch = scratch();
    let (source, target) = (fixture("glm52-tiny"), scratch.path().join("run"));
    let exported = scratch.path().join("exported");
    let (source, target, exported) = (text(&source), text(&target), text(&exported));
    for arguments in [
        &["plan", source][..],
        &["import", source, target],
        &["export", target, exported],
        &["inspect", target],
        &["verify", source, target],
        &["verify", exported, "--manifest"],
        &["plugin", "list"],
    ] {
        let mut command = command();
        let found = run(command.env("LD_DEBUG", "libs").args(arguments));
        assert_eq!(found.code, 0, "{arguments:?}");
        let searched: BTreeSet<&str> = found
            .stderr
            .lines()
            .filter_map(|line| line.split_once("find library=")?.1.split(' ').next())
            .collect();
        assert!(
            searched.contains("libc.so.6"),
            "the loader speaks: {searched:?}"
        );
        for library in [
            "cuda", "nvidia", "nvrtc", "vulkan", "libGL", "libEGL", "hip", "OpenCL",
        ] {
            assert!(
                !searched.iter().any(|name| name.contains(library)),
                "{arguments:?}: {searched:?}"
            );
        }
    }
}

#[test]
fn fc_52_program_and_plugin_need_nothing_but_the_libraries_of_c() {
    for file in [Path::new(env!("CARGO_BIN_EXE_rialto")), &family()] {
        let output = Command::new("ldd").arg(file).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let libraries = text
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        let libraries: Vec<&str> = libraries.collect();
        assert!(libraries.contains(&"libc.so.6"), "{text}");
        let known = [
            "linux-vdso",
            "libgcc_s",
            "libc.",
            "libm.",
            "libdl.",
            "libpthread.",
            "ld-linux",
        ];
        for library in libraries {
            let name = library.rsplit('/').next().unwrap();
            assert!(known.iter().any(|known| name.starts_with(known)), "{text}");
        }
    }
}

/// The options that a text names.
fn options(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("--") {
        let before = text[..at].chars().next_back();
        let name: String = text[at + 2..]
            .chars()
            .take_while(|character| character.is_ascii_lowercase() || *character == '-')
            .collect();
        let is_option = name.len() > 1 && !name.starts_with('-');
        if is_option && !before.is_some_and(|before| before == '-' || before.is_alphanumeric()) {
            found.insert(format!("--{}", name.trim_end_matches('-')));
        }
    }
    found
}

#[test]
fn fc_53_advice_names_only_options_that_can_be_typed() {
    let mut known = options(&rialto(["--help"]).stdout);
    for command in [
        "import", "export", "plan", "verify", "inspect", "run", "compare", "plugin", "backend",
    ] {
        let help = rialto([command, "--help"]);
        assert_eq!(help.code, 0);
        known.extend(options(&help.stdout));
    }
    assert!(known.contains("--resume") && known.contains("--allow-unmapped"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut advice = vec![root.join("docs/errors.md")];
    let mut open = vec![root.join("sdk")];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if ["error.rs", "help.rs", "kind.rs", "finding.rs"]
                .iter()
                .any(|name| path.ends_with(name))
            {
                advice.push(path);
            }
        }
    }
    assert!(advice.len() > 8, "{advice:?}");
    for path in advice {
        let text = std::fs::read_to_string(&path).unwrap();
        let unknown: Vec<String> = options(&text).difference(&known).cloned().collect();
        assert_eq!(unknown, [""; 0], "{}", path.display());
    }
}

#[test]
fn fc_53_an_error_of_the_system_has_its_path_and_its_reason() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    for (name, bytes) in contents(&fixture("glm52-tiny")) {
        std::fs::write(source.join(name), bytes).unwrap();
    }
    let shard = "model-00002-of-00003.safetensors";
    std::fs::remove_file(source.join(shard)).unwrap();
    std::os::unix::fs::symlink("nowhere", source.join(shard)).unwrap();
    let refused = rialto([
        "import",
        text(&source),
        text(&scratch.path().join("run")),
        "--json",
    ]);
    let message = refused.document()["error"]["message"].clone();
    let message = message.as_str().unwrap();
    assert!(
        message.contains(shard) && message.contains("no such file"),
        "{message}"
    );
    let refused = rialto([
        "import",
        text(&fixture("glm52-tiny")),
        "/proc/rialto/run",
        "--json",
    ]);
    let message = refused.document()["error"]["message"].clone();
    let message = message.as_str().unwrap();
    assert!(message.contains("/proc/rialto"), "{message}");
    assert!(message.contains("os error"), "{message}");
}
