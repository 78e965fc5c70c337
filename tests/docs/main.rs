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
        rialto_program::Error::KINDS,
        rialto_backend::Error::KINDS,
        rialto_bridge::Error::KINDS,
        rialto_host::Error::KINDS,
        rialto_plugin::shim::KINDS,
        rialto_engine::Error::KINDS,
        rialto_runtime::Error::KINDS,
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

/// Where text names a release of the family: `GLM-x.y` in any spelling, or its number alone.
fn release_names(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let number = |at: usize| {
        let is_version = at > 0 && (digit(at - 1) || text.as_bytes()[at - 1] == b'.');
        !is_version && text[at..].starts_with("5.") && digit(at + 2)
    };
    let named = |at: usize| {
        let rest = text[at..].strip_prefix("glm").map(|rest| {
            let rest = rest.trim_start_matches(['-', '_', ' ']);
            rest.strip_prefix('5')
                .map(|rest| rest.trim_start_matches(['-', '_', '.']))
        });
        let rest = rest.flatten();
        rest.is_some_and(|rest| rest.starts_with(|next: char| next.is_ascii_digit()))
    };
    let places = text.char_indices().map(|(at, _)| at);
    let found = places.filter(|&at| number(at) || named(at));
    found
        .map(|at| text[at..].chars().take(20).collect())
        .collect()
}

/// The files of a folder that end in `.rs`, with their names from that folder on.
fn sources(folder: &Path, prefix: &str, found: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        if path.is_dir() {
            sources(&path, &format!("{prefix}{name}/"), found);
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(&path).expect("a source is text");
            found.insert(format!("{prefix}{name}"), text);
        }
    }
}

/// What tells releases apart is in one table; elsewhere the family reads what a config holds.
#[test]
fn the_releases_of_the_family_are_named_in_one_table_only() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/glm5/src");
    let mut files = BTreeMap::new();
    sources(&folder, "", &mut files);
    let table = files.remove("spec.rs").expect("the table's file");
    assert!(files.contains_key("config/rope.rs"), "{:?}", files.keys());
    let naming: Vec<_> = files
        .iter()
        .filter(|(_, text)| !release_names(text).is_empty())
        .map(|(name, text)| (name, release_names(text)))
        .collect();
    assert!(naming.is_empty(), "{naming:?}");
    // The search finds what it is to find: every row of the table, and each spelling.
    let names = rialto_glm5::spec::RELEASES.iter().map(|row| row.name);
    for name in names {
        assert!(table.contains(&format!("name: \"{name}\"")), "{name}");
    }
    let rest = table.split_once("];").expect("the table ends").1;
    assert_eq!(release_names(rest), [""; 0]);
    for text in [
        "as GLM-5.2 does",
        "glm52",
        "GLM_5_1",
        "5.3 only",
        "glm 5.1",
        "(5.2)",
    ] {
        assert!(!release_names(text).is_empty(), "{text}");
    }
    for text in [
        "glm5::config",
        "the GLM-5 family",
        "1e-5, 0.5",
        "15.0",
        "0.5.1",
        "2.5",
    ] {
        assert_eq!(release_names(text), [""; 0], "{text}");
    }
}

/// The code blocks of a page in one language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    let blocks = page.split(fence.as_str()).skip(1);
    blocks
        .map(|block| block.split("```").next().unwrap_or_default())
        .collect()
}

#[test]
fn the_story_of_a_plugin_has_eleven_steps_and_quotes_the_plugin() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(tree.join("docs/writing-a-plugin.md")).expect("the page");
    let steps: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("## "))
        .collect();
    assert_eq!(steps.len(), 11);
    for (number, step) in (1..).zip(steps) {
        assert!(step.starts_with(&format!("## {number}. ")), "{step}");
    }
    let example = tree.join("examples/plugin-qwen3");
    let mut sources = std::fs::read_to_string(example.join("Cargo.toml")).expect("a manifest");
    for folder in ["src", "tests"] {
        for file in std::fs::read_dir(example.join(folder)).expect("sources") {
            let path = file.expect("a file").path();
            sources += &std::fs::read_to_string(path).expect("text");
        }
    }
    let rust = blocks(&page, "rust");
    assert!(rust.len() >= 8, "{} blocks", rust.len());
    for block in rust {
        assert!(sources.contains(block), "no longer in the plugin:\n{block}");
    }
    let toml = blocks(&page, "toml");
    for line in toml.iter().flat_map(|block| block.lines()) {
        assert!(sources.contains(line), "no longer in the manifest: {line}");
    }
}

/// Every operation has its row in `docs/operations.md`, with the names of what it takes and makes.
#[test]
fn every_operation_is_listed_with_its_inputs_and_outputs() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let text = std::fs::read_to_string(file).expect("docs/operations.md is there");
    let rows = text.lines().filter(|line| line.starts_with("| `rialto."));
    let listed: Vec<Vec<Vec<&str>>> = rows
        .map(|row| {
            let cells = row
                .split('|')
                .map(|cell| cell.split('`').skip(1).step_by(2).collect());
            cells.skip(1).take(3).collect()
        })
        .collect();
    let expected: Vec<Vec<Vec<&str>>> = rialto_program::Op::NAMES
        .iter()
        .map(|name| {
            let signature = rialto_program::Op::signature_of(name).expect("a known name");
            vec![
                vec![*name],
                signature.inputs.to_vec(),
                signature.outputs.to_vec(),
            ]
        })
        .collect();
    assert_eq!(listed, expected);
}
