//! What a rule may be at most, and the values that its indices take: a map is a stranger's, and small text can stand for much.

use crate::{Error, MapRule, Part, Scope};

/// Most pieces and objects of a map: ten times those of the largest models known.
pub(crate) const MOST_PIECES: u64 = 1 << 20;
/// Most axes of a tensor or param, as in torch.
const MAX_AXES: usize = 64;
/// Most indices in the scope of a rule or of a part.
const MAX_INDICES: usize = 16;
/// Longest template or expression in bytes; a checkpoint has no longer names.
const MAX_TEMPLATE_BYTES: usize = 4096;

/// Pieces and objects that a rule stands for, or names if it has neither.
pub(crate) fn expanded<'a>(
    rule: &MapRule,
    parts: impl Iterator<Item = &'a Part>,
    objects: u64,
) -> u64 {
    let values = |scope: &Scope| {
        let indices = scope.indices().iter();
        let lengths = indices.map(|index| index.values.len() as u64);
        lengths.fold(1u64, u64::saturating_mul)
    };
    let pieces = parts.map(|part| values(&part.scope));
    let each = pieces.fold(objects, u64::saturating_add).max(1);
    values(&rule.scope).saturating_mul(each)
}

/// Refuses so many of them in all the rules up to this one.
pub(crate) fn check_count(rule: &MapRule, expanded: u64) -> Result<(), Error> {
    if expanded <= MOST_PIECES {
        return Ok(());
    }
    Err(Error::Unsupported {
        what: format!("a weight map of this size, at rule {}", rule.name),
        found: format!("{expanded} pieces and objects"),
        supported: format!("up to {MOST_PIECES}"),
    })
}

/// Refuses a spelling of a rule that has more names than a map may have pieces, before they are made.
pub(crate) fn check_spelling(rule: &MapRule, parts: &[Part]) -> Result<(), Error> {
    check_rule(rule)?;
    check_count(rule, expanded(rule, parts.iter(), 0))
}

/// Refuses a rule whose parts are beyond any model's: they are copied and evaluated for every combination of the indices.
pub(crate) fn check_rule(rule: &MapRule) -> Result<(), Error> {
    let beyond = |what: &str, found: usize, limit: usize| {
        if found <= limit {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: format!("{what} in rule {}", rule.name),
            found: found.to_string(),
            supported: format!("up to {limit}"),
        })
    };
    let module = rule.state.iter().map(|state| &state.module);
    for text in module.chain([&rule.param]).chain(&rule.copies) {
        beyond("bytes of a template", text.len(), MAX_TEMPLATE_BYTES)?;
    }
    beyond("axes", rule.shape.len(), MAX_AXES)?;
    beyond("indices", rule.scope.indices().len(), MAX_INDICES)?;
    let forms = rule.tensor_forms.iter().chain(&rule.param_forms);
    for part in forms.flat_map(|form| &form.parts).chain(&rule.parts) {
        let offsets = part.from.iter().chain(&part.at);
        for text in offsets.chain([&part.tensor]) {
            beyond("bytes of a template", text.len(), MAX_TEMPLATE_BYTES)?;
        }
        beyond("axes", part.shape.len(), MAX_AXES)?;
        beyond("indices", part.scope.indices().len(), MAX_INDICES)?;
    }
    Ok(())
}

/// The outer bindings, extended by every combination of the scope's values, the last index fastest.
///
/// One at a time: however many values the indices have, there is no combination if one of them has none.
pub(crate) fn combinations<'a>(
    scope: &'a Scope,
    outer: &[(&'a str, u64)],
) -> impl Iterator<Item = Vec<(&'a str, u64)>> {
    let indices = scope.indices();
    let outer = outer.to_vec();
    let is_empty = indices.iter().any(|index| index.values.is_empty());
    let mut positions = (!is_empty).then(|| vec![0; indices.len()]);
    std::iter::from_fn(move || {
        let current = positions.as_mut()?;
        let values = indices.iter().zip(&*current);
        let values = values.map(|(index, &position)| (index.name.as_str(), index.values[position]));
        let bindings = outer.iter().copied().chain(values).collect();
        let next = (0..indices.len()).rev().find(|&axis| {
            current[axis] = (current[axis] + 1) % indices[axis].values.len();
            current[axis] > 0
        });
        if next.is_none() {
            positions = None;
        }
        Some(bindings)
    })
}

#[cfg(test)]
mod tests {
    use rialto_tensor::Dtype;

    use crate::{DtypeRule, MapRule, Part, Scope, WeightMap};

    /// A config may name any number of layers or heads: what it stands for is refused before it is listed.
    #[test]
    fn any_number_of_values_is_refused_and_not_listed() {
        let every = || Scope::new().index("i", 0..u64::MAX);
        let rule =
            MapRule::new("huge", "test", "p.{i}", [2]).dtype(DtypeRule::any_of([Dtype::Bf16]));
        let of_params = rule.clone().over(every()).part(Part::new("t.{i}", [2]));
        let of_parts = rule.part(Part::new("t.{i}", [2]).over(every()));
        for rule in [of_params, of_parts] {
            let error = WeightMap::new([rule]).resolve().unwrap_err();
            assert!(error.to_string().contains("rule huge"), "{error}");
            assert_eq!(error.code(), 3);
        }
    }
}
