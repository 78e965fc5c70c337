//! Opening a Hugging Face directory: everything about the tensors is known and checked before one of them is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rialto_tensor::held::Held;
use rialto_tensor::{ByteRange, Dtype, Location, Shape};

use super::{CONFIG_FILE, INDEX_FILE, SINGLE_FILE};
use crate::Error;
use crate::error::{IndexFinding, first};
use crate::index::Index;
use crate::records::is_record;
use crate::safetensors::Header;
use crate::store::{FileEntry, Source, Store, read_whole};

/// The largest `config.json` in bytes that is read: a thousand times what any model needs.
pub const CONFIG_LIMIT: u64 = 16 << 20;

/// The largest index in bytes that is read: room for some two million tensors.
pub const INDEX_LIMIT: u64 = 256 << 20;

/// Endings of files that hold weights, or say where weights are. They are never side files: copied along, they would be a
/// second and unconverted model.
const WEIGHT_ENDINGS: [&str; 7] = [
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".gguf",
    ".safetensors.index.json",
    ".bin.index.json",
];

/// A shard of an open checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HfFile {
    /// Name relative to the checkpoint.
    pub name: String,
    /// Length in bytes.
    pub len: u64,
}

/// A tensor of an open checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HfTensor {
    /// Name, unique in the checkpoint.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Extents in elements, outermost first.
    pub shape: Shape,
    /// Its shard, as a position in [`HfCheckpoint::files`].
    pub file: usize,
    /// Where its elements lie in that file, dense and row-major.
    pub range: ByteRange,
}

impl Held for HfTensor {
    fn held_bytes(&self) -> u64 {
        self.name.held_bytes() + self.shape.held_bytes()
    }
}

impl Held for HfCheckpoint {
    /// Its tensors and their order; files are few.
    fn held_bytes(&self) -> u64 {
        self.tensors.held_bytes() + self.by_name.held_bytes()
    }
}

/// An open Hugging Face checkpoint whose index and shard headers agree.
///
/// Every shard is held open. Nothing in the directory is written, locked or created.
#[derive(Debug)]
pub struct HfCheckpoint {
    store: Arc<dyn Store>,
    config: Vec<u8>,
    files: Vec<HfFile>,
    sources: Vec<Box<dyn Source>>,
    tensors: Vec<HfTensor>,
    /// Positions in `tensors`, in order of name.
    by_name: Vec<usize>,
    side_files: Vec<FileEntry>,
    notes: Vec<String>,
}

impl HfCheckpoint {
    /// Opens a checkpoint: with an index exactly the files that it names, without one exactly `model.safetensors`.
    ///
    /// Errors: [`Error::NotFound`] without `config.json`, [`Error::NoWeights`], [`Error::FileTooLarge`], those of
    /// [`Index::parse`] and [`Header::read`], [`Error::MissingShards`] with all shards that are absent, and
    /// [`Error::IndexMismatch`] with all tensors about which the index and the headers disagree.
    pub fn open(store: Arc<dyn Store>) -> Result<HfCheckpoint, Error> {
        let config = read_config(&*store)?;
        let listing = store.files()?;
        let index = read_index(&*store)?;
        let (names, index) = match index {
            Some(index) => (shards_of(&index), Some(index)),
            None => (BTreeMap::from([(SINGLE_FILE.to_owned(), 0)]), None),
        };
        let names_shard = |file: &FileEntry| names.contains_key(&file.name);
        let unnamed = listing.into_iter().filter(|file| !names_shard(file));
        let (side_files, others) = side_files_and_weights(unnamed);
        let others: Vec<String> = others.into_iter().map(|file| file.name).collect();

        let sources = open_shards(&*store, &names, index.is_some(), &others)?;
        let headers = sources
            .iter()
            .map(|source| Header::read(&**source))
            .collect::<Result<Vec<Header>, Error>>()?;
        let files: Vec<HfFile> = names
            .into_keys()
            .zip(&sources)
            .map(|(name, source)| HfFile {
                name,
                len: source.len(),
            })
            .collect();

        let mut notes = Vec::new();
        if let Some(index) = &index {
            notes.extend(cross_check(index, &files, &headers, &*store)?);
        }
        if !others.is_empty() {
            notes.push(format!(
                "{} other weight file(s) are no part of the checkpoint: {}",
                others.len(),
                first(&others)
            ));
        }
        let linked = store.linked_directories()?;
        if !linked.is_empty() {
            notes.push(format!(
                "{} linked directories are not followed, what lies in them is left out: {}",
                linked.len(),
                first(&linked)
            ));
        }
        let tensors = chosen_tensors(headers, &files, index.as_ref());
        let mut by_name: Vec<usize> = (0..tensors.len()).collect();
        by_name.sort_by(|&left, &right| tensors[left].name.cmp(&tensors[right].name));
        Ok(HfCheckpoint {
            store,
            config,
            files,
            sources,
            tensors,
            by_name,
            side_files,
            notes,
        })
    }

