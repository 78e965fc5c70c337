//! An export gives back what was imported, also from what the real Megatron-Core wrote.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::safetensors::tensor::TensorView;
use rialto_bridge::MtpPolicy;
use rialto_checkpoint::store::{LocalStore, MemoryStore, Store, read_whole};
use rialto_engine::{
    Contents, ExportOptions, ExportPlan, MegatronSource, Silent, VerifyOptions, VerifySource,
    verify,
};
use rialto_tensor::Dtype;
use serde_json::Value;

use crate::world::{
    GOLDENS, Values, assert_same_files, both_ways, export, fixture, hugging_face, import,
    in_memory, on_disk, options, safetensors,
};

fn config(store: &dyn Store) -> Vec<u8> {
    read_whole(store, "config.json", 1 << 20).unwrap()
}

#[test]
fn a_round_trip_gives_every_byte_back() {
    both_ways(|family| {
        for name in ["glm52-tiny", "glm5-tiny", "mini-hf"] {
            let source = on_disk(name);
            let run = import(family, Arc::clone(&source), &options(MtpPolicy::Keep)).unwrap();
            let exported = export(
                family,
                Arc::new(run.clone()),
                None,
                &ExportOptions::default(),
            );
            let exported = exported.unwrap();
            assert_eq!(hugging_face(&exported), stored(source.as_ref()), "{name}");
            assert_eq!(config(&exported), config(source.as_ref()));
            let again = import(family, Arc::new(exported), &options(MtpPolicy::Keep)).unwrap();
            assert_same_files(&run, &again);
        }
    });
}

/// FP8 becomes BF16, and the config no longer says that it is FP8: both are announced, and nothing else changes.
#[test]
fn a_round_trip_of_encoded_weights_gives_the_decoded_ones() {
    both_ways(|family| {
        let source = on_disk("glm53-tiny");
        let run = import(family, Arc::clone(&source), &options(MtpPolicy::Keep)).unwrap();
        let opened = MegatronSource::open(Arc::new(run.clone()), None).unwrap();
        let plan = ExportPlan::new(family, opened, &ExportOptions::default()).unwrap();
        let notice = "config.json: quantization_config is removed";
        assert!(plan.summary().notices.iter().any(|line| line == notice));
        let exported = export(family, Arc::new(run), None, &ExportOptions::default()).unwrap();
        assert_eq!(hugging_face(&exported), expected("glm53-tiny", true));
        let text = String::from_utf8(config(&exported)).unwrap();
        let original = String::from_utf8(config(source.as_ref())).unwrap();
        let (before, _) = original.split_once(",\n  \"quantization_config\"").unwrap();
        // It is the last key.
        assert_eq!(text, format!("{before}\n}}"));
        let again = import(
            family,
            Arc::new(exported.clone()),
            &options(MtpPolicy::Keep),
        )
        .unwrap();
        let twice = export(family, Arc::new(again), None, &ExportOptions::default()).unwrap();
        assert_same_files(&exported, &twice);
    });
}

/// A shard of tensors, appended to a directory whose index then names them.
fn with_tensors(source: &MemoryStore, tensors: &[(&str, Vec<u64>, Vec<u8>)]) {
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let shape = shape.iter().map(|&extent| extent as usize).collect();
        let view = TensorView::new(::safetensors::Dtype::BF16, shape, bytes).unwrap();
        (*name, view)
    });
    let shard = "model-added.safetensors";
    source
        .insert(shard, ::safetensors::serialize(views, None).unwrap())
        .unwrap();
    let index = "model.safetensors.index.json";
    let mut document: Value = serde_json::from_slice(&source.bytes(index).unwrap()).unwrap();
    for (name, ..) in tensors {
        document["weight_map"][*name] = shard.into();
    }
    source
        .insert(index, document.to_string().into_bytes())
        .unwrap();
}

