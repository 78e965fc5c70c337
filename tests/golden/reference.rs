//! What an export takes from the Hugging Face directory beside the weights: the config, value by value, and the side files.

use std::collections::BTreeSet;
use std::sync::Arc;

use rialto_bridge::{Bridge, MtpPolicy};
use rialto_checkpoint::store::{MemoryStore, Store, read_whole};
use rialto_engine::{ExportOptions, ExportPlan, ImportPlan, MegatronSource};
use serde_json::{Value, json};

use crate::refusals::tiny_config;
use crate::world::{
    GOLDENS, assert_same_files, both_ways, export, fixture, hugging_face, import, in_memory,
    on_disk, options,
};

/// A tiny checkpoint of each release, and one more that has a prediction layer.
const RELEASES: [&str; 4] = ["glm5-tiny", "glm52-tiny", "glm53-tiny", "mini-hf"];

fn config_text(name: &str) -> String {
    std::fs::read_to_string(fixture(name).join("config.json")).unwrap()
}

/// A directory that holds a config and nothing else.
fn config_only(text: &str) -> Arc<dyn Store> {
    let store = MemoryStore::new("reference");
    store.insert("config.json", text.as_bytes()).unwrap();
    Arc::new(store)
}

/// The text of a config as somebody else keeps it: another context length, a misleading width, keys that nobody reads, keys
/// that are not there, and a spelling of its own.
fn kept_otherwise(text: &str) -> String {
    let absent = [
        "attention_dropout",
        "eos_token_id",
        "index_topk_pattern",
        "moe_router_dtype",
        "n_group",
    ];
    let config: Value = serde_json::from_str(text).unwrap();
    let mut lines = vec![
        "{\"zz_unknown\" : {\"deep\":[1,  2.50e3, \"\\u00e9\"]},\t\"torch_dtype\":null".to_owned(),
    ];
    for (key, value) in config.as_object().unwrap() {
        let value = match key.as_str() {
            _ if absent.contains(&key.as_str()) => continue,
            "max_position_embeddings" => "1048576".to_owned(),
            "head_dim" => "192".to_owned(),
            "rms_norm_eps" => "0.00001".to_owned(),
            _ => value.to_string(),
        };
        lines.push(format!("\r\n \"{key}\" :{value}"));
    }
    format!("{}\n\n}}\n\n", lines.join(","))
}

/// What an announced edit makes of a text: one value is another, or an entry is gone with the comma before it.
fn after(text: &str, edits: &[&str]) -> String {
    let mut text = text.to_owned();
    for edit in edits {
        let (from, to) = match edit.split_once(" is removed") {
            Some((key, _)) => {
                let key = key.strip_prefix("config.json: ").unwrap();
                let config: Value = serde_json::from_str(&text).unwrap();
                (format!(",\r\n \"{key}\" :{}", config[key]), String::new())
            }
            None => {
                assert_eq!(*edit, MTP_EDIT);
                let entry = |count: u64| format!("\"num_nextn_predict_layers\" :{count}");
                (entry(1), entry(0))
            }
        };
        assert_eq!(text.matches(&from).count(), 1, "{from}");
        text = text.replace(&from, &to);
    }
    text
}

const MTP_EDIT: &str = "config.json: num_nextn_predict_layers changes from 1 to 0";
const QUANTIZATION_EDIT: &str = "config.json: quantization_config is removed";

/// Exports under a reference, holds the config that comes out against its text, and the edits against what is announced.
fn assert_config(family: &dyn Bridge, run: &Arc<dyn Store>, text: &str, edits: &[&str]) {
    let reference = || Some(config_only(text));
    let source = MegatronSource::open(Arc::clone(run), reference()).unwrap();
    let plan = ExportPlan::new(family, source, &ExportOptions::default()).unwrap();
    let is_edit = |line: &&String| {
        let line = line.as_str();
        line.starts_with("config.json: ")
            && [" changes from ", " is removed", " is added"]
                .iter()
                .any(|verb| line.contains(verb))
    };
    let announced: Vec<&String> = plan.summary().notices.iter().filter(is_edit).collect();
    assert_eq!(announced, edits);
    let exported = export(
        family,
        Arc::clone(run),
        reference(),
        &ExportOptions::default(),
    )
    .unwrap();
    let found = String::from_utf8(exported.bytes("config.json").unwrap()).unwrap();
    assert_eq!(found, after(text, edits));
}

