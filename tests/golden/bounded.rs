//! What is held in memory does not grow with the model: every file is read and written in blocks of bounded size.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rialto_bridge::Bridge;
use rialto_checkpoint::Error;
use rialto_checkpoint::store::{FileEntry, MemoryStore, MemoryTarget, Sink, Source, Store, Target};
use rialto_engine::{
    Contents, ExportOptions, ExportPlan, ImportPlan, MegatronSource, Options, RunOptions, Silent,
    VerifyOptions, VerifySource, verify,
};
use rialto_tensor::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::world::{both_ways, in_memory};

/// What the engine reads and writes at a time at most, but for what is decoded together.
const BAND_BYTES: u64 = 2 << 20;

/// The longest block that was asked for or given, and the bytes of all that were asked for.
#[derive(Clone, Debug, Default)]
struct Longest(Arc<AtomicU64>, Arc<AtomicU64>);

impl Longest {
    fn note(&self, length: usize) {
        self.0.fetch_max(length as u64, Ordering::Relaxed);
    }

    fn note_read(&self, length: usize) {
        self.note(length);
        self.1.fetch_add(length as u64, Ordering::Relaxed);
    }

    fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Measured<T> {
    inner: T,
    longest: Longest,
}

impl Source for Measured<Box<dyn Source>> {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        self.longest.note_read(buffer.len());
        self.inner.read_at(offset, buffer)
    }
}

impl Sink for Measured<Box<dyn Sink>> {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.longest.note(bytes.len());
        self.inner.write_at(offset, bytes)
    }
    fn sync(&self) -> Result<(), Error> {
        self.inner.sync()
    }
}

impl Store for Measured<MemoryStore> {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn files(&self) -> Result<Vec<FileEntry>, Error> {
        self.inner.files()
    }
    fn open(&self, name: &str) -> Result<Box<dyn Source>, Error> {
        let (inner, longest) = (self.inner.open(name)?, self.longest.clone());
        Ok(Box::new(Measured { inner, longest }))
    }
}

impl Target for Measured<MemoryTarget> {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn create(&self, name: &str) -> Result<Box<dyn Sink>, Error> {
        let (inner, longest) = (self.inner.create(name)?, self.longest.clone());
        Ok(Box::new(Measured { inner, longest }))
    }
    fn reopen(&self, name: &str) -> Result<Box<dyn Sink>, Error> {
        let (inner, longest) = (self.inner.reopen(name)?, self.longest.clone());
        Ok(Box::new(Measured { inner, longest }))
    }
    fn commit(self: Box<Self>) -> Result<(), Error> {
        Box::new(self.inner).commit()
    }
}

/// A GLM-5.3 whose vocabulary, in BF16, and dense MLP, in FP8, are large.
pub(crate) fn large(family: &dyn Bridge, vocabulary: u64) -> MemoryStore {
    let tiny = in_memory("glm53-tiny");
    let mut config: Value = serde_json::from_slice(&tiny.bytes("config.json").unwrap()).unwrap();
    config["vocab_size"] = json!(vocabulary);
    config["intermediate_size"] = json!(65_536);
    let store = MemoryStore::new("large");
    store
        .insert("config.json", config.to_string().into_bytes())
        .unwrap();
    let plan = ImportPlan::new(family, Arc::new(store.clone()), &Options::default()).unwrap();
    let codecs = family.codecs(plan.spec()).unwrap();
    let nominal = plan.mapping().nominal_tensors("config.json", &codecs);
    let mut tensors = Vec::new();
    for tensor in nominal.unwrap() {
        let extents = tensor.shape.extents().iter();
        let shape: Vec<usize> = extents.map(|&extent| extent as usize).collect();
        let elements: usize = shape.iter().product();
        let is_scale = tensor.name.ends_with("_scale_inv");
        let (dtype, bytes) = match tensor.dtype {
            Dtype::F8E4m3 => (safetensors::Dtype::F8_E4M3, vec![0x38; elements]),
            Dtype::F32 if is_scale => (
                safetensors::Dtype::F32,
                0.5f32.to_le_bytes().repeat(elements),
            ),
            Dtype::F32 => (safetensors::Dtype::F32, vec![0x3f; 4 * elements]),
            _ => (safetensors::Dtype::BF16, vec![0x3f; 2 * elements]),
        };
        tensors.push((tensor.name, dtype, shape, bytes));
    }
    let views: HashMap<&str, TensorView<'_>> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            (
                name.as_str(),
                TensorView::new(*dtype, shape.clone(), bytes).unwrap(),
            )
        })
        .collect();
    store
        .insert(
            "model.safetensors",
            safetensors::serialize(views, None).unwrap(),
        )
        .unwrap();
    store
}

