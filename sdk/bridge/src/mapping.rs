//! Tensors, params, and the pieces that join them: a weight map after its indices have taken their values.
//!
//! A [`Piece`] says that a rectangle of one Hugging Face tensor is a rectangle of one Megatron param. Import reads the list
//! from the tensor's end, export from the param's; nothing else distinguishes the two.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use rialto_tensor::{Dtype, Region, Shape, TilingFault};

use crate::{Codec, DtypeRule, Error, StateValue};

/// The group of rules that map multi-token prediction; the one group name the SDK itself looks for.
pub const MTP_GROUP: &str = "mtp";

/// What all tensors and params of one rule share.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleInfo {
    /// What a person calls the rule.
    pub name: String,
    /// The part of the model it belongs to.
    pub group: String,
    /// Accepted dtypes.
    pub dtype: DtypeRule,
    /// Why its tensors are left out, if they are.
    pub skip: Option<String>,
}

/// A tensor that the Hugging Face side holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorDecl {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    /// Position of its rule in [`Mapping::rules`].
    pub rule: usize,
}

/// A param that the Megatron side holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamDecl {
    /// Its key.
    pub name: String,
    /// Its global shape.
    pub shape: Shape,
    /// Position of its rule in [`Mapping::rules`].
    pub rule: usize,
}

/// An object that the Megatron side holds beside its params.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectDecl {
    /// Its key, `{module}._extra_state/shard_{offset}_{count}`.
    pub key: String,
    /// What it holds.
    pub value: StateValue,
}

/// A rectangle of a tensor that is a rectangle of a param, the same elements in the same row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Position in [`Mapping::tensors`].
    pub tensor: usize,
    /// The rectangle in the tensor.
    pub tensor_region: Region,
    /// Position in [`Mapping::params`].
    pub param: usize,
    /// The rectangle in the param.
    pub param_region: Region,
}

/// A tensor or param as some checkpoint really holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// Its name or key.
    pub name: String,
    /// Its stored dtype.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Shape,
    /// The file it lies in, for messages.
    pub place: String,
}

/// One way in which rules do not fit together, or a checkpoint does not fit the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are the words of the printed sentence"
)]
pub enum Violation {
    /// Two rules say different shapes for one name.
    TwoShapes {
        name: String,
        first: Shape,
        second: Shape,
    },
    /// Two rules make one param.
    TwoRules {
        param: String,
        first: String,
        second: String,
    },
    /// Two objects have one key.
    TwoObjects { key: String },
    /// The two rectangles of a piece do not hold the same elements in the same order.
    Piece {
        tensor: String,
        tensor_region: Region,
        param: String,
        param_region: Region,
    },
    /// Rectangles do not tile a tensor or a param.
    Tiling {
        name: String,
        shape: Shape,
        fault: TilingFault,
    },
    /// The checkpoint lacks what a rule needs.
    Missing {
        name: String,
        shape: Shape,
        rule: String,
    },
    /// The checkpoint holds what no rule claims.
    Unclaimed {
        name: String,
        dtype: Dtype,
        shape: Shape,
        place: String,
    },
    /// The checkpoint holds one name twice.
    Twice { name: String, place: String },
    /// The shape is not the rule's.
    Shape {
        name: String,
        expected: Shape,
        found: Shape,
        place: String,
    },
    /// The dtype is none that the rule accepts.
    Dtype {
        name: String,
        accepts: Vec<Dtype>,
        found: Dtype,
        place: String,
    },
    /// The tensors of one param have different dtypes.
    MixedDtypes { param: String, dtypes: Vec<Dtype> },
    /// An encoded tensor without its companion.
    Companion {
        tensor: String,
        dtype: Dtype,
        companion: String,
        place: String,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::TwoShapes {
                name,
                first,
                second,
            } => write!(f, "rules give {name} shapes {first} and {second}"),
            Violation::TwoRules {
                param,
                first,
                second,
            } => {
                write!(
                    f,
                    "param {param} is made by rule {first} and by rule {second}"
                )
            }
            Violation::TwoObjects { key } => write!(f, "object {key} is made twice"),
            Violation::Piece {
                tensor,
                tensor_region,
                param,
                param_region,
            } => {
                write!(
                    f,
                    "{tensor} {tensor_region} and {param} {param_region} do not hold the same elements"
                )
            }
            Violation::Tiling { name, shape, fault } => write!(f, "{name} {shape}: {fault}"),
            Violation::Missing { name, shape, rule } => {
                write!(
                    f,
                    "{name} is missing, expected with shape {shape} by rule {rule}"
                )
            }
            Violation::Unclaimed {
                name,
                dtype,
                shape,
                place,
            } => {
                write!(
                    f,
                    "{name} ({dtype} {shape} in {place}) is claimed by no rule"
                )
            }
            Violation::Twice { name, place } => {
                write!(f, "{name} is there twice (again in {place})")
            }
            Violation::Shape {
                name,
                expected,
                found,
                place,
            } => {
                write!(
                    f,
                    "{name} has shape {found} in {place}, expected {expected}"
                )
            }
            Violation::Dtype {
                name,
                accepts,
                found,
                place,
            } => {
                write!(
                    f,
                    "{name} has dtype {found} in {place}, expected {}",
                    list(accepts, " or ")
                )
            }
            Violation::MixedDtypes { param, dtypes } => {
                write!(
                    f,
                    "the tensors of {param} have dtypes {}, expected one",
                    list(dtypes, " and ")
                )
            }
            Violation::Companion {
                tensor,
                dtype,
                companion,
                place,
            } => {
                write!(
                    f,
                    "{tensor} is stored as {dtype} in {place} and needs {companion}, which is missing"
                )
            }
        }
    }
}

