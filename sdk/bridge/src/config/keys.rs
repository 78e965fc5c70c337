//! What `config.json` says in the same way for most families, so that a family need not write it again.

use serde_json::{Value, json};

use super::{RawConfig, contradiction, rope};
use crate::Error;

/// Most that a size may be: 2^31, so that twice the product of any two fits in 64 bits.
pub const MOST_SIZE: u64 = 1 << 31;

/// The keys that [`RawConfig::is_not_of`], [`RawConfig::torch_dtype`] and [`RawConfig::rotary_base`] read.
pub const READ_KEYS: &[&str] = &[
    "architectures",
    "dtype",
    "model_type",
    "partial_rotary_factor",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "torch_dtype",
];

impl RawConfig {
    /// Why the config is not of an architecture, if it is not: it names another or several, or another `model_type`. A config
    /// that names two models is neither. Errors: [`Error::ConfigValue`] for keys of another kind.
    pub fn is_not_of(&self, architecture: &str, model_type: &str) -> Result<Option<String>, Error> {
        let architectures = self.architectures()?;
        if architectures != [architecture] {
            let found = if architectures.is_empty() {
                "none".to_owned()
            } else {
                architectures.join(", ")
            };
            return Ok(Some(format!(
                "architectures is {found}, not {architecture}"
            )));
        }
        let key = "model_type";
        let named = self.value(key);
        if named.is_some_and(|named| !named.is_string()) {
            return Err(self.wrong(key, &format!("{model_type:?}")));
        }
        let other = named.filter(|named| *named != model_type);
        Ok(other.map(|other| {
            format!("architectures is {architecture} and model_type is {other}, not {model_type:?}")
        }))
    }

    /// Refuses other values than these, each the JSON of its key. An absent key has its value. Errors: [`Error::ConfigValue`].
    pub fn require(&self, values: &[(&str, &str)]) -> Result<(), Error> {
        for (key, expected) in values {
            let found = self.value(key).map(Value::to_string);
            if found.is_some_and(|found| found != *expected) {
                return Err(self.wrong(key, expected));
            }
        }
        Ok(())
    }

    /// A size that must be there: from 1 up to [`MOST_SIZE`]. Errors: [`Error::ConfigValue`].
    pub fn size(&self, key: &str) -> Result<u64, Error> {
        self.bounded(key, MOST_SIZE)
    }

    /// A number of things that must be there: from 1 up to `most`. Errors: [`Error::ConfigValue`].
    pub fn bounded(&self, key: &str, most: u64) -> Result<u64, Error> {
        let value = self.integer(key)?;
        if (1..=most).contains(&value) {
            Ok(value)
        } else {
            Err(self.wrong(key, &format!("1 to {most}")))
        }
    }

    /// A positive number as it stands, so that its spelling lives on. Errors: [`Error::ConfigValue`].
    pub fn positive(&self, key: &str) -> Result<Value, Error> {
        self.number(key, "a positive number", |value| value > 0.0)
    }

    /// A number that only training reads, from 0 to below 1; absent, it is `published`. Errors: [`Error::ConfigValue`].
    pub fn fraction_or(&self, key: &str, published: f64) -> Result<Value, Error> {
        match self.value(key) {
            None => Ok(json!(published)),
            Some(_) => self.number(key, "a number from 0 to below 1", |value| {
                (0.0..1.0).contains(&value)
            }),
        }
    }

    /// Token ids: a list of them, or a single one; none if absent or null. Errors: [`Error::ConfigValue`].
    ///
    /// Source: `eos_token_id`, which has either form.
    pub fn token_ids(&self, key: &str) -> Result<Vec<u32>, Error> {
        let wrong = || self.wrong(key, "a token id or a list of them");
        let id = |value: &Value| {
            let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
            id.ok_or_else(wrong)
        };
        match self.value(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(ids)) => ids.iter().map(id).collect(),
            Some(single) => Ok(vec![id(single)?]),
        }
    }

    fn number(
        &self,
        key: &str,
        expected: &str,
        holds: impl Fn(f64) -> bool,
    ) -> Result<Value, Error> {
        match self.value(key) {
            Some(value) if value.as_f64().is_some_and(holds) => Ok(value.clone()),
            _ => Err(self.wrong(key, expected)),
        }
    }

    /// The dtype that Megatron computes in, as PyTorch names it. It says nothing about the weights, which keep the one they are
    /// stored in. Errors: [`Error::ConfigValue`].
    ///
    /// Source: `dtype`, `torch_dtype` in older configs; `dtype` decides, and without either it is `bfloat16`.
    pub fn torch_dtype(&self, notices: &mut Vec<String>) -> Result<&'static str, Error> {
        let keys = ["dtype", "torch_dtype"];
        let mut given = keys.into_iter().filter(|key| self.value(key).is_some());
        let Some(key) = given.next() else {
            return Ok("bfloat16");
        };
        let known = ["bfloat16", "float16", "float32"];
        let found = known
            .into_iter()
            .find(|name| self.value(key).is_some_and(|value| value == name));
        let found = found.ok_or_else(|| self.wrong(key, &known.join(", ")))?;
        let others = given.filter(|other| self.value(other) != self.value(key));
        notices.extend(others.map(|other| contradiction(other, key)));
        Ok(found)
    }

    /// The base of a rotary embedding that turns all of its width and scales nothing, as it is spelled.
    ///
    /// Source: `rope_parameters`, or `rope_theta` and `rope_scaling` beside each other, as configs had it before. Of two bases
    /// the nested one decides. Errors: [`Error::ConfigValue`] for a type other than `default`, which would be another model.
    pub fn rotary_base(&self, notices: &mut Vec<String>) -> Result<Value, Error> {
        rope::base(self, notices)
    }

    /// The keys that are in none of the lists of `known`, such as [`READ_KEYS`], and not among those of `required`, and fields of
    /// the rotary embedding's objects that say nothing, by their dotted names: what a family does not read.
    #[must_use]
    pub fn unread(&self, known: &[&[&str]], required: &[(&str, &str)]) -> Vec<String> {
        let is_unread = |key: &&String| {
            let is_known = known.iter().any(|known| known.contains(&key.as_str()));
            !is_known && !required.iter().any(|(known, _)| known == key)
        };
        let unread = self.values().keys().filter(is_unread).cloned();
        unread.chain(rope::unread(self)).collect()
    }
}
