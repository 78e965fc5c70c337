//! The fixtures are the files that `ORIGIN.md` lists, and no others.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")
}

/// Name to sha256 of every file below a folder.
fn hashes(folder: &Path, prefix: &str, found: &mut BTreeMap<String, String>) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.path().is_dir() {
            bytes += hashes(&entry.path(), &format!("{name}/"), found);
        } else if name != "ORIGIN.md" {
            let content = fs::read(entry.path()).unwrap();
            bytes += content.len() as u64;
            let hash: String = Sha256::digest(&content)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            found.insert(name, hash);
        }
    }
    bytes
}

#[test]
fn every_file_is_the_one_whose_hash_is_listed() {
    let mut found = BTreeMap::new();
    let bytes = hashes(&fixtures(), "", &mut found);
    let text = fs::read_to_string(fixtures().join("ORIGIN.md")).unwrap();
    let listed = text.lines().filter_map(|line| line.split_once("  "));
    let listed = listed
        .filter(|(hash, _)| hash.len() == 64)
        .map(|(hash, name)| (name.to_owned(), hash.to_owned()));
    assert_eq!(found, listed.collect());
    assert!(bytes < 20_000_000, "fixtures of {bytes} bytes");
}