/// Some converters give the prediction layer its own copies of embedding and head, which Megatron has no place for.
#[test]
fn fc_18_an_embedding_and_a_head_of_the_prediction_layer_are_kept_and_never_invented() {
    both_ways(|family| {
        let source = in_memory("glm52-tiny");
        let main = hugging_face(&source);
        let (_, shape, head) = main["lm_head.weight"].clone();
        let mut other = head.clone();
        other[7] ^= 1;
        // One equal to the main model's, one not.
        let own = [
            (
                "model.layers.8.shared_head.head.weight",
                shape.clone(),
                head,
            ),
            ("model.layers.8.embed_tokens.weight", shape, other),
        ];
        with_tensors(&source, &own);
        let source: Arc<dyn Store> = Arc::new(source);
        let expected = hugging_face(source.as_ref());
        assert_eq!(expected.len(), main.len() + 2);
        let run = import(family, Arc::clone(&source), &options(MtpPolicy::Keep)).unwrap();
        // Megatron finds what it would find without them.
        let plain = import(family, on_disk("glm52-tiny"), &options(MtpPolicy::Keep)).unwrap();
        for file in ["iter_0000000/.metadata", "iter_0000000/__0_0.distcp"] {
            assert_eq!(run.bytes(file), plain.bytes(file), "{file}");
        }
        let exported = export(
            family,
            Arc::new(run.clone()),
            None,
            &ExportOptions::default(),
        );
        let exported = exported.unwrap();
        assert_eq!(hugging_face(&exported), expected);
        let names = exported.files().unwrap().into_iter().map(|file| file.name);
        assert!(
            !names
                .collect::<Vec<_>>()
                .contains(&"beside.safetensors".to_owned())
        );
        let again = import(family, Arc::new(exported), &options(MtpPolicy::Keep)).unwrap();
        assert_same_files(&run, &again);
        // They are compared like any other, and found missing where they are.
        let compared = |other: &MemoryStore| {
            let opened = |store: Arc<dyn Store>| VerifySource::open(store).unwrap();
            let (a, b) = (
                opened(Arc::new(run.clone())),
                opened(Arc::new(other.clone())),
            );
            let contents = |side| Contents::new(side, a.config().unwrap(), family).unwrap();
            let options = VerifyOptions::default();
            verify(&contents(&a), &contents(&b), &options, &Silent).unwrap()
        };
        let report = compared(&again);
        assert_eq!((report.is_equal, report.tensors), (true, 298), "{report:?}");
        let spoiled = again.clone();
        let file = "iter_0000000/rialto/source/beside.safetensors";
        let mut bytes = again.bytes(file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        spoiled.insert(file, bytes).unwrap();
        let report = compared(&spoiled);
        let names: Vec<&str> = report
            .differences
            .iter()
            .map(|found| found.tensor.as_str())
            .collect();
        assert_eq!(names, ["model.layers.8.shared_head.head.weight"]);
        let report = compared(&plain);
        assert_eq!(
            (report.is_equal, report.tensors, report.findings.len()),
            (false, 296, 2)
        );
        // Without them none appear; dropped, they go with their layer.
        let exported = export(family, Arc::new(plain), None, &ExportOptions::default()).unwrap();
        assert_eq!(hugging_face(&exported), main);
        let dropped = import(family, source, &options(MtpPolicy::Drop)).unwrap();
        let exported = export(family, Arc::new(dropped), None, &ExportOptions::default()).unwrap();
        assert!(
            hugging_face(&exported)
                .keys()
                .all(|name| !name.starts_with("model.layers.8."))
        );
    });
}

#[test]
fn fc_06_fc_07_side_files_come_back_byte_for_byte_and_other_weights_stay_behind() {
    both_ways(|family| {
        let source = in_memory("glm52-tiny");
        let side: [(&str, &[u8]); 4] = [
            ("tokenizer.json", b"{\"not\": \"parsed\", "),
            (
                "chat_template.jinja",
                b"[gMASK]<sop>\r\n{% break %}\xff\x00",
            ),
            ("assets/picture.bin2", &[7; 3_000_000]),
            ("empty", b""),
        ];
        for (name, bytes) in side {
            source.insert(name, bytes).unwrap();
        }
        source
            .insert("consolidated.pth", b"weights of another format".as_slice())
            .unwrap();
        source
            .insert("golden.safetensors", b"no safetensors at all".as_slice())
            .unwrap();
        let run = import(family, Arc::new(source), &options(MtpPolicy::Keep)).unwrap();
        let exported = export(family, Arc::new(run), None, &ExportOptions::default()).unwrap();
        for (name, bytes) in side {
            assert_eq!(exported.bytes(name).as_deref(), Some(bytes), "{name}");
        }
        let names: Vec<String> = exported
            .files()
            .unwrap()
            .into_iter()
            .map(|file| file.name)
            .collect();
        let expected = [
            "assets/picture.bin2",
            "chat_template.jinja",
            "config.json",
            "empty",
            "model.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
        ];
        assert_eq!(names, expected);
    });
}

#[test]
fn after_dropping_mtp_the_config_says_so_and_nothing_else_changes() {
    both_ways(|family| {
        let source = on_disk("glm52-tiny");
        let run = import(family, Arc::clone(&source), &options(MtpPolicy::Drop)).unwrap();
        let opened = MegatronSource::open(Arc::new(run.clone()), None).unwrap();
        let plan = ExportPlan::new(family, opened, &ExportOptions::default()).unwrap();
        let notice = "config.json: num_nextn_predict_layers changes from 1 to 0";
        assert!(
            plan.summary().notices.iter().any(|line| line == notice),
            "{:?}",
            plan.summary().notices
        );
        let exported = export(family, Arc::new(run), None, &ExportOptions::default()).unwrap();
        let text = String::from_utf8(config(source.as_ref())).unwrap();
        let expected = text.replace(
            "\"num_nextn_predict_layers\": 1",
            "\"num_nextn_predict_layers\": 0",
        );
        assert_ne!(expected, text);
        assert_eq!(String::from_utf8(config(&exported)).unwrap(), expected);
        let mut values = hugging_face(source.as_ref());
        values.retain(|name, _| !name.starts_with("model.layers.8."));
        assert_eq!(hugging_face(&exported), values);
    });
}

/// Every tensor of a directory, with an index or without.
pub(crate) fn stored(store: &dyn Store) -> Values {
    match store.open("model.safetensors.index.json") {
        Ok(_) => hugging_face(store),
        Err(_) => safetensors(&read_whole(store, "model.safetensors", 1 << 30).unwrap()),
    }
}

/// What an export of a source must hold: encoded weights decoded, F32 narrowed but for the router bias.
pub(crate) fn expected(source: &str, has_mtp: bool) -> Values {
    let store = on_disk(source);
    let mut expected = stored(store.as_ref());
    if source == "glm53-tiny" {
        let decoded = std::fs::read(fixture("glm53-tiny-dequantized.safetensors")).unwrap();
        expected.extend(safetensors(&decoded));
        expected.retain(|name, _| !name.ends_with("_scale_inv"));
    }
    for (name, (dtype, _, bytes)) in &mut expected {
        if *dtype == Dtype::F32 && !name.ends_with("e_score_correction_bias") {
            // These were BF16 once: the lower half of each is zero.
            let halves = bytes.chunks(4).map(|element| {
                assert_eq!(element[..2], [0, 0], "{name}");
                [element[2], element[3]]
            });
            *bytes = halves.flatten().collect();
            *dtype = Dtype::Bf16;
        }
    }
    let layers: Value = serde_json::from_slice(&config(store.as_ref())).unwrap();
    let mtp = format!("model.layers.{}.", layers["num_hidden_layers"]);
    expected.retain(|name, _| has_mtp || !name.starts_with(&mtp));
    expected
}

#[test]
fn fc_19_a_checkpoint_of_the_real_megatron_exports_to_its_source_whatever_its_mesh() {
    both_ways(|family| {
        let mut of_source: BTreeMap<_, MemoryStore> = BTreeMap::new();
        for golden in &GOLDENS {
            let has_mtp = golden.mtp == MtpPolicy::Keep && golden.source != "glm5-tiny";
            let reference = Some(on_disk(golden.source));
            let exported = export(family, golden.run(), reference, &ExportOptions::default());
            let exported = exported.unwrap();
            assert_eq!(
                hugging_face(&exported),
                expected(golden.source, has_mtp),
                "{}",
                golden.name
            );
            // One source, one result, down to the bytes of every file.
            let first = of_source
                .entry((golden.source, has_mtp))
                .or_insert_with(|| exported.clone());
            assert_same_files(first, &exported);
        }
    });
}

#[test]
fn training_state_is_ignored_with_one_line_and_a_count() {
    both_ways(|family| {
        for name in ["mini-train-adam", "mini-train-distadam"] {
            let run: Arc<dyn Store> =
                Arc::new(LocalStore::open(rialto_tests::megatron(name).join("ckpt")).unwrap());
            let reference = Some(on_disk("mini-hf"));
            let source = MegatronSource::open(Arc::clone(&run), reference.clone()).unwrap();
            let plan = ExportPlan::new(family, source, &ExportOptions::default()).unwrap();
            let notices = plan.summary().notices.iter();
            let lines: Vec<&String> = notices.filter(|line| line.contains("training")).collect();
            let expected_line = "training state is ignored: 114 optimizer tensors, 1 rng object";
            assert_eq!(lines, [expected_line]);
            let exported = export(family, run, reference, &ExportOptions::default()).unwrap();
            assert_eq!(
                hugging_face(&exported),
                expected("mini-hf", false),
                "{name}"
            );
        }
    });
}

#[test]
fn fc_14_fused_experts_import_as_separate_ones_do_and_are_written_when_asked_for() {
    both_ways(|family| {
        let source = on_disk("glm52-tiny");
        let run = import(family, Arc::clone(&source), &options(MtpPolicy::Keep)).unwrap();
        let fused = ExportOptions {
            forms: vec!["fused".to_owned()],
            ..ExportOptions::default()
        };
        let exported = export(family, Arc::new(run.clone()), None, &fused).unwrap();
        // Stacked by hand: experts in order, gate rows before up rows.
        let mut expected = hugging_face(source.as_ref());
        let mut stacks = Values::new();
        expected.retain(|name, (dtype, shape, bytes)| {
            let Some((layer, rest)) = name.split_once(".mlp.experts.") else {
                return true;
            };
            let kind = rest.split('.').nth(1).unwrap();
            let (stack, rows) = match kind {
                "down_proj" => ("down_proj", shape[0]),
                _ => ("gate_up_proj", 2 * shape[0]),
            };
            let name = format!("{layer}.mlp.experts.{stack}");
            let entry = stacks
                .entry(name)
                .or_insert_with(|| (*dtype, vec![0, rows, shape[1]], Vec::new()));
            entry.1[0] += u64::from(kind != "up_proj");
            // Names sort as down, gate, up within an expert, and the experts are fewer than ten.
            entry.2.extend_from_slice(bytes);
            false
        });
        expected.extend(stacks);
        assert_eq!(hugging_face(&exported), expected);
        let again = import(family, Arc::new(exported), &options(MtpPolicy::Keep)).unwrap();
        assert_same_files(&run, &again);
        let unknown = ExportOptions {
            forms: vec!["stacked".to_owned()],
            ..ExportOptions::default()
        };
        let error = export(family, Arc::new(run), None, &unknown).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("found \"stacked\", supported: fused"),
            "{error}"
        );
    });
}