#[test]
fn fc_01_every_value_of_the_reference_is_kept_but_for_what_is_announced() {
    both_ways(|family| {
        for name in RELEASES {
            let text = kept_otherwise(&config_text(name));
            for mtp in [MtpPolicy::Keep, MtpPolicy::Drop] {
                let run: Arc<dyn Store> =
                    Arc::new(import(family, on_disk(name), &options(mtp)).unwrap());
                let mut edits = Vec::new();
                if name != "glm5-tiny" && mtp == MtpPolicy::Drop {
                    edits.push(MTP_EDIT);
                }
                if name == "glm53-tiny" {
                    edits.push(QUANTIZATION_EDIT);
                }
                assert_config(family, &run, &text, &edits);
            }
        }
    });
}

#[test]
fn fc_01_what_megatron_itself_saved_gets_the_reference_s_config_too() {
    both_ways(|family| {
        for golden in &GOLDENS {
            let text = kept_otherwise(&config_text(golden.source));
            let mut edits = Vec::new();
            if golden.mtp == MtpPolicy::Drop {
                edits.push(MTP_EDIT);
            }
            if golden.source == "glm53-tiny" {
                edits.push(QUANTIZATION_EDIT);
            }
            assert_config(family, &golden.run(), &text, &edits);
        }
    });
}

/// How the weights of a release are stored is no size of it: what came from one may go to the other.
#[test]
fn fc_32_a_reference_may_be_of_the_same_model_stored_otherwise() {
    both_ways(|family| {
        let text = kept_otherwise(&config_text("glm53-tiny"));
        let encoded: Value = serde_json::from_str(&text).unwrap();
        let quantization = format!(
            ",\r\n \"quantization_config\" :{}",
            encoded["quantization_config"]
        );
        assert_eq!(text.matches(&quantization).count(), 1);
        let plain = text.replace(&quantization, "");
        let run: Arc<dyn Store> =
            Arc::new(import(family, on_disk("glm53-tiny"), &options(MtpPolicy::Keep)).unwrap());
        assert_config(family, &run, &plain, &[]);
        // And the other way about: what was imported plain, under a reference that is encoded.
        let decoded = export(family, Arc::clone(&run), None, &ExportOptions::default()).unwrap();
        let run = import(family, Arc::new(decoded), &options(MtpPolicy::Keep)).unwrap();
        assert_config(family, &(Arc::new(run) as _), &text, &[QUANTIZATION_EDIT]);
    });
}

/// What is absent, `null` or 0 says already that there is none, and stays as it is.
#[test]
fn fc_09_a_count_that_says_none_is_kept_as_it_is_spelled() {
    both_ways(|family| {
        let with = |key: &str, value: Option<Value>| {
            let mut config = tiny_config();
            let fields = config.as_object_mut().unwrap();
            fields.remove(key);
            if let Some(value) = value {
                fields.insert(key.to_owned(), value);
            }
            config.to_string()
        };
        let mtp = "num_nextn_predict_layers";
        let none = [None, Some(Value::Null), Some(json!(0))];
        let import = |mtp| import(family, on_disk("glm52-tiny"), &options(mtp)).unwrap();
        let without: Arc<dyn Store> = Arc::new(import(MtpPolicy::Drop));
        let with_mtp: Arc<dyn Store> = Arc::new(import(MtpPolicy::Keep));
        for value in none {
            let text = with(mtp, value);
            assert_config(family, &without, &text, &[]);
            // Who says so and holds keys of it is told so, by the config kept at import or by the keys.
            let plan = |run: Arc<dyn Store>| {
                let source = MegatronSource::open(run, Some(config_only(&text))).unwrap();
                ExportPlan::new(family, source, &ExportOptions::default()).unwrap_err()
            };
            let error = plan(Arc::clone(&with_mtp));
            assert_eq!(error.slug(), "engine/reference-differs", "{error}");
            assert!(
                error
                    .to_string()
                    .contains("mtp_layers is 0 in the reference, 1 at import"),
                "{error}"
            );
            let error = plan(GOLDENS[0].run());
            let findings = error.findings();
            assert_eq!(
                (error.slug(), findings.len()),
                ("weight-map/not-total", 24),
                "{error}"
            );
            assert!(
                findings
                    .iter()
                    .all(|line| line.starts_with("mtp.layers.0.")),
                "{findings:?}"
            );
        }
        // The same of a quantization that is none.
        assert_config(
            family,
            &with_mtp,
            &with("quantization_config", Some(Value::Null)),
            &[],
        );
    });
}

