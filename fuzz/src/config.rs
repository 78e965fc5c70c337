//! `config.json`, and edits of it.

use rialto_bridge::{ConfigEdit, RawConfig};
use serde_json::json;

use crate::memory::bounded;

/// Edits are tried for this many keys; every one costs a parse.
const KEYS: usize = 4;

/// The text is kept; an edit to the same value changes nothing; an edit gives its key the new value or removes it, every other
/// key keeps its own, and no byte outside the edited value or entry changes; of several edits of one key the last holds.
pub fn check(input: &[u8]) {
    let Ok(config) = bounded(input.len(), || RawConfig::parse(input)) else {
        return;
    };
    assert_eq!(config.text().as_bytes(), input);
    let keys: Vec<&String> = config.values().keys().take(KEYS).collect();

    let same: Vec<ConfigEdit> = config
        .values()
        .iter()
        .map(|(key, value)| ConfigEdit::set(key, value.clone()))
        .collect();
    assert_eq!(config.edited(&same), config.text());

    let mut all = Vec::new();
    for (position, key) in keys.iter().enumerate() {
        let new = json!([position, {"x": "\u{e9}\""}]);
        let set = [ConfigEdit::set(key, new.clone())];
        let text = bounded(input.len(), || config.edited(&set));
        check_edited(&config, &text, &set);
        if config.values()[*key] == new {
            assert_eq!(text, config.text());
        } else {
            check_outside(config.text(), &text, &new.to_string());
        }

        let remove = [ConfigEdit::remove(key)];
        let text = bounded(input.len(), || config.edited(&remove));
        check_edited(&config, &text, &remove);
        check_outside(config.text(), &text, "");
        all.extend(set);
    }
    if let Some(key) = keys.first() {
        // There and back again, and away.
        all.push(ConfigEdit::set(key, config.values()[*key].clone()));
    }
    if let Some(key) = keys.last() {
        all.push(ConfigEdit::remove(key));
    }
    all.push(ConfigEdit::set("no such key \u{e9}\n", json!({"a": null})));
    let text = bounded(input.len(), || config.edited(&all));
    check_edited(&config, &text, &all);
}

/// Every key has the value of its last edit, or its own; a removed one is gone.
fn check_edited(config: &RawConfig, text: &str, edits: &[ConfigEdit]) {
    let again = RawConfig::parse(text.as_bytes()).expect("an edited config is a config");
    let mut expected = config.values().clone();
    for edit in edits {
        match edit {
            ConfigEdit::Set { key, value } => expected.insert(key.clone(), value.clone()),
            ConfigEdit::Remove { key } => expected.shift_remove(key),
        };
    }
    assert_eq!(again.values(), &expected, "{text}");
    assert!(
        again.values().keys().eq(expected.keys()),
        "the order of keys: {text}"
    );
}

/// `after` is `before` with one run of bytes replaced by `new`.
fn check_outside(before: &str, after: &str, new: &str) {
    let (before, after, new) = (before.as_bytes(), after.as_bytes(), new.as_bytes());
    let same = before.iter().zip(after).take_while(|(a, b)| a == b).count();
    // The new bytes may begin as those that they replace.
    let fits = (same.saturating_sub(new.len())..=same).any(|start| {
        let rest = after[start..].strip_prefix(new);
        rest.is_some_and(|rest| before[start..].ends_with(rest))
    });
    assert!(fits, "more than one value has changed");
}
