//! The torch_dist reader on checkpoints that PyTorch and Megatron-Core wrote: every value equals what was saved.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use rialto_checkpoint::store::{MemoryStore, read_whole};
use rialto_checkpoint::torch_dist::{
    COMMON_STATE_OBJECT, Metadata, Object, RunDirectory, TensorEntry, TorchDistCheckpoint,
    read_object, train_state,
};
use rialto_tensor::{ByteRange, Dtype, Location, Region, Shape};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::world::{fixture, in_memory, on_disk};

/// The fixtures, how many tensors and objects each holds, and how many of its chunks lie with strides of their own.
const FIXTURES: [(&str, usize, usize, usize); 7] = [
    ("plain-r1", 29, 5, 2),
    ("plain-r1-torch241", 25, 5, 2),
    ("sharded-w4", 11, 1, 4),
    ("per-rank-w2", 9, 2, 0),
    ("mcore013-w4", 10, 9, 0),
    ("mcore016-w4", 10, 9, 0),
    ("mcore020-w4", 10, 10, 0),
];

fn open(name: &str) -> TorchDistCheckpoint {
    let run = RunDirectory::resolve(on_disk(&format!("torch-dist/{name}/ckpt"))).unwrap();
    TorchDistCheckpoint::open(run.store).unwrap()
}

