//! Field cases from end to end: what checkpoints and options in the field have been, and what must come of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rialto_bridge::{Bridge, Mesh, MtpPolicy};
use rialto_checkpoint::store::Store;
use rialto_checkpoint::torch_dist::TorchDistCheckpoint;
use rialto_engine::{
    Error, ExportOptions, ExportPlan, ImportPlan, MegatronSource, Options, source_config,
};
use rialto_tensor::Region;
use serde_json::Value;

use crate::world::{
    GOLDENS, Golden, Values, both_ways, export, hugging_face, import, in_memory, iteration,
    megatron, on_disk, options,
};
use crate::written::{self, Cut};

pub(crate) fn tiny() -> Values {
    hugging_face(on_disk("glm52-tiny").as_ref())
}

/// What the plan of an import of these tensors says, which it must not make.
pub(crate) fn refusal(family: &dyn Bridge, config: &str, values: &Values) -> Vec<String> {
    let store = Arc::new(written::hugging_face(config, values));
    let error = ImportPlan::new(family, store, &options(MtpPolicy::Keep));
    let error = error.expect_err("a plan that must fail");
    assert_eq!(error.slug(), "weight-map/not-total", "{error}");
    error.findings()
}

fn export_plan(
    family: &dyn Bridge,
    values: &Values,
    options: &ExportOptions,
) -> Result<ExportPlan, Error> {
    export_plan_of(family, "glm52-tiny", values, options)
}

/// The plan of an export of these params under the config of a fixture.
pub(crate) fn export_plan_of(
    family: &dyn Bridge,
    reference: &str,
    values: &Values,
    options: &ExportOptions,
) -> Result<ExportPlan, Error> {
    let run = Arc::new(written::megatron(values, Cut::Whole));
    let source = MegatronSource::open(run, Some(on_disk(reference)))?;
    ExportPlan::new(family, source, options)
}

pub(crate) fn golden(name: &str) -> &'static Golden {
    GOLDENS.iter().find(|golden| golden.name == name).unwrap()
}

/// What a real checkpoint holds, by name: its digest.
pub(crate) fn digests(golden: &Golden) -> BTreeMap<String, String> {
    let manifest = golden.manifest();
    let tensors = manifest["tensors"].as_object().unwrap().iter();
    let digest = |entry: &Value| entry["sha256"].as_str().unwrap().to_owned();
    tensors
        .map(|(name, entry)| (name.clone(), digest(entry)))
        .collect()
}

/// The same of an import.
pub(crate) fn imported_digests(
    family: &dyn Bridge,
    source: Arc<dyn Store>,
    options: &Options,
) -> BTreeMap<String, String> {
    let run = import(family, source, options).unwrap();
    let values = megatron(&iteration(Arc::new(run))).into_iter();
    values
        .map(|(name, (.., bytes))| (name, rialto_tests::sha256(&bytes)))
        .collect()
}

/// Indexers of glm52-tiny: `F F F S S S F S`, and one in the prediction layer.
#[test]
fn fc_10_indexer_tensors_belong_to_full_layers_and_to_no_other_in_both_directions() {
    let source = tiny();
    let keys = megatron(&iteration(GOLDENS[0].run()));
    let full: BTreeSet<u64> = [0, 1, 2, 6, 8].into();
    let layer_of = |name: &str| name.split('.').nth(2).unwrap().parse::<u64>().unwrap();
    let indexers: Vec<&String> = source
        .keys()
        .filter(|name| name.contains(".indexer."))
        .collect();
    assert_eq!(indexers.len(), 5 * 5);
    assert!(indexers.iter().all(|name| full.contains(&layer_of(name))));
    both_ways(|family| {
        for suffix in [
            "wq_b.weight",
            "wk.weight",
            "weights_proj.weight",
            "k_norm.weight",
            "k_norm.bias",
        ] {
            let of = |layer: u64| format!("model.layers.{layer}.self_attn.indexer.{suffix}");
            for layer in 0..=8 {
                let mut values = source.clone();
                let line = match values.remove(&of(layer)) {
                    Some(_) => format!("{} is missing", of(layer)),
                    None => {
                        values.insert(of(layer), source[&of(0)].clone());
                        format!("{} (", of(layer))
                    }
                };
                let findings = refusal(family, "glm52-tiny", &values);
                assert!(
                    findings.len() == 1 && findings[0].starts_with(&line),
                    "{findings:?}"
                );
            }
            let suffix = if suffix.starts_with("k_norm") {
                suffix.to_owned()
            } else {
                format!("linear_{suffix}")
            };
            let of = |layer: u64| {
                let attention = match layer {
                    8 => "mtp.layers.0.mtp_model_layer.layers.0".to_owned(),
                    layer => format!("decoder.layers.{}", 2 * layer),
                };
                format!("{attention}.self_attention.core_attention.indexer.{suffix}")
            };
            for layer in 0..=8 {
                let mut values = keys.clone();
                let line = match values.remove(&of(layer)) {
                    Some(_) => format!("{} is missing", of(layer)),
                    None => {
                        values.insert(of(layer), keys[&of(0)].clone());
                        format!("{} (", of(layer))
                    }
                };
                let error = export_plan(family, &values, &ExportOptions::default()).unwrap_err();
                let findings = error.findings();
                assert!(
                    findings.len() == 1 && findings[0].starts_with(&line),
                    "{findings:?}"
                );
            }
        }
    });
}

