//! Whether a result still is what its run wrote: every byte of every tensor and side file against the manifest, and every
//! tensor where the checkpoint's own headers and metadata say it is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use rayon::prelude::*;
use rialto_checkpoint::hf::HfCheckpoint;
use rialto_checkpoint::records::{MANIFEST_FILE, is_record};
use rialto_checkpoint::safetensors::Header;
use rialto_checkpoint::store::{PageBuffer, Source, Store, read_whole};
use rialto_checkpoint::torch_dist::{RunDirectory, TorchDistCheckpoint};
use rialto_tensor::ByteRange;
use serde::Serialize;

use crate::array::usize_range;
use crate::run::{FileDigest, Manifest, TensorDigest};
use crate::{Error, Progress, is_hugging_face};

/// Bytes that a thread reads at a time.
const BLOCK_BYTES: u64 = 1 << 20;

/// Longest manifest that is read: as many chunks as can be planned take a third of it.
const MANIFEST_LIMIT: u64 = 1 << 30;

/// What an audit found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// The result.
    pub place: String,
    /// Tensors and chunks that were read.
    pub tensors: u64,
    /// Other files that were read.
    pub files: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// All that is another than the manifest says, a line each.
    pub findings: Vec<String>,
}

impl Manifest {
    /// Reads the manifest that a run left in its result.
    ///
    /// Errors: [`Error::NoManifest`] if it wrote none; as [`Manifest::read`].
    pub fn of(store: &dyn Store) -> Result<Manifest, Error> {
        match Manifest::read(store, MANIFEST_FILE) {
            Err(Error::Checkpoint(rialto_checkpoint::Error::NotFound { .. })) => {
                Err(Error::NoManifest {
                    place: store.name().to_owned(),
                })
            }
            manifest => manifest,
        }
    }

    /// Reads the manifest of a result, or a copy of it under another name.
    ///
    /// Errors: [`rialto_checkpoint::Error::NotFound`] if it is not there, [`Error::Manifest`] if it is no manifest.
    pub fn read(store: &dyn Store, name: &str) -> Result<Manifest, Error> {
        let bytes = read_whole(store, name, MANIFEST_LIMIT)?;
        let malformed = |reason: String| Error::Manifest {
            file: format!("{}/{name}", store.name()),
            reason,
        };
        let manifest: Manifest =
            serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
        if manifest.schema != 1 {
            return Err(malformed(format!("schema {}, expected 1", manifest.schema)));
        }
        Ok(manifest)
    }
}

/// Reads a result again and holds it against a manifest. What differs is the audit's to tell, not an error.
///
/// Errors: a result that cannot be read, [`Error::Cancelled`].
pub fn audit(
    store: &Arc<dyn Store>,
    manifest: &Manifest,
    progress: &dyn Progress,
) -> Result<Audit, Error> {
    let mut findings = differing_files(store.as_ref(), manifest)?;
    let unreadable: BTreeSet<String> = findings.keys().cloned().collect();
    let tensors: Vec<&TensorDigest> = manifest
        .tensors
        .iter()
        .filter(|tensor| !unreadable.contains(&tensor.file))
        .collect();
    let files: Vec<&FileDigest> = manifest
        .files
        .iter()
        .filter(|file| !unreadable.contains(&file.name))
        .collect();
    let of_tensors = tensors.iter().map(|tensor| tensor.bytes);
    let sizes = of_tensors.chain(files.iter().map(|file| file.bytes));
    // What a stranger wrote may add up to anything.
    let bytes = sizes.fold(0u64, u64::saturating_add);
    progress.begin("verify", bytes);
    let of_tensors: Result<Vec<Option<String>>, Error> = tensors
        .par_iter()
        .map_init(Reader::default, |reader, tensor| {
            let at = tensor.offsets.as_ref();
            let at = at.map_or_else(String::new, |offsets| format!(" at {offsets:?}"));
            let (name, file, expected) = (&tensor.name, &tensor.file, &tensor.blake3);
            let range = ByteRange::new(tensor.begin, tensor.begin.saturating_add(tensor.bytes));
            let source = reader.open(store.as_ref(), file)?;
            if range.end > source.len() {
                let line = format!("{name}{at}: bytes {range} are not in {file}");
                return Ok(Some(line));
            }
            let found = digest(source.as_ref(), range, &mut reader.buffer, progress)?;
            Ok((found != *expected).then(|| {
                format!(
                    "{name}{at}: blake3 is {found}, expected {expected} ({file}, bytes {range})"
                )
            }))
        })
        .collect();
    let of_files: Result<Vec<Option<String>>, Error> = files
        .par_iter()
        .map_init(PageBuffer::new, |buffer, file| {
            let source = store.open(&file.name)?;
            let found = digest(
                source.as_ref(),
                ByteRange::new(0, file.bytes),
                buffer,
                progress,
            )?;
            let expected = &file.blake3;
            Ok((found != *expected)
                .then(|| format!("{}: blake3 is {found}, expected {expected}", file.name)))
        })
        .collect();
    progress.end();
    let mut lines: Vec<String> = std::mem::take(&mut findings).into_values().collect();
    lines.extend(of_tensors?.into_iter().chain(of_files?).flatten());
    if lines.is_empty() {
        // What is damaged is not asked where its tensors are.
        lines.extend(misplaced(store, manifest)?);
    }
    Ok(Audit {
        place: store.name().to_owned(),
        tensors: tensors.len() as u64,
        files: files.len() as u64,
        bytes,
        findings: lines,
    })
}

