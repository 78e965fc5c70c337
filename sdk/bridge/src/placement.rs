//! How params are cut over a mesh: the table that makes chunks from boxes and changes no value.

use std::fmt;

use rialto_tensor::{Region, Shape};
use serde::{Deserialize, Serialize};

use crate::{Error, Mesh, MeshAxis};

/// Most chunks of a checkpoint, and so of one param: nine times as many as the largest model known makes with its experts cut in
/// two, and some hundred megabytes of a plan. Each is an item with a head, a tail and a line in `.metadata`.
pub const MAX_CHUNKS: u64 = 1 << 20;

/// Largest size of a dimension that a message offers.
const MAX_SIZE: u64 = 4096;

/// One cut along one axis of a param.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// How many consecutive indices no rank may part: the rows of a head.
    #[serde(default = "one")]
    pub granule: u64,
    /// What a granule is called in messages, in the plural: `attention heads`.
    #[serde(default = "indices")]
    pub of: String,
}

fn one() -> u64 {
    1
}

fn indices() -> String {
    "indices".to_owned()
}

impl Cut {
    /// One block of single indices along `axis`, shared by the ranks of `over`.
    #[must_use]
    pub fn new(axis: usize, over: MeshAxis, of: &str) -> Cut {
        Cut {
            axis,
            over,
            blocks: 1,
            is_stacked: false,
            granule: 1,
            of: of.to_owned(),
        }
    }

    /// With so many blocks, each cut on its own.
    #[must_use]
    pub fn blocks(mut self, blocks: u64) -> Cut {
        self.blocks = blocks;
        self
    }

    /// With so many indices that stay together.
    #[must_use]
    pub fn granule(mut self, granule: u64) -> Cut {
        self.granule = granule;
        self
    }

    /// With a chunk for every index.
    #[must_use]
    pub fn stacked(mut self) -> Cut {
        self.is_stacked = true;
        self
    }

    /// How many chunks it makes of a param along its axis; `None` without that axis.
    fn chunks(&self, shape: &Shape, mesh: &Mesh) -> Option<u64> {
        let &extent = shape.extents().get(self.axis)?;
        let fragments = self.blocks.saturating_mul(mesh.size(self.over));
        Some(if self.is_stacked { extent } else { fragments })
    }

    /// What the ranks of the dimension share, counted, of an axis of this extent. `None` if blocks and granules do not
    /// fill it.
    fn units(&self, extent: u64) -> Option<u64> {
        let unit = self.blocks.checked_mul(self.granule)?;
        (unit > 0 && extent.is_multiple_of(unit)).then(|| extent / unit)
    }
}

/// A dimension whose size does not divide what it should share out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshRefusal {
    /// The dimension.
    pub over: MeshAxis,
    /// Its size.
    pub size: u64,
    /// What it does not divide, as counts and names, each once.
    pub undivided: Vec<(u64, String)>,
    /// The sizes that divide everything.
    pub valid: Vec<u64>,
}

impl fmt::Display for MeshRefusal {
    /// Prints `--tp 2 does not divide 5 attention heads; valid for this model: 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MeshRefusal { over, size, .. } = self;
        let undivided = self
            .undivided
            .iter()
            .map(|(count, of)| format!("{count} {of}"));
        let undivided: Vec<String> = undivided.collect();
        let valid: Vec<String> = self.valid.iter().map(u64::to_string).collect();
        let valid = valid.join(", ");
        match undivided.as_slice() {
            [] => write!(
                f,
                "--{over} {size} finds nothing to divide; valid for this model: {valid}"
            ),
            _ => {
                let undivided = undivided.join(", ");
                write!(
                    f,
                    "--{over} {size} does not divide {undivided}; valid for this model: {valid}"
                )
            }
        }
    }
}

/// What the dimensions of a mesh divide among their ranks: for each thing its dimension, its count and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divided<'a>(Vec<(MeshAxis, u64, &'a str)>);

impl Divided<'_> {
    /// What one dimension divides, counted.
    fn of(&self, over: MeshAxis) -> impl Iterator<Item = (u64, &str)> {
        let units = self.0.iter().filter(move |(axis, ..)| *axis == over);
        units.map(|&(_, units, of)| (units, of))
    }

    /// The sizes of a dimension that divide everything, in order.
    #[must_use]
    pub fn sizes(&self, over: MeshAxis) -> Vec<u64> {
        let divides = |size: &u64| self.of(over).all(|(units, _)| units % size == 0);
        let most = self.of(over).map(|(units, _)| units).min().unwrap_or(1);
        (1..=most.min(MAX_SIZE)).filter(divides).collect()
    }
}

