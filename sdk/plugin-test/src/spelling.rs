//! The spellings of a map, expanded on their own and not by the code that reads them.

use std::collections::{BTreeSet, HashSet};

use rialto_bridge::{Error, Form, MapRule, Mapping, Part, Rule, WeightMap};

use crate::error;
use crate::tensors::{Tensor, Tensors};

/// Those in which a checkpoint of these tensors spells all tensors of some rule.
pub(crate) fn tensor_forms_in_use(
    map: &WeightMap,
    there: &HashSet<&str>,
) -> Result<Vec<String>, Error> {
    let mut used = Vec::new();
    for rule in rules(map) {
        for form in &rule.tensor_forms {
            let mapping = alone(rule, &form.parts)?;
            let mut tensors = mapping.tensors().iter();
            let is_there = tensors.all(|tensor| there.contains(tensor.name.as_str()));
            if is_there && !mapping.tensors().is_empty() && !used.contains(&form.name) {
                used.push(form.name.clone());
            }
        }
    }
    Ok(used)
}

/// A form of some rule by itself: parts that together are its params. Errors: those of [`WeightMap::resolve`].
pub(crate) fn alone(rule: &MapRule, parts: &[Part]) -> Result<Mapping, Error> {
    let rule = MapRule {
        parts: parts.to_vec(),
        state: None,
        copies: Vec::new(),
        stack: None,
        tensor_forms: Vec::new(),
        param_forms: Vec::new(),
        encoded: None,
        beside: None,
        skip: None,
        ..rule.clone()
    };
    WeightMap::new([rule]).resolve()
}

/// Every form of every rule: the rule, the side, the form.
pub(crate) fn forms(map: &WeightMap) -> impl Iterator<Item = (&MapRule, &'static str, &Form)> {
    rules(map).flat_map(|rule| {
        let tensors = rule.tensor_forms.iter().map(|form| ("tensor form", form));
        let params = rule.param_forms.iter().map(|form| ("param form", form));
        let both = tensors.chain(params);
        both.map(move |(side, form)| (rule, side, form))
    })
}

/// Params under the keys of another spelling: of each rule the form that has most of the habits which `name` joins, and no other
/// habit. `params` has a key for each param.
pub(crate) fn respelled(
    map: &WeightMap,
    name: &str,
    params: &Tensors,
) -> Result<Tensors, error::Error> {
    let habits: BTreeSet<&str> = name.split('+').collect();
    let mut spelled = params.clone();
    for rule in rules(map) {
        if rule.skip.is_some() || rule.beside.is_some() {
            continue;
        }
        let Some(form) = best(&rule.param_forms, &habits) else {
            continue;
        };
        let mapping = alone(rule, &form.parts)?;
        for param in mapping.params() {
            spelled.remove(&param.name);
        }
        let mut keys: Vec<Option<Tensor>> = vec![None; mapping.tensors().len()];
        for piece in mapping.pieces() {
            let param = &mapping.params()[piece.param].name;
            let param = params.get(param).ok_or_else(|| error::Error::NotStored {
                param: param.clone(),
            })?;
            let key = match &mut keys[piece.tensor] {
                Some(key) => key,
                none => none.insert(Tensor::zeros(
                    param.dtype,
                    &mapping.tensors()[piece.tensor].shape,
                )?),
            };
            key.set(&piece.tensor_region, &param.part(&piece.param_region));
        }
        let named = mapping.tensors().iter().zip(keys);
        spelled.extend(named.filter_map(|(key, values)| Some((key.name.clone(), values?))));
    }
    Ok(spelled)
}

/// The form with most of these habits and no other.
fn best<'a>(forms: &'a [Form], habits: &BTreeSet<&str>) -> Option<&'a Form> {
    let own = |form: &Form| form.name.split('+').count();
    let allowed = forms.iter();
    let mut allowed = allowed.filter(|form| form.name.split('+').all(|of| habits.contains(of)));
    let first = allowed.next()?;
    Some(
        allowed.fold(first, |best, form| match own(form) > own(best) {
            true => form,
            false => best,
        }),
    )
}

/// The rules of a map, all of which are of the one kind that this version knows.
pub(crate) fn rules(map: &WeightMap) -> impl Iterator<Item = &MapRule> {
    map.rules.iter().filter_map(|rule| match rule {
        Rule::Map(rule) => Some(rule),
        _ => None,
    })
}
