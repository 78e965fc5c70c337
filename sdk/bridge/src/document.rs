//! The JSON documents in which cold values cross the ABI.
//!
//! `{"schema": 1, "requires": ["rule/map/1"], "body": ...}`: `schema` is the shape of the envelope and of the bodies,
//! `requires` names what the reader must know to read this one. A reader that lacks something says which, before it looks
//! at the body.
//!
//! A field that is added to a body has a default, is left out while it has that, and else puts a name into `requires`: then
//! sides of different age understand each other, or say what is missing. `docs/abi.md`, "How documents change", is the rule.

use rialto_program::Op;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Error;

/// The envelope's schema.
pub const SCHEMA: u32 = 1;

/// Kinds of rules that this version can read. With [`operations`] it is what it knows beyond the plain bodies: [`capabilities`].
pub const CAPABILITIES: &[&str] = &[
    "rule/map/1",
    "rule/forms/1",
    "rule/beside/1",
    "rule/encoded/1",
    "rule/padding/1",
    "rule/stack/1",
    "rule/copies/1",
];

/// What stands before the name of an operation in a list of requirements or capabilities.
const OP: &str = "op/";

/// The operations that this version knows, as a program requires them: `op/rialto.linear/1`.
pub fn operations() -> impl Iterator<Item = String> {
    Op::NAMES.iter().map(|name| format!("{OP}{name}"))
}

/// All that this version can read beyond the plain bodies; the host publishes it to plugins.
#[must_use]
pub fn capabilities() -> Vec<String> {
    let rules = CAPABILITIES.iter().map(|&name| name.to_owned());
    rules.chain(operations()).collect()
}

/// Whether this version can read a document that requires this.
#[must_use]
pub fn is_known(requirement: &str) -> bool {
    let is_op = |name| Op::NAMES.contains(&name);
    CAPABILITIES.contains(&requirement) || requirement.strip_prefix(OP).is_some_and(is_op)
}

#[derive(Serialize)]
struct Outgoing<'a, T> {
    schema: u32,
    requires: &'a [&'a str],
    body: &'a T,
}

#[derive(Deserialize)]
struct Incoming<'a> {
    schema: u32,
    #[serde(default)]
    requires: Vec<String>,
    #[serde(borrow)]
    body: &'a RawValue,
}

/// Writes a document. Errors: [`Error::Document`] if the body has no JSON form (a NaN, say).
pub fn encode<T: Serialize>(name: &str, requires: &[&str], body: &T) -> Result<Vec<u8>, Error> {
    let unwritable = |error: serde_json::Error| Error::Document {
        document: name.to_owned(),
        reason: error.to_string(),
    };
    serde_json::to_vec(&Outgoing {
        schema: SCHEMA,
        requires,
        body,
    })
    .map_err(unwritable)
}

/// Reads a document. Errors: [`Error::Document`], [`Error::Requirement`].
pub fn decode<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, Error> {
    let unreadable = |reason: String| Error::Document {
        document: name.to_owned(),
        reason,
    };
    let text = std::str::from_utf8(bytes);
    let text = text.map_err(|error| unreadable(format!("it is not UTF-8: {error}")))?;
    if text.is_empty() {
        return Err(unreadable("it is empty".to_owned()));
    }
    let incoming: Incoming<'_> =
        serde_json::from_str(text).map_err(|error| unreadable(error.to_string()))?;
    if incoming.schema != SCHEMA {
        return Err(unreadable(format!(
            "schema {} found, {SCHEMA} expected",
            incoming.schema
        )));
    }
    if let Some(missing) = incoming.requires.iter().find(|need| !is_known(need)) {
        return Err(Error::Requirement {
            document: name.to_owned(),
            missing: missing.clone(),
        });
    }
    serde_json::from_str(incoming.body.get()).map_err(|error| unreadable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_reads_back() {
        let bytes = encode("numbers", &["rule/map/1"], &vec![1, 2]).unwrap();
        assert_eq!(decode::<Vec<u32>>("numbers", &bytes), Ok(vec![1, 2]));
    }

    #[test]
    fn a_number_keeps_its_last_bit() {
        // One number in ten comes back one unit in the last place away without serde_json's float_roundtrip; so do these.
        let numbers = [0.9856906946328695, 0.21291890726713458, 0.9259338926496359];
        let bytes = encode("numbers", &[], &numbers).unwrap();
        assert_eq!(decode::<[f64; 3]>("numbers", &bytes), Ok(numbers));
    }

    #[test]
    fn a_requirement_that_is_missing_is_named_before_the_body_is_read() {
        let bytes = br#"{"schema": 1, "requires": ["rule/transpose/1"], "body": "not numbers"}"#;
        let error = decode::<Vec<u32>>("numbers", bytes).unwrap_err();
        assert!(error.to_string().contains("rule/transpose/1"), "{error}");
    }

    #[test]
    fn operations_are_required_by_name_and_version() {
        let document = |requires: &str| {
            let text = format!(r#"{{"schema": 1, "requires": ["{requires}"], "body": [1]}}"#);
            decode::<Vec<u32>>("numbers", text.as_bytes())
        };
        for known in capabilities() {
            assert!(is_known(&known) && document(&known).is_ok(), "{known}");
        }
        assert_eq!(capabilities().len(), CAPABILITIES.len() + Op::NAMES.len());
        for missing in [
            "op/rialto.linear/2",
            "op/",
            "rialto.linear/1",
            "op/op/rialto.linear/1",
        ] {
            let error = document(missing).unwrap_err();
            let (document, missing) = ("numbers".to_owned(), missing.to_owned());
            assert_eq!(error, Error::Requirement { document, missing });
        }
    }

    #[test]
    fn another_schema_and_a_torn_document_are_refused() {
        for bytes in [
            &br#"{"schema": 2, "body": [1]}"#[..],
            br#"{"schema": 1}"#,
            br#"{"schema": 1, "body": [1]"#,
            b"",
        ] {
            assert!(
                matches!(
                    decode::<Vec<u32>>("numbers", bytes),
                    Err(Error::Document { .. })
                ),
                "{bytes:?}"
            );
        }
    }
}
