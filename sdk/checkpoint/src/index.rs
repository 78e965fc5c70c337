//! `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::BTreeMap;

use rialto_tensor::Location;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::Error;
use crate::store::check_name;
use crate::unique;

/// The index of a checkpoint in several shards.
///
/// Source: `save_pretrained` of the transformers library, whose bytes [`Index::write`] gives: two spaces of indentation,
/// sorted names, a final newline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// Tensor to file, the file relative to the checkpoint.
    pub weight_map: BTreeMap<String, String>,
    /// Bytes of all tensors together, headers not counted; `None` if the index does not say so as a whole number.
    pub total_size: Option<u64>,
}

impl Index {
    /// Parses an index; members that it does not know are passed over.
    ///
    /// Errors, with `location` for the file: [`Error::IndexSyntax`], [`Error::DuplicateName`] for a name given twice in
    /// any of its objects, [`Error::UnsafeName`] for a shard outside the checkpoint.
    pub fn parse(bytes: &[u8], location: &Location) -> Result<Index, Error> {
        let text = std::str::from_utf8(bytes).map_err(|error| Error::IndexSyntax {
            location: location.clone(),
            reason: error.to_string(),
        })?;
        let members: BTreeMap<String, &RawValue> = object(text, location)?;
        let Some(weight_map) = members.get("weight_map") else {
            return Err(Error::IndexSyntax {
                location: location.clone(),
                reason: "it has no member \"weight_map\"".to_owned(),
            });
        };
        let weight_map: BTreeMap<String, String> = object(weight_map.get(), location)?;
        for (tensor, file) in &weight_map {
            check_name(file, &location.clone().with_tensor(tensor))?;
        }
        let total_size = match members.get("metadata").map(|metadata| metadata.get()) {
            None | Some("null") => None,
            Some(metadata) => object::<Value>(metadata, location)?
                .get("total_size")
                .and_then(Value::as_u64),
        };
        Ok(Index {
            weight_map,
            total_size,
        })
    }

    /// The bytes of the index; equal indexes give equal bytes.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut metadata = serde_json::Map::new();
        if let Some(total_size) = self.total_size {
            metadata.insert("total_size".to_owned(), total_size.into());
        }
        let document = serde_json::json!({
            "metadata": metadata,
            "weight_map": self.weight_map,
        });
        format!("{document:#}\n").into_bytes()
    }
}

/// Parses one object of values `V`, and nothing after it.
fn object<'de, V: Deserialize<'de>>(
    text: &'de str,
    location: &Location,
) -> Result<BTreeMap<String, V>, Error> {
    unique::object(text, location, |reason| Error::IndexSyntax {
        location: location.clone(),
        reason,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Index, Error> {
        Index::parse(text.as_bytes(), &Location::file("index.json"))
    }

    #[test]
    fn is_written_as_the_transformers_library_writes_it() {
        let index = Index {
            weight_map: BTreeMap::from([
                (
                    "b".to_owned(),
                    "model-00001-of-00002.safetensors".to_owned(),
                ),
                (
                    "a".to_owned(),
                    "model-00002-of-00002.safetensors".to_owned(),
                ),
            ]),
            total_size: Some(12),
        };
        let text = String::from_utf8(index.write()).unwrap();
        assert_eq!(
            text,
            "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n  \"weight_map\": {\n    \
             \"a\": \"model-00002-of-00002.safetensors\",\n    \
             \"b\": \"model-00001-of-00002.safetensors\"\n  }\n}\n"
        );
        assert_eq!(parse(&text).unwrap(), index);
    }

    #[test]
    fn what_it_does_not_know_is_passed_over() {
        let index = parse(
            r#"{"extra":[[1]],"metadata":{"total_size":1.5e3,"x":{}},"weight_map":{"a":"f"}}"#,
        );
        let index = index.unwrap();
        assert_eq!(
            (index.weight_map["a"].as_str(), index.total_size),
            ("f", None)
        );
        assert_eq!(parse(r#"{"weight_map":{}}"#).unwrap(), Index::default());
        assert_eq!(
            parse(r#"{"metadata":null,"weight_map":{}}"#).unwrap(),
            Index::default()
        );
    }

    #[test]
    fn fc_38_a_name_given_twice_is_refused_in_every_object() {
        for text in [
            r#"{"weight_map":{"a":"f","a":"g"}}"#,
            r#"{"weight_map":{},"metadata":{"a":1,"a":1}}"#,
            r#"{"a":1,"weight_map":{},"a":1}"#,
        ] {
            let error = parse(text).unwrap_err();
            assert!(
                matches!(&error, Error::DuplicateName { name, .. } if name == "a"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_shard_outside_the_checkpoint_is_refused_with_its_tensor() {
        for file in ["../w.safetensors", "/etc/passwd", "a//b", ""] {
            let error = parse(&format!(r#"{{"weight_map":{{"w":"{file}"}}}}"#)).unwrap_err();
            assert!(matches!(error, Error::UnsafeName { .. }), "{error}");
            assert!(error.to_string().contains("tensor w"), "{error}");
        }
    }

    #[test]
    fn json_that_is_no_index_is_refused() {
        let deep = format!(
            r#"{{"weight_map":{{}},"metadata":{{"a":{}}}}}"#,
            "[".repeat(100_000)
        );
        let closed = format!(
            r#"{{"weight_map":{{}},"metadata":{{"a":{}{}}}}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        for text in [
            "",
            "[]",
            "{}",
            r#"{"weight_map":[]}"#,
            r#"{"weight_map":{"a":1}}"#,
            r#"{"weight_map":{}} x"#,
            r#"{"weight_map":{},"metadata":[]}"#,
            &deep,
            &closed,
        ] {
            let error = parse(text).unwrap_err();
            assert!(matches!(error, Error::IndexSyntax { .. }), "{error}");
        }
        let error = Index::parse(b"{\"\xff\":1}", &Location::default()).unwrap_err();
        assert!(matches!(error, Error::IndexSyntax { .. }), "{error}");
    }

    proptest! {
        #[test]
        fn what_is_written_is_parsed_again(
            weight_map in proptest::collection::btree_map("\\PC{0,9}", "[a-z]{1,4}(/[a-z]{1,4})?", 0..6),
            total_size in proptest::option::of(any::<u64>()),
        ) {
            let index = Index { weight_map, total_size };
            prop_assert_eq!(Index::parse(&index.write(), &Location::default()).unwrap(), index);
        }

        #[test]
        fn noise_is_never_a_panic(noise in "\\{\"weight_map\":\\{?\\PC{0,40}\\}{0,2}") {
            let _ = parse(&noise);
        }
    }
}
