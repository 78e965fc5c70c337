//! Who the plugin says it is.

use crate::finding::{Check, Finding, Findings};
use crate::subject::Subject;

pub(crate) fn check(test: &Subject) -> Vec<Finding> {
    let mut findings = Findings::new(Check::Description);
    if test.fixtures.is_empty() {
        findings.add("the test", "a fixture", "none");
    }
    let Some(description) = findings.answer("describe", test.family.described()) else {
        return findings.into_list();
    };
    for (field, text) in [
        ("name", &description.name),
        ("version", &description.version),
        ("summary", &description.summary),
    ] {
        if text.trim().is_empty() {
            findings.add(field, "words", format!("{text:?}"));
        }
    }
    for (field, texts) in [
        ("architectures", &description.architectures),
        ("releases", &description.releases),
    ] {
        if texts.is_empty() {
            findings.add(field, "at least one", "none");
        }
        for (position, text) in texts.iter().enumerate() {
            if text.trim().is_empty() {
                findings.add(format!("{field}.{position}"), "words", format!("{text:?}"));
            }
            if texts[..position].contains(text) {
                findings.add(field, format!("{text} once"), "it twice");
            }
        }
    }
    findings.into_list()
}