fn list(dtypes: &[Dtype], separator: &str) -> String {
    dtypes
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(separator)
}

/// What the checkpoint on the Hugging Face side holds for each tensor of a mapping.
#[derive(Clone, Debug)]
pub struct TensorBinding {
    /// For each tensor, its position in the inventory.
    pub tensors: Vec<usize>,
    /// For each tensor, the codec it is encoded with (position in the codecs given) and its companions' positions.
    pub encodings: Vec<Option<(usize, Vec<usize>)>>,
    /// For each param, the dtype its tensors have, decoded.
    pub param_dtypes: Vec<Dtype>,
    /// The rule and inventory position of each tensor that a rule leaves out and that is there.
    pub skipped: Vec<(usize, usize)>,
}

/// What the checkpoint on the Megatron side holds for each param of a mapping.
#[derive(Clone, Debug)]
pub struct ParamBinding {
    /// For each param, its position in the inventory.
    pub params: Vec<usize>,
}

/// A weight map after expansion: total in both directions, or it would not exist.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapping {
    pub(crate) rules: Vec<RuleInfo>,
    pub(crate) tensors: Vec<TensorDecl>,
    pub(crate) params: Vec<ParamDecl>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) objects: Vec<ObjectDecl>,
    pub(crate) skipped: Vec<TensorDecl>,
}

impl Mapping {
    /// The rules, in the order of the forward pass.
    #[must_use]
    pub fn rules(&self) -> &[RuleInfo] {
        &self.rules
    }

    /// Every tensor that the Hugging Face side must hold.
    #[must_use]
    pub fn tensors(&self) -> &[TensorDecl] {
        &self.tensors
    }

    /// Every param that the Megatron side must hold.
    #[must_use]
    pub fn params(&self) -> &[ParamDecl] {
        &self.params
    }

    /// The pieces, grouped by param in the order of [`Mapping::params`].
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The objects beside the params.
    #[must_use]
    pub fn objects(&self) -> &[ObjectDecl] {
        &self.objects
    }

    /// Tensors that the Hugging Face side may hold and that are left out.
    #[must_use]
    pub fn skipped(&self) -> &[TensorDecl] {
        &self.skipped
    }

    /// The rule of a tensor or param.
    #[must_use]
    pub fn rule(&self, rule: usize) -> &RuleInfo {
        &self.rules[rule]
    }

    /// What a checkpoint would hold that stores every tensor in the first dtype its rule accepts: the inventory of a plan
    /// made from a config alone. Tensors that are left out stand at the end.
    #[must_use]
    pub fn nominal_tensors(&self, place: &str) -> Vec<StoredTensor> {
        let all = self.tensors.iter().chain(&self.skipped);
        let nominal = |tensor: &TensorDecl| StoredTensor {
            name: tensor.name.clone(),
            dtype: self.rule(tensor.rule).dtype.accepts[0],
            shape: tensor.shape.clone(),
            place: place.to_owned(),
        };
        all.map(nominal).collect()
    }

