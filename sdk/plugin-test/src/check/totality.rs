//! Whether everything has its place, and nothing has two.

use std::collections::BTreeSet;

use rialto_bridge::placement::matches;
use rialto_bridge::{Error, Forms, LayerAxis, Mapping, Mesh, MtpPolicy, PipelineLayout};

use crate::check::answers::told;
use crate::finding::{Check, Finding, Findings};
use crate::fixture::Fixture;
use crate::guarded::Guarded;
use crate::reading::{Reading, readings};
use crate::spelling;
use crate::subject::Subject;

/// The code of an error that says what would do instead.
pub(crate) const UNSUPPORTED: u32 = 3;

pub(crate) fn check(test: &Subject) -> Vec<Finding> {
    let mut findings = Findings::new(Check::Totality);
    for fixture in &test.fixtures {
        for reading in readings(&mut findings, &test.family, fixture) {
            findings.at(reading.place.as_str());
            check_map(&mut findings, fixture, &reading);
            let Ok(mapping) = reading.map.resolve() else {
                continue;
            };
            check_placement(&mut findings, &reading, &mapping);
            check_stages(&mut findings, &test.family, &reading, &mapping);
        }
    }
    findings.into_list()
}

fn check_map(findings: &mut Findings, fixture: &Fixture, reading: &Reading) {
    let Some(mapping) = findings.answer("the weight map", reading.map.resolve()) else {
        return;
    };
    let per_layer = Forms::own(&reading.map).with_layer_axis(&reading.map, LayerAxis::PerLayer);
    findings.answer(
        "the weight map with a key for each layer",
        reading.map.resolve_as(&per_layer),
    );
    for (rule, side, form) in spelling::forms(&reading.map) {
        let what = format!("{side} {} of rule {}", form.name, rule.name);
        findings.answer(&what, spelling::alone(rule, &form.parts));
    }
    let nominal = mapping.nominal_tensors("config.json", &reading.codecs);
    findings.answer("the codecs of the rules", nominal);
    // Without multi-token prediction it is another checkpoint than the fixture.
    if reading.options.mtp != MtpPolicy::Absent {
        findings.answer("the fixture's tensors", reading.bind(fixture));
    }
}

/// What Megatron's own files hold: the params that are not kept beside them.
fn params(mapping: &Mapping) -> impl Iterator<Item = &rialto_bridge::ParamDecl> {
    let params = mapping.params().iter();
    params.filter(|param| mapping.rule(param.rule).beside.is_none())
}

fn check_placement(findings: &mut Findings, reading: &Reading, mapping: &Mapping) {
    for param in params(mapping) {
        let what = format!("placement of {}", param.name);
        let rules = &mut reading.placement.rules.iter();
        if !rules.any(|rule| matches(&rule.param, &param.name)) {
            findings.add(what, "a rule", "none");
            continue;
        }
        let chunks = reading
            .placement
            .chunks(&param.name, &param.shape, &Mesh::SINGLE);
        findings.answer(&what, chunks.map(drop));
    }
}

fn check_stages(findings: &mut Findings, family: &Guarded, reading: &Reading, mapping: &Mapping) {
    let layers = reading.spec.dims.layers;
    let mut accepted = BTreeSet::new();
    let mut refused = Vec::new();
    for pp in 0..=layers + 1 {
        match reading.layout(family, pp) {
            Ok(_) if pp == 0 || pp > layers => {
                let expected = format!("a refusal, for a model of {layers} layers");
                findings.add(format!("{pp} stages"), expected, "stages");
            }
            Ok(layout) => {
                accepted.insert(pp);
                check_layout(findings, reading, mapping, pp, &layout);
            }
            Err(error) => refused.push((pp, error)),
        }
    }
    if accepted.is_empty() {
        findings.add("stages", "some number that is accepted", "none");
    }
    for (pp, error) in refused {
        check_refusal(findings, pp, &error, &accepted);
    }
}

