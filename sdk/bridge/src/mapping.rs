//! Tensors, params, and the pieces that join them: a weight map after its indices have taken their values.
//!
//! A [`Piece`] says that a rectangle of one Hugging Face tensor is a rectangle of one Megatron param. Import reads the list
//! from the tensor's end, export from the param's; nothing else distinguishes the two.

use std::collections::HashSet;
use std::fmt;

use rialto_tensor::held::Held;
use rialto_tensor::{Dtype, Region, Shape, TilingFault};

use crate::{Codec, DtypeRule, Error, Padding, StateValue};

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
    /// The codec that the published checkpoint stores its tensors with, if any.
    pub encoded: Option<String>,
    /// Where its param may be longer than its tensors fill.
    pub padding: Option<Padding>,
    /// Why its param is kept beside Megatron's own, if it is.
    pub beside: Option<String>,
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

/// A name under which the Hugging Face side may hold a tensor once more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyDecl {
    /// The name.
    pub name: String,
    /// Position in [`Mapping::tensors`] of the tensor that it repeats.
    pub tensor: usize,
}

/// A param that the Megatron side holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamDecl {
    /// Its key.
    pub name: String,
    /// Its global shape.
    pub shape: Shape,
    /// The shape that its tensors fill: all of it, unless it is padded.
    pub filled: Shape,
    /// Position of its rule in [`Mapping::rules`].
    pub rule: usize,
}

/// A key under which a checkpoint stores a param or a rectangle of it: in Megatron's own spelling one key a param, of its
/// name, or one for all params of a stack; in another [`Form`](crate::Form) several, or one of another name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDecl {
    /// The key.
    pub name: String,
    /// Shape of the tensor stored under it.
    pub shape: Shape,
    /// Where the param stands on the leading axis of that tensor, if the tensor is a stack of params. A declaration for each
    /// of them then has the key's name.
    pub slot: Option<u64>,
    /// Position in [`Mapping::params`].
    pub param: usize,
    /// The rectangle of the param that it is, the same elements in the same row-major order.
    pub region: Region,
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

impl Held for TensorDecl {
    fn held_bytes(&self) -> u64 {
        self.name.held_bytes() + self.shape.held_bytes()
    }
}

impl Held for ParamDecl {
    fn held_bytes(&self) -> u64 {
        self.name.held_bytes() + self.shape.held_bytes() + self.filled.held_bytes()
    }
}

impl Held for KeyDecl {
    fn held_bytes(&self) -> u64 {
        self.name.held_bytes() + self.shape.held_bytes() + self.region.held_bytes()
    }
}

impl Held for CopyDecl {
    fn held_bytes(&self) -> u64 {
        self.name.held_bytes()
    }
}

impl Held for ObjectDecl {
    fn held_bytes(&self) -> u64 {
        self.key.held_bytes()
    }
}

impl Held for Piece {
    fn held_bytes(&self) -> u64 {
        self.tensor_region.held_bytes() + self.param_region.held_bytes()
    }
}

impl Held for StoredTensor {
    fn held_bytes(&self) -> u64 {
        self.name.held_bytes() + self.shape.held_bytes() + self.place.held_bytes()
    }
}

