//! JSON objects in which a repeated name is an error.
//!
//! JSON itself allows repetition and parsers keep the last value, so two readers of one file may see two different things.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};

use rialto_tensor::Location;

use crate::Error;

/// Parses one object of values `V` whose names are unique, and nothing after it.
///
/// Errors: [`Error::DuplicateName`], and what `syntax` makes of the reason for any other.
pub(crate) fn object<'de, V: Deserialize<'de>>(
    text: &'de str,
    location: &Location,
    syntax: impl FnOnce(String) -> Error,
) -> Result<BTreeMap<String, V>, Error> {
    let mut repeated = None;
    let mut parser = serde_json::Deserializer::from_str(text);
    let members = UniqueMap::new(&mut repeated)
        .deserialize(&mut parser)
        .and_then(|members| parser.end().map(|()| members));
    members.map_err(|error| match repeated {
        Some(name) => Error::DuplicateName {
            location: location.clone(),
            name,
        },
        None => syntax(error.to_string()),
    })
}

/// Deserializes an object whose values are all `V`.
#[derive(Debug)]
pub(crate) struct UniqueMap<'a, V> {
    repeated: &'a mut Option<String>,
    value: PhantomData<V>,
}

impl<'a, V> UniqueMap<'a, V> {
    /// A repeated name is put into `repeated`, because the error of serde carries only text.
    pub(crate) fn new(repeated: &'a mut Option<String>) -> UniqueMap<'a, V> {
        UniqueMap {
            repeated,
            value: PhantomData,
        }
    }
}

impl<'de, V: Deserialize<'de>> DeserializeSeed<'de> for UniqueMap<'_, V> {
    type Value = BTreeMap<String, V>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueMap<'_, V> {
    type Value = BTreeMap<String, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if members.contains_key(&name) {
                let error = A::Error::custom(format_args!("name {name:?} occurs more than once"));
                *self.repeated = Some(name);
                return Err(error);
            }
            members.insert(name, map.next_value()?);
        }
        Ok(members)
    }
}