    /// Whether a store holds weights that [`HfCheckpoint::open`] would look at: an index or `model.safetensors`.
    ///
    /// Errors: those of [`Store::open`], but not [`Error::NotFound`].
    pub fn has_weights(store: &dyn Store) -> Result<bool, Error> {
        Ok(open_if_there(store, INDEX_FILE)?.is_some()
            || open_if_there(store, SINGLE_FILE)?.is_some())
    }

    /// The bytes of `config.json`, not parsed.
    #[must_use]
    pub fn config(&self) -> &[u8] {
        &self.config
    }

    /// Every tensor, by file and within a file in the order of the header.
    #[must_use]
    pub fn tensors(&self) -> &[HfTensor] {
        &self.tensors
    }

    /// The tensor of that name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&HfTensor> {
        let position = self
            .by_name
            .binary_search_by(|&position| self.tensors[position].name.as_str().cmp(name))
            .ok()?;
        Some(&self.tensors[self.by_name[position]])
    }

    /// The shards in order of name.
    #[must_use]
    pub fn files(&self) -> &[HfFile] {
        &self.files
    }

    /// An open shard.
    ///
    /// # Panics
    /// If there are not that many [`files`](HfCheckpoint::files).
    #[must_use]
    pub fn source(&self, file: usize) -> &dyn Source {
        &*self.sources[file]
    }

    /// Files that are neither weights, index nor config: tokenizer, templates, code, cards. In order of name.
    #[must_use]
    pub fn side_files(&self) -> &[FileEntry] {
        &self.side_files
    }

    /// What was passed over, in sentences for a person.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The directory it was opened from.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }
}

/// Reads `config.json`, of a checkpoint or of a directory that holds nothing else.
///
/// Errors: [`Error::NotFound`], [`Error::FileTooLarge`] beyond [`CONFIG_LIMIT`], and those of reading.
pub fn read_config(store: &dyn Store) -> Result<Vec<u8>, Error> {
    read_whole(store, CONFIG_FILE, CONFIG_LIMIT)
}

/// The side files of a directory, whether or not it holds weights: every regular file that is neither the config, nor an
/// index, nor a weight file, nor a [record](crate::records) of a run.
pub fn side_files(store: &dyn Store) -> Result<Vec<FileEntry>, Error> {
    Ok(side_files_and_weights(store.files()?).0)
}

/// Whether a directory holds an index or any file of weights, also one that no index names: then it is more than a config.
pub fn holds_weight_files(store: &dyn Store) -> Result<bool, Error> {
    let is_weight = |file: &FileEntry| file.name == INDEX_FILE || is_weight_file(&file.name);
    Ok(store.files()?.iter().any(is_weight))
}

/// Side files and weight files, each in order of name; the config and the index are neither.
fn side_files_and_weights(
    files: impl IntoIterator<Item = FileEntry>,
) -> (Vec<FileEntry>, Vec<FileEntry>) {
    // What a run of ours said of a directory is about that directory alone.
    let is_own = |name: &str| [CONFIG_FILE, INDEX_FILE].contains(&name) || is_record(name);
    let files = files.into_iter().filter(|file| !is_own(&file.name));
    let mut files: Vec<FileEntry> = files.collect();
    files.sort();
    files
        .into_iter()
        .partition(|file| !is_weight_file(&file.name))
}

