//! Field cases of shard files and the index over them, read and written.

use std::collections::BTreeMap;
use std::sync::Arc;

use rialto_bridge::{Bridge, MtpPolicy};
use rialto_checkpoint::store::{MemoryStore, Store, read_whole};
use rialto_engine::ExportOptions;
use serde_json::Value;

use crate::field_cases::tiny;
use crate::world::{Values, both_ways, export, import, in_memory, on_disk, options, safetensors};
use crate::written;

/// Shards by name, and the index over them.
pub(crate) fn sharded(config: &str, shards: &BTreeMap<&str, Values>) -> MemoryStore {
    let store = written::hugging_face(config, &Values::new());
    store.remove("model.safetensors");
    let mut map = serde_json::Map::new();
    for (file, values) in shards {
        let shard = written::hugging_face(config, values);
        store
            .insert(file, shard.bytes("model.safetensors").unwrap())
            .unwrap();
        map.extend(values.keys().map(|name| (name.clone(), Value::from(*file))));
    }
    let index = serde_json::json!({"metadata": {}, "weight_map": map});
    let index_file = "model.safetensors.index.json";
    store
        .insert(index_file, index.to_string().into_bytes())
        .unwrap();
    store
}

#[test]
fn fc_35_fc_37_an_index_that_is_wrong_about_its_shards_is_refused_with_all_that_is() {
    let source = in_memory("glm52-tiny");
    let file = |number: u64| format!("model-0000{number}-of-00003.safetensors");
    let index_file = "model.safetensors.index.json";
    let index: Value = serde_json::from_slice(&source.bytes(index_file).unwrap()).unwrap();
    let import_error = |family: &dyn Bridge, index: &Value, without: &[u64]| {
        let store = in_memory("glm52-tiny");
        store
            .insert(index_file, index.to_string().into_bytes())
            .unwrap();
        for &number in without {
            store.remove(&file(number)).unwrap();
        }
        import(family, Arc::new(store), &options(MtpPolicy::Keep)).unwrap_err()
    };
    both_ways(|family| {
        // One tensor claimed for another file, one for none, one that is nowhere.
        let mut wrong = index.clone();
        let map = wrong["weight_map"].as_object_mut().unwrap();
        let moved = map
            .iter()
            .find(|(_, found)| **found == file(1))
            .unwrap()
            .0
            .clone();
        map.insert(moved.clone(), Value::from(file(2)));
        let unindexed = map
            .iter()
            .find(|(_, found)| **found == file(3))
            .unwrap()
            .0
            .clone();
        map.remove(&unindexed);
        map.insert("model.nowhere.weight".to_owned(), Value::from(file(3)));
        let error = import_error(family, &wrong, &[]);
        assert_eq!(error.slug(), "hf/index-mismatch");
        let text = error.to_string();
        for expected in [
            &moved,
            &unindexed,
            "model.nowhere.weight",
            &file(1),
            &file(2),
            &file(3),
        ] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
        // Files that are not there, with how many tensors each should hold.
        let error = import_error(family, &index, &[1, 3]);
        assert_eq!(error.slug(), "hf/missing-shards");
        let text = error.to_string();
        let map = index["weight_map"].as_object().unwrap();
        for number in [1, 3] {
            let count = map.values().filter(|found| **found == file(number)).count();
            assert!(
                text.contains(&file(number)) && text.contains(&count.to_string()),
                "{text}"
            );
        }
        assert!(!text.contains(&file(2)), "{text}");
    });
}

#[test]
fn fc_43_fc_44_every_tensor_is_written_and_the_index_names_the_file_that_holds_it() {
    let source = tiny();
    both_ways(|family| {
        let run =
            Arc::new(import(family, on_disk("glm52-tiny"), &options(MtpPolicy::Keep)).unwrap());
        for max_shard_bytes in [1, 5_000, 300_000, 5 << 30] {
            let asked = ExportOptions {
                max_shard_bytes,
                ..ExportOptions::default()
            };
            let exported =
                export(family, Arc::clone(&run) as Arc<dyn Store>, None, &asked).unwrap();
            let index = exported.bytes("model.safetensors.index.json").unwrap();
            let index: Value = serde_json::from_slice(&index).unwrap();
            let mut held = BTreeMap::new();
            for file in exported.files().unwrap() {
                if file.name.ends_with(".safetensors") {
                    let shard = read_whole(&exported, &file.name, 1 << 30).unwrap();
                    for name in safetensors(&shard).into_keys() {
                        let twice = held.insert(name, Value::from(file.name.as_str()));
                        assert_eq!(twice, None);
                    }
                }
            }
            let listed = index["weight_map"].as_object().unwrap().clone();
            assert_eq!(listed.into_iter().collect::<BTreeMap<_, _>>(), held);
            assert!(held.keys().eq(source.keys()));
            let bytes: usize = source.values().map(|(.., bytes)| bytes.len()).sum();
            assert_eq!(index["metadata"]["total_size"], bytes);
        }
    });
}
