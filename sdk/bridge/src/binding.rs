//! A mapping held against what a checkpoint really holds, of either side.

use std::collections::{BTreeMap, HashMap, HashSet};

use rialto_tensor::held::Held;
use rialto_tensor::{Dtype, Shape};

use crate::mapping::{MTP_GROUP, RuleInfo};
use crate::{
    Codec, CopyDecl, Error, KeyDecl, Mapping, ParamDecl, StoredTensor, TensorDecl, Violation,
};

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
    /// Inventory positions of companions that were taken under another suffix than the published one.
    pub aliases: Vec<usize>,
    /// The tensor and the inventory position of each tensor that is there once more. Whether the bits are the same, their reader
    /// finds out.
    pub copies: Vec<(usize, usize)>,
}

impl Held for TensorBinding {
    fn held_bytes(&self) -> u64 {
        let tensors = self.tensors.held_bytes() + self.encodings.held_bytes();
        let others = size_of_val(self.skipped.as_slice()) + size_of_val(self.copies.as_slice());
        tensors + self.param_dtypes.held_bytes() + self.aliases.held_bytes() + others as u64
    }
}

/// What the checkpoint on the Megatron side holds for each param of a mapping.
#[derive(Clone, Debug)]
pub struct ParamBinding {
    /// For each key, its position in the inventory.
    pub keys: Vec<usize>,
    /// For each param, the dtype its keys have.
    pub param_dtypes: Vec<Dtype>,
}

/// What a Hugging Face checkpoint holds for the tensors of a mapping, as far as it does.
#[derive(Clone, Debug)]
pub struct FoundTensors {
    /// For each tensor, its position in the inventory, if it is there in its shape and with its companions.
    pub tensors: Vec<Option<usize>>,
    /// For each tensor, the codec it is encoded with and its companions' positions.
    pub encodings: Vec<Option<Encoding>>,
    /// For each tensor, its dtype, decoded.
    pub dtypes: Vec<Dtype>,
    /// The rule and inventory position of each tensor that a rule leaves out and that is there.
    pub skipped: Vec<(usize, usize)>,
    /// Inventory positions of companions that were taken under another suffix than the published one.
    pub aliases: Vec<usize>,
    /// The tensor and the inventory position of each tensor that is there once more, in its shape and dtype.
    pub copies: Vec<(usize, usize)>,
    /// Everything that is not as the mapping says.
    pub violations: Vec<Violation>,
}

/// What a Megatron checkpoint holds for the params of a mapping, as far as it does.
#[derive(Clone, Debug)]
pub struct FoundParams {
    /// For each key, its position in the inventory, if it is there in its shape.
    pub keys: Vec<Option<usize>>,
    /// For each param, the dtype its keys have.
    pub param_dtypes: Vec<Dtype>,
    /// Everything that is not as the mapping says.
    pub violations: Vec<Violation>,
}

impl Mapping {
    /// Holds the tensors of a Hugging Face checkpoint against the mapping.
    ///
    /// A tensor stored in a codec's dtype must have the codec's companions beside it, each with one element a block; they
    /// are then claimed with it. Errors: [`Error::NotTotal`] with every tensor that is missing, claimed by no rule, there
    /// twice, or of a wrong shape or dtype, and every companion that is missing, of a wrong grid, or beside a tensor that
    /// is not encoded.
    pub fn bind_tensors(
        &self,
        inventory: &[StoredTensor],
        codecs: &[Codec],
    ) -> Result<TensorBinding, Error> {
        let found = self.find_tensors(inventory, codecs);
        let mut violations = found.violations;
        let pieces = self.pieces.iter();
        let of_pieces = pieces.map(|piece| (piece.param, found.dtypes[piece.tensor]));
        let param_dtypes = self.param_dtypes(of_pieces, &mut violations);
        self.refuse(violations, &found.tensors)?;
        Ok(TensorBinding {
            tensors: found.tensors.into_iter().flatten().collect(),
            encodings: found.encodings,
            param_dtypes,
            skipped: found.skipped,
            aliases: found.aliases,
            copies: found.copies,
        })
    }