#[test]
fn fc_11_the_report_says_what_became_of_multi_token_prediction() {
    both_ways(|family| {
        let plan = |mtp| ImportPlan::new(family, on_disk("glm52-tiny"), &options(mtp)).unwrap();
        let kept = plan(MtpPolicy::Keep);
        let group = kept
            .summary()
            .groups
            .iter()
            .find(|group| group.name == "mtp")
            .unwrap();
        assert_eq!(
            (kept.summary().mtp_layers, group.tensors, group.params),
            (1, 47, 24)
        );
        assert!(kept.summary().skipped.is_empty());
        let dropped = plan(MtpPolicy::Drop);
        let [skipped] = dropped.summary().skipped.as_slice() else {
            panic!("{:?}", dropped.summary().skipped)
        };
        assert_eq!((dropped.summary().mtp_layers, skipped.tensors), (0, 47));
        assert_eq!(skipped.reason, "MTP dropped");
        // Kept by default, and by whoever names no policy; what is there and not expected is refused.
        assert_eq!(Options::default().mtp, MtpPolicy::Keep);
        let error = ImportPlan::new(family, on_disk("glm52-tiny"), &options(MtpPolicy::Absent));
        assert_eq!(error.unwrap_err().findings().len(), 47);
        // On the way back what the keys hold decides, and the config says the same.
        let run =
            Arc::new(import(family, on_disk("glm52-tiny"), &options(MtpPolicy::Drop)).unwrap());
        let source = MegatronSource::open(run, None).unwrap();
        let back = ExportPlan::new(family, source, &ExportOptions::default()).unwrap();
        assert_eq!(
            (back.summary().mtp_layers, back.summary().target.tensors),
            (0, 249)
        );
        let notices = back.summary().notices.join("\n");
        assert!(
            notices.contains("num_nextn_predict_layers changes from 1 to 0"),
            "{notices}"
        );
    });
}

#[test]
fn fc_12_every_router_has_its_correction_bias_and_none_is_made_up() {
    let source = tiny();
    let layers = [3u64, 4, 5, 6, 7, 8];
    let tensor = |layer: u64| format!("model.layers.{layer}.mlp.gate.e_score_correction_bias");
    let key = |layer: u64| match layer {
        8 => "mtp.layers.0.mtp_model_layer.layers.1.mlp.router.expert_bias".to_owned(),
        layer => format!("decoder.layers.{}.mlp.router.expert_bias", 2 * layer + 1),
    };
    both_ways(|family| {
        let run = import(family, on_disk("glm52-tiny"), &options(MtpPolicy::Keep)).unwrap();
        let params = megatron(&iteration(Arc::new(run)));
        let biases = params.keys().filter(|name| name.ends_with("expert_bias"));
        assert_eq!(biases.count(), layers.len());
        for layer in layers {
            assert_eq!(params[&key(layer)], source[&tensor(layer)]);
            let mut values = source.clone();
            values.remove(&tensor(layer));
            let findings = refusal(family, "glm52-tiny", &values);
            let line = format!("{} is missing", tensor(layer));
            assert!(
                findings.len() == 1 && findings[0].starts_with(&line),
                "{findings:?}"
            );
            let mut values = params.clone();
            values.remove(&key(layer));
            let findings = export_plan(family, &values, &ExportOptions::default());
            let findings = findings.unwrap_err().findings();
            let line = format!("{} is missing", key(layer));
            assert!(
                findings.len() == 1 && findings[0].starts_with(&line),
                "{findings:?}"
            );
        }
    });
}

