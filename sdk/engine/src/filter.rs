//! A part of a model: which tensors a conversion writes, and what it says of the rest.

mod unmatched;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::str::FromStr;

use rialto_bridge::Mapping;
use rialto_bridge::placement::matches;

use crate::Error;
use crate::summary::Skipped;

/// Which tensors are converted; all of them by default. Names are those of the Hugging Face side, in both directions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Layers; what is in no layer is not asked.
    pub layers: Option<Ranges>,
    /// Experts; what is of no single expert is not asked.
    pub experts: Option<Ranges>,
    /// Names of which one must match: `*` stands for any run of characters. None at all: every name does.
    pub include: Vec<String>,
    /// Names of which none may match.
    pub exclude: Vec<String>,
}

/// Numbers, such as `0-3,78`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Exactly these numbers.
    fn of(numbers: &BTreeSet<u64>) -> Ranges {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for &number in numbers {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => ranges.push((number, number)),
            }
        }
        Ranges(ranges)
    }

    /// Whether a number is one of them.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        self.0
            .iter()
            .any(|&(first, last)| (first..=last).contains(&number))
    }
}

impl FromStr for Ranges {
    type Err = String;

    fn from_str(text: &str) -> Result<Ranges, String> {
        let number = |text: &str| {
            let parsed = text.parse::<u64>();
            parsed.map_err(|_| format!("{text:?} is no number, expected ranges such as 0-3,78"))
        };
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            match first <= last {
                true => Ok((first, last)),
                false => Err(format!("{part} ends before it begins")),
            }
        };
        text.split(',')
            .map(range)
            .collect::<Result<_, _>>()
            .map(Ranges)
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.0.iter().map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
        f.write_str(&parts.collect::<Vec<_>>().join(","))
    }
}

impl Filter {
    /// Whether it lets everything through.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Filter::default()
    }

    /// The option that leaves a tensor out, if one does.
    fn reason(&self, name: &str) -> Option<String> {
        let outside = |ranges: &Option<Ranges>, before| -> Option<String> {
            let (ranges, number) = (ranges.as_ref()?, number_after(name, before)?);
            (!ranges.contains(number)).then(|| format!("--{before} {ranges}"))
        };
        outside(&self.layers, "layers")
            .or_else(|| outside(&self.experts, "experts"))
            .or_else(|| {
                let mut patterns = self.exclude.iter();
                let pattern = patterns.find(|pattern| matches(pattern, name))?;
                Some(format!("--exclude {pattern}"))
            })
            .or_else(|| {
                let mut patterns = self.include.iter();
                let is_in =
                    self.include.is_empty() || patterns.any(|pattern| matches(pattern, name));
                (!is_in).then(|| format!("--include {}", self.include.join(" --include ")))
            })
    }

    /// For each tensor of a mapping whether it is converted, and what is left out, by option.
    ///
    /// Errors: [`Error::Filter`] for what matches none of them, [`Error::NothingLeft`] if nothing is converted.
    pub(crate) fn tensors(&self, mapping: &Mapping) -> Result<(Vec<bool>, Vec<Skipped>), Error> {
        let names = mapping.tensors().iter();
        let unmatched = unmatched::of(self, names.map(|tensor| tensor.name.as_str()));
        if !unmatched.is_empty() {
            return Err(Error::Filter { unmatched });
        }
        let mut skipped = Vec::new();
        let mut kept = Vec::with_capacity(mapping.tensors().len());
        for tensor in mapping.tensors() {
            let reason = self.reason(&tensor.name);
            kept.push(reason.is_none());
            if let Some(reason) = reason {
                Skipped::count(&mut skipped, &reason, tensor.shape.elements()?)?;
            }
        }
        if !kept.contains(&true) {
            return Err(Error::NothingLeft {
                tensors: kept.len() as u64,
            });
        }
        Ok((kept, skipped))
    }

    /// For each param whether it is written: if its tensors are converted.
    ///
    /// Errors: [`Error::CutParam`] for a param, or a key that stacks several, of which only a part would be written.
    pub(crate) fn params(mapping: &Mapping, tensors: &[bool]) -> Result<Vec<bool>, Error> {
        let mut kept: Vec<Option<bool>> = vec![None; mapping.params().len()];
        let mut cut = Vec::new();
        for piece in mapping.pieces() {
            let is_kept = tensors[piece.tensor];
            if *kept[piece.param].get_or_insert(is_kept) != is_kept {
                cut.push(mapping.params()[piece.param].name.clone());
            }
        }
        // What no tensor fills belongs to no filter.
        let kept: Vec<bool> = kept.into_iter().map(|kept| kept.unwrap_or(true)).collect();
        let mut stacks: BTreeMap<&str, bool> = BTreeMap::new();
        for key in mapping.keys().iter().filter(|key| key.slot.is_some()) {
            let is_kept = kept[key.param];
            if *stacks.entry(&key.name).or_insert(is_kept) != is_kept {
                cut.push(key.name.clone());
            }
        }
        cut.sort();
        cut.dedup();
        match cut.is_empty() {
            true => Ok(kept),
            false => Err(Error::CutParam { params: cut }),
        }
    }
}

