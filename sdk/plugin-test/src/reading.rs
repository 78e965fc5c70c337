//! Everything that a family says of one checkpoint.

use std::collections::HashSet;

use rialto_bridge::binding::TensorBinding;
use rialto_bridge::{
    Codec, ConfigMapping, Dequantizer, Error, Forms, MapOptions, Mapping, Mesh, ModelSpec,
    MtpPolicy, PipelineLayout, PipelineMapping, PipelineRequest, Placement, RawConfig,
    StoredTensor, WeightMap, WeightMapping,
};

use crate::finding::Findings;
use crate::fixture::Fixture;
use crate::guarded::Guarded;
use crate::spelling;
use crate::tensors::inventory;

/// A family's answers.
pub(crate) struct Reading {
    /// How findings call it.
    pub(crate) place: String,
    pub(crate) options: MapOptions,
    pub(crate) spec: ModelSpec,
    pub(crate) map: WeightMap,
    pub(crate) placement: Placement,
    pub(crate) codecs: Vec<Codec>,
}

/// A checkpoint held against a family's answers.
pub(crate) struct Bound {
    pub(crate) mapping: Mapping,
    pub(crate) inventory: Vec<StoredTensor>,
    pub(crate) binding: TensorBinding,
    /// Names of the forms in which it spells tensors.
    pub(crate) forms: Vec<String>,
}

impl Reading {
    fn of(
        family: &Guarded,
        config: &RawConfig,
        options: MapOptions,
        place: &str,
    ) -> Result<Reading, Error> {
        let spec = family.map_config(config, &options)?;
        Ok(Reading {
            place: place.to_owned(),
            map: family.weight_map(&spec)?,
            placement: family.placement(&spec)?,
            codecs: family.codecs(&spec)?,
            spec,
            options,
        })
    }

    /// The stages of so many on a mesh that is 1 in all else.
    pub(crate) fn layout(&self, family: &Guarded, pp: u64) -> Result<PipelineLayout, Error> {
        let mesh = Mesh { pp, ..Mesh::SINGLE };
        family.pipeline_layout(&self.spec, &PipelineRequest::new(mesh))
    }

    /// Holds a checkpoint against it, in the spelling in which it is there.
    pub(crate) fn bind(&self, fixture: &Fixture) -> Result<Bound, Error> {
        let inventory = inventory(&fixture.tensors);
        let names: HashSet<&str> = fixture.tensors.keys().map(String::as_str).collect();
        let forms = Forms::own(&self.map).of_tensors(&self.map, &names)?;
        let mapping = self.map.resolve_as(&forms)?;
        let binding = mapping.bind_tensors(&inventory, &self.codecs)?;
        Ok(Bound {
            mapping,
            binding,
            forms: spelling::tensor_forms_in_use(&self.map, &names)?,
            inventory,
        })
    }
}

/// What becomes of multi-token prediction, as findings say it.
const POLICIES: [(MtpPolicy, &str); 2] = [
    (MtpPolicy::Drop, "--mtp drop"),
    (MtpPolicy::Absent, "without multi-token prediction"),
];

/// The family's answers for a fixture as it is, with its vocabulary padded, and, if it predicts several tokens, without that.
/// What cannot be answered is a finding.
pub(crate) fn readings(
    findings: &mut Findings,
    family: &Guarded,
    fixture: &Fixture,
) -> Vec<Reading> {
    let mut readings = Vec::new();
    let mut read = |options: MapOptions, place: String| {
        findings.at(place.as_str());
        let reading = Reading::of(family, &fixture.config, options, &place);
        readings.extend(findings.answer("an answer", reading));
    };
    read(MapOptions::default(), fixture.name.clone());
    let padded = MapOptions {
        pads_vocabulary: true,
        ..MapOptions::default()
    };
    read(padded, format!("{} with a padded vocabulary", fixture.name));
    let spec = family.map_config(&fixture.config, &MapOptions::default());
    if spec.is_ok_and(|spec| spec.dims.mtp_layers > 0) {
        for (mtp, name) in POLICIES {
            let options = MapOptions {
                mtp,
                ..MapOptions::default()
            };
            read(options, format!("{} {name}", fixture.name));
        }
    }
    findings.at(fixture.name.as_str());
    readings
}

/// The family's answers for a fixture as it is; none, and findings, if there are none.
pub(crate) fn reading(
    findings: &mut Findings,
    family: &Guarded,
    fixture: &Fixture,
) -> Option<Reading> {
    findings.at(fixture.name.as_str());
    let options = MapOptions::default();
    let reading = Reading::of(family, &fixture.config, options, &fixture.name);
    findings.answer("an answer", reading)
}
