//! How params are cut over a mesh: the table that makes chunks from boxes and changes no value.

use std::fmt;

use rialto_tensor::{Region, Shape};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Most chunks of one param.
const LIMIT: u64 = 1 << 20;

/// Sizes of the parallel dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mesh {
    /// Tensor parallel ranks.
    pub tp: u64,
    /// Pipeline stages.
    pub pp: u64,
    /// Expert parallel ranks.
    pub ep: u64,
    /// Tensor parallel ranks inside an expert.
    pub etp: u64,
}

impl Mesh {
    /// One rank.
    pub const SINGLE: Mesh = Mesh {
        tp: 1,
        pp: 1,
        ep: 1,
        etp: 1,
    };

    /// The size of one dimension.
    #[must_use]
    pub fn size(&self, axis: MeshAxis) -> u64 {
        match axis {
            MeshAxis::Tp => self.tp,
            MeshAxis::Ep => self.ep,
            MeshAxis::Etp => self.etp,
        }
    }
}

impl fmt::Display for Mesh {
    /// Prints `tp 1 pp 2 ep 8 etp 2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "tp {} pp {} ep {} etp {}",
            self.tp, self.pp, self.ep, self.etp
        )
    }
}

/// A dimension that cuts params.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeshAxis {
    /// Tensor parallel.
    Tp,
    /// Expert parallel.
    Ep,
    /// Expert tensor parallel.
    Etp,
}

impl fmt::Display for MeshAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MeshAxis::Tp => "tp",
            MeshAxis::Ep => "ep",
            MeshAxis::Etp => "etp",
        })
    }
}

/// One cut along one axis of a param.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cut {
    /// The axis of the param.
    pub axis: usize,
    /// The dimension whose ranks share the axis.
    pub over: MeshAxis,
    /// How many blocks stand one after the other on the axis, each cut over the ranks on its own (gate and up: 2).
    #[serde(default = "one")]
    pub blocks: u64,
    /// Whether every index of the axis is a chunk of its own (stacked experts), whatever the rank count.
    #[serde(default)]
    pub is_stacked: bool,
}

fn one() -> u64 {
    1
}

/// Where the params that match a pattern are cut; no cut means that every rank holds all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementRule {
    /// The key of the param, where `*` stands for any run of characters.
    pub param: String,
    /// The cuts, at most one an axis.
    #[serde(default)]
    pub cuts: Vec<Cut>,
}

/// A family's placement table; the first rule that matches a param decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// The rules.
    pub rules: Vec<PlacementRule>,
}

impl Placement {
    /// The chunks in which Megatron itself would write the param on this mesh, in row-major order.
    ///
    /// Errors: [`Error::Unsupported`] if no rule matches, if an axis is not there, or if an extent cannot be divided; the
    /// sizes that would divide it are given.
    pub fn chunks(&self, param: &str, shape: &Shape, mesh: &Mesh) -> Result<Vec<Region>, Error> {
        let Some(rule) = self.rules.iter().find(|rule| matches(&rule.param, param)) else {
            return Err(unsupported(
                format!("placement of param {param}"),
                "no rule",
                "a rule for every param",
            ));
        };
        let mut counts = vec![1; shape.rank()];
        for cut in &rule.cuts {
            let Some(&extent) = shape.extents().get(cut.axis) else {
                let axes = format!("axes below {}", shape.rank());
                return Err(unsupported(
                    format!("a cut of {param}"),
                    &format!("axis {}", cut.axis),
                    &axes,
                ));
            };
            let (ranks, blocks) = (mesh.size(cut.over), cut.blocks);
            let fragments = blocks
                .checked_mul(ranks)
                .filter(|&count| count > 0 && extent % count == 0);
            let Some(fragments) = fragments else {
                let fits = (1..=extent.min(1024))
                    .filter(|size| blocks > 0 && extent % (size * blocks) == 0);
                let fits: Vec<String> = fits.map(|size| size.to_string()).collect();
                let what = format!(
                    "{} for axis {} of {param} {shape} in {blocks} blocks",
                    cut.over, cut.axis
                );
                return Err(unsupported(what, &ranks.to_string(), &fits.join(", ")));
            };
            counts[cut.axis] = if cut.is_stacked { extent } else { fragments };
        }
        let total = counts
            .iter()
            .try_fold(1u64, |total, &count| total.checked_mul(count));
        if total.is_none_or(|total| total > LIMIT) {
            let found = format!("{counts:?} along the axes of {shape}");
            return Err(unsupported(
                format!("chunks of {param}"),
                &found,
                &format!("up to {LIMIT}"),
            ));
        }
        let sizes: Vec<u64> = shape
            .extents()
            .iter()
            .zip(&counts)
            .map(|(extent, count)| extent / count)
            .collect();
        let mut chunks = vec![Vec::with_capacity(shape.rank())];
        for (count, size) in counts.iter().zip(&sizes) {
            let along = |prefix: &Vec<u64>| {
                let prefix = prefix.clone();
                (0..*count).map(move |position| [prefix.as_slice(), &[position * size]].concat())
            };
            chunks = chunks.iter().flat_map(along).collect();
        }
        Ok(chunks
            .into_iter()
            .map(|offsets| Region::new(offsets, sizes.clone()))
            .collect())
    }
}