    /// Holds the tensors of a Hugging Face checkpoint against the mapping.
    ///
    /// A tensor stored in a codec's dtype must have the codec's companions beside it, which are then claimed with it.
    /// Errors: [`Error::NotTotal`] with every tensor that is missing, claimed by no rule, there twice, or of a wrong shape
    /// or dtype.
    pub fn bind_tensors(
        &self,
        inventory: &[StoredTensor],
        codecs: &[Codec],
    ) -> Result<TensorBinding, Error> {
        let mut violations = Vec::new();
        let positions = positions(inventory, &mut violations);
        let mut claimed = HashSet::new();
        let mut missing = Vec::new();

        let mut tensors = Vec::with_capacity(self.tensors.len());
        let mut encodings = Vec::with_capacity(self.tensors.len());
        let mut dtypes = Vec::with_capacity(self.tensors.len());
        for tensor in &self.tensors {
            let rule = self.rule(tensor.rule);
            let Some(&position) = positions.get(tensor.name.as_str()) else {
                missing.push(tensor);
                violations.push(missing_violation(&tensor.name, &tensor.shape, rule));
                tensors.push(usize::MAX);
                encodings.push(None);
                dtypes.push(rule.dtype.accepts[0]);
                continue;
            };
            let stored = &inventory[position];
            claimed.insert(position);
            let codec = codecs.iter().position(|codec| codec.stored == stored.dtype);
            let encoding = codec.map(|codec| {
                let companions = codecs[codec].companions.iter().filter_map(|suffix| {
                    let companion = format!("{}{suffix}", tensor.name);
                    let position = positions.get(companion.as_str()).copied();
                    if position.is_none() {
                        violations.push(Violation::Companion {
                            tensor: tensor.name.clone(),
                            dtype: stored.dtype,
                            companion,
                            place: stored.place.clone(),
                        });
                    }
                    position
                });
                (codec, companions.collect::<Vec<_>>())
            });
            claimed.extend(encoding.iter().flat_map(|(_, companions)| companions));
            let dtype = codec.map_or(stored.dtype, |codec| codecs[codec].decoded);
            check_stored(&tensor.shape, rule, dtype, stored, &mut violations);
            tensors.push(position);
            encodings.push(encoding);
            dtypes.push(dtype);
        }

        let mut skipped = Vec::new();
        for tensor in &self.skipped {
            if let Some(&position) = positions.get(tensor.name.as_str()) {
                let stored = &inventory[position];
                claimed.insert(position);
                let rule = self.rule(tensor.rule);
                let codec = codecs.iter().find(|codec| codec.stored == stored.dtype);
                let dtype = codec.map_or(stored.dtype, |codec| codec.decoded);
                // Left out or not, what is there must be what the rule says: another shape is another model.
                check_stored(&tensor.shape, rule, dtype, stored, &mut violations);
                if let Some(codec) = codec {
                    let companion = |suffix: &String| {
                        positions
                            .get(format!("{}{suffix}", tensor.name).as_str())
                            .copied()
                    };
                    claimed.extend(codec.companions.iter().filter_map(companion));
                }
                skipped.push((tensor.rule, position));
            }
        }
        violations.extend(unclaimed(inventory, &claimed));

        let mut param_dtypes: Vec<Option<Dtype>> = vec![None; self.params.len()];
        let mut mixed: BTreeMap<usize, Vec<Dtype>> = BTreeMap::new();
        for piece in &self.pieces {
            let dtype = dtypes[piece.tensor];
            let first = *param_dtypes[piece.param].get_or_insert(dtype);
            if first != dtype {
                let found = mixed.entry(piece.param).or_insert_with(|| vec![first]);
                if !found.contains(&dtype) {
                    found.push(dtype);
                }
            }
        }
        let mixed = mixed
            .into_iter()
            .map(|(param, dtypes)| Violation::MixedDtypes {
                param: self.params[param].name.clone(),
                dtypes,
            });
        violations.extend(mixed);
        self.refuse(violations, &missing)?;
        // Only a param without elements has no piece: anything else would have been a gap when the map was resolved.
        let nominal = |param: &ParamDecl| self.rule(param.rule).dtype.accepts[0];
        let param_dtypes = param_dtypes.into_iter().zip(&self.params);
        let param_dtypes = param_dtypes
            .map(|(dtype, param)| dtype.unwrap_or_else(|| nominal(param)))
            .collect();
        Ok(TensorBinding {
            tensors,
            encodings,
            param_dtypes,
            skipped,
        })
    }

