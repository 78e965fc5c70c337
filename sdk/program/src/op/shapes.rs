//! What several operations ask of their attributes and inputs.

use rialto_tensor::Dtype;

use crate::{Dim, Element, ValueType};

/// Refuses an attribute that becomes no number, or an infinite one, in F32, which operations compute in.
pub(super) fn number(name: &str, value: f64) -> Result<(), String> {
    match (value as f32).is_finite() {
        true => Ok(()),
        false => Err(format!("{name} is {value:e}, expected a number of F32")),
    }
}

/// Refuses what is not a float to compute with.
pub(super) fn float(name: &str, value: &ValueType) -> Result<(), String> {
    match value.element.is_float() && value.block.is_none() {
        true => Ok(()),
        false => Err(format!("{name} is {value}, expected F32 or BF16")),
    }
}

/// Refuses another element type.
pub(super) fn element(name: &str, value: &ValueType, expected: Element) -> Result<(), String> {
    match value.element == expected && value.block.is_none() {
        true => Ok(()),
        false => Err(format!("{name} is {value}, expected {expected}")),
    }
}

/// Refuses another type: the shape, and an element that the expected one does not admit.
pub(super) fn exactly(name: &str, value: &ValueType, expected: &ValueType) -> Result<(), String> {
    match expected.admits(value) {
        true => Ok(()),
        false => Err(format!("{name} is {value}, expected {expected}")),
    }
}

/// Refuses another shape.
pub(super) fn shape(name: &str, value: &ValueType, expected: &[Dim]) -> Result<(), String> {
    let wanted = ValueType {
        shape: expected.to_vec(),
        ..value.clone()
    };
    exactly(name, value, &wanted)
}

/// The extents, if there are so many.
pub(super) fn axes<'a, const N: usize>(
    name: &str,
    value: &'a ValueType,
    what: &str,
) -> Result<&'a [Dim; N], String> {
    let axes = value.shape.as_slice().try_into();
    axes.map_err(|_| format!("{name} is {value}, expected {what}"))
}

/// The last extent, if there is one.
pub(super) fn last(name: &str, value: &ValueType) -> Result<Dim, String> {
    let last = value.shape.last().copied();
    last.ok_or_else(|| format!("{name} is {value}, expected at least one axis"))
}

/// An extent that the model fixes.
pub(super) fn size(name: &str, dim: Dim) -> Result<u64, String> {
    match dim {
        Dim::Size(size) => Ok(size),
        other => Err(format!("{name} is {other}, which no model fixes")),
    }
}

/// Refuses what is no weight: F32 or BF16, or codes in blocks.
pub(super) fn weight(name: &str, value: &ValueType) -> Result<(), String> {
    let is_encoded = value.element == Element::Of(Dtype::F8E4m3) && value.block.is_some();
    match is_encoded || value.element.is_float() && value.block.is_none() {
        true => Ok(()),
        false => Err(format!(
            "{name} is {value}, expected F32, BF16, or F8_E4M3 in blocks"
        )),
    }
}

/// A cache row's width and the positions that a page table covers, of a cache and the values that say where its rows are.
pub(super) fn cached(
    cache: &ValueType,
    [row_seq, row_pos, page_table]: [&ValueType; 3],
    tokens: Dim,
) -> Result<(u64, Dim), String> {
    let [_, page, width] = axes("cache", cache, "[pool, page, width]")?;
    float("cache", cache)?;
    for (name, value) in [("row_seq", row_seq), ("row_pos", row_pos)] {
        element(name, value, Element::I32)?;
        shape(name, value, &[tokens])?;
    }
    element("page_table", page_table, Element::I32)?;
    let [_, pages] = axes("page_table", page_table, "[sequences, pages]")?;
    let context = match (pages, page) {
        (Dim::Pages, Dim::Page) => Dim::Context,
        (Dim::Size(pages), Dim::Size(page)) => Dim::Size(
            pages
                .checked_mul(*page)
                .ok_or_else(|| format!("{pages} pages of {page} positions are too many"))?,
        ),
        _ => {
            return Err(format!(
                "a table of {pages} pages for pages of {page} positions"
            ));
        }
    };
    Ok((size("the width of a cache row", *width)?, context))
}
