//! The documents say what the code does: every kind of error is in `docs/errors.md`, and nothing else is.

use std::collections::BTreeMap;
use std::path::Path;

/// Slug and code of every row.
fn documented() -> BTreeMap<String, u32> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/errors.md");
    let text = std::fs::read_to_string(file).expect("docs/errors.md is there");
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let slug = cells[1].trim_matches('`').to_owned();
        let code = cells[2]
            .parse()
            .unwrap_or_else(|_| panic!("no code in {line}"));
        assert!(
            cells[3..].iter().filter(|cell| !cell.is_empty()).count() >= 2,
            "{slug}: meaning and advice"
        );
        assert!(
            rows.insert(slug.clone(), code).is_none(),
            "{slug} is documented twice"
        );
    }
    rows
}

#[test]
fn every_kind_of_error_is_documented_with_its_code_and_nothing_else_is() {
    let kinds = [
        rialto_tensor::Error::KINDS,
        rialto_checkpoint::Error::KINDS,
        rialto_bridge::Error::KINDS,
        rialto_host::Error::KINDS,
        rialto_plugin::shim::KINDS,
        rialto_engine::Error::KINDS,
    ];
    let mut expected = BTreeMap::new();
    for (slug, code) in kinds.into_iter().flatten() {
        let first = expected.insert((*slug).to_owned(), *code);
        assert!(
            first.is_none_or(|first| first == *code),
            "{slug} has two codes"
        );
    }
    // The command line is no library; its own test holds its kinds against the same file.
    let documented: BTreeMap<String, u32> = documented()
        .into_iter()
        .filter(|(slug, _)| !slug.starts_with("cli/"))
        .collect();
    let missing: Vec<_> = expected
        .iter()
        .filter(|(slug, code)| documented.get(*slug) != Some(code))
        .collect();
    let surplus: Vec<_> = documented
        .keys()
        .filter(|slug| !expected.contains_key(*slug))
        .collect();
    assert!(
        missing.is_empty() && surplus.is_empty(),
        "missing or of another code: {missing:?}; surplus: {surplus:?}"
    );
}

#[test]
fn every_code_has_a_row_and_no_kind_has_another() {
    let codes = documented().into_values();
    assert!(codes.into_iter().all(|code| (1..=13).contains(&code)));
}