    /// Holds the params of a Megatron checkpoint against the mapping. Errors: [`Error::NotTotal`], as above.
    pub fn bind_params(&self, inventory: &[StoredTensor]) -> Result<ParamBinding, Error> {
        let mut violations = Vec::new();
        let positions = positions(inventory, &mut violations);
        let mut claimed = HashSet::new();
        let mut params = Vec::with_capacity(self.params.len());
        for param in &self.params {
            let rule = self.rule(param.rule);
            match positions.get(param.name.as_str()) {
                None => violations.push(missing_violation(&param.name, &param.shape, rule)),
                Some(&position) => {
                    let stored = &inventory[position];
                    check_stored(&param.shape, rule, stored.dtype, stored, &mut violations);
                    claimed.insert(position);
                    params.push(position);
                }
            }
        }
        violations.extend(unclaimed(inventory, &claimed));
        self.refuse(violations, &[])?;
        Ok(ParamBinding { params })
    }

    /// Whether any of `names` is a param of multi-token prediction.
    #[must_use]
    pub fn holds_mtp<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> bool {
        let is_mtp = |param: &&ParamDecl| self.rule(param.rule).group == MTP_GROUP;
        let mtp: HashSet<&str> = self
            .params
            .iter()
            .filter(is_mtp)
            .map(|param| param.name.as_str())
            .collect();
        names.into_iter().any(|name| mtp.contains(name))
    }

    fn refuse(&self, violations: Vec<Violation>, missing: &[&TensorDecl]) -> Result<(), Error> {
        if violations.is_empty() {
            return Ok(());
        }
        let is_mtp = |tensor: &TensorDecl| self.rule(tensor.rule).group == MTP_GROUP;
        let mtp_tensors = self.tensors.iter().filter(|tensor| is_mtp(tensor)).count();
        let only_mtp =
            violations.len() == missing.len() && missing.iter().all(|tensor| is_mtp(tensor));
        let advice = (only_mtp && missing.len() == mtp_tensors)
            .then(|| format!("the source holds none of its {mtp_tensors} MTP tensors; `--mtp drop` converts the rest"));
        Err(Error::NotTotal { violations, advice })
    }
}

fn positions<'a>(
    inventory: &'a [StoredTensor],
    violations: &mut Vec<Violation>,
) -> HashMap<&'a str, usize> {
    let mut positions = HashMap::with_capacity(inventory.len());
    for (position, stored) in inventory.iter().enumerate() {
        if positions.insert(stored.name.as_str(), position).is_some() {
            violations.push(Violation::Twice {
                name: stored.name.clone(),
                place: stored.place.clone(),
            });
        }
    }
    positions
}

fn missing_violation(name: &str, shape: &Shape, rule: &RuleInfo) -> Violation {
    Violation::Missing {
        name: name.to_owned(),
        shape: shape.clone(),
        rule: rule.name.clone(),
    }
}

fn check_stored(
    shape: &Shape,
    rule: &RuleInfo,
    dtype: Dtype,
    stored: &StoredTensor,
    violations: &mut Vec<Violation>,
) {
    let (name, place) = (stored.name.clone(), stored.place.clone());
    if *shape != stored.shape {
        let (expected, found) = (shape.clone(), stored.shape.clone());
        violations.push(Violation::Shape {
            name: name.clone(),
            expected,
            found,
            place: place.clone(),
        });
    }
    if !rule.dtype.accepts.contains(&dtype) {
        violations.push(Violation::Dtype {
            name,
            accepts: rule.dtype.accepts.clone(),
            found: dtype,
            place,
        });
    }
}

fn unclaimed<'a>(
    inventory: &'a [StoredTensor],
    claimed: &HashSet<usize>,
) -> impl Iterator<Item = Violation> + 'a {
    let rest: Vec<usize> = (0..inventory.len())
        .filter(|position| !claimed.contains(position))
        .collect();
    rest.into_iter().map(|position| {
        let StoredTensor {
            name,
            dtype,
            shape,
            place,
        } = inventory[position].clone();
        Violation::Unclaimed {
            name,
            dtype,
            shape,
            place,
        }
    })
}