fn unsupported(what: String, found: &str, supported: &str) -> Error {
    Error::Unsupported {
        what,
        found: found.to_owned(),
        supported: supported.to_owned(),
    }
}

/// Whether `name` is `pattern` with some run of characters for each `*`.
fn matches(pattern: &str, name: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut pieces: Vec<&str> = pieces.collect();
    let Some(last) = pieces.pop() else {
        return rest.is_empty();
    };
    for piece in pieces {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Placement {
        let cut = |axis, over, blocks, is_stacked| Cut {
            axis,
            over,
            blocks,
            is_stacked,
        };
        let rule = |param: &str, cuts: &[Cut]| PlacementRule {
            param: param.to_owned(),
            cuts: cuts.to_vec(),
        };
        Placement {
            rules: vec![
                rule(
                    "*.experts.*.fc1",
                    &[
                        cut(0, MeshAxis::Ep, 1, true),
                        cut(1, MeshAxis::Etp, 2, false),
                    ],
                ),
                rule("*.fc1", &[cut(0, MeshAxis::Tp, 2, false)]),
                rule("*.norm", &[]),
            ],
        }
    }

    #[test]
    fn gate_and_up_are_chunks_of_their_own_even_on_one_rank() {
        let chunks = table()
            .chunks("l.0.fc1", &Shape::new([8, 3]), &Mesh::SINGLE)
            .unwrap();
        assert_eq!(
            chunks,
            [Region::new([0, 0], [4, 3]), Region::new([4, 0], [4, 3])]
        );
    }

    #[test]
    fn stacked_experts_are_chunks_of_their_own() {
        let mesh = Mesh {
            ep: 2,
            etp: 2,
            ..Mesh::SINGLE
        };
        let chunks = table()
            .chunks("l.0.experts.x.fc1", &Shape::new([2, 8, 3]), &mesh)
            .unwrap();
        let expected: Vec<Region> = (0..2)
            .flat_map(|e| (0..4).map(move |row| Region::new([e, 2 * row, 0], [1, 2, 3])))
            .collect();
        assert_eq!(chunks, expected);
    }

    #[test]
    fn a_mesh_that_does_not_divide_is_refused_with_the_sizes_that_do() {
        let mesh = Mesh {
            tp: 3,
            ..Mesh::SINGLE
        };
        let error = table()
            .chunks("l.0.fc1", &Shape::new([8, 3]), &mesh)
            .unwrap_err();
        let expected = "tp for axis 0 of l.0.fc1 [8, 3] in 2 blocks is not supported: found 3, supported: 1, 2, 4";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_param_without_a_rule_is_named() {
        let error = table()
            .chunks("l.0.bias", &Shape::new([8]), &Mesh::SINGLE)
            .unwrap_err();
        assert!(error.to_string().contains("l.0.bias"), "{error}");
    }

    #[test]
    fn chunks_tile_the_param_for_every_mesh_that_divides_it() {
        for (ep, etp) in [(1, 1), (2, 1), (4, 2), (2, 4)] {
            let shape = Shape::new([4, 16, 3]);
            let chunks = table()
                .chunks(
                    "l.experts.y.fc1",
                    &shape,
                    &Mesh {
                        ep,
                        etp,
                        ..Mesh::SINGLE
                    },
                )
                .unwrap();
            assert!(rialto_tensor::tiling_faults(&shape, &chunks).is_empty());
        }
    }

    #[test]
    fn a_star_stands_for_any_run_of_characters() {
        for (pattern, name, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a.*.c", "a.b.c", true),
            ("a.*.c", "a..c", true),
            ("a.*.c", "a.c", false),
            ("*", "", true),
            ("*.b.*.b", "a.b.b", false),
            ("*.b.*.b", "a.b.x.b", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