#[test]
fn fc_54_a_run_directory_and_its_iteration_directory_export_alike() {
    both_ways(|family| {
        let run = import(family, on_disk("glm52-tiny"), &options(MtpPolicy::Keep)).unwrap();
        let alone = MemoryStore::new("iter_0000000");
        for file in run.files().unwrap() {
            if let Some(name) = file.name.strip_prefix("iter_0000000/") {
                alone.insert(name, run.bytes(&file.name).unwrap()).unwrap();
            }
        }
        let exports = [run, alone]
            .map(|store| export(family, Arc::new(store), None, &ExportOptions::default()).unwrap());
        assert_same_files(&exports[0], &exports[1]);
    });
}

#[test]
fn shards_split_at_the_size_asked_for_and_import_again_to_the_same_bytes() {
    both_ways(|family| {
        let run = import(family, on_disk("glm52-tiny"), &options(MtpPolicy::Keep)).unwrap();
        let small = ExportOptions {
            max_shard_bytes: 200_000,
            ..ExportOptions::default()
        };
        let exported = export(family, Arc::new(run.clone()), None, &small).unwrap();
        let shards = exported
            .files()
            .unwrap()
            .into_iter()
            .filter(|file| file.name.ends_with(".safetensors"));
        let shards: Vec<_> = shards.collect();
        assert!(
            shards.len() > 9 && shards.iter().all(|shard| shard.len < 240_000),
            "{shards:?}"
        );
        let again = import(family, Arc::new(exported), &options(MtpPolicy::Keep)).unwrap();
        assert_same_files(&run, &again);
    });
}

