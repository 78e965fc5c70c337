//! Params that are longer than their tensors fill.
//!
//! Megatron rounds the vocabulary up, so that its tensor parallel ranks share it evenly. No piece reaches what lies beyond:
//! an import writes zeros there, and an export does not read it.

use std::collections::{BTreeMap, HashMap};

use rialto_tensor::{Region, Shape};
use serde::{Deserialize, Serialize};

use crate::{Error, KeyDecl, MapRule, Mapping, Mesh, ParamDecl, StoredTensor, Violation};

/// The axis on which a param may be longer than its tensors fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Padding {
    /// The axis of the param.
    pub axis: usize,
    /// An import makes the axis a multiple of this for each tensor parallel rank: Megatron's `make_vocab_size_divisible_by`.
    /// An export takes any length.
    pub multiple: u64,
}

impl Padding {
    /// The length of an axis that is filled so far, for so many ranks. `None` if there is none.
    #[must_use]
    pub fn extent(&self, filled: u64, ranks: u64) -> Option<u64> {
        let unit = self.multiple.checked_mul(ranks)?;
        filled.checked_next_multiple_of(unit)
    }

    /// Refuses a padding that its rule cannot have.
    pub(crate) fn check(&self, rule: &MapRule) -> Result<(), Error> {
        let Padding { axis, multiple } = *self;
        let state = rule.state.as_ref().and_then(|state| state.axis);
        let reason = if axis >= rule.shape.len() {
            format!("padding on axis {axis} of {} axes", rule.shape.len())
        } else if multiple == 0 {
            "padding to a multiple of 0".to_owned()
        } else if rule.beside.is_some() {
            // It is ours alone: no Megatron ever shares it out.
            "padding of a param that is kept beside Megatron's own".to_owned()
        } else if state == Some(axis) {
            format!("padding on axis {axis}, each index of which has an object")
        } else {
            return Ok(());
        };
        Err(Error::Template {
            template: rule.param.clone(),
            reason,
        })
    }
}

impl ParamDecl {
    /// The extents of an axis, filled and stored, if it is longer than its tensors fill.
    #[must_use]
    pub fn excess(&self, axis: usize) -> Option<(u64, u64)> {
        let extent = |shape: &Shape| shape.extents().get(axis).copied();
        let (filled, stored) = (extent(&self.filled)?, extent(&self.shape)?);
        (filled < stored).then_some((filled, stored))
    }
}

