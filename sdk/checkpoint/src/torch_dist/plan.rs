//! Placing every item of a checkpoint before the first byte is written.
//!
//! ```text
//! file ┌ object item                 from a multiple of 64 on
//!      │ unused, zero                as much as the next data needs to lie on a page
//!      │ tensor item: prefix         from a multiple of 64 on
//!      │   data                      from a multiple of 4096 on
//!      │   suffix
//!      └ …
//! ```
//!
//! A reader finds items by the offsets in `.metadata` and passes over what lies between them. So a chunk's data can begin
//! on a page of the file, where a device reads it without a copy, at the price of less than a page a chunk.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::sync::Arc;

use rialto_tensor::held::{Held, allocated};
use rialto_tensor::{ByteRange, Dtype, Location, Region, Shape};

use super::item::TensorItem;
use super::metadata::{Chunk, Metadata, ObjectEntry, TensorEntry};
use super::zip::ALIGNMENT;
use crate::Error;
use crate::spread::spread;

/// The data of every chunk begins on a multiple of this in its file: a page, and what direct reading asks for.
pub const DATA_ALIGNMENT: u64 = 4096;

/// Something to be stored, in the order in which it is to lie in the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A part of a tensor, whose bytes come later.
    Chunk {
        /// The tensor; its chunks share it.
        name: Arc<str>,
        /// Element type.
        dtype: Dtype,
        /// Extents of the whole tensor, shared as well.
        shape: Arc<Shape>,
        /// The part.
        region: Region,
    },
    /// An object, as [`object_item`](super::object_item) encodes it.
    Object {
        /// Its name.
        name: Arc<str>,
        /// The whole item; objects of equal value share it.
        bytes: Arc<[u8]>,
    },
}

impl Content {
    /// Bytes of it, without what stands around them. Errors: [`Error::Tensor`].
    fn bytes(&self) -> Result<u64, Error> {
        match self {
            Content::Chunk {
                name,
                dtype,
                region,
                ..
            } => region
                .shape()
                .size_bytes(*dtype)
                .map_err(|source| Error::Tensor {
                    location: Location::tensor(name.as_ref()),
                    source,
                }),
            Content::Object { bytes, .. } => Ok(bytes.len() as u64),
        }
    }
}

/// How items are split into files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLimit {
    /// A file begins when the next item would carry the last one beyond so many bytes. An item that is larger gets a file of
    /// its own.
    Bytes(u64),
    /// So many files of about equal data, or one for each item if there are fewer.
    Count(u64),
}

/// A file to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFile {
    /// `__0_0.distcp`, `__0_1.distcp`, and so on; what lies in it shares the name.
    pub name: Arc<str>,
    /// Bytes, with the padding between items.
    pub len: u64,
}

/// An item and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedItem {
    /// The tensor, shared by its chunks, or the object.
    pub name: Arc<str>,
    /// The number of the file in [`FilePlan::files`].
    pub file: usize,
    /// Where the item begins in the file: a multiple of 64.
    pub offset: u64,
    /// What it consists of.
    pub body: Body,
}

/// The bytes of an item, known or to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A part of a tensor: prefix, data, suffix.
    Chunk {
        /// The part, as the metadata has it.
        region: Arc<Region>,
        /// The layout, shared by consecutive chunks of one size.
        item: Arc<TensorItem>,
    },
    /// A whole item.
    Object(Arc<[u8]>),
}

impl PlannedItem {
    /// The bytes of the item in its file.
    #[must_use]
    pub fn bytes(&self) -> ByteRange {
        let len = match &self.body {
            Body::Chunk { item, .. } => item.len(),
            Body::Object(bytes) => bytes.len() as u64,
        };
        ByteRange::new(self.offset, self.offset + len)
    }

