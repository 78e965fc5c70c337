//! `config.json`, and edits of it.

use rialto_bridge::{ConfigEdit, RawConfig};
use serde_json::{Value, json};

use crate::memory::bounded;

/// Edits are tried for this many keys; every one costs a parse.
const KEYS: usize = 4;

/// The text is kept; an edit to the same value changes nothing; an edit gives its key the new value, every other key keeps
/// its own, and no byte outside the edited value changes; of several edits of one key the last holds.
pub fn check(input: &[u8]) {
    let Ok(config) = bounded(input.len(), || RawConfig::parse(input)) else {
        return;
    };
    assert_eq!(config.text().as_bytes(), input);
    let keys: Vec<&String> = config.values().keys().take(KEYS).collect();

    let same: Vec<ConfigEdit> = config
        .values()
        .iter()
        .map(|(key, value)| edit(key, value))
        .collect();
    assert_eq!(config.edited(&same), config.text());

    let mut all = Vec::new();
    for (position, key) in keys.iter().enumerate() {
        let new = json!([position, {"x": "\u{e9}\""}]);
        let edits = [edit(key, &new)];
        let text = bounded(input.len(), || config.edited(&edits));
        check_edited(&config, &text, &edits);
        check_outside(config.text(), &text, &new.to_string());
        all.extend(edits);
    }
    if let Some(key) = keys.first() {
        // There and back again.
        all.push(edit(key, &config.values()[*key]));
    }
    all.push(edit("no such key \u{e9}\n", &json!({"a": null})));
    let text = bounded(input.len(), || config.edited(&all));
    check_edited(&config, &text, &all);
}

fn edit(key: &str, value: &Value) -> ConfigEdit {
    ConfigEdit {
        key: key.to_owned(),
        value: value.clone(),
    }
}

/// Every key has the value of its last edit, or its own.
fn check_edited(config: &RawConfig, text: &str, edits: &[ConfigEdit]) {
    let again = RawConfig::parse(text.as_bytes()).expect("an edited config is a config");
    let mut expected = config.values().clone();
    for edit in edits {
        expected.insert(edit.key.clone(), edit.value.clone());
    }
    assert_eq!(again.values(), &expected, "{text}");
    assert!(
        again.values().keys().eq(expected.keys()),
        "the order of keys: {text}"
    );
}

/// `after` is `before` with one run of bytes replaced by `new`.
fn check_outside(before: &str, after: &str, new: &str) {
    let (before, after) = (before.as_bytes(), after.as_bytes());
    let fits = after.windows(new.len()).enumerate().any(|(start, window)| {
        window == new.as_bytes()
            && before.starts_with(&after[..start])
            && before[start..].ends_with(&after[start + new.len()..])
    });
    assert!(fits, "more than one value has changed");
}