impl Held for Mapping {
    /// Without the rules, which are few.
    fn held_bytes(&self) -> u64 {
        let params = self.params.held_bytes() + self.keys.held_bytes() + self.objects.held_bytes();
        let others = self.skipped.held_bytes() + self.copies.held_bytes();
        let tensors = self.tensors.held_bytes() + others;
        params + tensors + self.pieces.held_bytes()
    }
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
    /// Params that hold one axis of the model are padded on it by unlike lengths.
    Paddings {
        first: (String, Shape),
        second: (String, Shape),
        filled: u64,
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
    /// A companion that does not have one element for each block of its tensor, or another dtype.
    Grid {
        companion: String,
        tensor: String,
        tensor_shape: Shape,
        block: Vec<u64>,
        expected: (Dtype, Shape),
        found: (Dtype, Shape),
        place: String,
    },
    /// An encoded tensor with fewer axes than a block of its codec.
    Rank {
        tensor: String,
        dtype: Dtype,
        shape: Shape,
        block: Vec<u64>,
        place: String,
    },
    /// A companion of a tensor that is not encoded.
    Stray {
        companion: String,
        tensor: String,
        dtype: Dtype,
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
            Violation::Paddings {
                first,
                second,
                filled,
            } => {
                write!(
                    f,
                    "{} has shape {} and {} has {}, expected {filled} padded alike",
                    first.0, first.1, second.0, second.1
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
            Violation::Grid {
                companion,
                tensor,
                tensor_shape,
                block,
                expected,
                found,
                place,
            } => {
                write!(
                    f,
                    "{companion} is {} {} in {place}, expected {} {}: one for each {} block of {tensor} {tensor_shape}",
                    found.0,
                    found.1,
                    expected.0,
                    expected.1,
                    block_list(block)
                )
            }
            Violation::Rank {
                tensor,
                dtype,
                shape,
                block,
                place,
            } => {
                write!(
                    f,
                    "{tensor} is stored as {dtype} {shape} in {place}, too few axes for blocks of {}",
                    block_list(block)
                )
            }
            Violation::Stray {
                companion,
                tensor,
                dtype,
                place,
            } => {
                write!(
                    f,
                    "{companion} in {place} is a scale of {tensor}, which is stored as {dtype} and needs none"
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

/// Prints `128x128`.
fn block_list(block: &[u64]) -> String {
    let extents: Vec<String> = block.iter().map(u64::to_string).collect();
    extents.join("x")
}

/// A weight map after expansion: total in both directions, or it would not exist.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapping {
    pub(crate) rules: Vec<RuleInfo>,
    pub(crate) tensors: Vec<TensorDecl>,
    pub(crate) params: Vec<ParamDecl>,
    pub(crate) keys: Vec<KeyDecl>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) objects: Vec<ObjectDecl>,
    pub(crate) skipped: Vec<TensorDecl>,
    pub(crate) copies: Vec<CopyDecl>,
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

    /// The keys under which the Megatron side stores the params, grouped by param in the order of [`Mapping::params`]. A key
    /// that stacks params stands there for each of them.
    #[must_use]
    pub fn keys(&self) -> &[KeyDecl] {
        &self.keys
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

    /// Names under which the Hugging Face side may hold a tensor once more.
    #[must_use]
    pub fn copies(&self) -> &[CopyDecl] {
        &self.copies
    }

    /// The rule of a tensor or param.
    #[must_use]
    pub fn rule(&self, rule: usize) -> &RuleInfo {
        &self.rules[rule]
    }

    /// What the published checkpoint holds: every tensor in the first dtype its rule accepts, or encoded as its rule says, in
    /// the codec's first stored dtype and followed by its companions. The inventory of a plan made from a config alone.
    /// Tensors that are left out stand at the end, those that may be absent nowhere.
    ///
    /// Errors: [`Error::UnknownCodec`] for a rule's codec that is not among `codecs`, [`Error::Codec`] for one that stores
    /// nothing.
    pub fn nominal_tensors(
        &self,
        place: &str,
        codecs: &[Codec],
    ) -> Result<Vec<StoredTensor>, Error> {
        let is_sure = |tensor: &&TensorDecl| self.rule(tensor.rule).beside.is_none();
        let all = self.tensors.iter().chain(&self.skipped).filter(is_sure);
        let mut nominal = Vec::with_capacity(self.tensors.len());
        for tensor in all {
            let rule = self.rule(tensor.rule);
            let mut push = |name: String, dtype, shape| {
                let place = place.to_owned();
                nominal.push(StoredTensor {
                    name,
                    dtype,
                    shape,
                    place,
                });
            };
            let Some(codec) = &rule.encoded else {
                push(
                    tensor.name.clone(),
                    rule.dtype.accepts[0],
                    tensor.shape.clone(),
                );
                continue;
            };
            let codec = named(codecs, codec)?;
            let stored = codec.stored.first().ok_or_else(|| Error::Codec {
                codec: codec.name.clone(),
                reason: "it has no stored dtype".to_owned(),
            })?;
            push(tensor.name.clone(), *stored, tensor.shape.clone());
            for companion in &codec.companions {
                // A tensor with too few axes has no grid; binding what is here says so.
                let grid = companion.grid(&tensor.shape);
                if let (Some(grid), Some(suffix)) = (grid, companion.suffixes.first()) {
                    push(format!("{}{suffix}", tensor.name), companion.dtype, grid);
                }
            }
        }
        Ok(nominal)
    }

    /// Whether any of `names` is a key of multi-token prediction.
    #[must_use]
    pub fn holds_mtp(&self, names: &HashSet<&str>) -> bool {
        let is_mtp = |key: &&KeyDecl| self.rule(self.params[key.param].rule).group == MTP_GROUP;
        let mut mtp = self.keys.iter().filter(is_mtp);
        mtp.any(|key| names.contains(key.name.as_str()))
    }
}

fn named<'a>(codecs: &'a [Codec], name: &str) -> Result<&'a Codec, Error> {
    let codec = codecs.iter().find(|codec| codec.name == name);
    codec.ok_or_else(|| Error::UnknownCodec {
        codec: name.to_owned(),
    })
}
