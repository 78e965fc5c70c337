//! `config.json` as somebody wrote it, and edits that touch nothing else.

mod keys;
mod rope;

pub use keys::{MOST_SIZE, READ_KEYS};

use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::Error;

/// A `config.json`: its values, and the text they stand in.
///
/// The text is kept because a bridge gives back what it was given: key order, spacing, spelling of numbers and keys it
/// does not know all survive, and an edit replaces the bytes of one value.
#[derive(Clone, Debug, PartialEq)]
pub struct RawConfig {
    text: String,
    values: Map<String, Value>,
}

/// What must change about one top-level key.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "edit", rename_all = "snake_case", deny_unknown_fields)]
pub enum ConfigEdit {
    /// The key must have this value.
    Set {
        /// The key.
        key: String,
        /// Its new value.
        value: Value,
    },
    /// The key must not be there.
    Remove {
        /// The key.
        key: String,
    },
}

impl ConfigEdit {
    /// Sets a key.
    pub fn set(key: &str, value: impl Into<Value>) -> ConfigEdit {
        ConfigEdit::Set {
            key: key.to_owned(),
            value: value.into(),
        }
    }

    /// Removes a key.
    #[must_use]
    pub fn remove(key: &str) -> ConfigEdit {
        ConfigEdit::Remove {
            key: key.to_owned(),
        }
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            ConfigEdit::Set { key, .. } | ConfigEdit::Remove { key } => key,
        }
    }
}

impl RawConfig {
    /// Reads the file's bytes. Errors: [`Error::ConfigSyntax`], also for a key that stands twice.
    pub fn parse(bytes: &[u8]) -> Result<RawConfig, Error> {
        let syntax = |reason: String| Error::ConfigSyntax { reason };
        let text = std::str::from_utf8(bytes).map_err(|error| syntax(error.to_string()))?;
        let entries: Entries<'_> =
            serde_json::from_str(text).map_err(|error| syntax(error.to_string()))?;
        let mut values = Map::new();
        for (key, raw) in &entries.0 {
            let value = serde_json::from_str(raw.get())
                .map_err(|error| syntax(format!("{key}: {error}")))?;
            if values.insert(key.clone(), value).is_some() {
                return Err(syntax(format!("key {key:?} stands twice")));
            }
        }
        Ok(RawConfig {
            text: text.to_owned(),
            values,
        })
    }

    /// The text, exactly as given.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The values, in the order of the text.
    #[must_use]
    pub fn values(&self) -> &Map<String, Value> {
        &self.values
    }

    /// The value of a top-level key; an explicit `null` counts as absent.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// A whole number that must be there. Errors: [`Error::ConfigValue`].
    pub fn integer(&self, key: &str) -> Result<u64, Error> {
        self.optional_integer(key)?
            .ok_or_else(|| self.wrong(key, "a whole number"))
    }

    /// A whole number, `None` if absent or null. Errors: [`Error::ConfigValue`] for anything else.
    pub fn optional_integer(&self, key: &str) -> Result<Option<u64>, Error> {
        let number = self.value(key).map(|value| {
            value
                .as_u64()
                .ok_or_else(|| self.wrong(key, "a whole number"))
        });
        number.transpose()
    }

    /// The error for a key whose value is not `expected`.
    #[must_use]
    pub fn wrong(&self, key: &str, expected: &str) -> Error {
        let found = self
            .values
            .get(key)
            .map_or_else(|| "absent".to_owned(), Value::to_string);
        Error::ConfigValue {
            key: key.to_owned(),
            expected: expected.to_owned(),
            found,
        }
    }

    /// The ids in `architectures`, none if the key is absent. Errors: [`Error::ConfigValue`].
    pub fn architectures(&self) -> Result<Vec<&str>, Error> {
        let Some(value) = self.value("architectures") else {
            return Ok(Vec::new());
        };
        let wrong = || self.wrong("architectures", "a list of names");
        value
            .as_array()
            .ok_or_else(wrong)?
            .iter()
            .map(|name| name.as_str().ok_or_else(wrong))
            .collect()
    }

