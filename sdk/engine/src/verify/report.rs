//! What a verification found, as data.

use std::collections::{HashMap, HashSet};
use std::fmt;

use rialto_bridge::Violation;
use rialto_tensor::{Difference, Dtype};
use serde::Serialize;

use crate::Error;
use crate::filter::number_after;

use super::{Compared, Contents, Unit, VerifyOptions};

/// One of the two checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The first one.
    Ours,
    /// The second one.
    Theirs,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Ours => "ours",
            Side::Theirs => "theirs",
        })
    }
}

/// A part of the model, or of its encoding, that one side lacks altogether.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// What it is.
    pub name: String,
    /// The side that has it.
    pub side: Side,
    /// How many params or tensors it is.
    pub params: u64,
    /// Whether the user takes it for a difference.
    pub is_difference: bool,
}

/// Tensors that have one dtype on one side and another on the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DtypeDifference {
    /// Dtype of ours, decoded.
    pub ours: String,
    /// Dtype of theirs, decoded.
    pub theirs: String,
    /// How many tensors.
    pub tensors: u64,
    /// How many of their elements the narrower dtype does not hold: they were rounded before they were compared.
    pub rounded: u64,
    /// The first of the tensors.
    pub first: String,
}

/// A tensor whose values differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorDifference {
    /// Its name on the Hugging Face side.
    pub tensor: String,
    /// The number of its layer, if its name has one.
    pub layer: Option<u64>,
    /// The number of its expert, if its name has one.
    pub expert: Option<u64>,
    /// Which matrix of the layer or expert it is.
    pub matrix: String,
    /// The param it belongs to on the Megatron side.
    pub param: String,
    /// The dtype in which it was compared.
    pub dtype: String,
    /// How many elements differ.
    pub elements: u64,
    /// Of how many.
    pub of: u64,
    /// Index of the first that differs.
    pub first: Vec<u64>,
    /// The values there.
    pub values: (String, String),
    /// The largest distance in representable values, none where one side is not a number.
    pub largest_ulps: Option<u64>,
    /// The largest absolute difference.
    pub largest_absolute: Option<f64>,
    /// Elements that are not a number on one side alone.
    pub nans: u64,
}

impl TensorDifference {
    /// Adds what differs in another part of the tensor.
    fn join(&mut self, other: TensorDifference) {
        self.elements += other.elements;
        self.nans += other.nans;
        self.largest_ulps = self.largest_ulps.max(other.largest_ulps);
        let both = [self.largest_absolute, other.largest_absolute];
        self.largest_absolute = both.into_iter().flatten().reduce(f64::max);
        if other.first < self.first {
            (self.first, self.values) = (other.first, other.values);
            (self.param, self.dtype) = (other.param, other.dtype);
        }
    }
}

/// Tensors that have been added, by their positions in the mapping. One that a param takes apart comes in parts, which need not
/// follow each other.
#[derive(Default)]
pub(super) struct Tally {
    tensors: HashSet<usize>,
    /// With the two dtypes of those whose dtypes differ.
    dtypes: HashSet<(usize, (Dtype, Dtype))>,
    /// Where in the report each tensor stands that differs.
    differences: HashMap<usize, usize>,
}

/// Whether two checkpoints hold the same weights, and where they do not.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Whether they do.
    pub is_equal: bool,
    /// Name and format of the first one.
    pub ours: String,
    /// Name and format of the second one.
    pub theirs: String,
    /// Tensors compared.
    pub tensors: u64,
    /// Elements compared.
    pub elements: u64,
    /// Digest (BLAKE3) of names, shapes, dtypes and values, if those that both have are equal.
    pub digest: Option<String>,
    /// Tensors whose values differ.
    pub differences: Vec<TensorDifference>,
    /// What is missing, superfluous or of another shape, a line each.
    pub findings: Vec<String>,
    /// Dtypes that differ.
    pub dtypes: Vec<DtypeDifference>,
    /// Parts that one side lacks altogether.
    pub one_sided: Vec<Part>,
    /// What the user should know, a line each.
    pub notices: Vec<String>,
}

