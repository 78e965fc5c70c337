//! Two answers to one question.

use rialto_bridge::Error;
use serde::Serialize;
use serde_json::Value;

use crate::finding::Findings;

/// Longest excerpt of an answer in a finding.
const SHOWN: usize = 200;

/// Adds a finding unless both answers are one, errors included.
pub(crate) fn compare<T: PartialEq + Serialize>(
    findings: &mut Findings,
    what: &str,
    expected: &Result<T, Error>,
    found: &Result<T, Error>,
) {
    match (expected, found) {
        (Ok(expected), Ok(found)) => values(findings, what, expected, found),
        (Err(expected), Err(found)) => {
            let (expected, found) = (told(expected), told(found));
            if expected != found {
                findings.add(what, expected, found);
            }
        }
        (Ok(_), Err(found)) => findings.add(what, "an answer", told(found)),
        (Err(expected), Ok(_)) => findings.add(what, told(expected), "an answer"),
    }
}

/// Adds a finding unless both values are one.
pub(crate) fn values<T: PartialEq + Serialize>(
    findings: &mut Findings,
    what: &str,
    expected: &T,
    found: &T,
) {
    if expected == found {
        return;
    }
    let value = |of: &T| serde_json::to_value(of).unwrap_or_default();
    let (expected, found) = (value(expected), value(found));
    let (path, expected, found) = first_difference(String::new(), Some(&expected), Some(&found));
    let what = match path.as_str() {
        "" => what.to_owned(),
        path => format!("{what}, {path}"),
    };
    findings.add(what, shown(expected), shown(found));
}

/// An error as its reader sees it.
pub(crate) fn told(error: &Error) -> String {
    let mut text = format!("error {} {}: {error}", error.code(), error.slug());
    if let Some(help) = error.help() {
        text.push_str(&format!("; help: {help}"));
    }
    // The message of an error that collects them mostly says them already.
    let unsaid = error.findings().into_iter();
    let message = error.to_string();
    for finding in unsaid.filter(|finding| !message.contains(finding.as_str())) {
        text.push_str(&format!("; {finding}"));
    }
    text
}

/// Where two values first differ, and both of what is there.
fn first_difference<'a>(
    path: String,
    expected: Option<&'a Value>,
    found: Option<&'a Value>,
) -> (String, Option<&'a Value>, Option<&'a Value>) {
    let below = |key: &str| match path.as_str() {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    };
    match (expected, found) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let mut keys = a.keys().chain(b.keys());
            let Some(key) = keys.find(|key| a.get(*key) != b.get(*key)) else {
                return (path, expected, found);
            };
            first_difference(below(key), a.get(key), b.get(key))
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            let longest = a.len().max(b.len());
            let Some(at) = (0..longest).find(|&at| a.get(at) != b.get(at)) else {
                return (path, expected, found);
            };
            first_difference(below(&at.to_string()), a.get(at), b.get(at))
        }
        _ => (path, expected, found),
    }
}

fn shown(value: Option<&Value>) -> String {
    let text = value.map_or_else(|| "nothing".to_owned(), Value::to_string);
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