#[test]
fn fc_15_what_no_rule_claims_is_left_out_only_by_a_pattern_and_then_counted() {
    let extra = [
        "visual.proj.weight",
        "visual.norm.weight",
        "model.layers.3.odd.weight",
    ];
    let norm = "model.layers.2.input_layernorm.weight";
    let mut values = tiny();
    for name in extra {
        values.insert(name.to_owned(), values[norm].clone());
    }
    let store: Arc<dyn Store> = Arc::new(written::hugging_face("glm52-tiny", &values));
    let mut keys = megatron(&iteration(GOLDENS[0].run()));
    for name in extra {
        keys.insert(name.to_owned(), values[norm].clone());
    }
    let clean = digests(&GOLDENS[0]);
    both_ways(|family| {
        let with = |patterns: &[&str]| Options {
            allow_unmapped: patterns.iter().map(|&pattern| pattern.to_owned()).collect(),
            ..options(MtpPolicy::Keep)
        };
        let plan = |patterns: &[&str]| ImportPlan::new(family, Arc::clone(&store), &with(patterns));
        // Each pattern allows what it matches and no more.
        for (patterns, left) in [
            (vec![], vec![extra[0], extra[1], extra[2]]),
            (vec!["visual.*"], vec![extra[2]]),
            (vec!["*.odd.*", "visual.norm.weight"], vec![extra[0]]),
            (vec!["visual", "odd"], vec![extra[0], extra[1], extra[2]]),
        ] {
            let findings = plan(&patterns).unwrap_err().findings();
            assert_eq!(findings.len(), left.len(), "{findings:?}");
            for name in left {
                let line = format!("{name} (");
                assert!(
                    findings.iter().any(|found| found.starts_with(&line)),
                    "{findings:?}"
                );
            }
            let asked = ExportOptions {
                allow_unmapped: with(&patterns).allow_unmapped,
                ..ExportOptions::default()
            };
            let back = export_plan(family, &keys, &asked).unwrap_err().findings();
            assert_eq!(back.len(), findings.len(), "{back:?}");
        }
        let patterns = ["visual.*", "*.odd.*"];
        let expected = [
            ("--allow-unmapped visual.*", 2, 192),
            ("--allow-unmapped *.odd.*", 1, 96),
        ];
        let counted = |skipped: &[rialto_engine::Skipped]| -> BTreeSet<(String, u64, u64)> {
            let lines = skipped.iter();
            lines
                .map(|line| (line.reason.clone(), line.tensors, line.elements))
                .collect()
        };
        let expected: BTreeSet<_> = expected.map(|(text, t, e)| (text.to_owned(), t, e)).into();
        assert_eq!(
            counted(&plan(&patterns).unwrap().summary().skipped),
            expected
        );
        assert_eq!(
            imported_digests(family, Arc::clone(&store), &with(&patterns)),
            clean
        );
        let asked = ExportOptions {
            allow_unmapped: with(&patterns).allow_unmapped,
            ..ExportOptions::default()
        };
        let back = export_plan(family, &keys, &asked).unwrap();
        assert_eq!(counted(&back.summary().skipped), expected);
        assert_eq!(back.summary().target.tensors, 296);
        // A pattern takes nothing that is claimed.
        let greedy = plan(&["*"]).unwrap();
        assert_eq!(
            (
                greedy.summary().source.tensors,
                greedy.summary().skipped[0].tensors
            ),
            (296, 3)
        );
    });
}

#[test]
fn fc_17_the_key_norm_of_an_indexer_has_weight_and_bias_and_both_come_back() {
    let source = tiny();
    both_ways(|family| {
        let run = import(family, on_disk("glm52-tiny"), &options(MtpPolicy::Keep)).unwrap();
        let params = megatron(&iteration(Arc::new(run.clone())));
        let back = export(family, Arc::new(run), None, &ExportOptions::default()).unwrap();
        let back = hugging_face(&back);
        for layer in [0, 1, 2, 6] {
            for field in ["weight", "bias"] {
                let tensor = format!("model.layers.{layer}.self_attn.indexer.k_norm.{field}");
                let key = format!(
                    "decoder.layers.{}.self_attention.core_attention.indexer.k_norm.{field}",
                    2 * layer
                );
                assert_eq!(params[&key], source[&tensor], "{tensor}");
                assert_eq!(back[&tensor], source[&tensor]);
            }
        }
    });
}