/// What one rank holds of a param.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Extents of the rank's part.
    pub extents: Vec<u64>,
    /// How many params the rank's model has for it: one for each index of a stack that it holds, else one.
    pub stacked: u64,
    /// Whether the ranks of the expert dimensions share it.
    pub is_expert: bool,
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
    /// Refuses a mesh that does not divide the params, each dimension with all that it does not divide and the sizes that
    /// would do. Errors: [`Error::Mesh`].
    pub fn check<'a>(
        &self,
        params: impl IntoIterator<Item = (&'a str, &'a Shape)>,
        mesh: &Mesh,
    ) -> Result<(), Error> {
        let divided = self.divided(params);
        let mut refusals = Vec::new();
        for over in MeshAxis::ALL {
            let size = mesh.size(over);
            let undivided = divided
                .of(over)
                .filter(|(units, _)| size == 0 || units % size != 0);
            let undivided: Vec<_> = undivided
                .map(|(units, of)| (units, of.to_owned()))
                .collect();
            let is_idle = divided.of(over).next().is_none();
            if size != 1 && (!undivided.is_empty() || size == 0 || is_idle) {
                refusals.push(MeshRefusal {
                    over,
                    size,
                    undivided,
                    valid: divided.sizes(over),
                });
            }
        }
        if refusals.is_empty() {
            Ok(())
        } else {
            Err(Error::Mesh {
                refusals,
                advice: None,
            })
        }
    }

    /// What each dimension of a mesh divides among its ranks.
    pub fn divided<'a>(
        &self,
        params: impl IntoIterator<Item = (&'a str, &'a Shape)>,
    ) -> Divided<'_> {
        let mut units: Vec<(MeshAxis, u64, &str)> = Vec::new();
        for (param, shape) in params {
            for cut in self.rule(param).iter().flat_map(|rule| &rule.cuts) {
                let extent = shape.extents().get(cut.axis);
                let unit = extent.and_then(|&extent| cut.units(extent));
                let unit = unit.map(|units| (cut.over, units, cut.of.as_str()));
                units.extend(unit.filter(|unit| !units.contains(unit)));
            }
        }
        Divided(units)
    }

    /// What each rank holds of a param, on a mesh that [`Placement::check`] has passed.
    ///
    /// Errors: [`Error::Unsupported`] as for [`Placement::chunks`].
    pub fn share(&self, param: &str, shape: &Shape, mesh: &Mesh) -> Result<Share, Error> {
        let rule = self.rule(param).ok_or_else(|| no_rule(param))?;
        let mut share = Share {
            extents: shape.extents().to_vec(),
            stacked: 1,
            is_expert: false,
        };
        for cut in &rule.cuts {
            let ranks = mesh.size(cut.over);
            let extent = share
                .extents
                .get_mut(cut.axis)
                .ok_or_else(|| no_axis(param, cut, shape))?;
            if ranks == 0 || !extent.is_multiple_of(ranks) {
                return Err(undivided(param, cut, shape, ranks));
            }
            *extent /= ranks;
            if cut.is_stacked {
                share.stacked *= *extent;
            }
            share.is_expert |= cut.over != MeshAxis::Tp;
        }
        Ok(share)
    }

    /// How many chunks the params make on a mesh, whether or not it divides them. Nothing is built.
    pub fn count<'a>(
        &self,
        params: impl IntoIterator<Item = (&'a str, &'a Shape)>,
        mesh: &Mesh,
    ) -> u64 {
        let params = params.into_iter().map(|(param, shape)| {
            let cuts = self.rule(param).into_iter().flat_map(|rule| &rule.cuts);
            let counts = cuts.map(|cut| cut.chunks(shape, mesh).unwrap_or(1));
            counts.fold(1, u64::saturating_mul)
        });
        params.fold(0, u64::saturating_add)
    }

    /// Refuses a mesh on which the params are more chunks than are written. Errors: [`Error::Chunks`].
    pub fn check_count<'a>(
        &self,
        params: impl IntoIterator<Item = (&'a str, &'a Shape)>,
        mesh: &Mesh,
    ) -> Result<(), Error> {
        match self.count(params, mesh) {
            0..=MAX_CHUNKS => Ok(()),
            chunks => Err(Error::Chunks {
                mesh: *mesh,
                chunks,
            }),
        }
    }

    fn rule(&self, param: &str) -> Option<&PlacementRule> {
        self.rules.iter().find(|rule| matches(&rule.param, param))
    }

    /// The chunks in which Megatron itself would write the param on this mesh, in row-major order, each made when it is asked
    /// for.
    ///
    /// Errors: [`Error::Unsupported`] if no rule matches, if an axis is not there, or if an extent cannot be divided
    /// ([`Placement::check`] says which sizes would divide all of them); [`Error::Chunks`] for too many of them.
    pub fn chunks(
        &self,
        param: &str,
        shape: &Shape,
        mesh: &Mesh,
    ) -> Result<impl Iterator<Item = Region> + use<>, Error> {
        let rule = self.rule(param).ok_or_else(|| no_rule(param))?;
        let mut counts = vec![1; shape.rank()];
        for cut in &rule.cuts {
            let extent = shape.extents().get(cut.axis);
            let &extent = extent.ok_or_else(|| no_axis(param, cut, shape))?;
            let ranks = mesh.size(cut.over);
            let divides = |units: &u64| ranks > 0 && units.is_multiple_of(ranks);
            if cut.units(extent).filter(divides).is_none() {
                return Err(undivided(param, cut, shape, ranks));
            }
            counts[cut.axis] = cut.chunks(shape, mesh).unwrap_or(1);
        }
        self.check_count([(param, shape)], mesh)?;
        let axes = shape.extents().iter().zip(&counts);
        let sizes: Vec<u64> = axes.map(|(extent, count)| extent / count).collect();
        let total: u64 = counts.iter().product();
        Ok((0..total).map(move |chunk| {
            let (mut offsets, mut rest) = (vec![0; sizes.len()], chunk);
            for axis in (0..sizes.len()).rev() {
                offsets[axis] = rest % counts[axis] * sizes[axis];
                rest /= counts[axis];
            }
            Region::new(offsets, sizes.as_slice())
        }))
    }
}

