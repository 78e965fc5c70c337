//! Whether the library says what the linked family says.

use std::path::Path;

use rialto_bridge::{
    ConfigMapping, Dequantizer, EncodedTensor, ForwardPass, MapOptions, Mesh, MtpPolicy,
    PipelineMapping, PipelineRequest, ProgramOptions, RawConfig, StageChoice, WeightMapping,
};
use rialto_tensor::TensorView;
use serde_json::{Map, Value, json};

use crate::check::answers::{compare, values};
use crate::check::claim::foreign;
use crate::conversion::view;
use crate::finding::{Check, Finding, Findings};
use crate::fixture::Fixture;
use crate::guarded::Guarded;
use crate::reading::{Reading, reading};
use crate::subject::Subject;
use crate::tensors::Tensor;

pub(crate) fn check(test: &Subject) -> Vec<Finding> {
    let mut findings = Findings::new(Check::Library);
    let Some(file) = &test.library else {
        return Vec::new();
    };
    findings.at(file.display().to_string());
    let Some(loaded) = load(&mut findings, file) else {
        return findings.into_list();
    };
    let both = Both {
        linked: &test.family,
        loaded: &loaded,
    };
    both.description(&mut findings);
    for (place, config) in foreign(&test.fixtures) {
        findings.at(place);
        both.of_config(&mut findings, &config);
    }
    for fixture in &test.fixtures {
        both.of_fixture(&mut findings, fixture);
    }
    beside_itself(&mut findings, test, file, &loaded);
    findings.into_list()
}

fn load(findings: &mut Findings, file: &Path) -> Option<Guarded> {
    match rialto_host::load(file) {
        Ok(plugin) => Some(Guarded(plugin.bridge())),
        Err(error) => {
            findings.add("load", "a plugin", error.to_string());
            None
        }
    }
}

/// Loads the file again, and a copy of it, and asks all of them.
fn beside_itself(findings: &mut Findings, test: &Subject, file: &Path, first: &Guarded) {
    findings.at(format!("{} beside itself", file.display()));
    let Some(again) = load(findings, file) else {
        return;
    };
    let copied = tempfile::tempdir().and_then(|folder| {
        let copy = folder
            .path()
            .join(file.file_name().unwrap_or(file.as_os_str()));
        std::fs::copy(file, &copy)?;
        Ok((folder, copy))
    });
    // What was loaded from it lives on when the folder is gone.
    let (_folder, copy) = match copied {
        Ok(copied) => copied,
        Err(error) => {
            findings.add("a copy", "one", error.to_string());
            return;
        }
    };
    let Some(copy) = load(findings, &copy) else {
        return;
    };
    for other in [&again, &copy, first] {
        let both = Both {
            linked: &test.family,
            loaded: other,
        };
        both.description(findings);
        for fixture in &test.fixtures {
            both.of_config(findings, &fixture.config);
        }
    }
}

/// The family both ways.
struct Both<'a> {
    linked: &'a Guarded,
    loaded: &'a Guarded,
}