impl Mapping {
    /// The positions of the params that may be padded.
    pub fn paddings(&self) -> impl Iterator<Item = (usize, Padding)> + '_ {
        let params = self.params.iter().enumerate();
        params.filter_map(|(at, param)| Some((at, self.rule(param.rule).padding?)))
    }

    /// The same with params as long as Megatron makes them on a mesh.
    ///
    /// Errors: [`Error::Unsupported`] for a length beyond 64 bits, and for no ranks.
    pub fn padded(mut self, mesh: &Mesh) -> Result<Mapping, Error> {
        let paddings: Vec<_> = self.paddings().collect();
        for (param, padding) in paddings {
            let declared = &self.params[param];
            let filled = declared.filled.extents()[padding.axis];
            let Some(extent) = padding.extent(filled, mesh.tp) else {
                return Err(Error::Unsupported {
                    what: format!("the padded length of {} {}", declared.name, declared.filled),
                    found: format!("multiples of {} for {} ranks", padding.multiple, mesh.tp),
                    supported: "1 rank or more, and a length below 2^64".to_owned(),
                });
            };
            self.lengthen(param, padding.axis, extent);
        }
        Ok(self)
    }

    /// The same with params as long as a Megatron checkpoint has them. One that is longer on another axis, or has keys of
    /// unlike lengths, stays as it is and does not fit.
    #[must_use]
    pub fn padded_as(mut self, inventory: &[StoredTensor]) -> Mapping {
        let stored = inventory.iter();
        let stored: HashMap<&str, &Shape> = stored
            .map(|tensor| (tensor.name.as_str(), &tensor.shape))
            .collect();
        let paddings: Vec<_> = self.paddings().collect();
        for (param, padding) in paddings {
            if let Some(extent) = self.stored_extent(param, padding.axis, &stored) {
                self.lengthen(param, padding.axis, extent);
            }
        }
        self
    }

    /// The length of a param's axis in a checkpoint, if all keys that reach its end agree and are otherwise as they should be.
    fn stored_extent(
        &self,
        param: usize,
        axis: usize,
        stored: &HashMap<&str, &Shape>,
    ) -> Option<u64> {
        let declared = &self.params[param].shape;
        let of_param = self.keys.iter().filter(|key| key.param == param);
        let last = of_param.filter(|key| reaches_end(key, declared, axis));
        let mut found = None;
        for key in last {
            // What is missing will be said of the key itself.
            let Some(shape) = stored.get(key.name.as_str()) else {
                continue;
            };
            let more = more_than(&key.shape, shape, axis_of_key(key, axis)?)?;
            let extent = declared.extents()[axis].checked_add(more)?;
            if *found.get_or_insert(extent) != extent {
                return None;
            }
        }
        found
    }

    /// Makes a param's axis so long, and with it every key that reaches its end.
    fn lengthen(&mut self, param: usize, axis: usize, extent: u64) {
        let before = self.params[param].shape.clone();
        let Some(more) = extent.checked_sub(before.extents()[axis]) else {
            return;
        };
        let longer = |extents: &[u64], axis: usize| {
            let mut extents = extents.to_vec();
            extents[axis] += more;
            extents
        };
        let of_param = self.keys.iter_mut().filter(|key| key.param == param);
        for key in of_param.filter(|key| reaches_end(key, &before, axis)) {
            if let Some(in_key) = axis_of_key(key, axis) {
                key.shape = Shape::new(longer(key.shape.extents(), in_key));
                let sizes = longer(key.region.sizes(), axis);
                key.region = Region::new(key.region.offsets(), sizes);
            }
        }
        self.params[param].shape = Shape::new(longer(before.extents(), axis));
    }

    /// Params that hold one axis of the model, the vocabulary, and are longer by unlike lengths: no Megatron makes such a
    /// model. Of those for which `is_there` holds.
    pub(crate) fn unlike_paddings(&self, is_there: impl Fn(usize) -> bool) -> Vec<Violation> {
        let mut first_of: BTreeMap<u64, (&ParamDecl, u64)> = BTreeMap::new();
        let mut unlike = Vec::new();
        for (param, padding) in self.paddings().filter(|(param, _)| is_there(*param)) {
            let declared = &self.params[param];
            let extent = |shape: &Shape| shape.extents()[padding.axis];
            let (filled, stored) = (extent(&declared.filled), extent(&declared.shape));
            let (first, like) = *first_of.entry(filled).or_insert((declared, stored));
            if stored != like {
                unlike.push(Violation::Paddings {
                    first: (first.name.clone(), first.shape.clone()),
                    second: (declared.name.clone(), declared.shape.clone()),
                    filled,
                });
            }
        }
        unlike
    }
}

/// Whether a key holds the last indices of an axis of its param.
fn reaches_end(key: &KeyDecl, param: &Shape, axis: usize) -> bool {
    key.region.offsets()[axis] + key.region.sizes()[axis] == param.extents()[axis]
}

/// The axis of a key that is an axis of its param: the last axes are the same, unit axes stand in front of them.
fn axis_of_key(key: &KeyDecl, axis: usize) -> Option<usize> {
    (axis + key.shape.rank()).checked_sub(key.region.rank())
}