    /// The same for whom a difference is an answer and no error.
    #[must_use]
    pub fn find_tensors(&self, inventory: &[StoredTensor], codecs: &[Codec]) -> FoundTensors {
        let mut binder = Binder::new(inventory, codecs);
        let mut tensors = Vec::with_capacity(self.tensors.len());
        let mut encodings = Vec::with_capacity(self.tensors.len());
        let mut dtypes = Vec::with_capacity(self.tensors.len());
        for tensor in &self.tensors {
            let rule = self.rule(tensor.rule);
            let before = binder.violations.len();
            match binder.bind(tensor, rule) {
                Some((position, encoding, dtype)) => {
                    let is_whole = !binder.violations[before..].iter().any(is_unreadable);
                    tensors.push(is_whole.then_some(position));
                    encodings.push(encoding);
                    dtypes.push(dtype);
                }
                None => {
                    let violation = missing_violation(&tensor.name, &tensor.shape, rule);
                    binder.violations.push(violation);
                    tensors.push(None);
                    encodings.push(None);
                    dtypes.push(rule.dtype.accepts[0]);
                }
            }
        }
        // Left out or not, what is there must be what the rule says: another shape is another model.
        let mut skipped = Vec::new();
        for tensor in &self.skipped {
            if let Some((position, ..)) = binder.bind(tensor, self.rule(tensor.rule)) {
                skipped.push((tensor.rule, position));
            }
        }
        let mut copies = Vec::new();
        for copy in &self.copies {
            let tensor = &self.tensors[copy.tensor];
            let dtype = tensors[copy.tensor].map(|at| inventory[at].dtype);
            let rule = self.rule(tensor.rule);
            if let Some(position) = binder.bind_copy(copy, tensor, dtype, rule) {
                copies.push((copy.tensor, position));
            }
        }
        binder.refuse_unclaimed();
        FoundTensors {
            tensors,
            encodings,
            dtypes,
            skipped,
            aliases: binder.aliases,
            copies,
            violations: binder.violations,
        }
    }

    /// Holds the params of a Megatron checkpoint against the mapping. Errors: [`Error::NotTotal`], as above.
    pub fn bind_params(&self, inventory: &[StoredTensor]) -> Result<ParamBinding, Error> {
        let found = self.find_params(inventory);
        // What is missing is no tensor, so it cannot be explained by the tensors of a part that is not there.
        self.refuse(found.violations, &[])?;
        Ok(ParamBinding {
            keys: found.keys.into_iter().flatten().collect(),
            param_dtypes: found.param_dtypes,
        })
    }

    /// The same for whom a difference is an answer and no error.
    #[must_use]
    pub fn find_params(&self, inventory: &[StoredTensor]) -> FoundParams {
        let mut binder = Binder::new(inventory, &[]);
        let mut keys = Vec::with_capacity(self.keys.len());
        // A stack is one tensor, however many params it holds: what is wrong with it is said once. No other key has its name.
        let mut stacks: HashMap<&str, Option<usize>> = HashMap::new();
        for key in &self.keys {
            if let Some(&found) = stacks.get(key.name.as_str()) {
                keys.push(found);
                continue;
            }
            let rule = self.rule(self.params[key.param].rule);
            let found = binder.bind_key(key, rule);
            if key.slot.is_some() {
                stacks.insert(&key.name, found);
            }
            keys.push(found);
        }
        let mut is_there = vec![true; self.params.len()];
        for (key, position) in self.keys.iter().zip(&keys) {
            is_there[key.param] &= position.is_some();
        }
        let unlike = self.unlike_paddings(|param| is_there[param]);
        binder.violations.extend(unlike);
        binder.refuse_unclaimed();
        let there = self.keys.iter().zip(&keys);
        let of_keys = there.filter_map(|(key, position)| {
            let stored = &inventory[(*position)?];
            Some((key.param, stored.dtype))
        });
        let param_dtypes = self.param_dtypes(of_keys, &mut binder.violations);
        FoundParams {
            keys,
            param_dtypes,
            violations: binder.violations,
        }
    }

    /// The one dtype of each param, from those of what makes it.
    fn param_dtypes(
        &self,
        parts: impl Iterator<Item = (usize, Dtype)>,
        violations: &mut Vec<Violation>,
    ) -> Vec<Dtype> {
        let mut found: Vec<Option<Dtype>> = vec![None; self.params.len()];
        let mut mixed: BTreeMap<usize, Vec<Dtype>> = BTreeMap::new();
        for (param, dtype) in parts {
            let first = *found[param].get_or_insert(dtype);
            if first != dtype {
                let dtypes = mixed.entry(param).or_insert_with(|| vec![first]);
                if !dtypes.contains(&dtype) {
                    dtypes.push(dtype);
                }
            }
        }
        let mixed = mixed.into_iter();
        violations.extend(mixed.map(|(param, dtypes)| Violation::MixedDtypes {
            param: self.params[param].name.clone(),
            dtypes,
        }));
        // Only a param without elements has no part: anything else would have been a gap when the map was resolved.
        let nominal = |param: &ParamDecl| self.rule(param.rule).dtype.accepts[0];
        let found = found.into_iter().zip(&self.params);
        found
            .map(|(dtype, param)| dtype.unwrap_or_else(|| nominal(param)))
            .collect()
    }

