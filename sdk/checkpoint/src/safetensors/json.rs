//! The JSON of a header, in its order and with nothing dropped.
//!
//! A map type would keep the last of two equal names, and a derived struct would take an array for an object, so both are
//! visited by hand. Nesting needs no limit of its own: nothing deeper than an entry is ever parsed.

use std::collections::BTreeMap;
use std::fmt;

use rialto_tensor::Location;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};

use super::METADATA;
use crate::Error;
use crate::unique::UniqueMap;

/// A header as it stands, with names perhaps repeated and offsets perhaps absurd.
#[derive(Debug, Default)]
pub(super) struct Document {
    pub(super) entries: Vec<(String, Entry)>,
    pub(super) metadata: BTreeMap<String, String>,
}

/// What a header says of one tensor.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
    pub(super) data_offsets: [u64; 2],
}

/// Parses a header without its length. Errors: [`Error::HeaderSyntax`], [`Error::DuplicateName`].
pub(super) fn parse(text: &[u8], file: &Location) -> Result<Document, Error> {
    let mut place = Place::default();
    let result = if text.first() == Some(&b'{') {
        let mut parser = serde_json::Deserializer::from_slice(text);
        DocumentVisitor { place: &mut place }
            .deserialize(&mut parser)
            // Padding is spaces; anything else after the object is an error.
            .and_then(|document| parser.end().map(|()| document))
    } else {
        Err(serde_json::Error::custom("it does not begin with \"{\""))
    };
    result.map_err(|error| match place {
        Place {
            repeated: Some(name),
            ..
        } => Error::DuplicateName {
            location: file.clone(),
            name,
        },
        Place {
            entry: Some(entry), ..
        } => Error::HeaderSyntax {
            location: file.clone().with_tensor(entry),
            reason: error.to_string(),
        },
        Place { .. } => Error::HeaderSyntax {
            location: file.clone(),
            reason: error.to_string(),
        },
    })
}

/// Where the parser is, for the error: serde carries only text.
#[derive(Debug, Default)]
struct Place {
    /// The entry being parsed.
    entry: Option<String>,
    /// The name that came twice.
    repeated: Option<String>,
}

struct DocumentVisitor<'a> {
    place: &'a mut Place,
}

impl<'de> DeserializeSeed<'de> for DocumentVisitor<'_> {
    type Value = Document;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Document, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for DocumentVisitor<'_> {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensor entries")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document, A::Error> {
        let mut document = Document::default();
        let mut has_metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            self.place.entry = Some(name.clone());
            if name != METADATA {
                document.entries.push((name, map.next_value()?));
            } else if has_metadata {
                self.place.repeated = Some(name);
                return Err(A::Error::custom("repeated name"));
            } else {
                has_metadata = true;
                let strings = UniqueMap::<String>::new(&mut self.place.repeated);
                document.metadata = map.next_value_seed(strings)?;
            }
            self.place.entry = None;
        }
        Ok(document)
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entry, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            dtype: String,
            shape: Vec<u64>,
            data_offsets: [u64; 2],
        }

        struct EntryVisitor;

        impl<'de> Visitor<'de> for EntryVisitor {
            type Value = Entry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with dtype, shape and data_offsets")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Entry, A::Error> {
                let fields = Fields::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Entry {
                    dtype: fields.dtype,
                    shape: fields.shape,
                    data_offsets: fields.data_offsets,
                })
            }
        }

        deserializer.deserialize_map(EntryVisitor)
    }
}
