//! Whether answers survive the ABI, and being asked for again.

use rialto_bridge::request::ErrorDetail;
use rialto_bridge::{
    ConfigMapping, Dequantizer, Error, ForwardPass, ProgramOptions, WeightMapping, document,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::check::answers::{compare, told, values};
use crate::finding::{Check, Finding, Findings};
use crate::fixture::Fixture;
use crate::guarded::{Guarded, PANIC};
use crate::reading::{Reading, readings};
use crate::subject::Subject;

pub(crate) fn check(test: &Subject) -> Vec<Finding> {
    let mut findings = Findings::new(Check::Documents);
    let family = &test.family;
    twice(&mut findings, "description", &[], || family.described());
    for fixture in &test.fixtures {
        for reading in readings(&mut findings, family, fixture) {
            findings.at(reading.place.as_str());
            check_reading(&mut findings, family, fixture, &reading);
        }
    }
    findings.into_list()
}

fn check_reading(findings: &mut Findings, family: &Guarded, fixture: &Fixture, reading: &Reading) {
    let (config, spec) = (&fixture.config, &reading.spec);
    twice(findings, "claim", &[], || family.claim(config));
    twice(findings, "spec", &[], || {
        family.map_config(config, &reading.options)
    });
    let requires = reading.map.requirements();
    twice(findings, "weight map", &requires, || {
        family.weight_map(spec)
    });
    twice(findings, "placement", &[], || family.placement(spec));
    twice(findings, "codecs", &[], || family.codecs(spec));
    let options = ProgramOptions::default();
    let program = family.program(spec, &options);
    let requires = program.map(|program| program.requirements());
    let requires = requires.unwrap_or_default();
    let requires: Vec<&str> = requires.iter().map(String::as_str).collect();
    twice(findings, "program", &requires, || {
        family.program(spec, &options)
    });
    twice(findings, "edits", &[], || family.unmap_config(spec, config));
    for pp in 0..=spec.dims.layers + 1 {
        let what = format!("layout of {pp} stages");
        twice(findings, &what, &[], || reading.layout(family, pp));
    }
}

/// Asks twice, and sends the answer through its document.
fn twice<T: PartialEq + Serialize + DeserializeOwned>(
    findings: &mut Findings,
    what: &str,
    requires: &[&str],
    ask: impl Fn() -> Result<T, Error>,
) {
    let answer = ask();
    let again = format!("{what} asked for again");
    compare(findings, &again, &answer, &ask());
    match &answer {
        Ok(answer) => cross(findings, what, requires, answer),
        Err(error) => cross_error(findings, what, error),
    }
}

fn cross<T: PartialEq + Serialize + DeserializeOwned>(
    findings: &mut Findings,
    what: &str,
    requires: &[&str],
    answer: &T,
) {
    let bytes = document::encode(what, requires, answer);
    let back = bytes.and_then(|bytes| document::decode::<T>(what, &bytes));
    let what = format!("{what} across the ABI");
    if let Some(back) = findings.answer(&what, back) {
        values(findings, &what, answer, &back);
    }
}

fn cross_error(findings: &mut Findings, what: &str, error: &Error) {
    if error.code() == PANIC {
        findings.add(what, "an answer or an error", told(error));
        return;
    }
    // Code 0 says that all is well, and the host would look for an answer.
    if error.code() == 0 {
        findings.add(what, "an error with a code", told(error));
    }
    let back = ErrorDetail::of(error).into_error(error.code());
    if told(&back) != told(error) {
        let what = format!("error of {what} across the ABI");
        findings.add(what, told(error), told(&back));
    }
}