fn open_if_there(store: &dyn Store, name: &str) -> Result<Option<Box<dyn Source>>, Error> {
    match store.open(name) {
        Ok(source) => Ok(Some(source)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_index(store: &dyn Store) -> Result<Option<Index>, Error> {
    match read_whole(store, INDEX_FILE, INDEX_LIMIT) {
        Ok(bytes) => Index::parse(&bytes, &index_location(store)).map(Some),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn index_location(store: &dyn Store) -> Location {
    Location::file(format!("{}/{INDEX_FILE}", store.name()))
}

/// The files that an index names, with the number of tensors in each.
fn shards_of(index: &Index) -> BTreeMap<String, usize> {
    let mut shards = BTreeMap::new();
    for file in index.weight_map.values() {
        *shards.entry(file.clone()).or_insert(0) += 1;
    }
    shards
}

fn is_weight_file(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    WEIGHT_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Opens every shard, or says which are absent.
fn open_shards(
    store: &dyn Store,
    names: &BTreeMap<String, usize>,
    has_index: bool,
    others: &[String],
) -> Result<Vec<Box<dyn Source>>, Error> {
    let mut sources = Vec::with_capacity(names.len());
    let mut absent = Vec::new();
    for (name, tensors) in names {
        match open_if_there(store, name)? {
            Some(source) => sources.push(source),
            None => absent.push((name.clone(), *tensors)),
        }
    }
    if absent.is_empty() {
        Ok(sources)
    } else if has_index {
        Err(Error::MissingShards {
            location: index_location(store),
            shards: absent,
        })
    } else {
        Err(Error::NoWeights {
            location: Location::file(store.name()),
            others: others.to_vec(),
        })
    }
}

/// Compares the index with the headers. Returns a note about copies that the index leaves aside.
fn cross_check(
    index: &Index,
    files: &[HfFile],
    headers: &[Header],
    store: &dyn Store,
) -> Result<Option<String>, Error> {
    let mut holders: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (file, header) in files.iter().zip(headers) {
        for tensor in header.tensors() {
            holders.entry(&tensor.name).or_default().push(&file.name);
        }
    }
    let mut findings = Vec::new();
    let mut copies = Vec::new();
    let tensors: BTreeSet<&str> = index
        .weight_map
        .keys()
        .map(String::as_str)
        .chain(holders.keys().copied())
        .collect();
    for tensor in tensors {
        let claimed = index.weight_map.get(tensor);
        let found = holders.get(tensor).map_or(&[][..], Vec::as_slice);
        match claimed {
            Some(claimed) if found.contains(&claimed.as_str()) => {
                let ignored = found.iter().filter(|file| *file != claimed);
                copies.extend(ignored.map(|file| format!("{tensor} (in {claimed}, not {file})")));
            }
            _ => findings.push(IndexFinding {
                tensor: tensor.to_owned(),
                claimed: claimed.cloned(),
                found: found.iter().map(|file| (*file).to_owned()).collect(),
            }),
        }
    }
    if !findings.is_empty() {
        return Err(Error::IndexMismatch {
            location: index_location(store),
            findings,
        });
    }
    Ok((!copies.is_empty()).then(|| {
        format!(
            "{} ignored copies of tensors, as the index decides: {}",
            copies.len(),
            first(&copies)
        )
    }))
}

/// The tensors of all headers, without copies that the index leaves aside.
fn chosen_tensors(headers: Vec<Header>, files: &[HfFile], index: Option<&Index>) -> Vec<HfTensor> {
    let is_chosen = |tensor: &str, file: usize| {
        index.is_none_or(|index| index.weight_map.get(tensor) == Some(&files[file].name))
    };
    let mut tensors = Vec::new();
    for (file, header) in headers.into_iter().enumerate() {
        let chosen = header
            .into_tensors()
            .into_iter()
            .filter(|tensor| is_chosen(&tensor.name, file));
        tensors.extend(chosen.map(|tensor| HfTensor {
            name: tensor.name,
            dtype: tensor.dtype,
            shape: tensor.shape,
            file,
            range: tensor.range,
        }));
    }
    tensors
}
