//! The torch_dist reader on files that PyTorch and Megatron-Core wrote; see `torch_dist/ORIGIN.md`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rialto_checkpoint::store::{LocalStore, MemoryStore, Store};
use rialto_checkpoint::torch_dist::{
    Metadata, Object, TensorEntry, TorchDistCheckpoint, read_object, train_state,
};
use rialto_tensor::{ByteRange, Dtype, Location, Region, Shape};
use safetensors::SafeTensors;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/torch_dist")
        .join(name)
}

/// Copies a chunk's bytes to their place in the whole tensor, element by element.
fn paste(whole: &mut [u8], shape: &Shape, region: &Region, element: usize, chunk: &[u8]) {
    let mut elements = chunk.chunks_exact(element);
    let count = region.elements().expect("a small tensor");
    for number in 0..count {
        let (mut rest, mut index, mut stride) = (number, 0, 1);
        for axis in (0..shape.rank()).rev() {
            let position = region.offsets()[axis] + rest % region.sizes()[axis];
            rest /= region.sizes()[axis];
            index += position * stride;
            stride *= shape.extents()[axis];
        }
        let at = index as usize * element;
        whole[at..at + element].copy_from_slice(elements.next().expect("an element for each"));
    }
    assert!(elements.next().is_none());
}

fn whole(checkpoint: &TorchDistCheckpoint, name: &str, entry: &TensorEntry) -> Vec<u8> {
    let len = entry.shape.size_bytes(entry.dtype).expect("a small tensor");
    let mut whole = vec![0xa5; len as usize];
    for chunk in &entry.chunks {
        let stored = checkpoint.locate(name, chunk).expect("an item");
        let source = checkpoint.source(&chunk.file).expect("a data file");
        let bytes = stored.read(source.as_ref()).expect("its data");
        let element = entry.dtype.size_bytes() as usize;
        paste(&mut whole, &entry.shape, &chunk.region, element, &bytes);
    }
    whole
}

#[test]
fn sharded_strided_and_empty_chunks_of_pytorch_give_the_tensors_that_were_saved() {
    let store = Arc::new(LocalStore::open(fixture("sharded-w4")).unwrap());
    let checkpoint = TorchDistCheckpoint::open(store).unwrap();
    let bytes = fs::read(fixture("sharded-w4/expected.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(checkpoint.metadata().tensors.len(), expected.len());
    let mut strided = 0;
    for (name, entry) in &checkpoint.metadata().tensors {
        let view = expected.tensor(name).unwrap();
        let shape: Vec<u64> = view.shape().iter().map(|&extent| extent as u64).collect();
        assert_eq!(entry.shape.extents(), shape, "{name}");
        assert_eq!(view.dtype().to_string(), entry.dtype.to_string(), "{name}");
        assert_eq!(whole(&checkpoint, name, entry), view.data(), "{name}");
        for chunk in &entry.chunks {
            strided += usize::from(!checkpoint.locate(name, chunk).unwrap().is_dense());
        }
    }
    assert_eq!(strided, 4);
    assert_eq!(checkpoint.object("step").unwrap(), Object::Int(77));
}

#[test]
fn the_metadata_of_an_old_megatron_lists_a_chunk_for_every_layer_and_expert() {
    let bytes = fs::read(fixture("megatron-0.13/.metadata")).unwrap();
    let metadata = Metadata::decode(&bytes, &Location::file(".metadata")).unwrap();
    assert_eq!((metadata.tensors.len(), metadata.objects.len()), (10, 9));
    let chunks: usize = metadata
        .tensors
        .values()
        .map(|entry| entry.chunks.len())
        .sum();
    assert_eq!(chunks, 62);
    let entry = &metadata.tensors["decoder.layers.mlp.linear_fc1.weight"];
    assert_eq!(entry.dtype, Dtype::Bf16);
    // Four layers; gate and up of two tensor-parallel ranks each.
    assert_eq!(entry.chunks.len(), 16);
    assert!(
        entry
            .chunks
            .iter()
            .all(|chunk| chunk.region.sizes()[0] == 1)
    );
    let again = Metadata::decode(&metadata.encode(), &Location::default()).unwrap();
    assert_eq!(again, metadata);
}

#[test]
fn common_state_of_megatron_is_decoded_and_its_namespace_left_alone() {
    let store = LocalStore::open(fixture("megatron-0.13")).unwrap();
    let common = read(&store, "common.pt");
    let args = Object::Opaque("argparse.Namespace".to_owned());
    assert_eq!(common.get("args"), Some(&args));
    assert_eq!(common.get("iteration"), Some(&Object::Int(42)));
    assert_eq!(common.get("checkpoint_version"), Some(&Object::Float(3.0)));
    let scheduler = common.get("opt_param_scheduler").unwrap();
    assert_eq!(scheduler.get("max_lr"), Some(&Object::Float(0.0001)));
}

#[test]
fn train_state_of_megatron_bridge_equals_ours() {
    let store = LocalStore::open(fixture("")).unwrap();
    assert_eq!(read(&store, "train_state.pt"), train_state(0));
}

fn read(store: &LocalStore, name: &str) -> Object {
    let source = store.open(name).expect("a fixture");
    let whole = ByteRange::new(0, source.len());
    read_object(source.as_ref(), whole, &Location::file(name)).expect("an object")
}

#[test]
fn every_cut_of_real_files_is_an_error() {
    let bytes = fs::read(fixture("sharded-w4/.metadata")).unwrap();
    for len in 0..bytes.len() {
        let cut = Metadata::decode(&bytes[..len], &Location::default());
        assert!(cut.is_err(), "cut at {len}");
    }
    let store = MemoryStore::new("m");
    let bytes = fs::read(fixture("train_state.pt")).unwrap();
    for len in 0..bytes.len() {
        store.insert("f", &bytes[..len]).unwrap();
        let source = store.open("f").unwrap();
        let whole = ByteRange::new(0, len as u64);
        let cut = read_object(source.as_ref(), whole, &Location::default());
        assert!(cut.is_err(), "cut at {len}");
    }
}
