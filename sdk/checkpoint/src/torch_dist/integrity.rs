//! `integrity.json`: the SHA-256 of every file, as newer Megatron-Core versions may leave it beside a checkpoint.
//!
//! ```json
//! {"algorithm": "sha256", "files": {"__0_0.distcp": "9f86d081…", ".metadata": "60303ae2…"}}
//! ```

use std::collections::BTreeMap;

use rialto_tensor::Location;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::Error;
use crate::store::{Store, check_name};
use crate::unique;

/// Bytes held while a file is compared with its digest.
const BLOCK_BYTES: u64 = 1 << 20;
/// Hexadecimal digits of a SHA-256.
const DIGITS: usize = 64;

/// The digests that a checkpoint's writer recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Integrity {
    /// File, relative to the checkpoint, to digest in lower-case hexadecimal.
    files: BTreeMap<String, String>,
}

impl Integrity {
    /// Parses the file. Nothing in it is passed over: what is not understood might change what the digests mean.
    ///
    /// Errors, with `location` for the file: [`Error::IntegritySyntax`], [`Error::DuplicateName`],
    /// [`Error::IntegrityAlgorithm`], [`Error::UnsafeName`] for a file outside the checkpoint.
    pub fn parse(bytes: &[u8], location: &Location) -> Result<Integrity, Error> {
        let syntax = |reason: String| Error::IntegritySyntax {
            reason,
            location: location.clone(),
        };
        let text = std::str::from_utf8(bytes).map_err(|error| syntax(error.to_string()))?;
        let members: BTreeMap<String, &RawValue> = object(text, location)?;
        let member = |name: &str| {
            let member = members.get(name).map(|value| value.get());
            member.ok_or_else(|| syntax(format!("it has no member {name:?}")))
        };
        let algorithm: String = serde_json::from_str(member("algorithm")?)
            .map_err(|error| syntax(format!("its algorithm: {error}")))?;
        if algorithm != "sha256" {
            return Err(Error::IntegrityAlgorithm {
                algorithm,
                location: location.clone(),
            });
        }
        let mut files: BTreeMap<String, String> = object(member("files")?, location)?;
        if let Some(other) = members
            .keys()
            .find(|name| !["algorithm", "files"].contains(&name.as_str()))
        {
            return Err(syntax(format!("it has a member {other:?}")));
        }
        for (name, digest) in &mut files {
            check_name(name, location)?;
            let is_digest =
                digest.len() == DIGITS && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !is_digest {
                return Err(syntax(format!(
                    "the digest of {name:?} is not {DIGITS} hexadecimal digits"
                )));
            }
            digest.make_ascii_lowercase();
        }
        Ok(Integrity { files })
    }

    /// The files, relative to the checkpoint, each with its SHA-256 in lower-case hexadecimal, in order of name.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.files
            .iter()
            .map(|(name, digest)| (name.as_str(), digest.as_str()))
    }

    /// Reads a file of `store`, a block of 1 MiB at a time, and compares it with its digest.
    ///
    /// `progress` is told the bytes of every block after it was read; what it returns as an error ends the reading, so a
    /// caller cancels with an error of its own.
    ///
    /// Errors: [`Error::NoDigest`] for a file that is not listed; [`Error::Digest`]; those of opening and reading.
    pub fn verify<E: From<Error>>(
        &self,
        store: &dyn Store,
        name: &str,
        progress: &mut dyn FnMut(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(expected) = self.files.get(name) else {
            let location = Location::file(format!("{}/{name}", store.name()));
            return Err(Error::NoDigest { location }.into());
        };
        let source = store.open(name)?;
        let mut hasher = Sha256::new();
        let mut block = Vec::new();
        let mut start = 0;
        while start < source.len() {
            let len = BLOCK_BYTES.min(source.len() - start);
            block.resize(usize::try_from(len).expect("a block fits in memory"), 0);
            source.read_at(start, &mut block)?;
            hasher.update(&block);
            start += len;
            progress(len)?;
        }
        let found: String = hasher
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        if found == *expected {
            return Ok(());
        }
        Err(Error::Digest {
            location: Location::file(source.name()),
            expected: expected.clone(),
            found,
        }
        .into())
    }
}

