//! What holds for every kind of error, and what some say.

use std::collections::BTreeSet;

use rialto_tensor::{Region, TilingFault};

use super::*;

#[test]
fn no_slug_stands_for_two_kinds() {
    let mut slugs: Vec<&str> = Error::KINDS.iter().map(|(slug, _)| *slug).collect();
    slugs.sort_unstable();
    let count = slugs.len();
    slugs.dedup();
    assert_eq!(slugs.len(), count);
}

#[test]
fn a_long_list_of_findings_is_cut_and_counted() {
    let findings: Vec<IndexFinding> = (0..25)
        .map(|number| IndexFinding {
            tensor: format!("t{number:02}"),
            claimed: Some("a".to_owned()),
            found: Vec::new(),
        })
        .collect();
    let error = Error::IndexMismatch {
        location: Location::file("index.json"),
        findings,
    };
    let message = error.to_string();
    assert!(message.contains("25 tensor(s)"), "{message}");
    assert!(
        message.contains("t19") && !message.contains("t20"),
        "{message}"
    );
    assert!(message.contains("and 5 more (index.json)"), "{message}");
    assert!(!message.contains('\n'));
}

#[test]
fn an_unknown_dtype_keeps_its_code_and_lists_the_known_ones() {
    let error = Error::Tensor {
        location: Location::file("a").with_tensor("w"),
        source: rialto_tensor::Error::UnknownDtype {
            name: "F4".to_owned(),
        },
    };
    assert_eq!((error.code(), error.slug()), (3, "tensor/unknown-dtype"));
    assert!(error.help().expect("help").contains("BF16"));
    assert_eq!(error.to_string(), "dtype \"F4\" is not known (a, tensor w)");
}

