//! The rotary embedding: its base, in the spellings of two ages, and the width that it turns.

use rialto_plugin::prelude::*;

use super::{contradiction, positive};

/// The objects that describe it, the one that decides first: today's, and the one that was merged into it.
const OBJECTS: [&str; 2] = ["rope_parameters", "rope_scaling"];

/// The fields that are read of either; `type` is the older name of `rope_type`.
const FIELDS: [&str; 4] = ["rope_theta", "rope_type", "type", "partial_rotary_factor"];

/// Everything about it that the config says, of which only the base is free.
///
/// Source: `rope_parameters`, or `rope_theta` and `rope_scaling` beside each other, as configs had it before. Of two bases
/// the nested one decides. A type other than `default` scales frequencies, and a partial factor leaves some of the width
/// unturned: either would be another model, so both are refused by name.
pub(super) fn rotary_base(config: &RawConfig, notices: &mut Vec<String>) -> Result<Value, Error> {
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

/// The widths of a query's two parts: without position, and with.
///
/// The sum decides when it is there. On loading a config, some versions of transformers write `head_dim` over
/// `qk_rope_head_dim` and leave the other two alone, and releases fill `head_dim` differently; so a width that contradicts
/// the sum and equals `head_dim` is that trap and no width. A contradiction that it does not explain is refused: either
/// number could be the wrong one. No tensor is of a guessed shape in any case, because every one is held against the result.
pub(super) fn query_widths(
    config: &RawConfig,
    notices: &mut Vec<String>,
) -> Result<(u64, u64), Error> {
    let nope = positive(config, "qk_nope_head_dim")?;
    let width = "qk_rope_head_dim";
    let Some(sum) = config.optional_integer("qk_head_dim")? else {
        return Ok((nope, even(config, width, positive(config, width)?)?));
    };
    let given = config.optional_integer(width)?;
    let by_sum = sum.checked_sub(nope).filter(|&rope| rope > 0);
    match (by_sum, given) {
        (Some(rope), None) => Ok((nope, even(config, "qk_head_dim", rope)?)),
        (Some(rope), Some(given)) if rope == given => Ok((nope, even(config, width, rope)?)),
        (Some(rope), Some(given)) if config.optional_integer("head_dim") == Ok(Some(given)) => {
            notices.push(format!(
                "config.json: qk_rope_head_dim {given} is head_dim and contradicts qk_head_dim {sum} - qk_nope_head_dim {nope}; \
                 the difference {rope} decides"
            ));
            Ok((nope, even(config, "qk_head_dim", rope)?))
        }
        (_, Some(given)) => Err(config.wrong(
            "qk_head_dim",
            &format!("qk_nope_head_dim + qk_rope_head_dim = {nope} + {given}"),
        )),
        (None, None) => {
            Err(config.wrong("qk_head_dim", &format!("more than qk_nope_head_dim {nope}")))
        }
    }
}

/// The embedding turns pairs.
fn even(config: &RawConfig, key: &str, width: u64) -> Result<u64, Error> {
    if width.is_multiple_of(2) && width <= super::MOST {
        Ok(width)
    } else {
        Err(config.wrong(
            key,
            &format!("an even rotary width up to {}, not {width}", super::MOST),
        ))
    }
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