/// Only the weights and their metadata are read of a run; how somebody configured training is nothing to an export.
#[test]
fn fc_02_a_checkpoint_without_a_run_config_exports_under_a_reference() {
    both_ways(|family| {
        let run = MemoryStore::new("run");
        let golden = GOLDENS[0].run();
        for file in golden.files().unwrap() {
            if !file.name.ends_with("run_config.yaml") && !file.name.ends_with("train_state.pt") {
                let bytes = read_whole(golden.as_ref(), &file.name, 64 << 20).unwrap();
                run.insert(&file.name, bytes).unwrap();
            }
        }
        assert!(run.files().unwrap().len() < golden.files().unwrap().len());
        let exports = [golden, Arc::new(run)].map(|run| {
            let reference = Some(on_disk("glm52-tiny"));
            export(family, run, reference, &ExportOptions::default()).unwrap()
        });
        assert_same_files(&exports[0], &exports[1]);
        assert_eq!(
            hugging_face(&exports[1]),
            hugging_face(on_disk("glm52-tiny").as_ref())
        );
    });
}

/// A reference may be sharded in any way, and its index may even be of other files.
#[test]
fn fc_03_shards_and_index_follow_what_is_written_and_not_the_reference() {
    both_ways(|family| {
        let run: Arc<dyn Store> =
            Arc::new(import(family, on_disk("glm52-tiny"), &options(MtpPolicy::Keep)).unwrap());
        let index = "model.safetensors.index.json";
        let written = |reference: &Arc<dyn Store>, max_shard_bytes: u64| {
            let options = ExportOptions {
                max_shard_bytes,
                ..ExportOptions::default()
            };
            export(
                family,
                Arc::clone(&run),
                Some(Arc::clone(reference)),
                &options,
            )
            .unwrap()
        };
        let stock = in_memory("glm52-tiny");
        let foreign: Value = json!({
            "metadata": {"total_size": 7},
            "weight_map": {"a.weight": "model-00282-of-00282.safetensors", "lm_head.weight": "model-00001-of-00282.safetensors"},
        });
        stock
            .insert(index, foreign.to_string().into_bytes())
            .unwrap();
        let references: [Arc<dyn Store>; 3] = [
            Arc::new(stock),
            on_disk("glm52-tiny"),
            config_only(&config_text("glm52-tiny")),
        ];
        for max_shard_bytes in [u64::MAX, 300_000] {
            let exports = references
                .each_ref()
                .map(|reference| written(reference, max_shard_bytes));
            for exported in &exports {
                assert_same_files(&exports[0], exported);
                let document: Value =
                    serde_json::from_slice(&exported.bytes(index).unwrap()).unwrap();
                let named: BTreeSet<&str> = document["weight_map"]
                    .as_object()
                    .unwrap()
                    .values()
                    .map(|file| file.as_str().unwrap())
                    .collect();
                let files = exported.files().unwrap();
                let there: BTreeSet<&str> = files
                    .iter()
                    .map(|file| file.name.as_str())
                    .filter(|name| name.ends_with(".safetensors"))
                    .collect();
                assert_eq!(named, there);
                assert_eq!(there.len() > 1, max_shard_bytes < u64::MAX);
                assert_eq!(
                    hugging_face(exported),
                    hugging_face(on_disk("glm52-tiny").as_ref())
                );
            }
        }
    });
}

#[test]
fn fc_03_a_reference_of_any_other_size_is_refused_by_that_field() {
    both_ways(|family| {
        let run: Arc<dyn Store> =
            Arc::new(import(family, on_disk("glm52-tiny"), &options(MtpPolicy::Keep)).unwrap());
        for key in [
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "q_lora_rank",
            "kv_lora_rank",
            "v_head_dim",
            "index_n_heads",
            "index_head_dim",
            "n_routed_experts",
            "n_shared_experts",
            "moe_intermediate_size",
        ] {
            let mut config = tiny_config();
            let own = config[key].as_u64().unwrap();
            config[key] = json!(own + 2);
            let refused = |run: Arc<dyn Store>| {
                let source =
                    MegatronSource::open(run, Some(config_only(&config.to_string()))).unwrap();
                ExportPlan::new(family, source, &ExportOptions::default()).unwrap_err()
            };
            let error = refused(Arc::clone(&run));
            assert_eq!(error.slug(), "engine/reference-differs", "{key}: {error}");
            let line = format!("{key} is {} in the reference, {own} at import", own + 2);
            assert_eq!(error.findings(), [line], "said once: {error}");
            // Where no config was kept, the keys tell.
            let error = refused(GOLDENS[0].run());
            assert_eq!(error.slug(), "weight-map/not-total", "{key}: {error}");
        }
    });
}