    /// An error if there is a violation; with advice if one thing explains it: a part of the model that is not there, or a number
    /// of the config that is another in every shape.
    fn refuse(&self, violations: Vec<Violation>, tensors: &[Option<usize>]) -> Result<(), Error> {
        if violations.is_empty() {
            return Ok(());
        }
        let is_mtp = |tensor: &TensorDecl| self.rule(tensor.rule).group == MTP_GROUP;
        let mtp_tensors = self.tensors.iter().filter(|tensor| is_mtp(tensor)).count();
        let mut not_there = self.tensors.iter().zip(tensors);
        let only_mtp = not_there.all(|(tensor, found)| found.is_some() != is_mtp(tensor));
        let is_missing = |violation: &Violation| matches!(violation, Violation::Missing { .. });
        let is_without_mtp = only_mtp
            && violations.len() == mtp_tensors
            && violations.iter().all(is_missing)
            && !tensors.is_empty();
        let advice = if is_without_mtp {
            Some(format!(
                "the source holds none of its {mtp_tensors} MTP tensors; `--mtp drop` converts the rest"
            ))
        } else {
            one_other_extent(&violations).map(|(expected, found)| {
                format!(
                    "every shape that differs has {found} where the config leads to {expected}; look for {expected} in the config"
                )
            })
        };
        Err(Error::NotTotal { violations, advice })
    }
}

/// The one number of the config that explains every shape that is another, if one does: what was expected, and what is there.
fn one_other_extent(violations: &[Violation]) -> Option<(u64, u64)> {
    let shapes = violations.iter().filter_map(|violation| match violation {
        Violation::Shape {
            expected, found, ..
        } => Some((expected.extents(), found.extents())),
        _ => None,
    });
    let mut other = None;
    for (expected, found) in shapes {
        if expected.len() != found.len() {
            return None;
        }
        for (&expected, &found) in expected.iter().zip(found) {
            if expected != found && *other.get_or_insert((expected, found)) != (expected, found) {
                return None;
            }
        }
    }
    other
}

/// Whether elements cannot be read because of it; another dtype than the rule accepts can.
fn is_unreadable(violation: &Violation) -> bool {
    !matches!(violation, Violation::Dtype { .. })
}

/// A codec (its position) and the inventory positions of the companions.
pub type Encoding = (usize, Vec<usize>);

/// An inventory while a mapping claims what is in it.
struct Binder<'a> {
    inventory: &'a [StoredTensor],
    codecs: &'a [Codec],
    positions: HashMap<&'a str, usize>,
    claimed: HashSet<usize>,
    aliases: Vec<usize>,
    violations: Vec<Violation>,
}