/// Files that are missing, too many, or of another length, by name.
fn differing_files(
    store: &dyn Store,
    manifest: &Manifest,
) -> Result<BTreeMap<String, String>, Error> {
    let data = manifest
        .data_files
        .iter()
        .map(|file| (&file.name, file.bytes));
    let small = manifest.files.iter().map(|file| (&file.name, file.bytes));
    let mut expected: BTreeMap<&String, u64> = data.chain(small).collect();
    let mut findings = BTreeMap::new();
    for file in store.files()? {
        let line = match expected.remove(&file.name) {
            Some(bytes) if bytes == file.len => continue,
            Some(bytes) => format!("{} has {} bytes, expected {bytes}", file.name, file.len),
            None if is_record(&file.name) => continue,
            None => format!("{} is not in the manifest", file.name),
        };
        findings.insert(file.name, line);
    }
    for (name, _) in expected {
        findings.insert(name.clone(), format!("{name} is missing"));
    }
    Ok(findings)
}

/// What a thread reads with: the file that it has open, which most tensors in a row lie in, and memory.
#[derive(Default)]
struct Reader {
    open: Option<(String, Arc<dyn Source>)>,
    buffer: PageBuffer,
}

impl Reader {
    fn open(&mut self, store: &dyn Store, name: &str) -> Result<Arc<dyn Source>, Error> {
        if let Some((open, source)) = &self.open
            && open == name
        {
            return Ok(Arc::clone(source));
        }
        let source: Arc<dyn Source> = Arc::from(store.open(name)?);
        self.open = Some((name.to_owned(), Arc::clone(&source)));
        Ok(source)
    }
}

fn digest(
    source: &dyn Source,
    range: ByteRange,
    buffer: &mut PageBuffer,
    progress: &dyn Progress,
) -> Result<String, Error> {
    let mut hasher = blake3::Hasher::new();
    let mut at = range.start;
    while at < range.end {
        if progress.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let length = BLOCK_BYTES.min(range.end - at);
        let block = buffer.at(at, usize_range(0, length).end);
        source.read_at(at, block)?;
        hasher.update(block);
        at += length;
        progress.advance(length);
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// Tensors that the checkpoint's own headers and metadata place elsewhere than the manifest, or know nothing of.
fn misplaced(store: &Arc<dyn Store>, manifest: &Manifest) -> Result<Vec<String>, Error> {
    let mut found: HashMap<(String, Option<Vec<u64>>), Place> = HashMap::new();
    if is_hugging_face(store.as_ref())? {
        let checkpoint = HfCheckpoint::open(Arc::clone(store))?;
        for tensor in checkpoint.tensors() {
            let place = Place {
                file: checkpoint.files()[tensor.file].name.clone(),
                dtype: tensor.dtype.safetensors_name(),
                sizes: tensor.shape.extents().to_vec(),
                range: tensor.range,
            };
            found.insert((tensor.name.clone(), None), place);
        }
    } else {
        let run = RunDirectory::resolve(Arc::clone(store))?;
        let inside = |name: &str| match run.store.name().strip_prefix(store.name()) {
            Some(inner) if !inner.is_empty() => format!("{}/{name}", inner.trim_matches('/')),
            _ => name.to_owned(),
        };
        let checkpoint = TorchDistCheckpoint::open(Arc::clone(&run.store))?;
        for (name, entry) in &checkpoint.metadata().tensors {
            for chunk in &entry.chunks {
                let is_whole = chunk.region.sizes() == entry.shape.extents();
                let located = checkpoint.locate(name, chunk)?;
                let Some(range) = located.dense_bytes() else {
                    continue;
                };
                let place = Place {
                    file: inside(&chunk.file),
                    dtype: located.dtype.safetensors_name(),
                    sizes: chunk.region.sizes().to_vec(),
                    range,
                };
                let offsets = (!is_whole).then(|| chunk.region.offsets().to_vec());
                found.insert((name.clone(), offsets), place);
            }
        }
        let mut shards = manifest.data_files.iter();
        if let Some(beside) = shards.find(|file| file.name.ends_with(".safetensors")) {
            let header = Header::read(store.open(&beside.name)?.as_ref())?;
            for tensor in header.into_tensors() {
                let place = Place {
                    file: beside.name.clone(),
                    dtype: tensor.dtype.safetensors_name(),
                    sizes: tensor.shape.extents().to_vec(),
                    range: tensor.range,
                };
                found.insert((tensor.name, None), place);
            }
        }
    }
    let mut lines = Vec::new();
    for tensor in &manifest.tensors {
        let expected = Place {
            file: tensor.file.clone(),
            dtype: tensor.dtype.as_str(),
            sizes: tensor.sizes.clone(),
            range: ByteRange::new(tensor.begin, tensor.begin.saturating_add(tensor.bytes)),
        };
        match found.remove(&(tensor.name.clone(), tensor.offsets.clone())) {
            Some(place) if place == expected => {}
            Some(place) => lines.push(format!(
                "{} is {place:?}, expected {expected:?}",
                tensor.name
            )),
            None => lines.push(format!("{} is not in the checkpoint", tensor.name)),
        }
    }
    lines.extend(
        found
            .into_keys()
            .map(|(name, _)| format!("{name} is not in {MANIFEST_FILE}")),
    );
    lines.sort();
    Ok(lines)
}

/// Where a tensor is, and as what.
#[derive(Debug, PartialEq, Eq)]
struct Place<'a> {
    file: String,
    dtype: &'a str,
    sizes: Vec<u64>,
    range: ByteRange,
}