/// Parses one object of values `V`, and nothing after it.
fn object<'de, V: Deserialize<'de>>(
    text: &'de str,
    location: &Location,
) -> Result<BTreeMap<String, V>, Error> {
    unique::object(text, location, |reason| Error::IntegritySyntax {
        location: location.clone(),
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    /// The SHA-256 of nothing, from FIPS 180-4's examples.
    const OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    /// The SHA-256 of a million times the letter a, from the same.
    const OF_A_MILLION: &str = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
    /// The SHA-256 of 2 MiB and five bytes of the letter a, from Python's hashlib.
    const OF_BLOCKS: &str = "f077ad66a499663ea49bdb0067bb7d51745c75a651e17c458435756986bbc523";

    fn parse(text: &str) -> Result<Integrity, Error> {
        Integrity::parse(text.as_bytes(), &Location::file("ckpt/integrity.json"))
    }

    fn listing(files: &[(&str, &str)]) -> Integrity {
        let files: serde_json::Map<_, _> = files
            .iter()
            .map(|(name, hex)| ((*name).to_owned(), (*hex).into()))
            .collect();
        parse(&serde_json::json!({"algorithm": "sha256", "files": files}).to_string()).unwrap()
    }

    #[test]
    fn a_file_is_read_in_blocks_and_compared() {
        let store = MemoryStore::new("ckpt");
        store.insert("empty", []).unwrap();
        store.insert("a", vec![b'a'; 1_000_000]).unwrap();
        store.insert("long", vec![b'a'; (2 << 20) + 5]).unwrap();
        store.insert("other", vec![b'b'; 5]).unwrap();
        let integrity = listing(&[
            ("empty", OF_NOTHING),
            ("a", &OF_A_MILLION.to_uppercase()),
            ("long", OF_BLOCKS),
            ("other", OF_NOTHING),
        ]);
        assert_eq!(integrity.files().next(), Some(("a", OF_A_MILLION)));
        let mut blocks = Vec::new();
        let mut progress = |bytes| -> Result<(), Error> {
            blocks.push(bytes);
            Ok(())
        };
        integrity.verify(&store, "empty", &mut progress).unwrap();
        integrity.verify(&store, "a", &mut progress).unwrap();
        integrity.verify(&store, "long", &mut progress).unwrap();
        let result = integrity.verify(&store, "other", &mut progress);
        let error = result.unwrap_err();
        assert_eq!(blocks, [1_000_000, 1 << 20, 1 << 20, 5, 5]);
        let Error::Digest {
            expected, found, ..
        } = &error
        else {
            panic!("{error}")
        };
        assert_eq!((expected.as_str(), found.len()), (OF_NOTHING, 64));
        let message = error.to_string();
        for part in ["ckpt/other", OF_NOTHING, found] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_caller_cancels_with_an_error_of_its_own() {
        #[derive(Debug)]
        enum Mine {
            Cancelled,
            Theirs,
        }
        impl From<Error> for Mine {
            fn from(_: Error) -> Mine {
                Mine::Theirs
            }
        }
        let store = MemoryStore::new("ckpt");
        store.insert("a", vec![0; 3 << 20]).unwrap();
        let integrity = listing(&[("a", OF_NOTHING), ("absent", OF_NOTHING)]);
        let mut calls = 0;
        let mut stop = |_| {
            calls += 1;
            if calls == 2 {
                Err(Mine::Cancelled)
            } else {
                Ok(())
            }
        };
        assert!(matches!(
            integrity.verify(&store, "a", &mut stop),
            Err(Mine::Cancelled)
        ));
        assert!(matches!(
            integrity.verify(&store, "absent", &mut stop),
            Err(Mine::Theirs)
        ));
        assert_eq!(calls, 2);
        let error = integrity.verify(&store, "other", &mut |_| Ok::<(), Error>(()));
        assert_eq!(error.unwrap_err().slug(), "torch_dist/no-digest");
    }

    #[test]
    fn what_is_not_exactly_such_a_list_is_refused() {
        let hex = OF_NOTHING;
        let deep = format!(
            r#"{{"algorithm":{}{}}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        let deeper = format!(
            r#"{{"algorithm":"sha256","files":{{"f":{}{}}}}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        for (text, slug) in [
            ("", "torch_dist/integrity-syntax"),
            ("[]", "torch_dist/integrity-syntax"),
            ("{}", "torch_dist/integrity-syntax"),
            (r#"{"files":{}}"#, "torch_dist/integrity-syntax"),
            (r#"{"algorithm":"sha256"}"#, "torch_dist/integrity-syntax"),
            (
                r#"{"algorithm":"sha256","files":[]}"#,
                "torch_dist/integrity-syntax",
            ),
            (
                r#"{"algorithm":"sha256","files":{"f":1}}"#,
                "torch_dist/integrity-syntax",
            ),
            (
                r#"{"algorithm":"sha256","files":{"f":"abc"}}"#,
                "torch_dist/integrity-syntax",
            ),
            (
                &format!(
                    r#"{{"algorithm":"sha256","files":{{"f":"{}g"}}}}"#,
                    &hex[1..]
                ),
                "torch_dist/integrity-syntax",
            ),
            (
                r#"{"algorithm":"sha256","files":{},"salt":"x"}"#,
                "torch_dist/integrity-syntax",
            ),
            (
                r#"{"algorithm":"sha256","files":{}} x"#,
                "torch_dist/integrity-syntax",
            ),
            (&deep, "torch_dist/integrity-syntax"),
            (&deeper, "torch_dist/integrity-syntax"),
            (
                r#"{"algorithm":"crc32","files":{}}"#,
                "torch_dist/integrity-algorithm",
            ),
            (
                r#"{"algorithm":"SHA256","files":{}}"#,
                "torch_dist/integrity-algorithm",
            ),
            (
                r#"{"algorithm":"sha256","algorithm":"sha256","files":{}}"#,
                "safetensors/duplicate-name",
            ),
            (
                &format!(r#"{{"algorithm":"sha256","files":{{"f":"{hex}","f":"{hex}"}}}}"#),
                "safetensors/duplicate-name",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.slug(), slug, "{error}");
            assert!(error.to_string().contains("ckpt/integrity.json"), "{error}");
        }
        for name in [
            "/etc/passwd",
            "../f",
            "a/../../f",
            "",
            "a//b",
            "a\\u0000b",
            "./a",
        ] {
            let error = parse(&format!(
                r#"{{"algorithm":"sha256","files":{{"{name}":"{hex}"}}}}"#
            ))
            .unwrap_err();
            assert!(matches!(error, Error::UnsafeName { .. }), "{error}");
        }
    }
}
