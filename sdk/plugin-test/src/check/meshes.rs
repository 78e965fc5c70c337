//! Whether what goes in comes out, on every mesh and in every spelling.

use std::collections::BTreeSet;

use rialto_bridge::{Claim, ConfigMapping, LayerAxis, MapOptions, Mesh, MtpPolicy, RawConfig};
use rialto_checkpoint::hf;
use rialto_engine::{ImportPlan, Options, Suggestions};
use serde_json::Value;

use crate::check::totality::UNSUPPORTED;
use crate::conversion::{Written, differences, expected, export, import};
use crate::error::Told;
use crate::finding::{Check, Finding, Findings};
use crate::fixture::Fixture;
use crate::guarded::{Guarded, caught};
use crate::reading::{Bound, Reading, reading};
use crate::subject::Subject;
use crate::tensors::{self, Tensors};
use crate::{run, spelling};

/// Most meshes of a fixture.
const MOST_MESHES: usize = 12;

pub(crate) fn check(test: &Subject) -> Vec<Finding> {
    let mut findings = Findings::new(Check::Meshes);
    for fixture in &test.fixtures {
        let Some(reading) = reading(&mut findings, &test.family, fixture) else {
            continue;
        };
        let Some(bound) = findings.answer("the fixture's tensors", reading.bind(fixture)) else {
            continue;
        };
        let tensors = expected(&test.family, fixture, &reading, &bound);
        let Some(tensors) = findings.answer("the fixture decoded", tensors) else {
            continue;
        };
        let trip = Trip {
            family: &test.family,
            fixture,
            reading,
            bound,
            tensors,
        };
        trip.on_meshes(&mut findings);
        trip.in_tensor_forms(&mut findings);
        trip.in_param_forms(&mut findings);
        trip.padded(&mut findings);
        trip.without_prediction(&mut findings);
    }
    findings.into_list()
}

/// A fixture on its way there and back.
struct Trip<'a> {
    family: &'a Guarded,
    fixture: &'a Fixture,
    reading: Reading,
    bound: Bound,
    /// What must come back.
    tensors: Tensors,
}

