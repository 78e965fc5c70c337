//! A Megatron run as global tensors, and one written of given tensors.

use std::sync::Arc;

use rialto_checkpoint::store::{MemoryStore, Store};
use rialto_checkpoint::torch_dist::{
    Body, Content, FileLimit, FilePlan, METADATA_FILE, RunDirectory, TorchDistCheckpoint,
    iteration_directory,
};
use rialto_tensor::{Region, Shape};

use crate::error::Error;
use crate::tensors::{Tensor, Tensors};

/// Every global tensor of the only iteration, put together from its chunks.
pub(crate) fn read(run: Arc<dyn Store>) -> Result<Tensors, Error> {
    let run = RunDirectory::resolve(run)?;
    let checkpoint = TorchDistCheckpoint::open(run.store)?;
    let mut tensors = Tensors::new();
    for (name, entry) in &checkpoint.metadata().tensors {
        let mut tensor = Tensor::zeros(entry.dtype, &entry.shape)?;
        for chunk in &entry.chunks {
            let stored = checkpoint.locate(name, chunk)?;
            let bytes = stored.read(checkpoint.source(&chunk.file)?.as_ref())?;
            tensor.set(&chunk.region, &bytes);
        }
        tensors.insert(name.clone(), tensor);
    }
    Ok(tensors)
}

/// The same run with these tensors in place of its own, each in one chunk. What stands beside them stays, but for the objects
/// of modules, which nothing reads.
pub(crate) fn with_tensors(run: &MemoryStore, tensors: &Tensors) -> Result<MemoryStore, Error> {
    let iteration = iteration_directory(0);
    let metadata = format!("{iteration}/{METADATA_FILE}");
    let other = MemoryStore::new(run.name());
    for file in run.files()? {
        let is_own = file.name.ends_with(".distcp") || file.name == metadata;
        if let Some(bytes) = run.bytes(&file.name).filter(|_| !is_own) {
            other.insert(&file.name, bytes)?;
        }
    }
    let contents = tensors.iter().map(|(name, tensor)| Content::Chunk {
        name: name.as_str().into(),
        dtype: tensor.dtype,
        shape: Arc::new(tensor.shape.clone()),
        region: Region::whole(&Shape::new(tensor.shape.extents())),
    });
    let plan = FilePlan::new(contents, FileLimit::Bytes(u64::MAX))?;
    let mut files: Vec<Vec<u8>> = Vec::new();
    for planned in plan.files() {
        files.push(vec![0; usize::try_from(planned.len).unwrap_or(usize::MAX)]);
    }
    for item in plan.items() {
        let Body::Chunk { item: layout, .. } = &item.body else {
            continue;
        };
        let bytes = &tensors[&*item.name].bytes;
        let suffix = layout.suffix(crc32fast::hash(bytes));
        let stream = [&layout.prefix(), bytes.as_slice(), &suffix].concat();
        let at = usize::try_from(item.offset).unwrap_or(usize::MAX);
        files[item.file][at..][..stream.len()].copy_from_slice(&stream);
    }
    for (planned, bytes) in plan.files().iter().zip(files) {
        other.insert(&format!("{iteration}/{}", planned.name), bytes)?;
    }
    other.insert(&metadata, plan.metadata().encode())?;
    Ok(other)
}
