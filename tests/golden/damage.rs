//! Any one tensor deleted, renamed, reshaped or doubled, and any one rule removed: the plan fails and names it.
//!
//! All of them, not a sample. A plan is made from headers alone, and no target exists while it is made.

use std::sync::Arc;

use crate::world::{
    Values, both_ways, delete, double, families, hugging_face, import, on_disk, options, rename,
};
use crate::written;
use rialto_bridge::{
    Bridge, Claim, Codec, ConfigEdit, ConfigMapping, Dequantizer, Description, EncodedTensor,
    Error, ForwardPass, MapOptions, ModelSpec, MtpPolicy, PipelineLayout, PipelineMapping,
    PipelineRequest, Placement, RawConfig, WeightMap, WeightMapping,
};
use rialto_checkpoint::store::{MemoryStore, Store, read_whole};
use rialto_engine::{ExportOptions, ExportPlan, ImportPlan, MegatronSource};

/// A one-shard checkpoint of these tensors.
fn checkpoint(values: &Values) -> MemoryStore {
    written::hugging_face("glm52-tiny", values)
}

/// What the plan of a spoiled checkpoint says.
fn refusal(family: &dyn Bridge, store: MemoryStore) -> (String, String) {
    let error = ImportPlan::new(family, Arc::new(store), &options(MtpPolicy::Keep))
        .expect_err("a plan that must fail");
    let findings = error.findings().join("\n");
    (error.slug().to_owned(), format!("{error}\n{findings}"))
}

/// Spoils every tensor in turn, with the family held both ways.
fn spoil_each(spoil: impl Fn(&mut Values, &str), says: impl Fn(&str) -> Vec<String>) {
    let whole = hugging_face(on_disk("glm52-tiny").as_ref());
    assert_eq!(whole.len(), 296);
    let families = families();
    for name in whole.keys() {
        let mut values = whole.clone();
        spoil(&mut values, name);
        let spoiled = checkpoint(&values);
        for (_, family) in &families {
            let (slug, text) = refusal(family.as_ref(), spoiled.clone());
            assert_eq!(slug, "weight-map/not-total", "{name}: {text}");
            for expected in says(name) {
                assert!(
                    text.contains(&expected),
                    "{name}: {expected:?} is not in {text}"
                );
            }
        }
    }
}

#[test]
fn the_whole_checkpoint_in_one_shard_plans() {
    both_ways(|family| {
        let whole = hugging_face(on_disk("glm52-tiny").as_ref());
        ImportPlan::new(
            family,
            Arc::new(checkpoint(&whole)),
            &options(MtpPolicy::Keep),
        )
        .unwrap();
    });
}

#[test]
fn any_tensor_deleted_is_named() {
    spoil_each(delete, |name| vec![format!("{name} is missing")]);
}

#[test]
fn any_tensor_renamed_is_named_by_both_names() {
    spoil_each(rename, |name| {
        vec![format!("{name} is missing"), format!("{name}_old (")]
    });
}

#[test]
fn any_tensor_reshaped_is_named_with_both_shapes() {
    spoil_each(
        |values, name| {
            let (_, shape, _) = values.get_mut(name).unwrap();
            shape.insert(0, 1);
        },
        |name| vec![format!("{name} has shape [1, ")],
    );
}

#[test]
fn any_tensor_that_is_left_out_is_named_too_when_it_is_reshaped() {
    let whole = hugging_face(on_disk("glm52-tiny").as_ref());
    let dropped: Vec<&String> = whole
        .keys()
        .filter(|name| name.starts_with("model.layers.8."))
        .collect();
    assert_eq!(dropped.len(), 47);
    both_ways(|family| {
        for name in &dropped {
            let mut values = whole.clone();
            values.get_mut(*name).unwrap().1.insert(0, 1);
            let plan = ImportPlan::new(
                family,
                Arc::new(checkpoint(&values)),
                &options(MtpPolicy::Drop),
            );
            let findings = plan.expect_err(name).findings();
            assert!(
                findings[0].starts_with(&format!("{name} has shape [1, ")),
                "{findings:?}"
            );
        }
    });
}