    /// The hole for a chunk's data in its file: dense, row-major, little-endian, from a multiple of
    /// [`DATA_ALIGNMENT`] on.
    #[must_use]
    pub fn data(&self) -> Option<ByteRange> {
        match &self.body {
            Body::Chunk { item, .. } => {
                let start = self.offset + item.data_offset();
                Some(ByteRange::new(start, start + item.data_len()))
            }
            Body::Object(_) => None,
        }
    }
}

/// The data files of a checkpoint to be written, and the metadata that will describe them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlan {
    files: Vec<PlannedFile>,
    items: Vec<PlannedItem>,
    metadata: Metadata,
}

impl Held for FilePlan {
    /// Items with their names, each name once, and the metadata, which has their regions.
    fn held_bytes(&self) -> u64 {
        let runs = self.items.chunk_by(|a, b| Arc::ptr_eq(&a.name, &b.name));
        let names: u64 = runs.map(|run| run[0].name.held_bytes()).sum();
        allocated(size_of_val(self.items.as_slice()) as u64) + names + self.metadata.held_bytes()
    }
}

impl FilePlan {
    /// Places `contents` in the order given.
    ///
    /// Errors: [`Error::PlanConflict`] for a name that is planned with two dtypes or shapes, or twice as an object;
    /// [`Error::Tiling`] with every fault of every tensor; [`Error::Tensor`] for a shape that overflows.
    pub fn new(
        contents: impl IntoIterator<Item = Content>,
        limit: FileLimit,
    ) -> Result<FilePlan, Error> {
        let mut plan = FilePlan {
            files: Vec::new(),
            items: Vec::new(),
            metadata: Metadata::default(),
        };
        match limit {
            FileLimit::Bytes(most) => {
                for content in contents {
                    plan.place(content, most)?;
                }
            }
            FileLimit::Count(files) => {
                let contents: Vec<Content> = contents.into_iter().collect();
                let sizes = contents.iter().map(Content::bytes);
                let sizes = sizes.collect::<Result<Vec<u64>, Error>>()?;
                let files = NonZeroU64::new(files).unwrap_or(NonZeroU64::MIN);
                let mut contents = contents.into_iter();
                for count in spread(&sizes, files) {
                    for (at, content) in contents.by_ref().take(count).enumerate() {
                        // Nothing fits in none, so the first one begins a file.
                        let most = if at == 0 { 0 } else { u64::MAX };
                        plan.place(content, most)?;
                    }
                }
            }
        }
        let location = Location::default();
        plan.metadata.check_tiling(&location)?;
        plan.check_places()?;
        Ok(plan)
    }

    /// The files.
    #[must_use]
    pub fn files(&self) -> &[PlannedFile] {
        &self.files
    }

    /// The items, file by file, in order of their offsets.
    #[must_use]
    pub fn items(&self) -> &[PlannedItem] {
        &self.items
    }