/// By how much a shape is longer than it should be on an axis, if it differs nowhere else.
fn more_than(expected: &Shape, found: &Shape, axis: usize) -> Option<u64> {
    if expected.rank() != found.rank() {
        return None;
    }
    let mut pairs = expected.extents().iter().zip(found.extents()).enumerate();
    let is_like = pairs.all(|(at, (expected, found))| at == axis || expected == found);
    let more = found.extents()[axis].checked_sub(expected.extents()[axis]);
    more.filter(|_| is_like)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rialto_tensor::Dtype;

    use super::*;
    use crate::{DtypeRule, Form, Forms, ModuleState, Part, StateValue, WeightMap};

    /// Seven tokens in a matrix of three columns, a head for them, and a matrix that happens to have seven rows.
    fn map() -> WeightMap {
        let rule = |name: &str| {
            MapRule::new(name, "test", name, [7, 3])
                .dtype(DtypeRule::any_of([Dtype::Bf16]))
                .part(Part::new(&format!("hf.{name}"), [7, 3]))
        };
        let columns = |number: u64, extent: u64| {
            let at = number.to_string();
            Part::new(&format!("embedding.column.{number}"), [7, extent]).at(["0", &at])
        };
        let rows = |name: &str, extent: u64, at: &str| Part::new(name, [extent, 3]).at([at, "0"]);
        let lower = Form::new("rows", [rows("head.a", 4, "0"), rows("head.b", 3, "4")]);
        WeightMap::new([
            rule("embedding")
                .padded(0, 4)
                .params_also(Form::new("columns", [columns(0, 1), columns(1, 2)])),
            rule("head").padded(0, 4).params_also(lower),
            rule("other"),
        ])
    }

    fn stored(tensors: &[(&str, [u64; 2])]) -> Vec<StoredTensor> {
        let stored = tensors.iter().map(|(name, shape)| StoredTensor {
            name: (*name).to_owned(),
            dtype: Dtype::Bf16,
            shape: Shape::new(*shape),
            place: "file".to_owned(),
        });
        stored.collect()
    }

    /// The mapping in the spelling of an inventory, as long as it is there.
    fn read(inventory: &[StoredTensor]) -> Mapping {
        let names = inventory.iter().map(|stored| stored.name.as_str());
        let forms = Forms::own(&map());
        let forms = forms.of_params(&map(), &names.collect()).unwrap();
        map().resolve_as(&forms).unwrap().padded_as(inventory)
    }

    fn shapes(mapping: &Mapping) -> Vec<(String, Vec<u64>)> {
        let keys = mapping.keys.iter();
        keys.map(|key| (key.name.clone(), key.shape.extents().to_vec()))
            .collect()
    }

    fn findings(inventory: &[StoredTensor]) -> Vec<String> {
        let found = read(inventory).find_params(inventory).violations;
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn lengths_for_a_mesh_are_those_of_megatron_and_pieces_stay_where_they_are() {
        let resolved = map().resolve().unwrap();
        for (tp, rows) in [(1, 8), (2, 8), (3, 12), (5, 20)] {
            let mesh = Mesh { tp, ..Mesh::SINGLE };
            let padded = resolved.clone().padded(&mesh).unwrap();
            let lengths = padded.params.iter().map(|param| param.shape.extents()[0]);
            assert_eq!(lengths.collect::<Vec<_>>(), [rows, rows, 7]);
            let filled = padded.params.iter().map(|param| param.filled.extents()[0]);
            assert_eq!(filled.collect::<Vec<_>>(), [7, 7, 7]);
            assert_eq!(
                (&padded.pieces, &padded.tensors),
                (&resolved.pieces, &resolved.tensors)
            );
            for key in &padded.keys {
                assert_eq!(key.region, Region::whole(&padded.params[key.param].shape));
            }
            let excess = padded.params[0].excess(0);
            assert_eq!(
                (excess, padded.params[0].excess(1)),
                (Some((7, rows)), None)
            );
        }
        let none = Mesh {
            tp: 0,
            ..Mesh::SINGLE
        };
        let error = resolved.padded(&none).unwrap_err();
        assert_eq!(error.slug(), "bridge/unsupported", "{error}");
    }

    #[test]
    fn a_checkpoint_is_read_as_long_as_it_is_whatever_the_multiple() {
        for rows in [7, 8, 9, 1000] {
            let inventory = stored(&[
                ("embedding", [rows, 3]),
                ("head", [rows, 3]),
                ("other", [7, 3]),
            ]);
            assert_eq!(findings(&inventory), [""; 0], "{rows}");
            assert_eq!(read(&inventory).params[1].shape, Shape::new([rows, 3]));
        }
    }

    #[test]
    fn of_a_param_in_several_keys_those_at_its_end_are_longer() {
        let inventory = stored(&[
            ("embedding.column.0", [9, 1]),
            ("embedding.column.1", [9, 2]),
            ("head.a", [4, 3]),
            ("head.b", [5, 3]),
            ("other", [7, 3]),
        ]);
        assert_eq!(findings(&inventory), [""; 0]);
        let mapping = read(&inventory);
        for param in 0..3 {
            let keys = mapping.keys.iter().filter(|key| key.param == param);
            let regions: Vec<Region> = keys.map(|key| key.region.clone()).collect();
            let shape = &mapping.params[param].shape;
            assert!(rialto_tensor::tiling_faults(shape, &regions).is_empty());
        }
        let expected = inventory.iter().map(|tensor| {
            let shape = tensor.shape.extents().to_vec();
            (tensor.name.clone(), shape)
        });
        assert_eq!(shapes(&mapping), expected.collect::<Vec<_>>());
        // Columns of unlike lengths are no matrix.
        let unlike = stored(&[
            ("embedding.column.0", [9, 1]),
            ("embedding.column.1", [8, 2]),
            ("head", [9, 3]),
            ("other", [7, 3]),
        ]);
        let found = findings(&unlike);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found
                .iter()
                .all(|line| line.starts_with("embedding.column."))
        );
    }

    #[test]
    fn what_is_no_padding_is_a_shape_error_as_ever() {
        for (embedding, head, other, named) in [
            ([6, 3], [7, 3], [7, 3], "embedding has shape [6, 3]"),
            ([7, 4], [7, 3], [7, 3], "embedding has shape [7, 4]"),
            ([9, 4], [9, 3], [7, 3], "embedding has shape [9, 4]"),
            ([9, 3], [6, 3], [7, 3], "head has shape [6, 3]"),
            ([9, 3], [9, 3], [9, 3], "other has shape [9, 3]"),
        ] {
            let inventory = [("embedding", embedding), ("head", head), ("other", other)];
            let found = findings(&stored(&inventory));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with(named), "{found:?}");
            assert!(found[0].ends_with("expected [7, 3]"), "{found:?}");
        }
    }

    #[test]
    fn params_of_one_vocabulary_are_padded_alike() {
        for (embedding, head) in [(9, 8), (7, 8), (9, 7)] {
            let found = findings(&stored(&[
                ("embedding", [embedding, 3]),
                ("head", [head, 3]),
                ("other", [7, 3]),
            ]));
            let expected = format!(
                "embedding has shape [{embedding}, 3] and head has [{head}, 3], expected 7 padded alike"
            );
            assert_eq!(found, [expected]);
        }
        // One that is missing is said to be, and no more.
        let found = findings(&stored(&[("embedding", [9, 3]), ("other", [7, 3])]));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("head is missing"), "{found:?}");
    }

    #[test]
    fn a_padding_that_a_rule_cannot_have_is_refused() {
        let rule = || {
            MapRule::new("w", "test", "w", [7, 3])
                .dtype(DtypeRule::any_of([Dtype::Bf16]))
                .part(Part::new("hf.w", [7, 3]))
        };
        let state = ModuleState {
            module: "w".to_owned(),
            value: StateValue::None,
            axis: Some(0),
        };
        for (rule, reason) in [
            (rule().padded(2, 4), "padding on axis 2 of 2 axes"),
            (rule().padded(0, 0), "a multiple of 0"),
            (
                rule().padded(0, 4).state(state),
                "each index of which has an object",
            ),
            (rule().padded(0, 4).kept_beside("no place"), "kept beside"),
        ] {
            let mut map = WeightMap::new([rule]);
            let names = ["hf.w"].into_iter().collect();
            let forms = Forms::own(&map).of_tensors(&map, &names).unwrap();
            let error = map.resolve_as(&forms).unwrap_err();
            assert_eq!(error.slug(), "weight-map/template");
            assert!(error.to_string().contains(reason), "{error}");
            let Some(crate::Rule::Map(rule)) = map.rules.first_mut() else {
                panic!("a rule")
            };
            rule.padding = None;
            assert!(map.resolve_as(&forms).is_ok(), "{reason}");
        }
    }

    #[test]
    fn a_map_with_padding_requires_a_reader_that_knows_it() {
        let needs = map().requirements();
        assert_eq!(needs, ["rule/forms/1", "rule/map/1", "rule/padding/1"]);
        assert!(crate::document::CAPABILITIES.contains(&"rule/padding/1"));
    }

    proptest! {
        #[test]
        fn a_padded_length_is_the_least_multiple_that_holds_it(
            filled in 1u64..40,
            multiple in 1u64..12,
            ranks in 1u64..9,
        ) {
            let extent = Padding { axis: 0, multiple }.extent(filled, ranks).unwrap();
            let unit = multiple * ranks;
            let least = (1..).map(|count| count * unit).find(|length| *length >= filled);
            prop_assert_eq!(Some(extent), least);
        }
    }

    #[test]
    fn there_is_no_length_beyond_64_bits() {
        let padding = |multiple| Padding { axis: 0, multiple };
        assert_eq!(padding(u64::MAX).extent(7, 2), None);
        assert_eq!(padding(1 << 63).extent(u64::MAX, 1), None);
        // Megatron-Bridge's own numbers for the published vocabulary.
        let published = [(1, 154_880), (2, 156_160), (4, 158_720)];
        for (ranks, expected) in published {
            assert_eq!(padding(1280).extent(154_880, ranks), Some(expected));
        }
    }
}
