//! From the pickled object graph to [`Metadata`], trusting nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use rialto_tensor::{Dtype, Location, Region, Shape};

use super::{Chunk, FILESYSTEM_MODULE, METADATA_MODULE, Metadata, ObjectEntry, TensorEntry};
use crate::Error;
use crate::store::check_name;
use crate::torch_dist::pickle::{Limits, Origin, Pickle, Value};

pub(super) fn decode(bytes: &[u8], location: &Location) -> Result<Metadata, Error> {
    let origin = Origin {
        location: location.clone(),
        base: 0,
    };
    let pickle = Pickle::read(bytes, Limits::METADATA, &origin)?;
    let decoder = Decoder {
        pickle: &pickle,
        location,
    };
    decoder.metadata()
}

/// A place in a data file, and whether anything was found to lie there.
struct Place {
    /// Shared by all that lies in it.
    file: Arc<str>,
    offset: u64,
    len: u64,
    is_used: bool,
}

/// Name and, for a chunk, offsets; what torch hashes and compares a `MetadataIndex` by.
type Key<'a> = (&'a str, Option<Vec<u64>>);

struct Decoder<'d, 'a> {
    pickle: &'d Pickle<'a>,
    location: &'d Location,
}

impl<'a> Decoder<'_, 'a> {
    fn metadata(&self) -> Result<Metadata, Error> {
        // Megatron-Core 0.15 pickles a subclass of its own; both have the same state.
        let call = self.pickle.call(self.pickle.root());
        let class = call.and_then(|call| self.pickle.global(call.callable));
        let state = match (call, class) {
            (Some(call), Some((_, "Metadata" | "MCoreMetadata"))) => call.state,
            _ => None,
        };
        let Some(state) = state else {
            return Err(self.malformed("the whole", "a Metadata object", None));
        };
        let mut places = self.places(state)?;
        // A real file has a place for each chunk, so a file that shares one list of chunks among many tensors runs dry.
        let mut budget = places.len().saturating_mul(2).saturating_add(1024);
        let mut metadata = Metadata::default();
        let Some(contents) = self
            .pickle
            .field(state, "state_dict_metadata")
            .and_then(|value| self.pickle.dict(value))
        else {
            return Err(self.malformed("state_dict_metadata", "a dict", None));
        };
        for &(name, value) in contents {
            let Some(name) = short_text(name) else {
                return Err(self.malformed("a name", "text of at most 4096 bytes", None));
            };
            let is_new =
                !metadata.tensors.contains_key(name) && !metadata.objects.contains_key(name);
            if !is_new {
                return Err(Error::DuplicateName {
                    location: self.location.clone(),
                    name: name.to_owned(),
                });
            }
            if self.is(value, METADATA_MODULE, "BytesStorageMetadata") {
                let entry = self.object(name, &mut places)?;
                metadata.objects.insert(name.to_owned(), entry);
            } else {
                let entry = self.tensor(name, value, &mut places, &mut budget)?;
                metadata.tensors.insert(name.to_owned(), entry);
            }
        }
        if let Some(((name, _), place)) = places
            .iter()
            .filter(|(_, place)| !place.is_used)
            .min_by_key(|(key, _)| *key)
        {
            return Err(Error::StorageStray {
                file: place.file.as_ref().to_owned(),
                location: self.location.clone().with_tensor(*name),
            });
        }
        self.set_reformulated_aside(state, &mut metadata)?;
        Ok(metadata)
    }

    // --- storage_data ---

    fn places(&self, state: Value<'a>) -> Result<HashMap<Key<'a>, Place>, Error> {
        let Some(entries) = self
            .pickle
            .field(state, "storage_data")
            .and_then(|value| self.pickle.dict(value))
        else {
            return Err(self.malformed("storage_data", "a dict", None));
        };
        let mut places: HashMap<Key<'a>, Place> = HashMap::with_capacity(entries.len());
        let mut files = HashMap::new();
        for &(index, info) in entries {
            let key = self.key(index)?;
            let name = key.0;
            let place = self.place(name, info, &mut files)?;
            match places.entry(key) {
                Entry::Vacant(slot) => {
                    slot.insert(place);
                }
                Entry::Occupied(slot) => {
                    return Err(Error::StoragePlaces {
                        item: describe(slot.key().1.as_deref()),
                        found: 2,
                        location: self.location.clone().with_tensor(name),
                    });
                }
            }
        }
        Ok(places)
    }

    fn key(&self, index: Value<'a>) -> Result<Key<'a>, Error> {
        let state = self.state(index, METADATA_MODULE, "MetadataIndex");
        let name = state
            .and_then(|state| self.pickle.field(state, "fqn"))
            .and_then(short_text);
        let (Some(state), Some(name)) = (state, name) else {
            return Err(self.malformed("a key of storage_data", "a MetadataIndex", None));
        };
        match self.pickle.field(state, "offset") {
            None | Some(Value::None) => Ok((name, None)),
            Some(offset) => match self.pickle.extents(offset) {
                Some(offset) => Ok((name, Some(offset))),
                None => Err(self.malformed("the offset of a place", "a torch.Size", Some(name))),
            },
        }
    }

    /// Reads a place; `files` are the files that were met before.
    fn place(
        &self,
        name: &'a str,
        info: Value<'a>,
        files: &mut HashMap<&'a str, Arc<str>>,
    ) -> Result<Place, Error> {
        let Some(state) = self.state(info, FILESYSTEM_MODULE, "_StorageInfo") else {
            return Err(self.malformed("a place", "a _StorageInfo", Some(name)));
        };
        let get = |key| self.pickle.field(state, key);
        let file = get("relative_path").and_then(short_text);
        let offset = get("offset").and_then(Value::as_u64);
        let len = get("length").and_then(Value::as_u64);
        let (Some(file), Some(offset), Some(len)) = (file, offset, len) else {
            return Err(self.malformed("a place", "a file name and two counts", Some(name)));
        };
        let location = self.location.clone().with_tensor(name);
        check_name(file, &location)?;
        if offset.checked_add(len).is_none() {
            return Err(self.malformed("the end of a place", "a 64-bit number", Some(name)));
        }
        let transforms = match get("transform_descriptors") {
            None | Some(Value::None) => &[],
            Some(value) => self
                .pickle
                .list(value)
                .ok_or_else(|| self.malformed("transform_descriptors", "a list", Some(name)))?,
        };
        if !transforms.is_empty() {
            let texts = transforms.iter().take(8);
            return Err(Error::Transformed {
                transforms: texts
                    .map(|text| text.as_str().unwrap_or("?").to_owned())
                    .collect(),
                location,
            });
        }
        Ok(Place {
            file: Arc::clone(files.entry(file).or_insert_with(|| file.into())),
            offset,
            len,
            is_used: false,
        })
    }

    // --- state_dict_metadata ---

    fn object(
        &self,
        name: &'a str,
        places: &mut HashMap<Key<'a>, Place>,
    ) -> Result<ObjectEntry, Error> {
        let Some(place) = places.get_mut(&(name, None)) else {
            return Err(self.without_place(name, None));
        };
        place.is_used = true;
        Ok(ObjectEntry {
            file: Arc::clone(&place.file),
            offset: place.offset,
            len: place.len,
        })
    }

    fn tensor(
        &self,
        name: &'a str,
        value: Value<'a>,
        places: &mut HashMap<Key<'a>, Place>,
        budget: &mut usize,
    ) -> Result<TensorEntry, Error> {
        let malformed = |what, expected| self.malformed(what, expected, Some(name));
        let Some(state) = self.state(value, METADATA_MODULE, "TensorStorageMetadata") else {
            return Err(malformed(
                "an entry",
                "the metadata of a tensor or of bytes",
            ));
        };
        let get = |key| self.pickle.field(state, key).unwrap_or(Value::None);
        let dtype = self.dtype(name, get("properties"))?;
        let Some(size) = self.pickle.extents(get("size")) else {
            return Err(malformed("its size", "a torch.Size"));
        };
        let shape = Shape::new(size);
        let len = shape.size_bytes(dtype).map_err(|source| Error::Tensor {
            location: self.location.clone().with_tensor(name),
            source,
        })?;
        let Some(values) = self.pickle.list(get("chunks")) else {
            return Err(malformed("its chunks", "a list"));
        };
        *budget = budget
            .checked_sub(values.len())
            .ok_or_else(|| malformed("its chunks", "a list with a place for each"))?;
        let mut chunks = Vec::with_capacity(values.len());
        for &value in values {
            let region = self.region(name, value, &shape)?;
            let is_empty = region.sizes().contains(&0);
            let key = (name, Some(region.offsets().to_vec()));
            let place = places.get_mut(&key);
            // An empty chunk may share its offset, and then its place, with the chunk that follows; torch writes such
            // chunks for ranks that got nothing. It matters only if the tensor itself is empty.
            if is_empty && (len > 0 || place.is_none()) {
                if let Some(place) = place {
                    place.is_used = true;
                }
                continue;
            }
            let Some(place) = place else {
                return Err(self.without_place(name, Some(region.offsets())));
            };
            // Two chunks at one offset share a place here; that they overlap is found when the tiling is checked.
            place.is_used = true;
            chunks.push(Chunk {
                region: Arc::new(region),
                file: Arc::clone(&place.file),
                offset: place.offset,
                len: place.len,
            });
        }
        Ok(TensorEntry {
            dtype,
            shape,
            chunks,
        })
    }

    /// `properties` pickles itself as a tuple: five values, and the writer's strides since PyTorch 2.15.
    fn dtype(&self, name: &'a str, properties: Value<'a>) -> Result<Dtype, Error> {
        let state = self.state(properties, METADATA_MODULE, "TensorProperties");
        let values = state.and_then(|state| self.pickle.tuple(state));
        let Some(&[dtype, layout, _grad, _format, _pinned, ref rest @ ..]) = values else {
            return Err(self.malformed("its properties", "TensorProperties", Some(name)));
        };
        if rest.len() > 1 {
            return Err(self.malformed("its properties", "five or six values", Some(name)));
        }
        let layout = self
            .pickle
            .call_of(layout, "torch.serialization", "_get_layout")
            .and_then(|call| self.pickle.tuple(call.args));
        if layout != Some(&[Value::Str("torch.strided")]) {
            return Err(self.malformed("its layout", "torch.strided", Some(name)));
        }
        let Some(("torch", dtype)) = self.pickle.global(dtype) else {
            return Err(self.malformed("its dtype", "a torch dtype", Some(name)));
        };
        Dtype::from_torch_name(dtype).ok_or_else(|| Error::Tensor {
            location: self.location.clone().with_tensor(name),
            source: rialto_tensor::Error::UnknownDtype {
                name: format!("torch.{dtype}"),
            },
        })
    }

    fn region(&self, name: &'a str, value: Value<'a>, shape: &Shape) -> Result<Region, Error> {
        let state = self.state(value, METADATA_MODULE, "ChunkStorageMetadata");
        let extents = |key| {
            let value = self.pickle.field(state?, key)?;
            self.pickle.extents(value)
        };
        match (extents("offsets"), extents("sizes")) {
            (Some(offsets), Some(sizes))
                if offsets.len() == shape.rank() && sizes.len() == shape.rank() =>
            {
                Ok(Region::new(offsets, sizes))
            }
            _ => Err(self.malformed(
                "a chunk",
                "a ChunkStorageMetadata of the tensor's rank",
                Some(name),
            )),
        }
    }

    /// Takes out the tensors whose chunks are blocks of another tensor's, flattened.
    fn set_reformulated_aside(
        &self,
        state: Value<'a>,
        metadata: &mut Metadata,
    ) -> Result<(), Error> {
        let entries = self
            .pickle
            .field(state, "mcore_data")
            .and_then(|value| self.pickle.dict(value));
        for &(name, facts) in entries.unwrap_or_default() {
            let Some(shape) = self
                .pickle
                .field(facts, "nd_reformulated_orig_global_shape")
            else {
                continue;
            };
            let (Some(name), Some(shape)) = (name.as_str(), self.pickle.extents(shape)) else {
                return Err(self.malformed("mcore_data", "a dict of names and shapes", None));
            };
            if metadata.tensors.remove(name).is_some() {
                metadata
                    .reformulated
                    .insert(name.to_owned(), Shape::new(shape));
            }
        }
        Ok(())
    }

    // --- objects of one class ---

    fn is(&self, value: Value<'a>, module: &str, class: &str) -> bool {
        self.pickle.call_of(value, module, class).is_some()
    }

    fn state(&self, value: Value<'a>, module: &str, class: &str) -> Option<Value<'a>> {
        self.pickle.call_of(value, module, class)?.state
    }

    // --- errors ---

    fn malformed(&self, what: &'static str, expected: &'static str, name: Option<&str>) -> Error {
        let mut location = self.location.clone();
        location.tensor = name.map(str::to_owned);
        Error::MetadataMalformed {
            what,
            expected,
            location,
        }
    }

    fn without_place(&self, name: &str, offsets: Option<&[u64]>) -> Error {
        Error::StoragePlaces {
            item: describe(offsets),
            found: 0,
            location: self.location.clone().with_tensor(name),
        }
    }
}

/// Text of a length that names have. Longer text, shared through the memo, would be hashed and copied for every chunk.
fn short_text(value: Value<'_>) -> Option<&str> {
    value.as_str().filter(|text| text.len() <= 4096)
}

/// A chunk by its offsets, or the word for what has none.
fn describe(offsets: Option<&[u64]>) -> String {
    match offsets {
        Some(offsets) => format!("the chunk at {}", Shape::new(offsets.to_vec())),
        None => "the object".to_owned(),
    }
}
