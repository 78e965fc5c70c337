//! Answers that are wrong by themselves: description, claim, and what crosses the ABI.

use std::sync::atomic::{AtomicU64, Ordering};

use rialto_plugin::prelude::*;
use rialto_plugin_test::{Check, PluginTest};

use crate::small::{self, Small};
use crate::spoiled::then;
use crate::{assert_found, spoiled};

#[test]
fn a_description_that_is_blank_or_doubled_is_found() {
    type Spoil = fn(&mut Description);
    let cases: [(Spoil, &str); 5] = [
        (
            |of| of.name = " ".to_owned(),
            "name (the family): expected words",
        ),
        (
            |of| of.version.clear(),
            "version (the family): expected words",
        ),
        (
            |of| of.architectures.clear(),
            "architectures (the family): expected at least one, found none",
        ),
        (
            |of| of.architectures.push(small::ARCHITECTURE.to_owned()),
            "architectures (the family): expected SmallForCausalLM once, found it twice",
        ),
        (
            |of| of.releases.push(String::new()),
            "releases.1 (the family): expected words",
        ),
    ];
    for (spoil, said) in cases {
        let test = spoiled(|family| family.describe = then(spoil));
        assert_found(Check::Description, &test.check_description(), said);
    }
    let test = spoiled(|family| family.describe = then(|_| panic!("no name yet")));
    assert_found(
        Check::Description,
        &test.check_description(),
        "expected no error, found plugin panicked in describe: no name yet",
    );
    let none = PluginTest::new(Small).check_description();
    assert_found(
        Check::Description,
        &none,
        "the test (the family): expected a fixture, found none",
    );
}

#[test]
fn a_claim_to_what_is_nobody_s_is_found() {
    let yes = || {
        Ok(Claim::Yes {
            release: small::RELEASE.to_owned(),
            reason: "why not".to_owned(),
        })
    };
    let test = spoiled(|family| family.claim = Box::new(move |_, _| yes()));
    let findings = test.check_claim();
    assert_eq!(findings.len(), 5, "{findings:#?}");
    for place in [
        "an empty config",
        "a config with an empty list of architectures",
        "a config of an unknown architecture",
        "small as an unknown architecture",
        "small without architectures",
    ] {
        assert_found(
            Check::Claim,
            &findings,
            &format!("claim ({place}): expected no, found yes"),
        );
    }
}

#[test]
fn a_claim_that_panics_or_fails_or_names_another_release_is_found() {
    let is_empty = |config: &RawConfig| config.values().is_empty();
    let test = spoiled(|family| {
        family.claim = Box::new(move |config, answer| {
            assert!(!is_empty(config), "no architectures");
            answer
        });
    });
    assert_found(
        Check::Claim,
        &test.check_claim(),
        "claim (an empty config): expected no error, found ",
    );
    assert_found(Check::Claim, &test.check_claim(), "no architectures");
    let test = spoiled(|family| {
        family.claim = Box::new(move |config, answer| match is_empty(config) {
            true => Err(config.wrong("architectures", "a list")),
            false => answer,
        });
    });
    assert_found(
        Check::Claim,
        &test.check_claim(),
        "config.json: architectures is absent, expected a list",
    );
    let test = spoiled(|family| {
        family.claim = Box::new(|_, _| {
            Ok(Claim::No {
                reason: "too small".to_owned(),
            })
        });
    });
    assert_found(
        Check::Claim,
        &test.check_claim(),
        "claim (small): expected yes, found no, because: too small",
    );
    let test = spoiled(|family| {
        family.spec = then(|spec: &mut ModelSpec| spec.release = "small-2".to_owned());
    });
    assert_found(
        Check::Claim,
        &test.check_claim(),
        "expected small-1, found small-2",
    );
    let test = spoiled(|family| {
        family.describe = then(|of: &mut Description| of.releases = vec!["other".to_owned()]);
    });
    assert_found(
        Check::Claim,
        &test.check_claim(),
        "release of the claim (small): expected one of other, found small-1",
    );
}

#[test]
fn an_answer_that_changes_between_calls_is_found() {
    let calls = AtomicU64::new(0);
    let test = spoiled(|family| {
        family.spec = then(move |spec: &mut ModelSpec| {
            let number = calls.fetch_add(1, Ordering::Relaxed);
            spec.provider.insert("seed".to_owned(), json!(number));
        });
    });
    assert_found(
        Check::Documents,
        &test.check_documents(),
        "spec asked for again, provider.seed (small): expected ",
    );
    let calls = AtomicU64::new(0);
    let test = spoiled(|family| {
        family.map = then(move |map: &mut WeightMap| {
            if calls.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
                map.rules.reverse();
            }
        });
    });
    assert_found(
        Check::Documents,
        &test.check_documents(),
        "weight map asked for again, rules.0.",
    );
    let calls = AtomicU64::new(0);
    let test = spoiled(|family| {
        family.program = then(move |program: &mut Program| {
            let number = calls.fetch_add(1, Ordering::Relaxed);
            program.stop_tokens = vec![u32::try_from(number).unwrap()];
        });
    });
    assert_found(
        Check::Documents,
        &test.check_documents(),
        "program asked for again, stop_tokens.0 (small): expected ",
    );
}

#[test]
fn an_answer_that_does_not_cross_the_abi_is_found() {
    let test = spoiled(|family| {
        family.spec = then(|spec: &mut ModelSpec| {
            let deep = (0..200).fold(Value::Null, |inner, _| json!([inner]));
            spec.extra["deep"] = deep;
        });
    });
    assert_found(
        Check::Documents,
        &test.check_documents(),
        "spec across the ABI (small): expected no error, found ",
    );
    assert_found(Check::Documents, &test.check_documents(), "recursion limit");
    let test = spoiled(|family| {
        family.layout = Box::new(|_, answer| {
            answer.map_err(|error| Error::Plugin {
                code: 0,
                slug: "small/stages".to_owned(),
                message: error.to_string(),
                help: None,
                findings: Vec::new(),
            })
        });
    });
    assert_found(
        Check::Documents,
        &test.check_documents(),
        "layout of 2 stages (small): expected an error with a code",
    );
}

/// It is `null` before anybody could tell it from one that is meant; the crate says so.
#[test]
fn a_number_that_is_none_is_null_in_a_provider() {
    assert_eq!(json!({"eps": f64::NAN}), json!({"eps": null}));
}

#[test]
fn a_panic_in_any_answer_is_found_and_ends_no_other_check() {
    let test = spoiled(|family| {
        family.layout = Box::new(|request, answer| {
            assert!(request.mesh.pp > 0, "divided by nothing");
            answer
        });
    });
    let findings = test.findings();
    let of = |check| {
        findings
            .iter()
            .filter(move |finding| finding.check == check)
    };
    for check in [Check::Documents, Check::Totality] {
        assert!(of(check).any(|finding| finding.found.contains("divided by nothing")));
    }
    assert_eq!(of(Check::Damage).count(), 0);
    let test = spoiled(|family| family.edits = Box::new(|_, _| panic!("no way back")));
    assert_found(Check::Meshes, &test.check_meshes(), "no way back");
}