    /// The text after the edits: the bytes of an edited value are replaced, a new key is added at the end, and everything
    /// else, unchanged values included, keeps its bytes.
    #[must_use]
    pub fn edited(&self, edits: &[ConfigEdit]) -> String {
        let mut text = self.text.clone();
        for edit in edits {
            // The text was parsed before and every edit keeps it an object.
            let entries: Entries<'_> =
                serde_json::from_str(&text).expect("an edited object parses");
            let at = entries.0.iter().position(|(key, _)| key == edit.key());
            match (edit, at) {
                // What stands there now, which an edit before this one may have put there.
                (ConfigEdit::Set { value, .. }, Some(at)) if entries.is_value(at, value) => {}
                (ConfigEdit::Set { value, .. }, Some(at)) => {
                    text.replace_range(entries.value_range(&text, at), &value.to_string());
                }
                (ConfigEdit::Set { key, value }, None) => {
                    text = with_new_key(&text, entries.0.is_empty(), key, &value.to_string());
                }
                (ConfigEdit::Remove { .. }, Some(at)) => {
                    text.replace_range(entries.entry_range(&text, at), "");
                }
                (ConfigEdit::Remove { .. }, None) => {}
            }
        }
        text
    }
}

/// Adds a key after the last value, indented as the first key is.
fn with_new_key(text: &str, is_empty: bool, key: &str, value: &str) -> String {
    let open = text.find('{').expect("an object has a brace");
    let close = text.rfind('}').expect("an object has a brace");
    let first_key = text[open + 1..]
        .find(|c: char| !c.is_whitespace())
        .map_or(close, |at| open + 1 + at);
    let lead = if is_empty {
        ""
    } else {
        &text[open + 1..first_key]
    };
    let last = text[..close].trim_end().len();
    let comma = if is_empty { "" } else { "," };
    format!(
        "{}{comma}{lead}{}: {value}{}",
        &text[..last],
        Value::from(key),
        &text[last..]
    )
}

/// Top-level entries with the text of each value, in order, duplicates kept.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl Entries<'_> {
    /// Whether the value of an entry is this one, however it is spelled.
    fn is_value(&self, at: usize, value: &Value) -> bool {
        serde_json::from_str(self.0[at].1.get()).is_ok_and(|found: Value| found == *value)
    }

    /// Where the value of an entry stands in the text it was read from.
    fn value_range(&self, text: &str, at: usize) -> Range<usize> {
        let raw = self.0[at].1.get();
        let start = raw.as_ptr() as usize - text.as_ptr() as usize;
        start..start + raw.len()
    }

    /// What must go with an entry: its key, its value, and the comma before it, or after it if it is the first of several.
    fn entry_range(&self, text: &str, at: usize) -> Range<usize> {
        let end = self.value_range(text, at).end;
        if let Some(before) = at.checked_sub(1) {
            return self.value_range(text, before).end..end;
        }
        let open = text.find('{').expect("an object has a brace") + 1;
        match self.0.len() {
            1 => open..end,
            _ => open..end + text[end..].find(',').expect("entries are separated") + 1,
        }
    }
}

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;

        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<'de>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry::<String, &'de RawValue>()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor)
    }
}

