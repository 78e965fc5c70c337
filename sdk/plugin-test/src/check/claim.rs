//! Whose models the family takes.

use rialto_bridge::{Claim, ConfigMapping, Description, MapOptions, RawConfig};
use serde_json::{Map, Value, json};

use crate::finding::{Check, Finding, Findings};
use crate::fixture::Fixture;
use crate::subject::Subject;

/// An architecture that nobody has.
const NOBODYS: &str = "RialtoNobodysForCausalLM";

pub(crate) fn check(test: &Subject) -> Vec<Finding> {
    let mut findings = Findings::new(Check::Claim);
    let description = test.family.described().ok();
    for fixture in &test.fixtures {
        findings.at(fixture.name.as_str());
        check_own(&mut findings, test, fixture, description.as_ref());
    }
    for (place, config) in foreign(&test.fixtures) {
        findings.at(place);
        match findings.answer("claim", test.family.claim(&config)) {
            Some(Claim::Yes { release, reason }) => {
                let found = format!("yes for {release}, because: {reason}");
                findings.add("claim", "no", found);
            }
            Some(Claim::No { reason }) if reason.trim().is_empty() => {
                findings.add("claim", "no with a reason", "no reason");
            }
            _ => {}
        }
    }
    findings.into_list()
}

fn check_own(
    findings: &mut Findings,
    test: &Subject,
    fixture: &Fixture,
    description: Option<&Description>,
) {
    let answer = test.family.claim(&fixture.config);
    let release = match findings.answer("claim", answer) {
        Some(Claim::Yes { release, .. }) => release,
        Some(Claim::No { reason }) => {
            findings.add("claim", "yes", format!("no, because: {reason}"));
            return;
        }
        None => return,
    };
    // That it cannot be mapped is found where its answers are.
    let spec = test
        .family
        .map_config(&fixture.config, &MapOptions::default());
    let spec = spec.ok();
    if let Some(spec) = &spec
        && spec.release != release
    {
        findings.add("release of the spec", &release, &spec.release);
    }
    let Some(description) = description else {
        return;
    };
    if !description.releases.contains(&release) {
        let releases = description.releases.join(", ");
        findings.add(
            "release of the claim",
            format!("one of {releases}"),
            release,
        );
    }
    if let Some(spec) = spec
        && !description.architectures.contains(&spec.architecture)
    {
        let architectures = description.architectures.join(", ");
        let expected = format!("one of {architectures}");
        findings.add("architecture of the spec", expected, spec.architecture);
    }
}

/// Configs that are nobody's of ours, and how findings call them.
pub(crate) fn foreign(fixtures: &[Fixture]) -> Vec<(String, RawConfig)> {
    let mut configs = Vec::new();
    let mut add = |place: String, values: Value| {
        let text = values.to_string();
        // Made of JSON objects, which are configs.
        configs.extend(RawConfig::parse(text.as_bytes()).map(|config| (place, config)));
    };
    add("an empty config".to_owned(), json!({}));
    add(
        "a config with an empty list of architectures".to_owned(),
        json!({"architectures": []}),
    );
    add(
        "a config of an unknown architecture".to_owned(),
        json!({"architectures": [NOBODYS], "model_type": "rialto_nobodys"}),
    );
    for fixture in fixtures {
        let name = &fixture.name;
        let with = |change: &dyn Fn(&mut Map<String, Value>)| {
            let mut values = fixture.config.values().clone();
            change(&mut values);
            Value::Object(values)
        };
        let other =
            with(&|values| drop(values.insert("architectures".to_owned(), json!([NOBODYS]))));
        add(format!("{name} as an unknown architecture"), other);
        let without = with(&|values| drop(values.remove("architectures")));
        add(format!("{name} without architectures"), without);
    }
    configs
}
