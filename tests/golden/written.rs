//! Checkpoints that the suites write themselves, of given tensors: what no real program at hand writes any more, or never should.

use std::collections::HashMap;

use std::sync::Arc;

use rialto_checkpoint::store::{MemoryStore, read_whole};
use rialto_checkpoint::torch_dist::{
    Body, Content, FileLimit, FilePlan, TRACKER_FILE, description_bytes, tracker_bytes,
};
use rialto_tensor::{Region, Shape};
use safetensors::tensor::TensorView;

use crate::world::{Values, on_disk};

/// A one-shard Hugging Face directory with the config of a fixture, written by the independent writer.
pub(crate) fn hugging_face(config: &str, values: &Values) -> MemoryStore {
    let views: HashMap<&str, TensorView<'_>> = values
        .iter()
        .map(|(name, (dtype, shape, bytes))| {
            let shape = shape.iter().map(|&extent| extent as usize).collect();
            let dtype = match dtype.safetensors_name() {
                "BF16" => safetensors::Dtype::BF16,
                "F32" => safetensors::Dtype::F32,
                "F8_E5M2" => safetensors::Dtype::F8_E5M2,
                "F8_E4M3" => safetensors::Dtype::F8_E4M3,
                other => panic!("{other}"),
            };
            (name.as_str(), TensorView::new(dtype, shape, bytes).unwrap())
        })
        .collect();
    of_shard(config, safetensors::serialize(views, None).unwrap())
}

/// The same around a shard given as bytes.
pub(crate) fn of_shard(config: &str, shard: Vec<u8>) -> MemoryStore {
    let store = MemoryStore::new("written");
    let config = read_whole(on_disk(config).as_ref(), "config.json", 1 << 20).unwrap();
    store.insert("config.json", config).unwrap();
    store.insert("model.safetensors", shard).unwrap();
    store
}

/// How tensors are cut into chunks: along their first axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Whole,
    /// One row, a third of the rows, the rest.
    Uneven,
    /// Two rows, then the rest.
    Two,
}

impl Cut {
    fn regions(self, shape: &[u64]) -> Vec<Region> {
        let rows = match (self, shape.first()) {
            (Cut::Uneven, Some(&rows)) if rows > 3 => vec![0, 1, 1 + rows / 3, rows],
            (Cut::Two, Some(&rows)) if rows > 2 => vec![0, 2, rows],
            _ => return vec![Region::whole(&Shape::new(shape))],
        };
        let cut = |bounds: &[u64]| {
            let (mut offsets, mut sizes) = (vec![0; shape.len()], shape.to_vec());
            (offsets[0], sizes[0]) = (bounds[0], bounds[1] - bounds[0]);
            Region::new(offsets, sizes)
        };
        rows.windows(2).map(cut).collect()
    }
}

/// A run directory with one iteration that holds these tensors and nothing of the Hugging Face side.
pub(crate) fn megatron(values: &Values, cut: Cut) -> MemoryStore {
    let chunks = |(name, (dtype, shape, _)): (&String, &(_, Vec<u64>, _))| {
        let chunk = |region| Content::Chunk {
            name: name.as_str().into(),
            dtype: *dtype,
            shape: Arc::new(Shape::new(shape.as_slice())),
            region,
        };
        cut.regions(shape)
            .into_iter()
            .map(chunk)
            .collect::<Vec<_>>()
    };
    let plan = FilePlan::new(values.iter().flat_map(chunks), FileLimit::Bytes(u64::MAX)).unwrap();
    let [file] = plan.files() else {
        panic!("one file")
    };
    let mut data = vec![0; file.len as usize];
    for item in plan.items() {
        let Body::Chunk {
            region,
            item: layout,
        } = &item.body
        else {
            panic!("a chunk")
        };
        let (_, shape, bytes) = &values[&*item.name];
        let first = region.offsets().first().copied().unwrap_or_default() as usize;
        let row = bytes.len() / shape.first().map_or(1, |&rows| rows as usize);
        let bytes = &bytes[first * row..][..layout.data_len() as usize];
        let suffix = layout.suffix(crc32fast::hash(bytes));
        let stream = [&layout.prefix(), bytes, &suffix].concat();
        data[item.offset as usize..][..stream.len()].copy_from_slice(&stream);
    }
    let store = MemoryStore::new("written");
    let insert = |name: &str, bytes: Vec<u8>| store.insert(name, bytes).unwrap();
    insert(&format!("iter_0000000/{}", file.name), data);
    insert("iter_0000000/.metadata", plan.metadata().encode());
    insert("iter_0000000/metadata.json", description_bytes());
    insert(TRACKER_FILE, tracker_bytes(0));
    store
}