fn check_layout(
    findings: &mut Findings,
    reading: &Reading,
    mapping: &Mapping,
    pp: u64,
    layout: &PipelineLayout,
) {
    let of = |stage: usize| format!("stage {stage} of {pp}");
    let (dims, stages) = (&reading.spec.dims, &layout.stages);
    if stages.len() as u64 != pp {
        findings.add("stages", pp.to_string(), stages.len().to_string());
    }
    if !layout.is_partition_of(dims.layers) {
        let held = stages.iter().map(|stage| {
            let end = stage.first_layer.saturating_add(stage.layers);
            format!("{}..{end}", stage.first_layer)
        });
        let found = held.collect::<Vec<_>>().join(", ");
        let expected = format!("layers 0..{} once, in order", dims.layers);
        findings.add(format!("layers of {pp} stages"), expected, found);
    }
    for (number, stage) in stages.iter().enumerate() {
        let is_last = number + 1 == stages.len();
        let expected = if is_last { dims.mtp_layers } else { 0 };
        if stage.mtp_layers != expected {
            let what = format!("prediction layers of {}", of(number));
            findings.add(what, expected.to_string(), stage.mtp_layers.to_string());
        }
        for pattern in &stage.params {
            let is_held = params(mapping).any(|param| matches(pattern, &param.name));
            if !is_held {
                let what = format!("params {pattern} of {}", of(number));
                findings.add(what, "at least one param", "none");
            }
        }
        if stage.params.is_empty() {
            findings.add(of(number), "params", "none");
        }
    }
    let patterns: Vec<&String> = stages.iter().flat_map(|stage| &stage.params).collect();
    for param in params(mapping) {
        if !patterns.iter().any(|pattern| matches(pattern, &param.name)) {
            let what = format!("param {} on {pp} stages", param.name);
            findings.add(what, "a stage that holds it", "none");
        }
    }
}

fn check_refusal(findings: &mut Findings, pp: u64, error: &Error, accepted: &BTreeSet<u64>) {
    let what = format!("refusal of {pp} stages");
    if error.code() != UNSUPPORTED {
        findings.add(&what, format!("code {UNSUPPORTED}"), told(error));
        return;
    }
    let named = valid_sizes(&error.to_string());
    if named != *accepted {
        let list = |sizes: &BTreeSet<u64>| {
            let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
            match sizes.is_empty() {
                true => "no number".to_owned(),
                false => sizes.join(", "),
            }
        };
        let expected = format!("{} named as valid", list(accepted));
        let found = format!("{}, in: {error}", list(&named));
        findings.add(&what, expected, found);
    }
}

/// Widest range that is read as one: more than a tiny model has layers.
const WIDEST: u64 = 4096;

/// The numbers that a message names as valid, as far as they stand at the beginning of the list: `1, 3, or any other` names two.
fn valid_sizes(message: &str) -> BTreeSet<u64> {
    let mut sizes = BTreeSet::new();
    let markers = ["valid for this model: ", "supported: "];
    let list = markers
        .iter()
        .find_map(|marker| message.rsplit_once(marker));
    let Some((_, list)) = list else {
        return sizes;
    };
    let words = list.split([' ', ',', ';']).filter(|word| !word.is_empty());
    let (mut last, mut is_range) = (None, false);
    for word in words {
        match (word, word.parse::<u64>()) {
            (_, Ok(size)) => {
                let first = last.filter(|_| is_range).unwrap_or(size);
                let end = size.min(first.saturating_add(WIDEST));
                sizes.extend(first..=end);
                (last, is_range) = (Some(size), false);
            }
            ("to", _) => is_range = true,
            ("or" | "and", _) => {}
            _ => break,
        }
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_that_a_message_names_are_those_before_other_words() {
        for (message, expected) in [
            (
                "--pp 2 does not divide 3 layers; valid for this model: 1, 3, or any other with --pipeline",
                &[1, 3][..],
            ),
            (
                "--pp 9 does not fit; valid for this model: 1 to 4",
                &[1, 2, 3, 4],
            ),
            ("pp is not supported: found 2, supported: 1, 3", &[1, 3]),
            ("pp is wrong; valid for this model: 1", &[1]),
            ("pp is wrong; valid for this model: 1 to 2 or 4", &[1, 2, 4]),
            ("pp 3 is wrong", &[]),
            ("pp is wrong; valid for this model: divisors of 8", &[]),
        ] {
            let expected: BTreeSet<u64> = expected.iter().copied().collect();
            assert_eq!(valid_sizes(message), expected, "{message}");
        }
    }
}