/// One error of every kind.
#[allow(clippy::too_many_lines, reason = "a list")]
fn one_of_each() -> Vec<Error> {
    let location = || Location::file("f");
    let source = || io::Error::from(io::ErrorKind::PermissionDenied);
    let text = || "x".to_owned();
    vec![
        Error::NotFound {
            location: location(),
        },
        Error::Read {
            location: location(),
            source: source(),
        },
        Error::Write {
            location: location(),
            source: source(),
        },
        Error::ShortRead {
            location: location(),
            len: 1,
        },
        Error::UnsafeName {
            name: text(),
            location: location(),
        },
        Error::FileTooLarge {
            location: location(),
            len: 2,
            limit: 1,
        },
        Error::NotDirectory {
            location: location(),
        },
        Error::TargetExists {
            location: location(),
        },
        Error::TargetBusy {
            location: location(),
        },
        Error::TargetJoined {
            location: location(),
        },
        Error::Unsettled {
            location: location(),
            source: Box::new(Error::ShardSize),
        },
        Error::ForeignPartial {
            location: location(),
        },
        Error::Overlap {
            origin: text(),
            target: text(),
            relation: "inside",
        },
        Error::NotRegular {
            location: location(),
        },
        Error::NoSpace {
            location: text(),
            needed: 2,
            available: 1,
        },
        Error::Truncated {
            location: location(),
            expected: 2,
            found: 1,
        },
        Error::TrailingBytes {
            location: location(),
            expected: 1,
            found: 2,
        },
        Error::HeaderLimit {
            location: location(),
            len: 2,
            limit: 1,
        },
        Error::HeaderSyntax {
            location: location(),
            reason: text(),
        },
        Error::DuplicateName {
            location: location(),
            name: text(),
        },
        Error::ReservedName {
            location: location(),
        },
        Error::DataRange {
            location: location(),
        },
        Error::DataLength {
            location: location(),
            dtype: Dtype::Bf16,
            shape: Shape::new([1]),
            expected: 2,
            found: 1,
        },
        Error::DataOverlap {
            location: location(),
            other: text(),
        },
        Error::DataHole {
            location: location(),
        },
        Error::IndexSyntax {
            location: location(),
            reason: text(),
        },
        Error::NoWeights {
            location: location(),
            others: Vec::new(),
        },
        Error::MissingShards {
            location: location(),
            shards: vec![(text(), 1)],
        },
        Error::IndexMismatch {
            location: location(),
            findings: Vec::new(),
        },
        Error::ShardSize,
        Error::PickleTruncated {
            location: location(),
        },
        Error::PickleOpcode {
            opcode: 1,
            location: location(),
        },
        Error::PickleMalformed {
            what: "x",
            location: location(),
        },
        Error::PickleLimit {
            what: "x",
            limit: 1,
            location: location(),
        },
        Error::NotTorchSave {
            location: location(),
        },
        Error::ZipMalformed {
            what: "x",
            location: location(),
        },
        Error::ZipEncoded {
            record: text(),
            method: 8,
            location: location(),
        },
        Error::ZipRecordMissing {
            record: text(),
            location: location(),
        },
        Error::ItemMalformed {
            what: "x",
            location: location(),
        },
        Error::ItemUnsupported {
            what: text(),
            location: location(),
        },
        Error::ObjectOpaque { what: text() },
        Error::MetadataMalformed {
            what: "x",
            expected: "y",
            location: location(),
        },
        Error::Tiling {
            faults: vec![TensorTilingFault {
                tensor: text(),
                shape: Shape::new([1]),
                fault: TilingFault::Gap(Region::whole(&Shape::new([1]))),
            }],
            location: location(),
        },
        Error::StoragePlaces {
            item: text(),
            found: 2,
            location: location(),
        },
        Error::StorageStray {
            file: text(),
            location: location(),
        },
        Error::Transformed {
            transforms: vec![text()],
            location: location(),
        },
        Error::DataFiles {
            faults: Vec::new(),
            location: location(),
        },
        Error::ItemOverlap {
            other: text(),
            location: location(),
        },
        Error::ItemMismatch {
            expected: text(),
            found: text(),
            location: location(),
        },
        Error::NoSuchItem {
            location: location(),
        },
        Error::ShardedDescription {
            reason: text(),
            location: location(),
        },
        Error::ShardedBackend {
            backend: text(),
            version: text(),
            location: location(),
        },
        Error::IncompleteCheckpoint {
            location: location(),
        },
        Error::RanksMissing {
            files: vec![text()],
            location: location(),
        },
        Error::RanksDisagree {
            before: text(),
            after: text(),
            location: location(),
        },
        Error::IntegritySyntax {
            reason: text(),
            location: location(),
        },
        Error::IntegrityAlgorithm {
            algorithm: text(),
            location: location(),
        },
        Error::IntegrityFiles {
            files: vec![text()],
            location: location(),
        },
        Error::NoDigest {
            location: location(),
        },
        Error::Digest {
            location: location(),
            expected: text(),
            found: text(),
        },
        Error::NoTracker {
            tracker: "t",
            found: Vec::new(),
            location: location(),
        },
        Error::TrackerMalformed {
            text: text(),
            location: location(),
        },
        Error::TrackerDangling {
            named: text(),
            found: Vec::new(),
            location: location(),
        },
        Error::PlanConflict {
            location: location(),
        },
        Error::Checksum {
            location: location(),
            expected: 1,
            found: 2,
        },
        Error::RunConfig { reason: text() },
        Error::RunConfigSyntax {
            location: location(),
            reason: text(),
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
        let help = error
            .help()
            .unwrap_or_else(|| panic!("{} has no help", error.slug()));
        assert!(!help.contains('\n') && !help.ends_with('.'), "{help}");
    }
}

#[test]
fn a_pickle_that_nobody_writes_may_also_be_damaged() {
    let error = Error::PickleOpcode {
        opcode: 0x82,
        location: Location::file("m"),
    };
    let help = error.help().expect("help");
    assert!(
        help.contains("copy it again") && help.contains("PyTorch"),
        "{help}"
    );
}