/// Neither the scales of a matrix, expanded or not, nor the matrix itself is ever held whole.
#[test]
fn fc_49_fc_51_blocks_in_memory_do_not_grow_with_the_model() {
    both_ways(|family| {
        for vocabulary in [40_000, 80_000] {
            let source = large(family, vocabulary);
            let longest = Longest::default();
            let measured = |inner: MemoryStore| -> Arc<dyn Store> {
                let longest = longest.clone();
                Arc::new(Measured { inner, longest })
            };
            let slot = Arc::new(Mutex::new(None));
            let target = |name: &str| {
                let inner = MemoryTarget::new(name, Arc::clone(&slot));
                Box::new(Measured {
                    inner,
                    longest: longest.clone(),
                })
            };
            let plan =
                ImportPlan::new(family, measured(source.clone()), &Options::default()).unwrap();
            let largest = plan
                .mapping()
                .params()
                .iter()
                .map(|param| 2 * param.shape.elements().unwrap());
            assert!(largest.max().unwrap() > 2 * BAND_BYTES);
            plan.run(family, target("run"), &RunOptions::default(), &Silent)
                .unwrap();
            let imported = longest.take();
            // What is decoded together is never cut while memory allows: 128 rows of the widest matrix, in BF16.
            assert_eq!(imported, 128 * 65_536 * 2);
            let buffers = |summary: &rialto_engine::Summary| {
                summary.peak_host_bytes.checked_sub(summary.index_bytes)
            };
            assert!(Some(imported) <= buffers(plan.summary()));

            let run: MemoryStore = slot.lock().unwrap().take().unwrap();
            let opened = MegatronSource::open(measured(run.clone()), None).unwrap();
            let plan = ExportPlan::new(family, opened, &ExportOptions::default()).unwrap();
            plan.run(target("exported"), &RunOptions::default(), &Silent)
                .unwrap();
            let exported = longest.take();
            assert!(
                (BAND_BYTES / 4..=BAND_BYTES).contains(&exported),
                "export: {exported}"
            );
            assert!(Some(exported) <= buffers(plan.summary()));

            let sides = [source, run].map(|side| VerifySource::open(measured(side)).unwrap());
            let [ours, theirs] = sides
                .each_ref()
                .map(|side| Contents::new(side, side.config().unwrap(), family).unwrap());
            let report = verify(&ours, &theirs, &VerifyOptions::default(), &Silent).unwrap();
            assert!(report.is_equal);
            // The codes of as many rows.
            assert!(longest.take() <= 128 * 65_536);
        }
    });
}

/// Codes and scales, each once: a block that is cut apart would be read and decoded again for each of its parts.
#[test]
fn fc_51_what_is_encoded_is_read_once() {
    both_ways(|family| {
        let source = large(family, 1000);
        let longest = Longest::default();
        let measured = Measured {
            inner: source.clone(),
            longest: longest.clone(),
        };
        let plan = ImportPlan::new(family, Arc::new(measured), &Options::default()).unwrap();
        let before = longest.1.load(Ordering::Relaxed);
        let target = MemoryTarget::new("run", Arc::new(Mutex::new(None)));
        plan.run(family, Box::new(target), &RunOptions::default(), &Silent)
            .unwrap();
        let read = longest.1.load(Ordering::Relaxed) - before;
        let stored = source.bytes("model.safetensors").unwrap().len() as u64;
        assert!(
            read >= stored * 99 / 100 && read <= stored * 102 / 100,
            "{read} bytes of {stored}"
        );
    });
}