impl Report {
    pub(super) fn new(ours: &Contents<'_>, theirs: &Contents<'_>) -> Report {
        let shown = |side: &Contents<'_>| {
            let source = side.source();
            format!("{} ({})", source.name(), source.format())
        };
        let mut report = Report {
            is_equal: true,
            ours: shown(ours),
            theirs: shown(theirs),
            tensors: 0,
            elements: 0,
            digest: None,
            differences: Vec::new(),
            findings: Vec::new(),
            dtypes: Vec::new(),
            one_sided: Vec::new(),
            notices: Vec::new(),
        };
        for (side, contents) in [(Side::Ours, ours), (Side::Theirs, theirs)] {
            let notices = contents.notices.iter();
            report
                .notices
                .extend(notices.map(|notice| format!("{side}: {notice}")));
            // A dtype is compared with the other side's, not with what a conversion would take.
            let found = contents.violations.iter();
            let found = found.filter(|violation| !matches!(violation, Violation::Dtype { .. }));
            report
                .findings
                .extend(found.map(|violation| format!("{side}: {violation}")));
        }
        for (side, contents, other) in [(Side::Ours, ours, theirs), (Side::Theirs, theirs, ours)] {
            for (name, found, others) in [
                ("scales of encoded tensors", contents.scales, other.scales),
                (
                    "tensors that are there once more",
                    contents.copies(),
                    other.copies(),
                ),
            ] {
                if found > 0 && others == 0 {
                    report.one_sided.push(Part {
                        name: name.to_owned(),
                        side,
                        params: found,
                        is_difference: false,
                    });
                }
            }
        }
        report
    }

    /// Errors: a shape that overflows.
    pub(super) fn add(
        &mut self,
        unit: &Unit<'_>,
        compared: Compared,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        self.tensors += u64::from(tally.tensors.insert(unit.position));
        self.elements += compared.comparison.elements();
        if compared.dtypes.0 != compared.dtypes.1 {
            let is_first = tally.dtypes.insert((unit.position, compared.dtypes));
            let tensors = u64::from(is_first);
            self.add_dtypes(unit.tensor, tensors, compared.dtypes, compared.rounded);
        }
        if let Some(difference) = compared.comparison.difference() {
            let of = unit.shape.elements()?;
            self.add_difference(unit, compared.dtype, difference, of, tally);
        }
        Ok(())
    }

    fn add_dtypes(&mut self, tensor: &str, tensors: u64, dtypes: (Dtype, Dtype), rounded: u64) {
        let (ours, theirs) = (dtypes.0.to_string(), dtypes.1.to_string());
        let mut known = self.dtypes.iter_mut();
        match known.find(|known| known.ours == ours && known.theirs == theirs) {
            Some(known) => {
                known.tensors += tensors;
                known.rounded += rounded;
            }
            None => self.dtypes.push(DtypeDifference {
                ours,
                theirs,
                tensors,
                rounded,
                first: tensor.to_owned(),
            }),
        }
    }

    fn add_difference(
        &mut self,
        unit: &Unit<'_>,
        dtype: Dtype,
        found: Difference,
        of: u64,
        tally: &mut Tally,
    ) {
        let (ours, theirs) = found.first_values;
        let numbers = |before: &str| number_after(unit.tensor, before);
        let difference = TensorDifference {
            tensor: unit.tensor.to_owned(),
            layer: numbers("layers"),
            expert: numbers("experts"),
            matrix: matrix(unit.tensor).to_owned(),
            param: unit.param.to_owned(),
            dtype: dtype.to_string(),
            elements: found.elements,
            of,
            first: unit.tensor_region.index_of(found.first),
            values: (ours.to_string(), theirs.to_string()),
            largest_ulps: found.largest_ulps,
            largest_absolute: found.largest_absolute,
            nans: found.nans,
        };
        match tally.differences.get(&unit.position) {
            Some(&known) => self.differences[known].join(difference),
            None => {
                tally
                    .differences
                    .insert(unit.position, self.differences.len());
                self.differences.push(difference);
            }
        }
    }

    pub(super) fn finish(&mut self, options: &VerifyOptions, digest: &str) {
        for part in &mut self.one_sided {
            part.is_difference = options.is_strict_keys;
        }
        let is_strict = options.is_strict_dtype && !self.dtypes.is_empty();
        self.is_equal = self.differences.is_empty()
            && self.findings.is_empty()
            && !is_strict
            && !self.one_sided.iter().any(|part| part.is_difference);
        let holds_same = self.differences.is_empty() && self.findings.is_empty();
        self.digest = holds_same.then(|| digest.to_owned());
    }
}

/// A name without what stands before the last number, and without its ending: `gate_proj`, `self_attn.o_proj`.
fn matrix(name: &str) -> &str {
    let is_number = |component: &&str| component.parse::<u64>().is_ok();
    let after = match name.split('.').rfind(is_number) {
        Some(number) => name
            .rsplit_once(&format!(".{number}."))
            .map_or(name, |(_, after)| after),
        None => name,
    };
    after.strip_suffix(".weight").unwrap_or(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(param: &str, first: &[u64], nans: u64) -> TensorDifference {
        TensorDifference {
            tensor: "t".to_owned(),
            layer: None,
            expert: None,
            matrix: "t".to_owned(),
            param: param.to_owned(),
            dtype: "BF16".to_owned(),
            elements: 2,
            of: 100,
            first: first.to_vec(),
            values: (format!("ours of {param}"), format!("theirs of {param}")),
            largest_ulps: (nans == 0).then_some(first[0]),
            largest_absolute: (nans == 0).then_some(first[0] as f64),
            nans,
        }
    }

    #[test]
    fn parts_of_a_tensor_join_to_one_whichever_comes_first() {
        let (early, late) = (difference("a", &[1, 9], 0), difference("b", &[2, 0], 0));
        for (first, second) in [(&early, &late), (&late, &early)] {
            let mut joined = first.clone();
            joined.join(second.clone());
            let expected = TensorDifference {
                elements: 4,
                largest_ulps: Some(2),
                largest_absolute: Some(2.0),
                ..early.clone()
            };
            assert_eq!(joined, expected);
        }
        // A distance that one part has stands for both.
        let mut joined = difference("a", &[1, 9], 2);
        joined.join(late);
        assert_eq!((joined.nans, joined.largest_ulps), (2, Some(2)));
        assert_eq!(joined.largest_absolute, Some(2.0));
    }

    #[test]
    fn a_name_tells_layer_expert_and_matrix() {
        for (name, layer, expert, expected) in [
            (
                "model.layers.3.mlp.experts.17.gate_proj.weight",
                Some(3),
                Some(17),
                "gate_proj",
            ),
            (
                "model.layers.3.self_attn.o_proj.weight",
                Some(3),
                None,
                "self_attn.o_proj",
            ),
            (
                "model.layers.3.mlp.experts.gate_up_proj",
                Some(3),
                None,
                "mlp.experts.gate_up_proj",
            ),
            ("lm_head.weight", None, None, "lm_head"),
            ("layers.9", Some(9), None, "layers.9"),
        ] {
            let found = (
                number_after(name, "layers"),
                number_after(name, "experts"),
                matrix(name),
            );
            assert_eq!(found, (layer, expert, expected), "{name}");
        }
    }
}
