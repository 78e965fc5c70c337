//! A part of a model: what filters let through is what a whole conversion writes of it, and the rest is listed.

use std::collections::BTreeMap;
use std::sync::Arc;

use rialto_bridge::{LayerAxis, MtpPolicy};
use rialto_checkpoint::hf::HfCheckpoint;
use rialto_checkpoint::records::MANIFEST_FILE;
use rialto_checkpoint::store::{MemoryStore, Store};
use rialto_engine::{
    ExportOptions, ExportPlan, Filter, ImportPlan, Manifest, MegatronSource, Options, RunOptions,
    Silent, Summary,
};

use crate::world::{both_ways, in_memory};

/// Digest of each tensor or chunk by name and place.
type Digests = BTreeMap<(String, Option<Vec<u64>>), String>;

fn digests(store: &MemoryStore) -> Digests {
    let manifest = Manifest::read(store, MANIFEST_FILE).unwrap();
    let tensors = manifest.tensors.into_iter();
    tensors
        .map(|tensor| ((tensor.name, tensor.offsets), tensor.blake3))
        .collect()
}

fn filter(
    layers: Option<&str>,
    experts: Option<&str>,
    include: &[&str],
    exclude: &[&str],
) -> Filter {
    let owned = |patterns: &[&str]| patterns.iter().map(|&pattern| pattern.to_owned()).collect();
    Filter {
        layers: layers.map(|text| text.parse().unwrap()),
        experts: experts.map(|text| text.parse().unwrap()),
        include: owned(include),
        exclude: owned(exclude),
    }
}

fn import(
    family: &dyn rialto_bridge::Bridge,
    source: &str,
    options: &Options,
) -> Result<(MemoryStore, Summary), rialto_engine::Error> {
    let plan = ImportPlan::new(family, Arc::new(in_memory(source)), options)?;
    let store = MemoryStore::written_by("run", |target| {
        plan.run(family, target, &RunOptions::default(), &Silent)
            .map(drop)
    })?;
    Ok((store, plan.summary().clone()))
}

fn export(
    family: &dyn rialto_bridge::Bridge,
    run: &MemoryStore,
    options: &ExportOptions,
) -> Result<(MemoryStore, Summary), rialto_engine::Error> {
    let source = MegatronSource::open(Arc::new(run.clone()), None)?;
    let plan = ExportPlan::new(family, source, options)?;
    let store = MemoryStore::written_by("out", |target| {
        plan.run(target, &RunOptions::default(), &Silent).map(drop)
    })?;
    Ok((store, plan.summary().clone()))
}

/// What is left out by option, with the number of its tensors.
fn skipped(summary: &Summary) -> Vec<(String, u64)> {
    let skipped = summary.skipped.iter();
    skipped
        .map(|skipped| (skipped.reason.clone(), skipped.tensors))
        .collect()
}

#[test]
fn layers_of_an_import_are_those_of_the_whole_one_and_the_rest_is_counted() {
    both_ways(|family| {
        let (whole, all) = import(family, "glm52-tiny", &Options::default()).unwrap();
        let whole = digests(&whole);
        let options = Options {
            filter: filter(Some("0-1,4"), None, &[], &["lm_head*"]),
            ..Options::default()
        };
        let (part, summary) = import(family, "glm52-tiny", &options).unwrap();
        let found = digests(&part);
        assert!(!found.is_empty() && found.len() < whole.len());
        for (place, digest) in &found {
            assert_eq!(whole[place], *digest, "{place:?}");
        }
        // A layer of the source is two of Megatron's: attention, then MLP or experts.
        let layers = [0, 1, 2, 3, 8, 9];
        let is_kept = |name: &str| match name.strip_prefix("decoder.layers.") {
            Some(rest) => layers.contains(&rest.split('.').next().unwrap().parse::<u64>().unwrap()),
            None => !name.starts_with("output_layer") && !name.starts_with("mtp."),
        };
        let expected: Vec<_> = whole.keys().filter(|(name, _)| is_kept(name)).collect();
        assert_eq!(found.keys().collect::<Vec<_>>(), expected);
        let left_out: u64 = summary.skipped.iter().map(|skipped| skipped.tensors).sum();
        assert_eq!(summary.source.tensors + left_out, all.source.tensors);
        let reasons: Vec<String> = skipped(&summary)
            .into_iter()
            .map(|(reason, _)| reason)
            .collect();
        assert_eq!(reasons, ["--layers 0-1,4", "--exclude lm_head*"]);
        assert!(summary.target.objects > 0 && summary.target.objects < all.target.objects);
    });
}