#[test]
fn fc_02_without_a_config_the_places_searched_are_named_and_a_reference_helps() {
    both_ways(|family| {
        let run = on_disk("megatron/glm52-tiny-mtp-tp1/ckpt");
        let error = export(family, run, None, &ExportOptions::default()).unwrap_err();
        assert_eq!(error.slug(), "engine/no-config");
        assert!(
            error.to_string().contains("rialto/source/config.json"),
            "{error}"
        );
        assert!(error.help().unwrap().contains("--reference"));
    });
}

#[test]
fn fc_03_a_reference_of_another_size_is_refused_with_the_fields() {
    both_ways(|family| {
        let run = import(family, on_disk("glm52-tiny"), &options(MtpPolicy::Keep)).unwrap();
        let reference = in_memory("glm52-tiny");
        let text = std::fs::read_to_string(fixture("glm52-tiny/config.json")).unwrap();
        let text = text.replace(
            "\"moe_intermediate_size\": 20",
            "\"moe_intermediate_size\": 24",
        );
        reference.insert("config.json", text.into_bytes()).unwrap();
        let error = export(
            family,
            Arc::new(run),
            Some(Arc::new(reference)),
            &ExportOptions::default(),
        )
        .unwrap_err();
        assert_eq!(error.slug(), "engine/reference-differs");
        assert!(
            error
                .to_string()
                .contains("moe_intermediate_size is 24 in the reference, 20 at import"),
            "{error}"
        );
    });
}