/// For each object of a mapping whether it is written: if a param of its layer is, or of no layer if it is in none.
pub(crate) fn objects(mapping: &Mapping, params: &[bool]) -> Vec<bool> {
    let kept = mapping.keys().iter().filter(|key| params[key.param]);
    let layers: HashSet<&str> = kept.map(|key| layer_of(&key.name)).collect();
    let all: HashSet<&str> = mapping
        .keys()
        .iter()
        .map(|key| layer_of(&key.name))
        .collect();
    let objects = mapping.objects().iter().map(|object| {
        let layer = layer_of(&object.key);
        // A layer that has no param at all goes with the rest.
        layers.contains(layer) || !all.contains(layer)
    });
    objects.collect()
}

/// A name up to the number of its innermost layer; nothing for one that has none.
fn layer_of(name: &str) -> &str {
    let mut end = 0;
    let mut parts = name.split_inclusive('.').scan(0, |at, part| {
        *at += part.len();
        Some((*at, part.trim_end_matches('.')))
    });
    while let Some((_, part)) = parts.next() {
        if part == "layers"
            && let Some((after, number)) = parts.next()
            && number.parse::<u64>().is_ok()
        {
            end = after;
        }
    }
    &name[..end]
}

/// The number that follows a part of a dotted name.
pub(crate) fn number_after(name: &str, before: &str) -> Option<u64> {
    let mut parts = name.split('.');
    parts.find(|part| *part == before)?;
    parts.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_they_are_shown() {
        for text in ["0", "0-3,78", "5-5"] {
            let ranges: Ranges = text.parse().unwrap();
            let again: Ranges = ranges.to_string().parse().unwrap();
            assert_eq!(ranges, again);
        }
        let ranges: Ranges = "0-3,78".parse().unwrap();
        let inside: Vec<u64> = (0..80).filter(|&number| ranges.contains(number)).collect();
        assert_eq!(inside, [0, 1, 2, 3, 78]);
        for text in ["", "a", "3-1", "1-", "-1", "1,,2", "1 - 2"] {
            assert!(text.parse::<Ranges>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_tensor_is_left_out_by_the_option_that_says_so() {
        let filter = Filter {
            layers: Some("1-2".parse().unwrap()),
            experts: Some("0".parse().unwrap()),
            include: vec!["model.*".to_owned(), "lm_head*".to_owned()],
            exclude: vec!["*norm*".to_owned()],
        };
        for (name, reason) in [
            ("model.layers.1.mlp.experts.0.up_proj.weight", None),
            ("model.layers.0.mlp.up_proj.weight", Some("--layers 1-2")),
            (
                "model.layers.2.mlp.experts.7.up_proj.weight",
                Some("--experts 0"),
            ),
            (
                "model.layers.2.input_layernorm.weight",
                Some("--exclude *norm*"),
            ),
            ("other.weight", Some("--include model.* --include lm_head*")),
            ("model.embed_tokens.weight", None),
            ("lm_head.weight", None),
        ] {
            assert_eq!(filter.reason(name).as_deref(), reason, "{name}");
        }
        assert!(Filter::default().is_all() && !filter.is_all());
    }

    #[test]
    fn a_layer_is_a_name_up_to_its_number() {
        for (name, layer) in [
            (
                "decoder.layers.3.mlp.linear_fc1.weight",
                "decoder.layers.3.",
            ),
            (
                "mtp.layers.0.mtp_model_layer.layers.1.x/shard_0_1",
                "mtp.layers.0.mtp_model_layer.layers.1.",
            ),
            ("decoder.final_norm.weight", ""),
            ("decoder.layers.mlp.weight", ""),
        ] {
            assert_eq!(layer_of(name), layer);
        }
    }
}