#[test]
fn any_tensor_doubled_under_another_name_is_named() {
    spoil_each(double, |name| vec![format!("{name}.copy (")]);
}

/// One name twice in one header: no writer makes it, so the header is written by hand.
#[test]
fn fc_38_any_tensor_doubled_under_its_own_name_is_named() {
    let whole = hugging_face(on_disk("glm52-tiny").as_ref());
    let families = families();
    for (position, (name, (dtype, shape, bytes))) in whole.iter().enumerate() {
        let entry = |start: usize| {
            let offsets = [start, start + bytes.len()];
            format!(
                r#""{name}":{}"#,
                serde_json::json!({"dtype": dtype.to_string(), "shape": shape, "data_offsets": offsets})
            )
        };
        let header = format!("{{{},{}}}", entry(0), entry(bytes.len()));
        let mut shard = (header.len() as u64).to_le_bytes().to_vec();
        shard.extend_from_slice(header.as_bytes());
        shard.extend_from_slice(&[bytes.as_slice(), bytes].concat());
        let (_, family) = &families[position % families.len()];
        let (slug, text) = refusal(family.as_ref(), written::of_shard("glm52-tiny", shard));
        assert_eq!(slug, "safetensors/duplicate-name");
        assert!(
            text.contains(name.as_str()) && text.contains("model.safetensors"),
            "{text}"
        );
    }
}

/// A second copy in another shard: the index decides and the ignored copy is reported by name.
#[test]
fn fc_36_any_tensor_copied_into_another_shard_is_reported_and_the_index_decides() {
    let source = crate::world::in_memory("glm52-tiny");
    let index = read_whole(&source, "model.safetensors.index.json", 1 << 20).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    let index = index["weight_map"].as_object().unwrap();
    let shard =
        |name: &str| crate::world::safetensors(&read_whole(&source, name, 1 << 30).unwrap());
    let (first, last) = (
        "model-00001-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
    );
    let mut merged = shard(first);
    let mut copied = shard(last);
    // A note shows twenty and counts the rest.
    copied.retain(|name, _| index[name] == last);
    let copied: Values = copied.into_iter().step_by(9).collect();
    assert!(copied.len() > 10 && copied.len() <= 20);
    let spoiled = copied.iter().map(|(name, (dtype, shape, bytes))| {
        (
            name.clone(),
            (*dtype, shape.clone(), vec![0xee; bytes.len()]),
        )
    });
    merged.extend(spoiled);
    source
        .insert(
            first,
            checkpoint(&merged).bytes("model.safetensors").unwrap(),
        )
        .unwrap();
    both_ways(|family| {
        let plan =
            ImportPlan::new(family, Arc::new(source.clone()), &options(MtpPolicy::Keep)).unwrap();
        let notes = plan.summary().notices.join("\n");
        for name in copied.keys() {
            assert!(notes.contains(name.as_str()), "{name} is not in {notes}");
        }
        let ours = import(family, Arc::new(source.clone()), &options(MtpPolicy::Keep)).unwrap();
        let clean = import(family, on_disk("glm52-tiny"), &options(MtpPolicy::Keep)).unwrap();
        let data = "iter_0000000/__0_0.distcp";
        assert_eq!(ours.bytes(data), clean.bytes(data));
    });
}

/// The family with its weight map spoiled, and without a program.
pub(crate) struct Spoiled<'a> {
    pub(crate) family: &'a dyn Bridge,
    pub(crate) spoil: Box<dyn Fn(&mut WeightMap) + Send + Sync>,
}