    /// What `.metadata` will say.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn place(&mut self, content: Content, max_file_bytes: u64) -> Result<(), Error> {
        let (name, body) = match content {
            Content::Chunk {
                name,
                dtype,
                shape,
                region,
            } => {
                self.declare(&name, dtype, &shape)?;
                let shape = region.shape();
                // Chunks come in runs of one shape: the experts of a layer, all of one size.
                let last = self.items.last().map(|item| &item.body);
                let item = match last {
                    Some(Body::Chunk { item, .. })
                        if item.dtype() == dtype && *item.shape() == shape =>
                    {
                        Arc::clone(item)
                    }
                    _ => {
                        let item = TensorItem::plan(dtype, &shape);
                        Arc::new(item.map_err(|error| located(error, &name))?)
                    }
                };
                let region = Arc::new(region);
                (name, Body::Chunk { region, item })
            }
            Content::Object { name, bytes } => {
                let is_known = self.metadata.tensors.contains_key(&*name)
                    || self.metadata.objects.contains_key(&*name);
                if is_known {
                    return Err(conflict(&name));
                }
                (name, Body::Object(bytes))
            }
        };
        let mut item = PlannedItem {
            name,
            file: 0,
            offset: 0,
            body,
        };
        let len = item.bytes().len();
        let (file, offset) = self.next_place(&item.body, len, max_file_bytes);
        item.file = file;
        item.offset = offset;
        self.files[file].len = offset + len;
        self.describe(&item, len);
        self.items.push(item);
        Ok(())
    }

    fn next_place(&mut self, body: &Body, len: u64, max_file_bytes: u64) -> (usize, u64) {
        // Python counts file positions in 63 bits.
        let max = max_file_bytes.min(i64::MAX as u64);
        if let Some(file) = self.files.last() {
            let offset = offset_after(file.len, body);
            let end = offset.and_then(|offset| offset.checked_add(len));
            if let (Some(offset), Some(end)) = (offset, end)
                && end <= max
            {
                return (self.files.len() - 1, offset);
            }
        }
        self.files.push(PlannedFile {
            name: format!("__0_{}.distcp", self.files.len()).into(),
            len: 0,
        });
        let first = offset_after(0, body).expect("a few bytes from the beginning of a file");
        (self.files.len() - 1, first)
    }

    /// Makes the entry of a tensor, or checks that an earlier chunk made the same one.
    fn declare(&mut self, name: &str, dtype: Dtype, shape: &Shape) -> Result<(), Error> {
        if self.metadata.objects.contains_key(name) {
            return Err(conflict(name));
        }
        let Some(entry) = self.metadata.tensors.get(name) else {
            let entry = TensorEntry {
                dtype,
                shape: shape.clone(),
                chunks: Vec::new(),
            };
            self.metadata.tensors.insert(name.to_owned(), entry);
            return Ok(());
        };
        if entry.dtype != dtype || entry.shape != *shape {
            return Err(conflict(name));
        }
        Ok(())
    }

    fn describe(&mut self, item: &PlannedItem, len: u64) {
        let file = Arc::clone(&self.files[item.file].name);
        let offset = item.offset;
        match &item.body {
            Body::Chunk { region, .. } => {
                let entry = self.metadata.tensors.get_mut(&*item.name);
                entry
                    .expect("declared before it was placed")
                    .chunks
                    .push(Chunk {
                        region: Arc::clone(region),
                        file,
                        offset,
                        len,
                    });
            }
            Body::Object(_) => {
                let entry = ObjectEntry { file, offset, len };
                self.metadata
                    .objects
                    .insert(item.name.as_ref().to_owned(), entry);
            }
        }
    }

    /// Chunks are found by their offsets, so two of them (one empty) must not have the same.
    fn check_places(&self) -> Result<(), Error> {
        let tensors: &BTreeMap<String, TensorEntry> = &self.metadata.tensors;
        for (name, entry) in tensors {
            let mut offsets = BTreeSet::new();
            if !entry
                .chunks
                .iter()
                .all(|chunk| offsets.insert(chunk.region.offsets()))
            {
                return Err(conflict(name));
            }
        }
        Ok(())
    }
}

/// The first place at or after byte `end` where an item may begin, `None` beyond 64 bits.
fn offset_after(end: u64, body: &Body) -> Option<u64> {
    match body {
        Body::Object(_) => end.checked_next_multiple_of(ALIGNMENT),
        // The offset is a multiple of 64 because the data's offset in the item is one.
        Body::Chunk { item, .. } => end
            .checked_add(item.data_offset())?
            .checked_next_multiple_of(DATA_ALIGNMENT)?
            .checked_sub(item.data_offset()),
    }
}

fn conflict(name: &str) -> Error {
    Error::PlanConflict {
        location: Location::tensor(name),
    }
}

fn located(error: Error, name: &str) -> Error {
    match error {
        Error::Tensor { source, location } => Error::Tensor {
            location: location.with_tensor(name),
            source,
        },
        other => other,
    }
}

#[cfg(test)]
mod tests;
