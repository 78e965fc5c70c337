//! Each fault is planted into a copy of the checkpoint in the tree, and must be the one finding.

use std::path::PathBuf;

use super::*;

const SHARD: &str = "model-00001-of-00003.safetensors";

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/glm52-tiny")
}

/// The findings after `plant` has worked on a copy.
fn findings(plant: impl FnOnce(&Path)) -> Vec<String> {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(source()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    plant(copy.path());
    compare(&source(), copy.path()).unwrap().differences
}

fn edit(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(file).unwrap();
    change(&mut bytes);
    fs::write(file, bytes).unwrap();
}

/// Replaces the one place where `from` stands; both have the same length, so no offset moves.
fn replace(file: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    edit(file, |bytes| {
        let at = bytes
            .windows(from.len())
            .position(|window| window == from.as_bytes())
            .unwrap();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    });
}

#[track_caller]
fn assert_one(found: &[String], part: &str) {
    assert!(found.len() == 1 && found[0].contains(part), "{found:#?}");
}

#[test]
fn an_equal_copy_has_no_finding() {
    assert_eq!(findings(|_| ()), Vec::<String>::new());
}

#[test]
fn one_flipped_bit_is_found() {
    let found = findings(|copy| edit(&copy.join(SHARD), |bytes| *bytes.last_mut().unwrap() ^= 1));
    assert_one(&found, "differs");
}

#[test]
fn another_dtype_of_the_same_width_is_found() {
    let found = findings(|copy| {
        replace(
            &copy.join(SHARD),
            "\"dtype\":\"BF16\"",
            "\"dtype\":\"F16\" ",
        )
    });
    assert_one(&found, "F16");
}

#[test]
fn a_renamed_tensor_is_found_in_shard_and_index() {
    let found = findings(|copy| {
        replace(
            &copy.join(SHARD),
            "model.embed_tokens.weight",
            "model.embed_tokenz.weight",
        );
        replace(
            &copy.join(INDEX),
            "model.embed_tokens.weight",
            "model.embed_tokenz.weight",
        );
    });
    assert_eq!(found.len(), 4, "{found:#?}");
    assert!(
        found.iter().all(|finding| finding.contains("embed_token")),
        "{found:#?}"
    );
}

#[test]
fn an_index_that_names_the_wrong_shard_is_found() {
    let found = findings(|copy| {
        replace(
            &copy.join(INDEX),
            "\"lm_head.weight\": \"model-00003",
            "\"lm_head.weight\": \"model-00001",
        );
    });
    assert_one(&found, "lm_head.weight is not in model-00001");
}

#[test]
fn a_wrong_total_size_is_found() {
    let found =
        findings(|copy| replace(&copy.join(INDEX), "\"total_size\": 1", "\"total_size\": 2"));
    assert_one(&found, "total_size");
}

#[test]
fn one_byte_of_the_config_is_found() {
    let found = findings(|copy| edit(&copy.join(CONFIG), |bytes| bytes.push(b'\n')));
    assert_one(&found, "config.json");
}

#[test]
fn a_side_file_more_is_found() {
    let found = findings(|copy| fs::write(copy.join("generation_config.json"), "{}").unwrap());
    assert_one(&found, "generation_config.json: not in the source");
}

#[test]
fn metadata_of_the_shards_is_compared() {
    let found =
        findings(|copy| replace(&copy.join(SHARD), "\"format\":\"pt\"", "\"format\":\"tf\""));
    assert_one(&found, "shard metadata");
}