#[test]
fn fc_20_fc_25_stages_hold_every_layer_once_and_begin_where_an_indexer_is() {
    both_ways(|family| {
        for (name, most) in [
            ("glm52-tiny", 4),
            ("glm53-tiny", 2),
            ("glm5-tiny", 6),
            ("configs/glm-5.2", 21),
        ] {
            let config = source_config(on_disk(name).as_ref()).unwrap();
            let config: Value = serde_json::from_slice(config.text().as_bytes()).unwrap();
            let kinds = config["indexer_types"].as_array().unwrap();
            let plan = |pp| {
                let mut options = options(MtpPolicy::Keep);
                options.mesh = Mesh { pp, ..Mesh::SINGLE };
                ImportPlan::new(family, on_disk(name), &options)
            };
            let keys = |plan: &ImportPlan| -> Vec<String> {
                plan.files().metadata().tensors.keys().cloned().collect()
            };
            let whole = keys(&plan(1).unwrap());
            // The full model is planned as often as it takes to see an even cut and the finest.
            let all: Vec<u64> = (1..=most).collect();
            for &pp in if most > 9 { &all[19..] } else { &all[..] } {
                let plan = plan(pp).unwrap();
                let stages = &plan.summary().stages;
                assert_eq!(stages.len() as u64, pp);
                let mut next = 0;
                for stage in stages {
                    assert_eq!(stage.first_layer, next, "{name}, {pp} stages");
                    assert_eq!(kinds[next as usize], "full", "{name}, {pp} stages");
                    assert!(stage.layers > 0 && stage.physical_layers == 2 * stage.layers);
                    next += stage.layers;
                }
                assert_eq!(next, kinds.len() as u64, "{name}, {pp} stages");
                // Layers are numbered over the whole model, on whichever stage they are.
                assert_eq!(keys(&plan), whole);
            }
            assert_eq!(plan(most + 1).unwrap_err().slug(), "bridge/pipeline");
        }
    });
}

/// Any chunk of a real checkpoint forgotten, and any chunk moved onto another.
#[test]
fn fc_21_chunks_that_do_not_tile_their_tensor_are_refused_when_opened() {
    let run = in_memory("megatron/glm52-tiny-mtp-tp1/ckpt");
    let metadata = iteration(Arc::new(run.clone())).metadata().clone();
    let open = |metadata: &rialto_checkpoint::torch_dist::Metadata| {
        run.insert("iter_0000000/.metadata", metadata.encode())
            .unwrap();
        let run = rialto_checkpoint::torch_dist::RunDirectory::resolve(Arc::new(run.clone()));
        TorchDistCheckpoint::open(run.unwrap().store)
    };
    open(&metadata).unwrap();
    let mut doubled = 0;
    for (name, entry) in &metadata.tensors {
        let mut gap = metadata.clone();
        let lost = gap.tensors.get_mut(name).unwrap().chunks.pop().unwrap();
        let error = open(&gap).expect_err(name);
        assert_eq!(error.slug(), "torch_dist/tiling");
        let shape = entry.shape.to_string();
        let text = error.to_string();
        assert!(text.contains(name) && text.contains(&shape), "{text}");
        if entry.chunks.len() > 1 {
            assert!(text.contains(&lost.region.to_string()), "{text}");
            let mut overlap = metadata.clone();
            let chunks = &mut overlap.tensors.get_mut(name).unwrap().chunks;
            let (mut offsets, sizes) = (
                chunks[1].region.offsets().to_vec(),
                chunks[1].region.sizes().to_vec(),
            );
            let axis = offsets.iter().position(|&offset| offset > 0).unwrap();
            offsets[axis] -= 1;
            chunks[1].region = Region::new(offsets, sizes).into();
            let text = open(&overlap).expect_err(name);
            assert!(text.to_string().contains(name), "{text}");
            doubled += 1;
        }
    }
    assert!(doubled > 10, "{doubled}");
}

/// Rows of an expert's gate are 24 of a block of 128, and every cut below goes through a block.
#[test]
fn fc_24_values_do_not_depend_on_cuts_through_a_block_of_scales() {
    let golden = golden("glm53-tiny-mtp-ep5");
    let expected = digests(golden);
    both_ways(|family| {
        for (etp, pp, ep) in [(2, 1, 1), (3, 2, 5), (8, 1, 5), (24, 1, 1)] {
            let mut options = golden.options();
            options.mesh = Mesh { tp: 1, pp, ep, etp };
            let found = imported_digests(family, on_disk("glm53-tiny"), &options);
            assert_eq!(found, expected, "{}", options.mesh);
        }
    });
}