fn no_rule(param: &str) -> Error {
    unsupported(
        format!("placement of param {param}"),
        "no rule",
        "a rule for every param",
    )
}

fn no_axis(param: &str, cut: &Cut, shape: &Shape) -> Error {
    unsupported(
        format!("a cut of {param}"),
        &format!("axis {}", cut.axis),
        &format!("axes below {}", shape.rank()),
    )
}

fn undivided(param: &str, cut: &Cut, shape: &Shape, ranks: u64) -> Error {
    unsupported(
        format!("{} for axis {} of {param} {shape}", cut.over, cut.axis),
        &ranks.to_string(),
        &format!("sizes that divide {} blocks of {}", cut.blocks, cut.granule),
    )
}

fn unsupported(what: String, found: &str, supported: &str) -> Error {
    Error::Unsupported {
        what,
        found: found.to_owned(),
        supported: supported.to_owned(),
    }
}

/// Whether `name` is `pattern` with some run of characters for each `*`.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
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
        let rule = |param: &str, cuts: &[Cut]| PlacementRule {
            param: param.to_owned(),
            cuts: cuts.to_vec(),
        };
        let gate_and_up = |over| Cut::new(0, over, "rows").blocks(2);
        Placement {
            rules: vec![
                rule(
                    "*.experts.*.fc1",
                    &[
                        Cut::new(0, MeshAxis::Ep, "experts").stacked(),
                        Cut {
                            axis: 1,
                            ..gate_and_up(MeshAxis::Etp)
                        },
                    ],
                ),
                rule("*.fc1", &[gate_and_up(MeshAxis::Tp)]),
                rule("*.q", &[Cut::new(0, MeshAxis::Tp, "heads").granule(4)]),
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
            chunks.collect::<Vec<_>>(),
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
        assert_eq!(chunks.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_mesh_is_refused_with_all_that_it_does_not_divide_and_the_sizes_that_would() {
        let shapes = [
            ("a.fc1", Shape::new([24, 3])),
            ("b.fc1", Shape::new([24, 3])),
            ("a.q", Shape::new([24, 3])),
            ("a.norm", Shape::new([3])),
            ("a.experts.x.fc1", Shape::new([5, 8, 3])),
        ];
        let params = || shapes.iter().map(|(name, shape)| (*name, shape));
        let check = |tp, ep, etp| table().check(params(), &Mesh { tp, pp: 1, ep, etp });
        for (tp, ep, etp) in [(1, 1, 1), (2, 5, 4), (6, 1, 2), (3, 1, 1)] {
            assert_eq!(check(tp, ep, etp), Ok(()), "{tp} {ep} {etp}");
        }
        let refused = |tp, ep, etp| check(tp, ep, etp).unwrap_err().to_string();
        assert_eq!(
            refused(4, 1, 1),
            "--tp 4 does not divide 6 heads; valid for this model: 1, 2, 3, 6"
        );
        assert_eq!(
            refused(5, 2, 8),
            "--tp 5 does not divide 12 rows, 6 heads; valid for this model: 1, 2, 3, 6; \
             --ep 2 does not divide 5 experts; valid for this model: 1, 5; \
             --etp 8 does not divide 4 rows; valid for this model: 1, 2, 4"
        );
        assert!(refused(0, 1, 1).starts_with("--tp 0 does not divide"));
        let dense = [("a.norm", &shapes[3].1)];
        let idle = Mesh {
            ep: 2,
            ..Mesh::SINGLE
        };
        assert_eq!(
            table().check(dense, &idle).unwrap_err().to_string(),
            "--ep 2 finds nothing to divide; valid for this model: 1"
        );
        // Refused by the table as a whole, and by each param alone.
        let tp = Mesh {
            tp: 4,
            ..Mesh::SINGLE
        };
        assert!(table().chunks("a.q", &Shape::new([24, 3]), &tp).is_err());
    }

    #[test]
    fn a_share_is_what_one_rank_of_each_dimension_holds() {
        let mesh = Mesh {
            tp: 2,
            pp: 3,
            ep: 5,
            etp: 4,
        };
        let share = |name: &str, extents: &[u64]| {
            let share = table()
                .share(name, &Shape::new(extents.to_vec()), &mesh)
                .unwrap();
            (share.extents, share.stacked, share.is_expert)
        };
        assert_eq!(
            share("a.experts.x.fc1", &[10, 8, 3]),
            (vec![2, 2, 3], 2, true)
        );
        assert_eq!(share("a.fc1", &[24, 3]), (vec![12, 3], 1, false));
        assert_eq!(share("a.norm", &[24]), (vec![24], 1, false));
        assert!(table().share("a.fc1", &Shape::new([25, 3]), &mesh).is_err());
        assert!(table().share("a.bias", &Shape::new([8]), &mesh).is_err());
    }

    #[test]
    fn chunks_are_counted_as_they_are_made_and_too_many_are_refused_unmade() {
        let shapes = [
            ("a.experts.x.fc1", Shape::new([4, 48, 3])),
            ("b.experts.x.fc1", Shape::new([4, 48, 3])),
            ("a.fc1", Shape::new([24, 3])),
            ("a.q", Shape::new([24, 3])),
            ("a.norm", Shape::new([24])),
        ];
        let params = || shapes.iter().map(|(name, shape)| (*name, shape));
        for (tp, ep, etp) in [(1, 1, 1), (2, 4, 3), (3, 2, 24), (6, 1, 8)] {
            let mesh = Mesh { tp, pp: 1, ep, etp };
            let made = params().map(|(name, shape)| table().chunks(name, shape, &mesh).unwrap());
            let made: usize = made.map(Iterator::count).sum();
            assert_eq!(table().count(params(), &mesh), made as u64, "{mesh}");
            // Two stacks of so many experts in two blocks, one param in two blocks, one in one, one whole.
            assert_eq!(made as u64, 2 * 4 * 2 * etp + 2 * tp + tp + 1);
        }
        // As many as are written in two params, and one param that is too many alone.
        let stack = |experts: u64| Shape::new([experts, 8, 3]);
        let (half, whole) = (stack(MAX_CHUNKS / 4), stack(MAX_CHUNKS / 2));
        let over = stack(MAX_CHUNKS / 2 + 1);
        let pair = [("a.experts.x.fc1", &half), ("b.experts.x.fc1", &half)];
        let norm = Shape::new([8]);
        assert_eq!(table().check_count(pair, &Mesh::SINGLE), Ok(()));
        let third = pair.into_iter().chain([("a.norm", &norm)]);
        let error = table().check_count(third, &Mesh::SINGLE).unwrap_err();
        assert_eq!(
            error.to_string(),
            "mesh tp 1 pp 1 ep 1 etp 1 makes 1048577 chunks, at most 1048576 are written"
        );
        assert_eq!((error.slug(), error.code()), ("bridge/chunks", 3));
        let chunks = |shape| table().chunks("a.experts.x.fc1", shape, &Mesh::SINGLE);
        assert_eq!(chunks(&whole).unwrap().count() as u64, MAX_CHUNKS);
        assert!(matches!(chunks(&over), Err(Error::Chunks { .. })));
    }

    #[test]
    fn a_param_without_a_rule_is_named() {
        let error = table()
            .chunks("l.0.bias", &Shape::new([8]), &Mesh::SINGLE)
            .err()
            .unwrap();
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
            let chunks: Vec<Region> = chunks.collect();
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
