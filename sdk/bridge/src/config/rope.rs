//! The base of the rotary embedding, in the spellings of two ages of transformers.

use serde_json::Value;

use super::{RawConfig, contradiction};
use crate::Error;

/// The objects that describe it, the one that decides first: today's, and the one that was merged into it.
const OBJECTS: [&str; 2] = ["rope_parameters", "rope_scaling"];

/// The fields that are read of either; `type` is the older name of `rope_type`.
const FIELDS: [&str; 4] = ["rope_theta", "rope_type", "type", "partial_rotary_factor"];

/// Everything about it that the config says, of which only the base is free.
///
/// Source: `rope_parameters`, or `rope_theta` and `rope_scaling` beside each other, as configs had it before. Of two bases
/// the nested one decides. A type other than `default` scales frequencies, and a partial factor leaves some of the width
/// unturned: either would be another model, so both are refused by name.
pub(super) fn base(config: &RawConfig, notices: &mut Vec<String>) -> Result<Value, Error> {
    let is_one = |factor: &Value| factor.as_f64() == Some(1.0);
    if config
        .value("partial_rotary_factor")
        .is_some_and(|factor| !is_one(factor))
    {
        return Err(config.wrong("partial_rotary_factor", "1"));
    }
    for object in OBJECTS {
        if config.value(object).is_some_and(|value| !value.is_object()) {
            return Err(config.wrong(object, "an object"));
        }
        for kind in ["rope_type", "type"] {
            if field(config, object, kind).is_some_and(|kind| kind != "default") {
                return Err(wrong(config, object, kind, "\"default\""));
            }
        }
        if field(config, object, "partial_rotary_factor").is_some_and(|factor| !is_one(factor)) {
            return Err(wrong(config, object, "partial_rotary_factor", "1"));
        }
    }
    // What it scales is not to be guessed when it does not say how.
    let scaling = "rope_scaling";
    let says_how = ["rope_type", "type"].map(|kind| field(config, scaling, kind).is_some());
    if config.value(scaling).is_some() && says_how == [false, false] {
        return Err(wrong(config, scaling, "rope_type", "\"default\""));
    }
    let nested = OBJECTS.map(|object| {
        let name = format!("{object}.rope_theta");
        (name, field(config, object, "rope_theta"))
    });
    let top = ("rope_theta".to_owned(), config.value("rope_theta"));
    let given = nested.into_iter().chain([top]);
    let mut given = given.filter_map(|(name, theta)| Some((name, theta?)));
    let Some((decider, theta)) = given.next() else {
        let expected = "a positive number here or in rope_theta";
        return Err(wrong(config, OBJECTS[0], "rope_theta", expected));
    };
    if theta.as_f64().is_none_or(|theta| theta <= 0.0) {
        return Err(Error::ConfigValue {
            key: decider,
            expected: "a positive number".to_owned(),
            found: theta.to_string(),
        });
    }
    for (other, _) in given.filter(|(_, other)| other.as_f64() != theta.as_f64()) {
        notices.push(contradiction(&other, &decider));
    }
    Ok(theta.clone())
}

/// Fields that say nothing with the type `default`, as transformers has it, by their dotted names.
pub(super) fn unread(config: &RawConfig) -> Vec<String> {
    let of = |object: &&str| {
        let fields = config.value(object).and_then(Value::as_object);
        let names = fields.into_iter().flat_map(|fields| fields.keys());
        let unread = names.filter(|name| !FIELDS.contains(&name.as_str()));
        let dotted = unread.map(|name| format!("{object}.{name}"));
        dotted.collect::<Vec<_>>()
    };
    OBJECTS.iter().flat_map(of).collect()
}

/// A field of an object; an explicit `null` counts as absent.
fn field<'a>(config: &'a RawConfig, object: &str, name: &str) -> Option<&'a Value> {
    let value = config.value(object)?.get(name);
    value.filter(|value| !value.is_null())
}

fn wrong(config: &RawConfig, object: &str, name: &str, expected: &str) -> Error {
    Error::ConfigValue {
        key: format!("{object}.{name}"),
        expected: expected.to_owned(),
        found: field(config, object, name).map_or_else(|| "absent".to_owned(), Value::to_string),
    }
}