/// The notice that one source of a value is not followed.
#[must_use]
pub fn contradiction(other: &str, decider: &str) -> String {
    format!("config.json: {other} contradicts {decider}; {decider} decides")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TEXT: &str = "{\n  \"eps\": 1e-05,\n  \"nested\": {\"a\": [1,  2]},\n  \"mtp\": 1\n}\n";

    fn edit(key: &str, value: Value) -> ConfigEdit {
        ConfigEdit::set(key, value)
    }

    #[test]
    fn a_key_is_removed_with_its_comma_and_nothing_else() {
        let text = "{\n  \"a\": {\"x\": [1, 2]},\n  \"b\\u0063\": 1e5,\n  \"d\": null\n}\n";
        let config = RawConfig::parse(text.as_bytes()).unwrap();
        let without = |keys: &[&str]| {
            let edits: Vec<_> = keys.iter().map(|key| ConfigEdit::remove(key)).collect();
            config.edited(&edits)
        };
        assert_eq!(
            without(&["a"]),
            "{\n  \"b\\u0063\": 1e5,\n  \"d\": null\n}\n"
        );
        assert_eq!(
            without(&["bc"]),
            "{\n  \"a\": {\"x\": [1, 2]},\n  \"d\": null\n}\n"
        );
        assert_eq!(
            without(&["d"]),
            "{\n  \"a\": {\"x\": [1, 2]},\n  \"b\\u0063\": 1e5\n}\n"
        );
        assert_eq!(without(&["a", "d", "bc"]), "{\n}\n");
        assert_eq!(without(&["absent"]), text);
    }

    #[test]
    fn an_edit_replaces_one_value_and_keeps_every_other_byte() {
        let config = RawConfig::parse(TEXT.as_bytes()).unwrap();
        assert_eq!(
            config.edited(&[edit("mtp", json!(0))]),
            TEXT.replace("\"mtp\": 1", "\"mtp\": 0")
        );
        assert_eq!(
            config.edited(&[edit("eps", json!(0.25))]),
            TEXT.replace("1e-05", "0.25")
        );
    }

    #[test]
    fn an_edit_to_the_same_value_keeps_the_spelling() {
        let config = RawConfig::parse(TEXT.as_bytes()).unwrap();
        assert_eq!(
            config.edited(&[
                edit("eps", json!(1e-5)),
                edit("nested", json!({"a": [1, 2]}))
            ]),
            TEXT
        );
    }

    #[test]
    fn the_last_of_several_edits_of_a_key_holds() {
        let config = RawConfig::parse(TEXT.as_bytes()).unwrap();
        let there_and_back = [edit("mtp", json!(0)), edit("mtp", json!(1))];
        assert_eq!(config.edited(&there_and_back), TEXT);
        let new = [edit("new", json!(0)), edit("new", json!(1))];
        assert_eq!(config.edited(&new), config.edited(&new[1..]));
    }

    #[test]
    fn a_new_key_goes_to_the_end_in_the_same_style() {
        let config = RawConfig::parse(TEXT.as_bytes()).unwrap();
        let expected = TEXT.replace("\"mtp\": 1", "\"mtp\": 1,\n  \"new\": true");
        assert_eq!(config.edited(&[edit("new", json!(true))]), expected);
        let empty = RawConfig::parse(b"{}").unwrap();
        assert_eq!(
            empty.edited(&[edit("a", json!(1)), edit("b", json!("x"))]),
            "{\"a\": 1,\"b\": \"x\"}"
        );
    }

    #[test]
    fn a_key_that_stands_twice_is_refused() {
        let error = RawConfig::parse(br#"{"a": 1, "a": 1}"#).unwrap_err();
        assert_eq!(
            error.to_string(),
            "config.json cannot be read: key \"a\" stands twice"
        );
    }

    #[test]
    fn what_is_not_an_object_is_refused() {
        for bytes in [&b"[]"[..], b"", b"{", b"\xff", b"{} x", b"null"] {
            assert!(RawConfig::parse(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn null_counts_as_absent_and_wrong_kinds_are_named() {
        let config = RawConfig::parse(br#"{"a": null, "b": "x", "c": -1}"#).unwrap();
        assert_eq!(config.optional_integer("a"), Ok(None));
        let error = config.integer("b").unwrap_err();
        assert_eq!(
            error.to_string(),
            "config.json: b is \"x\", expected a whole number"
        );
        assert!(config.integer("c").is_err());
        assert_eq!(
            config.integer("d").unwrap_err().to_string(),
            "config.json: d is absent, expected a whole number"
        );
    }
}