impl Trip<'_> {
    fn on_meshes(&self, findings: &mut Findings) {
        let suggested = caught("suggest", || {
            let options = Options::default();
            let plan = ImportPlan::new(self.family, self.fixture.store(), &options)?;
            plan.suggest(self.family, &options)
        });
        let suggested: Option<Suggestions> = findings.answer("a plan", suggested);
        let Some(suggested) = suggested else {
            return;
        };
        let mut meshes = sample(&suggested);
        let mut next = 0;
        while let Some(&mesh) = meshes.get(next) {
            next += 1;
            for layer_axis in self.layer_axes() {
                let options = Options {
                    mesh,
                    layer_axis,
                    ..Options::default()
                };
                findings.at(format!("{} on {mesh}{}", self.fixture.name, of(layer_axis)));
                match import(self.family, self.fixture.store(), &options) {
                    Ok(run) => self.back(findings, run, &self.tensors),
                    // Sizes that fit alone need not fit together: each is tried alone instead.
                    Err(error) if error.code() == UNSUPPORTED && alone(mesh).len() > 1 => {
                        let others = alone(mesh).into_iter();
                        let others: Vec<Mesh> =
                            others.filter(|mesh| !meshes.contains(mesh)).collect();
                        meshes.extend(others);
                        // In the other form the sizes would fit no better.
                        break;
                    }
                    Err(error) => refused(findings, "import", &error),
                }
            }
        }
    }

    fn layer_axes(&self) -> Vec<LayerAxis> {
        let mut rules = spelling::rules(&self.reading.map);
        match rules.any(|rule| rule.stack.is_some()) {
            true => vec![LayerAxis::Stacked, LayerAxis::PerLayer],
            false => vec![LayerAxis::Stacked],
        }
    }

    /// Exports a run in the fixture's spelling and compares everything.
    fn back(&self, findings: &mut Findings, run: Written, expected: &Tensors) {
        match export(self.family, run.store(), &self.bound.forms) {
            Ok(exported) => {
                same_tensors(findings, expected, &exported);
                self.same_config(findings, &exported);
                // So the config describes the weights beside it.
                let again = caught("a plan", || {
                    ImportPlan::new(self.family, exported.store(), &Options::default())
                });
                findings.answer("a plan of the export", again);
            }
            Err(error) => refused(findings, "export", &error),
        }
    }

    /// The config is the fixture's, but for the keys that the plan says it changes; and it is the family's.
    fn same_config(&self, findings: &mut Findings, exported: &Written) {
        let text = exported.files.bytes(hf::CONFIG_FILE).unwrap_or_default();
        let Some(config) = findings.answer("exported config", RawConfig::parse(&text)) else {
            return;
        };
        let before = &self.fixture.config;
        let announced = |key: &str| {
            let mut notices = exported.notices.iter();
            let beginning = format!("config.json: {key} ");
            notices.any(|notice| notice.starts_with(&beginning))
        };
        let keys: BTreeSet<&String> = before
            .values()
            .keys()
            .chain(config.values().keys())
            .collect();
        let shown =
            |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), Value::to_string);
        let mut is_changed = false;
        for key in keys {
            let (old, new) = (before.values().get(key), config.values().get(key));
            is_changed |= old != new;
            if old != new && !announced(key) {
                findings.add(format!("config.json: {key}"), shown(old), shown(new));
            }
        }
        if !is_changed && config.text() != before.text() {
            findings.add(
                "config.json",
                "the same text",
                "other text of the same values",
            );
        }
        if let Ok(Claim::No { reason }) = self.family.claim(&config) {
            findings.add(
                "claim of the exported config",
                "yes",
                format!("no, because: {reason}"),
            );
        }
        let spec = self.family.map_config(&config, &MapOptions::default());
        if let Some(spec) = findings.answer("the exported config", spec) {
            let edits = self.family.unmap_config(&spec, &config);
            let edits = findings.answer("edits of the exported config", edits);
            if let Some(edits) = edits.filter(|edits| config.edited(edits) != config.text()) {
                let keys: Vec<&str> = edits.iter().map(|edit| edit.key()).collect();
                findings.add("edits of the exported config", "none", keys.join(", "));
            }
        }
    }

    /// Imports on one rank; a refusal was found on the meshes already.
    fn plain(&self, layer_axis: LayerAxis) -> Option<Written> {
        let options = Options {
            layer_axis,
            ..Options::default()
        };
        import(self.family, self.fixture.store(), &options).ok()
    }

    fn in_tensor_forms(&self, findings: &mut Findings) {
        let Some(plain) = self.plain(LayerAxis::Stacked) else {
            return;
        };
        let Some(params) = findings.answer("the params", run::read(plain.store())) else {
            return;
        };
        let own = (Vec::new(), "the rules' own tensors".to_owned());
        let forms = self.reading.map.form_names(|rule| &rule.tensor_forms);
        let forms = forms.into_iter();
        let forms = forms.map(|form| (vec![form.to_owned()], format!("tensors spelled {form}")));
        for (forms, name) in std::iter::once(own).chain(forms) {
            findings.at(format!("{} with {name}", self.fixture.name));
            let exported = match export(self.family, plain.store(), &forms) {
                Ok(exported) => exported,
                Err(error) => {
                    refused(findings, "export", &error);
                    continue;
                }
            };
            match import(self.family, exported.store(), &Options::default()) {
                Ok(again) => {
                    let again = findings.answer("the params", run::read(again.store()));
                    for [what, expected, found] in
                        again.iter().flat_map(|again| differences(&params, again))
                    {
                        findings.add(format!("param {what} imported again"), expected, found);
                    }
                }
                Err(error) => refused(findings, "import", &error),
            }
        }
    }

    fn in_param_forms(&self, findings: &mut Findings) {
        let Some(plain) = self.plain(LayerAxis::PerLayer) else {
            return;
        };
        let Some(params) = findings.answer("the params", run::read(plain.store())) else {
            return;
        };
        for form in self.reading.map.form_names(|rule| &rule.param_forms) {
            findings.at(format!("{} with params spelled {form}", self.fixture.name));
            let spelled = spelling::respelled(&self.reading.map, form, &params);
            let spelled = spelled.and_then(|spelled| run::with_tensors(&plain.files, &spelled));
            if let Some(files) = findings.answer("the params", spelled) {
                let run = Written {
                    files,
                    notices: Vec::new(),
                };
                self.back(findings, run, &self.tensors);
            }
        }
    }

    fn padded(&self, findings: &mut Findings) {
        let mut rules = spelling::rules(&self.reading.map);
        if !rules.any(|rule| rule.padding.is_some()) {
            return;
        }
        // Of these some do not divide the vocabulary, and some divide little else, which is refused.
        for tp in [1, 2, 3] {
            let options = Options {
                mesh: Mesh { tp, ..Mesh::SINGLE },
                pads_vocabulary: true,
                ..Options::default()
            };
            findings.at(format!(
                "{} on {} with a padded vocabulary",
                self.fixture.name, options.mesh
            ));
            match import(self.family, self.fixture.store(), &options) {
                Ok(run) => self.back(findings, run, &self.tensors),
                Err(error) if error.code() == UNSUPPORTED && tp > 1 => {}
                Err(error) => refused(findings, "import", &error),
            }
        }
    }

    fn without_prediction(&self, findings: &mut Findings) {
        if self.reading.spec.dims.mtp_layers == 0 {
            return;
        }
        findings.at(format!("{} --mtp drop", self.fixture.name));
        let options = Options {
            mtp: MtpPolicy::Drop,
            ..Options::default()
        };
        let skipped = caught("a plan", || {
            let plan = ImportPlan::new(self.family, self.fixture.store(), &options)?;
            let skipped = plan.mapping().skipped().iter();
            Ok::<BTreeSet<String>, rialto_engine::Error>(
                skipped.map(|tensor| tensor.name.clone()).collect(),
            )
        });
        let Some(skipped) = findings.answer("import", skipped) else {
            return;
        };
        if skipped.is_empty() {
            findings.add(
                "tensors that are left out",
                "those of multi-token prediction",
                "none",
            );
        }
        let mut expected = self.tensors.clone();
        expected.retain(|name, _| !skipped.contains(name));
        match import(self.family, self.fixture.store(), &options) {
            Ok(run) => self.back(findings, run, &expected),
            Err(error) => refused(findings, "import", &error),
        }
    }
}

