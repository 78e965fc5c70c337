//! `rialto inspect PATH`: what a checkpoint holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use rialto_bridge::RawConfig;
use rialto_checkpoint::hf::HfCheckpoint;
use rialto_checkpoint::store::Store;
use rialto_checkpoint::torch_dist::TorchDistCheckpoint;
use rialto_engine::{is_hugging_face, parse_config, run_directory, source_config};
use rialto_tensor::{Dtype, Shape};
use serde::Serialize;

use crate::arguments::Inspect;
use crate::failure::Failure;
use crate::output::{Output, Report, bytes, count, table};
use crate::places;

/// What a checkpoint holds, in either format.
#[derive(Debug, Serialize)]
struct Contents {
    format: &'static str,
    place: String,
    architectures: Vec<String>,
    tensors: Vec<Tensor>,
    objects: Vec<String>,
    files: Vec<File>,
    side_files: Vec<File>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Tensor {
    name: String,
    dtype: &'static str,
    shape: Vec<u64>,
    bytes: u64,
    chunks: u64,
    file: String,
}

#[derive(Debug, Serialize)]
struct File {
    name: String,
    bytes: u64,
}

pub(crate) fn run(inspect: &Inspect, output: &Output) -> Result<(), Failure> {
    let store = places::open(&inspect.path)?;
    let contents = if is_hugging_face(store.as_ref())? {
        hugging_face(store)?
    } else {
        megatron(store)?
    };
    output.result(&contents)
}

fn hugging_face(store: Arc<dyn Store>) -> Result<Contents, Failure> {
    let place = store.name().to_owned();
    if !HfCheckpoint::has_weights(store.as_ref())? {
        let architectures = architectures(&source_config(store.as_ref())?)?;
        let (tensors, objects, files, side_files) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let notes = vec!["a config without weights".to_owned()];
        return Ok(Contents {
            format: "hugging face config",
            place,
            architectures,
            tensors,
            objects,
            files,
            side_files,
            notes,
        });
    }
    let checkpoint = HfCheckpoint::open(store)?;
    let config = parse_config(checkpoint.config(), checkpoint.store().as_ref())?;
    let tensors = checkpoint.tensors().iter();
    let tensors = tensors.map(|tensor| {
        describe(
            &tensor.name,
            tensor.dtype,
            &tensor.shape,
            1,
            &checkpoint.files()[tensor.file].name,
        )
    });
    let side_files = checkpoint.side_files().iter();
    Ok(Contents {
        format: "hugging face",
        place,
        architectures: architectures(&config)?,
        tensors: tensors.collect::<Result<_, _>>()?,
        objects: Vec::new(),
        files: checkpoint
            .files()
            .iter()
            .map(|file| File {
                name: file.name.clone(),
                bytes: file.len,
            })
            .collect(),
        side_files: side_files
            .map(|file| File {
                name: file.name.clone(),
                bytes: file.len,
            })
            .collect(),
        notes: checkpoint.notes().to_vec(),
    })
}

fn megatron(store: Arc<dyn Store>) -> Result<Contents, Failure> {
    let run = run_directory(store)?;
    let checkpoint = TorchDistCheckpoint::open(Arc::clone(&run.store))?;
    let metadata = checkpoint.metadata();
    let tensors = metadata.tensors.iter().map(|(name, entry)| {
        let file = entry
            .chunks
            .first()
            .map(|chunk| &*chunk.file)
            .unwrap_or_default();
        describe(
            name,
            entry.dtype,
            &entry.shape,
            entry.chunks.len() as u64,
            file,
        )
    });
    let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
    let is_data = |name: &str| name.ends_with(".distcp");
    let (files, side_files) = run
        .store
        .files()?
        .into_iter()
        .partition::<Vec<_>, _>(|file| is_data(&file.name));
    let file = |entry: rialto_checkpoint::store::FileEntry| File {
        name: entry.name,
        bytes: entry.len,
    };
    let mut notes = vec![run.note.clone()];
    notes.extend(checkpoint.notes().iter().cloned());
    Ok(Contents {
        format: "megatron torch_dist",
        place: run.store.name().to_owned(),
        architectures: Vec::new(),
        tensors,
        objects: metadata.objects.keys().cloned().collect(),
        files: files.into_iter().map(file).collect(),
        side_files: side_files.into_iter().map(file).collect(),
        notes,
    })
}

fn architectures(config: &RawConfig) -> Result<Vec<String>, Failure> {
    let names = config.architectures().map_err(rialto_engine::Error::from)?;
    Ok(names.into_iter().map(str::to_owned).collect())
}

fn describe(
    name: &str,
    dtype: Dtype,
    shape: &Shape,
    chunks: u64,
    file: &str,
) -> Result<Tensor, Failure> {
    Ok(Tensor {
        name: name.to_owned(),
        dtype: dtype.safetensors_name(),
        shape: shape.extents().to_vec(),
        bytes: shape
            .size_bytes(dtype)
            .map_err(rialto_engine::Error::from)?,
        chunks,
        file: file.to_owned(),
    })
}

impl Report for Contents {
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("{} checkpoint {}", self.format, self.place)];
        if !self.architectures.is_empty() {
            lines.push(format!("architectures: {}", self.architectures.join(", ")));
        }
        let mut by_dtype: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
        for tensor in &self.tensors {
            let entry = by_dtype.entry(tensor.dtype).or_default();
            *entry = (
                entry.0 + 1,
                entry.1 + tensor.shape.iter().product::<u64>(),
                entry.2 + tensor.bytes,
            );
        }
        let mut rows = vec![
            ["dtype", "tensors", "elements", "bytes"]
                .map(str::to_owned)
                .to_vec(),
        ];
        for (dtype, (tensors, elements, size)) in by_dtype {
            rows.push(vec![
                dtype.to_owned(),
                count(tensors),
                count(elements),
                count(size),
            ]);
        }
        lines.extend(table(&rows));
        let chunks: u64 = self.tensors.iter().map(|tensor| tensor.chunks).sum();
        lines.push(format!(
            "{} chunks, {} objects",
            count(chunks),
            count(self.objects.len() as u64)
        ));
        for (kind, files) in [("file", &self.files), ("side file", &self.side_files)] {
            lines.extend(
                files
                    .iter()
                    .map(|file| format!("{kind} {} ({})", file.name, bytes(file.bytes))),
            );
        }
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        lines
    }
}