#[test]
fn a_flipped_bit_in_the_data_is_seen_and_named_unless_checksums_are_ignored() {
    both_ways(|family| {
        let run = import(family, on_disk("glm52-tiny"), &options(MtpPolicy::Keep)).unwrap();
        let data = "iter_0000000/__0_0.distcp";
        let whole = run.bytes(data).unwrap();
        let checkpoint = crate::world::iteration(Arc::new(run.clone()));
        let tensors = &checkpoint.metadata().tensors;
        for (name, entry) in tensors.iter().step_by(7) {
            for chunk in &entry.chunks {
                let stored = checkpoint.locate(name, chunk).unwrap();
                let mut spoiled = whole.clone();
                let middle = (stored.data.start + stored.data.end) / 2;
                spoiled[middle as usize] ^= 0x10;
                run.insert(data, spoiled).unwrap();
                let shared: Arc<dyn Store> = Arc::new(run.clone());
                let error = export(family, Arc::clone(&shared), None, &ExportOptions::default())
                    .unwrap_err();
                assert_eq!(error.slug(), "torch_dist/checksum", "{name}: {error}");
                assert!(error.to_string().contains(name.as_str()), "{error}");
            }
        }
        let trusting = ExportOptions {
            verifies_checksums: false,
            ..ExportOptions::default()
        };
        assert!(export(family, Arc::new(run), None, &trusting).is_ok());
    });
}

#[test]
fn a_reference_with_other_values_is_followed_and_each_is_named() {
    both_ways(|family| {
        let run = import(family, on_disk("glm52-tiny"), &options(MtpPolicy::Keep)).unwrap();
        let reference = in_memory("glm52-tiny");
        let text = std::fs::read_to_string(fixture("glm52-tiny/config.json")).unwrap();
        let text = text.replace("\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 2");
        reference
            .insert("config.json", text.clone().into_bytes())
            .unwrap();
        let source = MegatronSource::open(Arc::new(run), Some(Arc::new(reference))).unwrap();
        let plan = ExportPlan::new(family, source, &ExportOptions::default()).unwrap();
        let line = "moe_router_topk is 2 in the reference, 3 at import; the reference is followed";
        assert!(
            plan.summary().notices.iter().any(|found| found == line),
            "{:?}",
            plan.summary().notices
        );
    });
}