fn of(layer_axis: LayerAxis) -> &'static str {
    match layer_axis {
        LayerAxis::Stacked => "",
        LayerAxis::PerLayer => " with a key for each layer",
    }
}

fn refused(findings: &mut Findings, what: &str, error: &rialto_engine::Error) {
    for line in error.lines() {
        findings.add(what, "no error", line);
    }
}

fn same_tensors(findings: &mut Findings, expected: &Tensors, exported: &Written) {
    let found = findings.answer("exported tensors", tensors::read(&exported.files));
    for [what, expected, found] in found.iter().flat_map(|found| differences(expected, found)) {
        findings.add(format!("tensor {what}"), expected, found);
    }
}

/// Meshes that together have every suggested size, as [`check_meshes`](crate::PluginTest::check_meshes) says.
fn sample(suggested: &Suggestions) -> Vec<Mesh> {
    let pp: Vec<u64> = suggested
        .pipelines
        .iter()
        .map(|pipeline| pipeline.pp)
        .collect();
    let sizes = [&suggested.tp, &pp, &suggested.ep, &suggested.etp];
    let longest = sizes.iter().map(|sizes| sizes.len()).max().unwrap_or(0);
    let count = longest.clamp(1, MOST_MESHES);
    let nth = |sizes: &[u64], n: usize| {
        let at = match sizes.len() > count {
            true => n * (sizes.len() - 1) / (count - 1).max(1),
            false => n % sizes.len().max(1),
        };
        sizes.get(at).copied().unwrap_or(1)
    };
    let mesh = |size: &dyn Fn(&[u64]) -> u64| {
        let [tp, pp, ep, etp] = sizes.map(|sizes| size(sizes));
        Mesh { tp, pp, ep, etp }
    };
    let mut meshes: Vec<Mesh> = (0..count).map(|n| mesh(&|sizes| nth(sizes, n))).collect();
    let largest = mesh(&|sizes| sizes.last().copied().unwrap_or(1));
    let singles = meshes.clone();
    let singles = singles.into_iter().flat_map(alone);
    for mesh in std::iter::once(largest).chain(singles) {
        if meshes.len() < MOST_MESHES && !meshes.contains(&mesh) {
            meshes.push(mesh);
        }
    }
    meshes
}

/// Each size of a mesh that is not 1, alone.
fn alone(mesh: Mesh) -> Vec<Mesh> {
    let Mesh { tp, pp, ep, etp } = mesh;
    let single = Mesh::SINGLE;
    let each = [
        Mesh { tp, ..single },
        Mesh { pp, ..single },
        Mesh { ep, ..single },
        Mesh { etp, ..single },
    ];
    each.into_iter().filter(|mesh| *mesh != single).collect()
}

#[cfg(test)]
mod tests {
    use rialto_engine::Pipeline;

    use super::*;

    #[test]
    fn every_size_is_used_in_few_meshes() {
        let pipeline = |pp| Pipeline {
            pp,
            layers: Vec::new(),
            ranks: pp,
            largest_rank_bytes: 0,
        };
        let suggested = Suggestions {
            mesh: Mesh::SINGLE,
            tp: vec![1, 2, 4],
            ep: vec![1, 5],
            etp: vec![1],
            pipelines: (1..=4).map(pipeline).collect(),
        };
        let meshes = sample(&suggested);
        assert!(meshes.len() <= MOST_MESHES, "{meshes:?}");
        for tp in [1, 2, 4] {
            assert!(meshes.contains(&Mesh { tp, ..Mesh::SINGLE }));
        }
        for pp in 1..=4 {
            assert!(meshes.iter().any(|mesh| mesh.pp == pp));
        }
        let largest = Mesh {
            tp: 4,
            pp: 4,
            ep: 5,
            etp: 1,
        };
        assert!(meshes.contains(&largest));
        let many = Suggestions {
            tp: (1..=100).collect(),
            ..suggested
        };
        let sizes: Vec<u64> = sample(&many).iter().map(|mesh| mesh.tp).collect();
        assert_eq!(sizes.len(), MOST_MESHES);
        assert_eq!((sizes[0], sizes[11]), (1, 100));
    }
}