impl Both<'_> {
    fn description(&self, findings: &mut Findings) {
        let both = [self.linked, self.loaded].map(Guarded::described);
        let [linked, loaded] = &both;
        compare(findings, "describe", linked, loaded);
    }

    fn of_config(&self, findings: &mut Findings, config: &RawConfig) {
        let Both { linked, loaded } = self;
        compare(
            findings,
            "claim",
            &linked.claim(config),
            &loaded.claim(config),
        );
        self.mapped(findings, config, &MapOptions::default());
    }

    fn mapped(&self, findings: &mut Findings, config: &RawConfig, options: &MapOptions) {
        let both = [self.linked, self.loaded].map(|family| family.map_config(config, options));
        let [linked, loaded] = &both;
        compare(findings, "map_config", linked, loaded);
    }

    fn of_fixture(&self, findings: &mut Findings, fixture: &Fixture) {
        findings.at(fixture.name.as_str());
        self.of_config(findings, &fixture.config);
        for mtp in [MtpPolicy::Keep, MtpPolicy::Drop, MtpPolicy::Absent] {
            for pads_vocabulary in [false, true] {
                let options = MapOptions {
                    mtp,
                    pads_vocabulary,
                    ..MapOptions::default()
                };
                self.mapped(findings, &fixture.config, &options);
            }
        }
        for (place, config) in changed(fixture) {
            findings.at(place);
            self.of_config(findings, &config);
        }
        let Some(reading) = reading(findings, self.linked, fixture) else {
            return;
        };
        for field in reading.spec.provider.keys() {
            findings.at(format!("{} --set {field}", fixture.name));
            let setting = (field.clone(), json!("no value of anything"));
            let options = MapOptions {
                settings: Map::from_iter([setting]),
                ..MapOptions::default()
            };
            self.mapped(findings, &fixture.config, &options);
        }
        findings.at(fixture.name.as_str());
        self.of_spec(findings, fixture, &reading);
        findings.at(format!("{} as another family's spec", fixture.name));
        let other = Reading {
            spec: rialto_bridge::ModelSpec {
                extra: Value::Null,
                ..reading.spec.clone()
            },
            ..reading
        };
        self.of_spec(findings, fixture, &other);
        findings.at(fixture.name.as_str());
        self.of_encoded(findings, fixture, &other);
    }

    fn of_spec(&self, findings: &mut Findings, fixture: &Fixture, reading: &Reading) {
        let (Both { linked, loaded }, spec) = (self, &reading.spec);
        let config = &fixture.config;
        compare(
            findings,
            "unmap_config",
            &linked.unmap_config(spec, config),
            &loaded.unmap_config(spec, config),
        );
        compare(
            findings,
            "weight_map",
            &linked.weight_map(spec),
            &loaded.weight_map(spec),
        );
        compare(
            findings,
            "placement",
            &linked.placement(spec),
            &loaded.placement(spec),
        );
        compare(
            findings,
            "codecs",
            &linked.codecs(spec),
            &loaded.codecs(spec),
        );
        let refused = ("no setting".to_owned(), json!("no value of anything"));
        for settings in [Map::new(), Map::from_iter([refused])] {
            let options = ProgramOptions { settings };
            compare(
                findings,
                "program",
                &linked.program(spec, &options),
                &loaded.program(spec, &options),
            );
        }
        let layers = spec.dims.layers;
        let dealt = [
            StageChoice::Layers(vec![layers]),
            StageChoice::Layers(vec![layers + 1]),
            StageChoice::Pattern("no pattern".to_owned()),
        ];
        let equal = (0..=layers + 1).map(|pp| (pp, StageChoice::Family));
        for (pp, stages) in equal.chain(dealt.map(|stages| (1, stages))) {
            let what = format!("pipeline_layout of {pp}, {stages:?}");
            let mesh = Mesh { pp, ..Mesh::SINGLE };
            let request = PipelineRequest { mesh, stages };
            compare(
                findings,
                &what,
                &linked.pipeline_layout(spec, &request),
                &loaded.pipeline_layout(spec, &request),
            );
        }
    }

    /// Decodes every encoded tensor, as it is, without its companions, and by a codec that nobody has.
    fn of_encoded(&self, findings: &mut Findings, fixture: &Fixture, reading: &Reading) {
        let Ok(bound) = reading.bind(fixture) else {
            return;
        };
        let at = |position: usize| &fixture.tensors[&bound.inventory[position].name];
        for (&position, encoding) in bound.binding.tensors.iter().zip(&bound.binding.encodings) {
            let Some((codec, companions)) = encoding else {
                continue;
            };
            let codec = &reading.codecs[*codec];
            let companions: Result<Vec<TensorView<'_>>, _> = companions
                .iter()
                .map(|&position| view(at(position)))
                .collect();
            let (Ok(tensor), Ok(companions)) = (view(at(position)), companions) else {
                continue;
            };
            let what = format!("dequantize of {}", bound.inventory[position].name);
            for (codec_name, companions) in [
                (codec.name.as_str(), companions.clone()),
                (codec.name.as_str(), Vec::new()),
                ("nobody/1", companions),
            ] {
                let encoded = EncodedTensor {
                    codec: codec_name,
                    tensor,
                    companions,
                };
                let both = [self.linked, self.loaded].map(|family| {
                    let mut out = Tensor::zeros(codec.decoded, tensor.shape())
                        .map(|out| out.bytes)
                        .unwrap_or_default();
                    let answer = family.dequantize(&encoded, &mut out);
                    (answer, out)
                });
                let [(linked, linked_out), (loaded, loaded_out)] = &both;
                compare(findings, &what, linked, loaded);
                values(findings, &what, linked_out, loaded_out);
            }
        }
    }
}

/// The fixture's config without each of its keys, and with another kind of value for it.
fn changed(fixture: &Fixture) -> Vec<(String, RawConfig)> {
    let mut configs = Vec::new();
    for key in fixture.config.values().keys() {
        let mut values = fixture.config.values().clone();
        values.insert(key.clone(), json!({"rialto": []}));
        let other = Value::Object(values.clone()).to_string();
        values.shift_remove(key);
        let without = Value::Object(values).to_string();
        for (text, how) in [(other, "with another"), (without, "without")] {
            let config = RawConfig::parse(text.as_bytes());
            configs.extend(config.map(|config| (format!("{} {how} {key}", fixture.name), config)));
        }
    }
    configs
}
