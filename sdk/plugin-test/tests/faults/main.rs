//! A fault planted in each answer is found, by its check and by name.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by failing"
)]

mod answers;
mod library;
mod program;
mod round_trip;
mod small;
mod spoiled;
mod totality;
#[path = "../../../../tests/plugins/toy/src/lib.rs"]
#[allow(
    missing_docs,
    unreachable_pub,
    reason = "the file is a crate of its own; here it is the linked twin of the loaded library"
)]
mod toy;

use rialto_plugin::prelude::*;
use rialto_plugin_test::{Check, Finding, PluginTest};

use small::{Small, checkpoint};
use spoiled::{Spoiled, then};

fn test(family: impl Bridge + 'static) -> PluginTest {
    PluginTest::new(family).fixture_in("small", &checkpoint(false))
}

/// Small, spoiled.
fn spoiled(spoil: impl FnOnce(&mut Spoiled<Small>)) -> PluginTest {
    let mut family = Spoiled::of(Small);
    spoil(&mut family);
    test(family)
}

/// Some finding of the check says so.
#[track_caller]
fn assert_found(check: Check, findings: &[Finding], said: &str) {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(
        findings.iter().all(|finding| finding.check == check),
        "{lines:#?}"
    );
    assert!(
        lines.iter().any(|line| line.contains(said)),
        "{said:?} is not in {lines:#?}"
    );
    assert!(lines.iter().all(|line| !line.contains('\n')));
}

fn rule<'a>(map: &'a mut WeightMap, name: &str) -> &'a mut MapRule {
    let rules = map.rules.iter_mut();
    let mut rules = rules.filter_map(|rule| match rule {
        Rule::Map(rule) => Some(rule),
        _ => None,
    });
    rules.find(|rule| rule.name == name).unwrap()
}

#[test]
fn a_sound_family_passes() {
    test(Small).check_all();
}

/// It is exported as it was found.
#[test]
fn so_it_does_with_a_fixture_in_another_spelling() {
    PluginTest::new(Small)
        .fixture_in("fused", &checkpoint(true))
        .check_all();
}

#[test]
fn one_that_is_not_fails_with_every_finding_on_a_line() {
    let test = spoiled(|family| {
        family.describe = then(|description: &mut Description| description.name.clear());
        family.placement = then(|placement: &mut Placement| drop(placement.rules.remove(0)));
    });
    let findings = test.findings();
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test.check_all()));
    let message = *panic.unwrap_err().downcast::<String>().unwrap();
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines[0], format!("{} findings:", findings.len()));
    assert_eq!(lines.len(), 1 + findings.len());
    assert_eq!(
        lines[1],
        "description: name (the family): expected words, found \"\""
    );
    for finding in [
        "totality: placement of embedding.weight (small): expected a rule, found none",
        "meshes: a plan (small): expected no error, found placement of param embedding.weight is not supported: found no rule, \
         supported: a rule for every param",
    ] {
        assert!(lines.contains(&finding), "{message}");
    }
}

#[test]
#[should_panic(expected = "fixture no/such/place: ")]
fn a_fixture_that_is_not_there_is_named() {
    let _ = PluginTest::new(Small).fixture("no/such/place");
}