#[test]
fn fc_43_fc_44_what_a_filtered_export_lacks_is_listed_and_its_index_names_what_is_there() {
    both_ways(|family| {
        let (run, _) = import(family, "glm52-tiny", &Options::default()).unwrap();
        let (whole, all) = export(family, &run, &ExportOptions::default()).unwrap();
        let whole = digests(&whole);
        for (filter, expected) in [
            (filter(Some("3"), None, &[], &[]), &["--layers 3"][..]),
            (filter(None, Some("1-2"), &[], &[]), &["--experts 1-2"]),
            (
                filter(None, None, &["*.mlp.*"], &["*shared*"]),
                &["--include *.mlp.*", "--exclude *shared*"],
            ),
        ] {
            let options = ExportOptions {
                filter,
                ..ExportOptions::default()
            };
            let (part, summary) = export(family, &run, &options).unwrap();
            let found = digests(&part);
            assert!(!found.is_empty() && found.len() < whole.len());
            for (place, digest) in &found {
                assert_eq!(whole[place], *digest, "{place:?}");
            }
            // Index and headers agree about what is there.
            let opened = HfCheckpoint::open(Arc::new(part)).unwrap();
            assert_eq!(opened.tensors().len(), found.len());
            let left_out: u64 = summary.skipped.iter().map(|skipped| skipped.tensors).sum();
            assert_eq!(summary.target.tensors + left_out, all.target.tensors);
            let mut reasons: Vec<String> = skipped(&summary)
                .into_iter()
                .map(|(reason, _)| reason)
                .collect();
            reasons.sort();
            let mut expected: Vec<&str> = expected.to_vec();
            expected.sort_unstable();
            assert_eq!(reasons, expected);
        }
    });
}

#[test]
fn an_export_that_drops_multi_token_prediction_is_that_of_a_checkpoint_without_any() {
    both_ways(|family| {
        let with = import(family, "glm52-tiny", &Options::default()).unwrap().0;
        let drop = Options {
            mtp: MtpPolicy::Drop,
            ..Options::default()
        };
        let without = import(family, "glm52-tiny", &drop).unwrap().0;
        let dropped = ExportOptions {
            mtp: MtpPolicy::Drop,
            ..ExportOptions::default()
        };
        let (found, summary) = export(family, &with, &dropped).unwrap();
        let (expected, _) = export(family, &without, &ExportOptions::default()).unwrap();
        for file in expected.files().unwrap() {
            if file.name != rialto_checkpoint::records::REPORT_FILE {
                assert_eq!(
                    found.bytes(&file.name),
                    expected.bytes(&file.name),
                    "{}",
                    file.name
                );
            }
        }
        assert_eq!(summary.mtp_layers, 0);
        let (reason, params) = &skipped(&summary)[0];
        assert_eq!(reason, "--mtp drop");
        assert!(*params > 10);
    });
}

#[test]
fn what_can_only_be_written_whole_is_not_cut() {
    both_ways(|family| {
        let refused = |filter: Filter, layer_axis| {
            let options = Options {
                filter,
                layer_axis,
                ..Options::default()
            };
            import(family, "glm52-tiny", &options).map(drop)
        };
        // The experts of a layer are one param.
        let error = refused(filter(None, Some("0"), &[], &[]), LayerAxis::Stacked).unwrap_err();
        assert_eq!(error.slug(), "engine/cut-param");
        assert!(
            error
                .findings()
                .iter()
                .all(|param| param.contains(".experts.")),
            "{error}"
        );
        // Gate and up are one, too.
        let error = refused(
            filter(None, None, &[], &["*.gate_proj.weight"]),
            LayerAxis::Stacked,
        )
        .unwrap_err();
        assert!(error.to_string().contains("linear_fc1"), "{error}");
        let error = refused(
            filter(Some("0"), None, &["*.layers.*"], &["*.layers.*"]),
            LayerAxis::Stacked,
        )
        .unwrap_err();
        assert_eq!(error.slug(), "engine/nothing-left");
    });
}

#[test]
fn what_matches_nothing_is_refused_in_both_directions_beside_what_there_is() {
    both_ways(|family| {
        let (run, _) = import(family, "glm52-tiny", &Options::default()).unwrap();
        for (filter, mtp, expected) in [
            (
                filter(Some("99"), None, &[], &[]),
                MtpPolicy::Keep,
                "--layers 99, expected some of 0-8",
            ),
            (
                filter(Some("8"), None, &[], &[]),
                MtpPolicy::Drop,
                "--layers 8, expected some of 0-7",
            ),
            (
                filter(None, Some("0-99"), &[], &[]),
                MtpPolicy::Keep,
                "--experts 0-99, expected some of 0-7",
            ),
            (
                filter(None, None, &["model.*", "typo.weight"], &[]),
                MtpPolicy::Keep,
                "--include typo.weight, expected a name such as ",
            ),
            (
                filter(None, None, &[], &["model.layer.3.input_layernorm*"]),
                MtpPolicy::Keep,
                "--exclude model.layer.3.input_layernorm*, expected a name such as model.layers.0-8.input_layernorm.weight",
            ),
        ] {
            let of_import = Options {
                filter: filter.clone(),
                mtp,
                ..Options::default()
            };
            let of_export = ExportOptions {
                filter,
                mtp,
                ..ExportOptions::default()
            };
            for error in [
                import(family, "glm52-tiny", &of_import)
                    .map(drop)
                    .unwrap_err(),
                export(family, &run, &of_export).map(drop).unwrap_err(),
            ] {
                assert_eq!(
                    (error.code(), error.slug()),
                    (1, "engine/filter"),
                    "{error}"
                );
                let findings = error.findings();
                assert_eq!(findings.len(), 1, "{error}");
                assert!(findings[0].starts_with(expected), "{error}");
            }
        }
    });
}