fn expected(name: &str) -> Value {
    let path = fixture(&format!("torch-dist/{name}/expected.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Copies a chunk's bytes to their place in the whole tensor, element by element.
fn paste(whole: &mut [u8], shape: &Shape, region: &Region, element: usize, chunk: &[u8]) {
    let mut elements = chunk.chunks_exact(element);
    for number in 0..region.elements().unwrap() {
        let (mut rest, mut index, mut stride) = (number, 0, 1);
        for axis in (0..shape.rank()).rev() {
            let position = region.offsets()[axis] + rest % region.sizes()[axis];
            rest /= region.sizes()[axis];
            index += position * stride;
            stride *= shape.extents()[axis];
        }
        let at = usize::try_from(index).unwrap() * element;
        whole[at..at + element].copy_from_slice(elements.next().expect("an element for each"));
    }
    assert!(elements.next().is_none());
}

/// A tensor's bytes, put together from its chunks, and how many of these have strides of their own.
fn whole(checkpoint: &TorchDistCheckpoint, name: &str, entry: &TensorEntry) -> (Vec<u8>, usize) {
    let len = entry.shape.size_bytes(entry.dtype).unwrap();
    let mut whole = vec![0xa5; usize::try_from(len).unwrap()];
    let mut strided = 0;
    for chunk in &entry.chunks {
        let stored = checkpoint.locate(name, chunk).unwrap();
        let source = checkpoint.source(&chunk.file).unwrap();
        stored.verify(source.as_ref(), name).unwrap();
        strided += usize::from(!stored.is_dense());
        let bytes = stored.read(source.as_ref()).unwrap();
        let element = usize::try_from(entry.dtype.size_bytes()).unwrap();
        paste(&mut whole, &entry.shape, &chunk.region, element, &bytes);
    }
    (whole, strided)
}

/// An object as `expected.json` spells it.
fn spelled(object: &Object) -> Value {
    match object {
        Object::None => Value::Null,
        Object::Bool(value) => json!(value),
        Object::Int(value) => json!(value),
        Object::Float(value) => json!(value),
        Object::Str(text) => json!(text),
        Object::Bytes(bytes) => {
            json!({ "bytesio_utf8": String::from_utf8(bytes.clone()).unwrap() })
        }
        Object::List(elements) | Object::Tuple(elements) => {
            Value::Array(elements.iter().map(spelled).collect())
        }
        Object::Dict(entries) => {
            let entries = entries
                .iter()
                .map(|(key, value)| (key.clone(), spelled(value)));
            Value::Object(entries.collect())
        }
        other => panic!("{other:?}"),
    }
}

/// A Megatron object is stored as a list of one.
fn unwrapped(object: Object) -> Object {
    match object {
        Object::List(mut elements) if elements.len() == 1 => elements.remove(0),
        other => other,
    }
}

#[test]
fn every_tensor_has_the_dtype_shape_and_bytes_that_were_saved() {
    for (name, tensors, _, strided) in FIXTURES {
        let checkpoint = open(name);
        let bytes = fs::read(fixture(&format!("torch-dist/{name}/expected.safetensors"))).unwrap();
        let expected = SafeTensors::deserialize(&bytes).unwrap();
        let found = &checkpoint.metadata().tensors;
        let names: BTreeSet<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(names, expected.names().into_iter().collect(), "{name}");
        assert_eq!(names.len(), tensors, "{name}");
        let mut with_strides = 0;
        for (key, entry) in found {
            let view = expected.tensor(key).unwrap();
            let shape: Vec<u64> = view.shape().iter().map(|&extent| extent as u64).collect();
            assert_eq!(entry.shape.extents(), shape, "{name} {key}");
            assert_eq!(
                view.dtype().to_string(),
                entry.dtype.to_string(),
                "{name} {key}"
            );
            let (bytes, strided) = whole(&checkpoint, key, entry);
            assert_eq!(bytes, view.data(), "{name} {key}");
            with_strides += strided;
        }
        assert_eq!(with_strides, strided, "{name}");
    }
}

#[test]
fn every_object_has_the_value_that_was_saved() {
    for (name, _, objects, _) in FIXTURES {
        let checkpoint = open(name);
        let expected = expected(name);
        let expected = expected["objects"].as_object().unwrap();
        let found = &checkpoint.metadata().objects;
        assert_eq!(found.len(), objects, "{name}");
        let others: Vec<&String> = found
            .keys()
            .filter(|key| !expected.contains_key(*key))
            .collect();
        assert!(
            others.is_empty() || others == [COMMON_STATE_OBJECT],
            "{others:?}"
        );
        for (key, value) in expected {
            let object = checkpoint.object(key).unwrap();
            let object = if key.contains("/shard_") {
                unwrapped(object)
            } else {
                object
            };
            assert_eq!(spelled(&object), *value, "{name} {key}");
        }
    }
}

#[test]
fn the_common_state_is_the_one_that_was_saved_in_either_place() {
    for (name, has_file) in [
        ("mcore013-w4", true),
        ("mcore016-w4", true),
        ("mcore020-w4", false),
    ] {
        let checkpoint = open(name);
        assert_eq!(checkpoint.notes(), [""; 0], "{name}");
        let objects = &checkpoint.metadata().objects;
        assert_eq!(
            objects.contains_key(COMMON_STATE_OBJECT),
            !has_file,
            "{name}"
        );
        let common = checkpoint.common().unwrap();
        let expected = expected(name);
        let expected = expected["notes"][1]["common"].as_object().unwrap();
        for (key, value) in expected {
            assert_eq!(spelled(common.get(key).unwrap()), *value, "{name} {key}");
        }
        // A class of the program that trained, which is named and left alone.
        let args = Object::Opaque("argparse.Namespace".to_owned());
        assert_eq!(common.get("args"), Some(&args), "{name}");
    }
    assert_eq!(open("plain-r1").common(), None);
}

#[test]
fn chunks_of_megatron_have_axes_for_layer_and_expert_before_their_own() {
    for name in ["mcore013-w4", "mcore016-w4", "mcore020-w4"] {
        let checkpoint = open(name);
        let tensors = &checkpoint.metadata().tensors;
        let chunks: usize = tensors.values().map(|entry| entry.chunks.len()).sum();
        assert_eq!(chunks, 62, "{name}");
        let entry = &tensors["decoder.layers.mlp.linear_fc1.weight"];
        assert_eq!(entry.dtype, Dtype::Bf16);
        // Four layers; gate and up of two tensor-parallel ranks each.
        assert_eq!(entry.chunks.len(), 16);
        assert!(
            entry
                .chunks
                .iter()
                .all(|chunk| chunk.region.sizes()[0] == 1)
        );
        let experts = &tensors["decoder.layers.mlp.experts.experts.linear_fc2.weight"];
        assert!(
            experts
                .chunks
                .iter()
                .all(|chunk| chunk.region.sizes()[..2] == [1, 1])
        );
    }
}

#[test]
fn metadata_that_is_written_again_says_the_same() {
    for (name, ..) in FIXTURES {
        let metadata = open(name).metadata().clone();
        let again = Metadata::decode(&metadata.encode(), &Location::default()).unwrap();
        assert_eq!(again, metadata, "{name}");
    }
}

#[test]
fn the_train_state_of_megatron_bridge_equals_ours() {
    let store = on_disk("megatron/glm52-tiny-mtp-tp1/ckpt");
    let source = store.open("latest_train_state.pt").unwrap();
    let whole = ByteRange::new(0, source.len());
    let state = read_object(source.as_ref(), whole, &Location::default()).unwrap();
    assert_eq!(state, train_state(0));
}

/// The cuts of a file of some length: all of a short one, some of a long one.
fn cuts(len: usize) -> impl Iterator<Item = usize> {
    (0..len).step_by((len / 1000).max(1))
}

#[test]
fn every_cut_of_a_real_file_is_an_error_when_it_is_opened() {
    for (name, ..) in FIXTURES {
        let run = in_memory(&format!("torch-dist/{name}/ckpt"));
        let resolved = RunDirectory::resolve(Arc::new(run.clone())).unwrap();
        // The run's own files (the tracker) are no part of the iteration.
        let store = MemoryStore::new(name);
        let files = resolved.store.files().unwrap();
        for file in &files {
            let bytes = read_whole(resolved.store.as_ref(), &file.name, 1 << 20).unwrap();
            store.insert(&file.name, bytes).unwrap();
        }
        TorchDistCheckpoint::open(Arc::new(store.clone())).unwrap();
        for file in &files {
            let bytes = store.bytes(&file.name).unwrap();
            for len in cuts(bytes.len()) {
                store.insert(&file.name, &bytes[..len]).unwrap();
                let result = TorchDistCheckpoint::open(Arc::new(store.clone()));
                assert!(result.is_err(), "{name}: {} cut at {len}", file.name);
            }
            store.insert(&file.name, bytes).unwrap();
        }
    }
}
