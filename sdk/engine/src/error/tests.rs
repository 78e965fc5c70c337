//! Every kind of error, and what its help says.

use std::collections::BTreeSet;

use rialto_tensor::Location;

use super::*;

/// One error of every kind of this crate.
fn one_of_each() -> Vec<Error> {
    let text = || "x".to_owned();
    vec![
        Error::NotClaimed { reason: text() },
        Error::NoWeights { place: text() },
        Error::NoWeight {
            name: text(),
            place: text(),
        },
        Error::NoConfig {
            place: text(),
            searched: vec![text()],
        },
        Error::ReferenceDiffers {
            reference: text(),
            place: text(),
            differences: vec![text()],
        },
        Error::TwoFormats {
            ours: text(),
            theirs: text(),
        },
        Error::Vocabulary {
            place: text(),
            param: text(),
            rows: 2,
            named: 1,
            config: 1,
        },
        Error::Copy {
            file: text(),
            copy: text(),
            tensor: text(),
            index: vec![0],
        },
        Error::Layout {
            stages: 1,
            pp: 2,
            layers: 3,
        },
        Error::Stageless { param: text() },
        Error::TooLarge,
        Error::Cancelled,
        Error::Filter {
            unmatched: vec![text()],
        },
        Error::NoCheckpoint { place: text() },
        Error::OtherFormat {
            place: text(),
            found: MEGATRON,
            expected: HUGGING_FACE,
        },
        Error::NoManifest { place: text() },
        Error::NothingLeft { tensors: 1 },
        Error::CutParam {
            params: vec![text()],
        },
        Error::Manifest {
            file: text(),
            reason: text(),
        },
        Error::Journal { what: text() },
        Error::OtherPlan { place: text() },
        Error::SourceChanged {
            place: text(),
            changes: vec![text()],
        },
        Error::Budget {
            budget: 1,
            needed: 2,
        },
        Error::World { rank: 1, size: 1 },
        Error::Device {
            device: text(),
            doing: text(),
            source: rialto_backend::Error::Lost {
                device: text(),
                reason: text(),
            },
        },
        Error::DeviceDiffers {
            device: text(),
            tensor: text(),
            index: vec![0],
            expected: 0,
            found: 1,
        },
        Error::OthersStopped {
            place: text(),
            ranks: vec![text()],
            missing: 1,
            waited: std::time::Duration::ZERO,
        },
    ]
}

#[test]
fn every_kind_says_what_to_do_on_one_line() {
    let all = one_of_each();
    let slugs: BTreeSet<&str> = all.iter().map(Error::slug).collect();
    let kinds: BTreeSet<&str> = Error::KINDS.iter().map(|(slug, _)| *slug).collect();
    assert_eq!(slugs, kinds);
    for error in all {
        let help = error.help().unwrap_or_default();
        assert!(!help.is_empty(), "{} has no help", error.slug());
        assert!(!help.contains('\n') && !help.ends_with('.'), "{help}");
    }
}

fn suspended(source: Error) -> String {
    let source = Box::new(source);
    let place = "out/".to_owned();
    Error::Suspended { place, source }
        .help()
        .unwrap_or_default()
}

#[test]
fn whatever_ends_a_run_says_where_what_is_done_lies_and_how_to_go_on() {
    let resumes = "kept in out.partial: run again with `--resume`";
    assert_eq!(
        suspended(Error::Cancelled),
        format!("what is done is {resumes}")
    );
    let of_system = rialto_checkpoint::Error::Read {
        location: Location::file("f"),
        source: std::io::ErrorKind::Other.into(),
    };
    assert!(suspended(of_system.into()).ends_with(resumes));
    let mut stopped = one_of_each();
    let stopped = suspended(stopped.pop().expect("the last one"));
    assert_eq!(
        stopped.matches("what is done is kept").count(),
        1,
        "{stopped}"
    );
    // Whoever mends the source may have another one.
    let corrupt = rialto_checkpoint::Error::Checksum {
        location: Location::file("f"),
        expected: 1,
        found: 2,
    };
    let corrupt = suspended(corrupt.into());
    for part in [
        "copy it again",
        "kept in out.partial",
        "--resume",
        "cp -p",
        "remove it",
    ] {
        assert!(corrupt.contains(part), "{part}: {corrupt}");
    }
    let changed = suspended(Error::SourceChanged {
        place: "out".to_owned(),
        changes: vec![],
    });
    assert!(
        changed.contains("out.partial") && !changed.contains("with `--resume`"),
        "{changed}"
    );
}