impl ConfigMapping for Spoiled<'_> {
    fn claim(&self, config: &RawConfig) -> Result<Claim, Error> {
        self.family.claim(config)
    }
    fn map_config(&self, config: &RawConfig, options: &MapOptions) -> Result<ModelSpec, Error> {
        self.family.map_config(config, options)
    }
    fn unmap_config(
        &self,
        spec: &ModelSpec,
        reference: &RawConfig,
    ) -> Result<Vec<ConfigEdit>, Error> {
        self.family.unmap_config(spec, reference)
    }
}

impl WeightMapping for Spoiled<'_> {
    fn weight_map(&self, spec: &ModelSpec) -> Result<WeightMap, Error> {
        let mut map = self.family.weight_map(spec)?;
        (self.spoil)(&mut map);
        Ok(map)
    }
    fn placement(&self, spec: &ModelSpec) -> Result<Placement, Error> {
        self.family.placement(spec)
    }
}

impl PipelineMapping for Spoiled<'_> {
    fn pipeline_layout(
        &self,
        spec: &ModelSpec,
        request: &PipelineRequest,
    ) -> Result<PipelineLayout, Error> {
        self.family.pipeline_layout(spec, request)
    }
}

impl Dequantizer for Spoiled<'_> {
    fn codecs(&self, spec: &ModelSpec) -> Result<Vec<Codec>, Error> {
        self.family.codecs(spec)
    }
    fn dequantize(&self, encoded: &EncodedTensor<'_>, out: &mut [u8]) -> Result<(), Error> {
        self.family.dequantize(encoded, out)
    }
}

impl ForwardPass for Spoiled<'_> {}

impl Bridge for Spoiled<'_> {
    fn describe(&self) -> Description {
        self.family.describe()
    }
}

#[test]
fn any_rule_removed_is_seen_by_the_tensors_and_by_the_params_it_leaves() {
    both_ways(|family| {
        for mtp in [MtpPolicy::Keep, MtpPolicy::Drop] {
            let plan = ImportPlan::new(family, on_disk("glm52-tiny"), &options(mtp)).unwrap();
            let rules = family.weight_map(plan.spec()).unwrap().rules;
            assert!(rules.len() > 40, "{}", rules.len());
            let run =
                Arc::new(import(family, on_disk("glm52-tiny"), &options(MtpPolicy::Keep)).unwrap());
            for (rule, removed) in rules.iter().enumerate() {
                let rialto_bridge::Rule::Map(removed) = removed else {
                    panic!("a map rule")
                };
                // The checkpoint has nothing of it, and without it nothing is missing.
                if removed.beside.is_some() {
                    continue;
                }
                let without = Spoiled {
                    family,
                    spoil: Box::new(move |map| drop(map.rules.remove(rule))),
                };
                let error =
                    ImportPlan::new(&without, on_disk("glm52-tiny"), &options(mtp)).unwrap_err();
                let mapping = plan.mapping();
                let of_rule = |info: usize| info == rule;
                let orphans = mapping
                    .tensors()
                    .iter()
                    .chain(mapping.skipped())
                    .filter(|tensor| of_rule(tensor.rule));
                let findings = error.findings();
                let mut named = 0;
                for orphan in orphans {
                    let line = format!("{} (", orphan.name);
                    assert!(
                        findings.iter().any(|finding| finding.starts_with(&line)),
                        "{}: {findings:?}",
                        removed.name
                    );
                    named += 1;
                }
                assert!(
                    named > 0 && findings.len() == named,
                    "{}: {findings:?}",
                    removed.name
                );
                if mtp == MtpPolicy::Keep {
                    let source =
                        MegatronSource::open(Arc::clone(&run) as Arc<dyn Store>, None).unwrap();
                    let outcome = ExportPlan::new(&without, source, &ExportOptions::default());
                    let findings = outcome.expect_err("an export that must fail").findings();
                    let params = mapping.params().iter().filter(|param| of_rule(param.rule));
                    for param in params {
                        let line = format!("{} (", param.name);
                        assert!(
                            findings.iter().any(|finding| finding.starts_with(&line)),
                            "{findings:?}"
                        );
                    }
                }
            }
        }
    });
}
