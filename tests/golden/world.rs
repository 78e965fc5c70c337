//! Fixtures, the family both ways, and conversions in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use rialto_bridge::{Bridge, LayerAxis, Mesh, MtpPolicy};
use rialto_checkpoint::records::{MANIFEST_FILE, REPORT_FILE};
use rialto_checkpoint::store::{LocalStore, MemoryStore, Store, read_whole};
use rialto_checkpoint::torch_dist::{RunDirectory, TorchDistCheckpoint};
use rialto_engine::{
    DtypeChoice, Error, ExportOptions, ExportPlan, ImportPlan, MegatronSource, Options, RunOptions,
    Silent,
};
use rialto_glm5::Glm5;
use rialto_tensor::{Dtype, Shape};

/// Most bytes of a fixture file.
const LIMIT: u64 = 64 << 20;

pub(crate) use rialto_tests::fixture;

/// The family linked into this executable, and the same loaded from its library.
pub(crate) fn families() -> [(&'static str, Arc<dyn Bridge>); 2] {
    let library = rialto_tests::built_library("rialto_glm5");
    let loaded = rialto_host::load(&library).expect("the family's library loads");
    [("linked", Arc::new(Glm5)), ("loaded", loaded.bridge())]
}

/// Runs a test with the family linked and with the family loaded.
pub(crate) fn both_ways(test: impl Fn(&dyn Bridge)) {
    for (way, family) in families() {
        eprintln!("family {way}");
        test(family.as_ref());
    }
}

/// A fixture directory as it lies on disk.
pub(crate) fn on_disk(name: &str) -> Arc<dyn Store> {
    Arc::new(LocalStore::open(fixture(name)).expect("the fixture is there"))
}

/// A fixture directory in memory, to be spoiled.
pub(crate) fn in_memory(name: &str) -> MemoryStore {
    let disk = on_disk(name);
    let memory = MemoryStore::new(name);
    for file in disk.files().unwrap() {
        memory
            .insert(
                &file.name,
                read_whole(disk.as_ref(), &file.name, LIMIT).unwrap(),
            )
            .unwrap();
    }
    memory
}

pub(crate) fn options(mtp: MtpPolicy) -> Options {
    Options {
        mtp,
        ..Options::default()
    }
}

/// A checkpoint that the real Megatron-Core saved, and how to import the same.
pub(crate) struct Golden {
    pub(crate) name: &'static str,
    /// The Hugging Face directory that its weights come from.
    pub(crate) source: &'static str,
    pub(crate) mesh: Mesh,
    pub(crate) mtp: MtpPolicy,
    pub(crate) layer_axis: LayerAxis,
}

pub(crate) const fn golden(
    name: &'static str,
    source: &'static str,
    sizes: [u64; 4],
    mtp: MtpPolicy,
) -> Golden {
    let [tp, pp, ep, etp] = sizes;
    Golden {
        name,
        source,
        mesh: Mesh { tp, pp, ep, etp },
        mtp,
        layer_axis: LayerAxis::Stacked,
    }
}

/// Every golden of a model that ships in the tree: two releases without and one with encoded weights, six meshes.
pub(crate) const GOLDENS: [Golden; 6] = [
    golden(
        "glm52-tiny-mtp-tp1",
        "glm52-tiny",
        [1, 1, 1, 1],
        MtpPolicy::Keep,
    ),
    golden(
        "glm52-tiny-tp1",
        "glm52-tiny",
        [1, 1, 1, 1],
        MtpPolicy::Drop,
    ),
    golden(
        "glm52-tiny-mtp-tp2pp2ep2",
        "glm52-tiny",
        [2, 2, 2, 1],
        MtpPolicy::Keep,
    ),
    golden(
        "glm52-tiny-mtp-tp2ep2etp2",
        "glm52-tiny",
        [2, 1, 2, 2],
        MtpPolicy::Keep,
    ),
    golden(
        "glm5-tiny-pp3ep2",
        "glm5-tiny",
        [1, 3, 2, 1],
        MtpPolicy::Keep,
    ),
    golden(
        "glm53-tiny-mtp-ep5",
        "glm53-tiny",
        [1, 1, 5, 1],
        MtpPolicy::Keep,
    ),
];

impl Golden {
    /// The checkpoint's run directory.
    pub(crate) fn run(&self) -> Arc<dyn Store> {
        Arc::new(LocalStore::open(rialto_tests::megatron(self.name).join("ckpt")).unwrap())
    }

    pub(crate) fn manifest(&self) -> serde_json::Value {
        let bytes = std::fs::read(rialto_tests::megatron(self.name).join("manifest.json")).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Megatron narrows what is stored in F32, and so does this.
    pub(crate) fn options(&self) -> Options {
        Options {
            mesh: self.mesh,
            mtp: self.mtp,
            layer_axis: self.layer_axis,
            dtype: DtypeChoice::Bf16,
            ..Options::default()
        }
    }

    /// Our import of the same weights in the same way.
    pub(crate) fn imported(&self, family: &dyn Bridge) -> MemoryStore {
        import(family, on_disk(self.source), &self.options()).unwrap()
    }
}

/// Imports a store into a run directory in memory.
pub(crate) fn import(
    family: &dyn Bridge,
    source: Arc<dyn Store>,
    options: &Options,
) -> Result<MemoryStore, Error> {
    let plan = ImportPlan::new(family, source, options)?;
    let run = MemoryStore::written_by("run", |target| {
        plan.run(family, target, &RunOptions::default(), &Silent)
            .map(drop)
    });
    run.map(without_records)
}

/// Exports a run directory into a Hugging Face directory in memory.
pub(crate) fn export(
    family: &dyn Bridge,
    run: Arc<dyn Store>,
    reference: Option<Arc<dyn Store>>,
    options: &ExportOptions,
) -> Result<MemoryStore, Error> {
    let plan = ExportPlan::new(family, MegatronSource::open(run, reference)?, options)?;
    let exported = MemoryStore::written_by("exported", |target| {
        plan.run(target, &RunOptions::default(), &Silent).map(drop)
    });
    exported.map(without_records)
}

/// A result without what its run said of it, which is no part of the checkpoint; `runs` is about that.
fn without_records(store: MemoryStore) -> MemoryStore {
    for record in [MANIFEST_FILE, REPORT_FILE] {
        store.remove(record).expect("every run leaves it");
    }
    store
}

/// A tensor by dtype, shape and bytes.
pub(crate) type Values = BTreeMap<String, (Dtype, Vec<u64>, Vec<u8>)>;

/// Takes a tensor away.
pub(crate) fn delete(values: &mut Values, name: &str) {
    values.remove(name).unwrap();
}

/// Gives a tensor another name, `{name}_old`.
pub(crate) fn rename(values: &mut Values, name: &str) {
    let value = values.remove(name).unwrap();
    values.insert(format!("{name}_old"), value);
}

/// Puts a tensor there again, as `{name}.copy`.
pub(crate) fn double(values: &mut Values, name: &str) {
    values.insert(format!("{name}.copy"), values[name].clone());
}

/// Every tensor of safetensors bytes, by the independent reader.
pub(crate) fn safetensors(bytes: &[u8]) -> Values {
    let file =
        safetensors::SafeTensors::deserialize(bytes).expect("the independent reader reads it");
    let tensors = file.iter().map(|(name, view)| {
        let dtype: Dtype = view.dtype().to_string().parse().expect("a known dtype");
        let shape = view.shape().iter().map(|&extent| extent as u64).collect();
        (name.to_owned(), (dtype, shape, view.data().to_vec()))
    });
    tensors.collect()
}

/// Every tensor of a Hugging Face directory, shard by shard as its index says, by the independent reader.
pub(crate) fn hugging_face(store: &dyn Store) -> Values {
    let index = read_whole(store, "model.safetensors.index.json", LIMIT).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    let map = index["weight_map"].as_object().unwrap();
    let mut values = Values::new();
    let mut files: Vec<&str> = map.values().map(|file| file.as_str().unwrap()).collect();
    files.sort_unstable();
    files.dedup();
    for file in files {
        let tensors = safetensors(&read_whole(store, file, LIMIT).unwrap());
        values.extend(tensors.into_iter().filter(|(name, _)| map[name] == file));
    }
    assert_eq!(
        values.len(),
        map.len(),
        "the index names what the shards hold"
    );
    values
}

/// Opens the only iteration of a run directory.
pub(crate) fn iteration(run: Arc<dyn Store>) -> TorchDistCheckpoint {
    let run = RunDirectory::resolve(run).unwrap();
    TorchDistCheckpoint::open(run.store).unwrap()
}

/// Every global tensor of a Megatron checkpoint, put together chunk by chunk, element by element.
pub(crate) fn megatron(checkpoint: &TorchDistCheckpoint) -> Values {
    let tensors = checkpoint.metadata().tensors.iter().map(|(name, entry)| {
        let width = entry.dtype.size_bytes() as usize;
        let mut bytes = vec![0xa5; entry.shape.size_bytes(entry.dtype).unwrap() as usize];
        for chunk in &entry.chunks {
            let stored = checkpoint.locate(name, chunk).unwrap();
            let data = stored
                .read(checkpoint.source(&chunk.file).unwrap().as_ref())
                .unwrap();
            for (position, element) in data.chunks(width).enumerate() {
                let place = global_position(
                    position as u64,
                    chunk.region.offsets(),
                    chunk.region.sizes(),
                    &entry.shape,
                );
                bytes[place as usize * width..][..width].copy_from_slice(element);
            }
        }
        (
            name.clone(),
            (entry.dtype, entry.shape.extents().to_vec(), bytes),
        )
    });
    tensors.collect()
}

fn global_position(mut position: u64, offsets: &[u64], sizes: &[u64], shape: &Shape) -> u64 {
    let mut index = vec![0; sizes.len()];
    for axis in (0..sizes.len()).rev() {
        index[axis] = offsets[axis] + position % sizes[axis];
        position /= sizes[axis];
    }
    index
        .iter()
        .zip(shape.extents())
        .fold(0, |place, (index, extent)| place * extent + index)
}

/// Holds every file of `expected` against the file of that name in `found`.
pub(crate) fn assert_same_files(expected: &MemoryStore, found: &MemoryStore) {
    for file in expected.files().unwrap() {
        assert_eq!(
            expected.bytes(&file.name),
            found.bytes(&file.name),
            "{}",
            file.name
        );
    }
}