impl<'a> Binder<'a> {
    fn new(inventory: &'a [StoredTensor], codecs: &'a [Codec]) -> Binder<'a> {
        let mut binder = Binder {
            inventory,
            codecs,
            positions: HashMap::with_capacity(inventory.len()),
            claimed: HashSet::new(),
            aliases: Vec::new(),
            violations: Vec::new(),
        };
        for (position, stored) in inventory.iter().enumerate() {
            if binder.positions.insert(&stored.name, position).is_some() {
                binder.violations.push(Violation::Twice {
                    name: stored.name.clone(),
                    place: stored.place.clone(),
                });
            }
        }
        binder
    }

    fn take(&mut self, name: &str) -> Option<usize> {
        let position = self.positions.get(name).copied()?;
        self.claimed.insert(position);
        Some(position)
    }

    /// Claims a tensor, with its companions if it is encoded, and gives its decoded dtype.
    fn bind(
        &mut self,
        tensor: &TensorDecl,
        rule: &RuleInfo,
    ) -> Option<(usize, Option<Encoding>, Dtype)> {
        let position = self.take(&tensor.name)?;
        let stored = &self.inventory[position];
        let is_of = |codec: &Codec| codec.stored.contains(&stored.dtype);
        let encoding = self.codecs.iter().position(is_of).map(|codec| {
            let companions = self.companions(codec, stored);
            (codec, companions)
        });
        let decoded = |encoding: &Encoding| self.codecs[encoding.0].decoded;
        let dtype = encoding.as_ref().map_or(stored.dtype, decoded);
        self.check(&tensor.shape, rule, dtype, position);
        Some((position, encoding, dtype))
    }

    /// Claims the copy of a tensor that is there in `dtype`, and gives its position if the two can be compared bit by bit.
    fn bind_copy(
        &mut self,
        copy: &CopyDecl,
        tensor: &TensorDecl,
        dtype: Option<Dtype>,
        rule: &RuleInfo,
    ) -> Option<usize> {
        let position = self.take(&copy.name)?;
        let (before, found) = (self.violations.len(), self.inventory[position].dtype);
        self.check(&tensor.shape, rule, found, position);
        let dtype = dtype?;
        if dtype != found {
            self.violations.push(Violation::MixedDtypes {
                param: tensor.name.clone(),
                dtypes: vec![dtype, found],
            });
        }
        (self.violations.len() == before).then_some(position)
    }

    /// Claims the tensor of a key, and gives its position if it can be read.
    fn bind_key(&mut self, key: &KeyDecl, rule: &RuleInfo) -> Option<usize> {
        let Some(position) = self.take(&key.name) else {
            let violation = missing_violation(&key.name, &key.shape, rule);
            self.violations.push(violation);
            return None;
        };
        let before = self.violations.len();
        self.check(&key.shape, rule, self.inventory[position].dtype, position);
        let is_whole = !self.violations[before..].iter().any(is_unreadable);
        is_whole.then_some(position)
    }

    /// Claims the companions of an encoded tensor.
    fn companions(&mut self, codec: usize, stored: &StoredTensor) -> Vec<usize> {
        let codec = &self.codecs[codec];
        let mut found = Vec::new();
        for companion in &codec.companions {
            let Some(grid) = companion.grid(&stored.shape) else {
                self.violations.push(Violation::Rank {
                    tensor: stored.name.clone(),
                    dtype: stored.dtype,
                    shape: stored.shape.clone(),
                    block: companion.block.clone(),
                    place: stored.place.clone(),
                });
                continue;
            };
            let name = |suffix: &String| format!("{}{suffix}", stored.name);
            let fits = |there: &StoredTensor| {
                there.dtype == companion.dtype && companion.fits(&there.shape, &stored.shape)
            };
            let mut names = companion.suffixes.iter().map(name);
            let published = names.next().unwrap_or_default();
            if let Some(position) = self.take(&published) {
                let there = &self.inventory[position];
                if !fits(there) {
                    self.violations.push(Violation::Grid {
                        companion: published,
                        tensor: stored.name.clone(),
                        tensor_shape: stored.shape.clone(),
                        block: companion.block.clone(),
                        expected: (companion.dtype, grid),
                        found: (there.dtype, there.shape.clone()),
                        place: there.place.clone(),
                    });
                }
                found.push(position);
                continue;
            }
            // Another suffix counts only with the shape that proves its meaning; else it stays unclaimed and is named so.
            let alias = names
                .filter_map(|name| self.positions.get(name.as_str()).copied())
                .find(|&position| fits(&self.inventory[position]));
            match alias {
                Some(position) => {
                    self.claimed.insert(position);
                    self.aliases.push(position);
                    found.push(position);
                }
                None => self.violations.push(Violation::Companion {
                    tensor: stored.name.clone(),
                    dtype: stored.dtype,
                    companion: published,
                    place: stored.place.clone(),
                }),
            }
        }
        found
    }

    fn check(&mut self, shape: &Shape, rule: &RuleInfo, dtype: Dtype, position: usize) {
        let stored = &self.inventory[position];
        let (name, place) = (stored.name.clone(), stored.place.clone());
        if *shape != stored.shape {
            let (expected, found) = (shape.clone(), stored.shape.clone());
            self.violations.push(Violation::Shape {
                name: name.clone(),
                expected,
                found,
                place: place.clone(),
            });
        }
        if !rule.dtype.accepts.contains(&dtype) {
            self.violations.push(Violation::Dtype {
                name,
                accepts: rule.dtype.accepts.clone(),
                found: dtype,
                place,
            });
        }
    }

    fn refuse_unclaimed(&mut self) {
        for (position, stored) in self.inventory.iter().enumerate() {
            if !self.claimed.contains(&position) {
                let violation = self.stray(stored).unwrap_or_else(|| Violation::Unclaimed {
                    name: stored.name.clone(),
                    dtype: stored.dtype,
                    shape: stored.shape.clone(),
                    place: stored.place.clone(),
                });
                self.violations.push(violation);
            }
        }
    }

    /// The violation of a companion whose tensor is there and not encoded.
    fn stray(&self, stored: &StoredTensor) -> Option<Violation> {
        let companions = self.codecs.iter().flat_map(|codec| &codec.companions);
        let suffixes = companions.flat_map(|companion| &companion.suffixes);
        let mut tensors = suffixes.filter_map(|suffix| stored.name.strip_suffix(suffix.as_str()));
        let tensor = tensors.find_map(|name| self.positions.get(name))?;
        let tensor = &self.inventory[*tensor];
        let is_encoded = |codec: &Codec| codec.stored.contains(&tensor.dtype);
        if self.codecs.iter().any(is_encoded) {
            return None;
        }
        Some(Violation::Stray {
            companion: stored.name.clone(),
            tensor: tensor.name.clone(),
            dtype: tensor.dtype,
            place: stored.place.clone(),
        })
    }
}

fn missing_violation(name: &str, shape: &Shape, rule: &RuleInfo) -> Violation {
    Violation::Missing {
        name: name.to_owned(),
        shape: shape.clone(),
        rule: rule.name.clone(),
    }
}

#[cfg(test)]
mod tests;