/// From the file that Megatron-Bridge reads, and for whatever number the config has.
#[test]
fn fc_04_run_config_says_the_epsilon_of_the_config_and_the_indexer_s_own() {
    both_ways(|family| {
        for (spelled, value) in [("1e-05", 1e-5), ("0.000001", 1e-6), ("0.5", 0.5)] {
            let source = in_memory("glm52-tiny");
            let text = config_text("glm52-tiny").replace(
                "\"rms_norm_eps\": 1e-05",
                &format!("\"rms_norm_eps\": {spelled}"),
            );
            assert!(text.contains(&format!("\"rms_norm_eps\": {spelled}")));
            source
                .insert("config.json", text.clone().into_bytes())
                .unwrap();
            let run = import(family, Arc::new(source), &options(MtpPolicy::Keep)).unwrap();
            let yaml = run.bytes("iter_0000000/run_config.yaml").unwrap();
            let yaml: Value = serde_saphyr::from_slice(&yaml).unwrap();
            let of = |field: &str| yaml["model"][field].as_f64().unwrap();
            assert_eq!(
                (of("layernorm_epsilon"), of("dsa_indexer_k_norm_epsilon")),
                (value, 1e-6)
            );
            let exported = export(family, Arc::new(run), None, &ExportOptions::default()).unwrap();
            assert_eq!(exported.bytes("config.json").unwrap(), text.as_bytes());
        }
    });
}

#[test]
fn fc_06_what_the_source_has_none_of_is_said_once() {
    both_ways(|family| {
        let line = "the source has no side files (tokenizer, generation config, templates)";
        let times = |store: Arc<dyn Store>| {
            let plan = ImportPlan::new(family, store, &options(MtpPolicy::Keep)).unwrap();
            plan.summary()
                .notices
                .iter()
                .filter(|found| *found == line)
                .count()
        };
        assert_eq!(times(on_disk("glm52-tiny")), 1);
        let with = in_memory("glm52-tiny");
        with.insert("tokenizer.json", b"".as_slice()).unwrap();
        assert_eq!(times(Arc::new(with)), 0);
    });
}

/// Whatever they hold, and never from somewhere else.
#[test]
fn fc_07_side_files_are_those_of_the_reference_if_one_is_given_and_none_is_invented() {
    both_ways(|family| {
        let source = in_memory("glm52-tiny");
        source
            .insert("tokenizer.json", b"{\"from\": \"import\"".as_slice())
            .unwrap();
        source
            .insert("special_tokens_map.json", b"import".as_slice())
            .unwrap();
        let run: Arc<dyn Store> =
            Arc::new(import(family, Arc::new(source), &options(MtpPolicy::Keep)).unwrap());
        let reference = in_memory("glm52-tiny");
        let other: [(&str, &[u8]); 3] = [
            ("tokenizer.json", b"\xff\xfe not text"),
            ("chat_template.jinja", b"{% break %}\r\n"),
            ("generation_config.json", b"{\"a\": 1, \"a\": 2,"),
        ];
        for (name, bytes) in other {
            reference.insert(name, bytes).unwrap();
        }
        let side_files = |run: &Arc<dyn Store>, reference: Option<Arc<dyn Store>>| {
            let exported = export(
                family,
                Arc::clone(run),
                reference,
                &ExportOptions::default(),
            )
            .unwrap();
            let files = exported.files().unwrap().into_iter().map(|file| file.name);
            let files = files.filter(|name| !name.starts_with("model") && name != "config.json");
            let bytes = |name: String| (name.clone(), exported.bytes(&name).unwrap());
            files.map(bytes).collect::<Vec<_>>()
        };
        let expected = |files: &[(&str, &[u8])]| {
            let mut files: Vec<_> = files
                .iter()
                .map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()))
                .collect();
            files.sort();
            files
        };
        assert_eq!(
            side_files(&run, Some(Arc::new(reference))),
            expected(&other)
        );
        let own: [(&str, &[u8]); 2] = [
            ("special_tokens_map.json", b"import"),
            ("tokenizer.json", b"{\"from\": \"import\""),
        ];
        assert_eq!(side_files(&run, None), expected(&own));
        for golden in &GOLDENS[..2] {
            assert_eq!(
                side_files(
                    &golden.run(),
                    Some(config_only(&config_text(golden.source)))
                ),
                []
            );
        }
    });
}
