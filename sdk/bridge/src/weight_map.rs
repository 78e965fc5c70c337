//! All rules of a model, and their expansion into a [`Mapping`].

use std::collections::{BTreeMap, HashMap};

use rialto_tensor::{Region, Shape, tiling_faults};
use serde::{Deserialize, Serialize};

use crate::forms::Keys;
use crate::limits::{check_count, check_rule, combinations, expanded};
use crate::mapping::RuleInfo;
use crate::template::{Expression, Template};
use crate::{
    CopyDecl, Error, Form, Forms, KeyDecl, MapRule, Mapping, ModuleState, ObjectDecl, ParamDecl,
    Part, Piece, Rule, TensorDecl, Violation,
};

/// The rules of a model, in the order of the forward pass. It crosses the ABI once, as data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightMap {
    /// The rules.
    pub rules: Vec<Rule>,
}

impl WeightMap {
    /// A map of these rules.
    pub fn new<R: Into<Rule>>(rules: impl IntoIterator<Item = R>) -> WeightMap {
        WeightMap {
            rules: rules.into_iter().map(Into::into).collect(),
        }
    }

    /// What a document that holds this map requires of its reader.
    #[must_use]
    pub fn requirements(&self) -> Vec<&'static str> {
        let mut needs: Vec<_> = self.rules.iter().flat_map(Rule::requirements).collect();
        needs.sort_unstable();
        needs.dedup();
        needs
    }

    /// The names of all forms of one side, each once, in order.
    pub fn form_names(&self, forms: impl Fn(&MapRule) -> &[Form]) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for Rule::Map(rule) in &self.rules {
            for form in forms(rule) {
                if !names.contains(&form.name.as_str()) {
                    names.push(&form.name);
                }
            }
        }
        names
    }

    /// [`WeightMap::resolve_as`] with the rules' own spellings.
    pub fn resolve(&self) -> Result<Mapping, Error> {
        self.resolve_as(&Forms::own(self))
    }

    /// Gives the indices their values and proves the result total: the param rectangles tile every param once, the tensor
    /// rectangles tile every tensor once, the keys tile every param once, and the two rectangles of a piece hold the same
    /// elements.
    ///
    /// Errors: [`Error::Template`] for a name that cannot be made, [`Error::NotTotal`] with every violation.
    pub fn resolve_as(&self, forms: &Forms) -> Result<Mapping, Error> {
        let mut expansion = Expansion::default();
        for (position, rule) in self.rules.iter().enumerate() {
            let Rule::Map(rule) = rule;
            if forms.is_absent(position) && rule.skip.is_none() {
                continue;
            }
            expansion.add_rule(
                rule,
                forms.parts(position, rule),
                &forms.keys(position, rule)?,
            )?;
        }
        expansion.finish()
    }
}

#[derive(Default)]
struct Expansion {
    /// Pieces and objects of the rules counted so far.
    expanded: u64,
    rules: Vec<RuleInfo>,
    tensors: Vec<TensorDecl>,
    tensor_positions: HashMap<String, usize>,
    params: Vec<ParamDecl>,
    param_positions: HashMap<String, usize>,
    keys: Vec<KeyDecl>,
    key_claims: HashMap<String, KeyClaim>,
    pieces: Vec<Piece>,
    objects: Vec<ObjectDecl>,
    skipped: Vec<TensorDecl>,
    copies: Vec<CopyDecl>,
    violations: Vec<Violation>,
}

/// Who has a key.
#[derive(Clone, Copy)]
struct KeyClaim {
    rule: usize,
    is_stack: bool,
    /// Whether it is a param's own name.
    is_own: bool,
}

/// A part whose templates have been read once, for all values of the indices.
struct ReadPart<'a> {
    part: &'a Part,
    tensor: Template,
    from: Vec<Expression>,
    at: Vec<Expression>,
}

impl<'a> ReadPart<'a> {
    fn read(part: &'a Part, param_rank: usize) -> Result<ReadPart<'a>, Error> {
        let offsets = |texts: &[String], rank: usize, of: &str| match texts.len() {
            0 => Ok(vec![Expression::parse("0")?; rank]),
            found if found == rank => texts.iter().map(|text| Expression::parse(text)).collect(),
            found => Err(Error::Template {
                template: part.tensor.clone(),
                reason: format!("{found} offsets for the {rank} axes of the {of}"),
            }),
        };
        if let Some(take) = part
            .take
            .as_ref()
            .filter(|take| take.len() != part.shape.len())
        {
            let reason = format!("{} extents taken of {} axes", take.len(), part.shape.len());
            return Err(Error::Template {
                template: part.tensor.clone(),
                reason,
            });
        }
        Ok(ReadPart {
            part,
            tensor: Template::parse(&part.tensor)?,
            from: offsets(&part.from, part.shape.len(), "tensor")?,
            at: offsets(&part.at, param_rank, "param")?,
        })
    }

    /// The extents in the param of what is taken of the tensor: the param may have unit axes that the tensor lacks; they
    /// stand in front, as a stack's axes do.
    fn extents_in_param(&self, take: &[u64]) -> Vec<u64> {
        let mut extents = vec![1; self.at.len().saturating_sub(take.len())];
        extents.extend_from_slice(&take[take.len().saturating_sub(self.at.len())..]);
        extents
    }
}

fn read_parts(parts: &[Part], param_rank: usize) -> Result<Vec<ReadPart<'_>>, Error> {
    let read = |part| ReadPart::read(part, param_rank);
    parts.iter().map(read).collect()
}

/// How the params of a rule are keyed, read once for all values of the indices.
struct ReadKeys<'a> {
    keys: &'a Keys<'a>,
    /// Those of [`Keys::Parts`].
    parts: Vec<ReadPart<'a>>,
    /// The object beside the param, and its module.
    state: Option<(&'a ModuleState, Template)>,
    /// Shape of the param.
    shape: Shape,
}

impl<'a> ReadKeys<'a> {
    fn read(rule: &'a MapRule, keys: &'a Keys<'a>) -> Result<ReadKeys<'a>, Error> {
        let state = match &rule.state {
            Some(state) => Some((state, Template::parse(&state.module)?)),
            None => None,
        };
        Ok(ReadKeys {
            keys,
            parts: read_keys(keys.parts(), rule.shape.len())?,
            state,
            shape: Shape::new(rule.shape.clone()),
        })
    }
}

/// Reads the parts of a param's form. Errors: also for a part that is not taken whole.
fn read_keys(parts: &[Part], param_rank: usize) -> Result<Vec<ReadPart<'_>>, Error> {
    let is_cut = |part: &&Part| part.take.is_some() || !part.from.is_empty();
    match parts.iter().find(is_cut) {
        Some(part) => Err(Error::Template {
            template: part.tensor.clone(),
            reason: "the keys of a param are taken whole".to_owned(),
        }),
        None => read_parts(parts, param_rank),
    }
}

/// Reads the names of copies. Errors: also for a rule of which no tensor is all.
fn read_copies(rule: &MapRule) -> Result<Vec<Template>, Error> {
    let is_plain = |part: &Part| part.take.is_none() && part.scope.indices().is_empty();
    let is_one = matches!(rule.parts.as_slice(), [part] if is_plain(part));
    let can_be = is_one && rule.tensor_forms.is_empty() && rule.skip.is_none();
    if !rule.copies.is_empty() && !can_be {
        return Err(Error::Template {
            template: rule.param.clone(),
            reason: "only a param that is one tensor in one spelling has copies".to_owned(),
        });
    }
    let copies = rule.copies.iter();
    copies.map(|copy| Template::parse(copy)).collect()
}

fn evaluate(offsets: &[Expression], bindings: &[(&str, u64)]) -> Result<Vec<u64>, Error> {
    let value = |offset: &Expression| offset.evaluate(bindings);
    offsets.iter().map(value).collect()
}

impl Expansion {
    /// Adds a rule whose tensors are spelled as `parts` and whose param as `keys`.
    fn add_rule(&mut self, rule: &MapRule, parts: &[Part], keys: &Keys<'_>) -> Result<(), Error> {
        if rule.dtype.accepts.is_empty() {
            let reason = "the rule accepts no dtype".to_owned();
            return Err(Error::Template {
                template: rule.param.clone(),
                reason,
            });
        }
        check_rule(rule)?;
        if let Some(padding) = &rule.padding {
            padding.check(rule)?;
        }
        let position = self.rules.len();
        self.rules.push(RuleInfo {
            name: rule.name.clone(),
            group: rule.group.clone(),
            dtype: rule.dtype.clone(),
            encoded: rule.encoded.clone(),
            padding: rule.padding,
            beside: rule.beside.clone(),
            skip: rule.skip.clone(),
        });
        let name = Template::parse(&rule.param)?;
        let shape = Shape::new(rule.shape.clone());
        self.count(rule, parts, keys.parts())?;
        let parts = read_parts(parts, rule.shape.len())?;
        let keys = ReadKeys::read(rule, keys)?;
        let copies = read_copies(rule)?;
        for bindings in combinations(&rule.scope, &[]) {
            if rule.skip.is_some() {
                for part in &parts {
                    self.add_skipped(part, position, &bindings)?;
                }
                continue;
            }
            let param = self.add_param(name.expand(&bindings)?, &shape, position);
            self.add_keys(&keys, param, position, &bindings)?;
            for part in &parts {
                self.add_pieces(part, param, position, &bindings)?;
            }
            for copy in &copies {
                self.add_copy(copy.expand(&bindings)?);
            }
        }
        Ok(())
    }

    /// Refuses a map that would expand beyond the limit, before it does.
    fn count(&mut self, rule: &MapRule, parts: &[Part], keys: &[Part]) -> Result<(), Error> {
        let objects = match rule.state.as_ref().map(|state| state.axis) {
            Some(Some(axis)) => rule.shape.get(axis).copied().unwrap_or_default(),
            Some(None) => 1,
            None => 0,
        };
        let count = expanded(rule, parts.iter().chain(keys), objects);
        self.expanded = self.expanded.saturating_add(count);
        check_count(rule, self.expanded)
    }

    fn add_param(&mut self, name: String, shape: &Shape, rule: usize) -> usize {
        if let Some(&first) = self.param_positions.get(&name) {
            let rule_name = |rule: usize| self.rules[rule].name.clone();
            let (first, second) = (rule_name(self.params[first].rule), rule_name(rule));
            self.violations.push(Violation::TwoRules {
                param: name.clone(),
                first,
                second,
            });
        }
        self.param_positions.insert(name.clone(), self.params.len());
        self.params.push(ParamDecl {
            name,
            shape: shape.clone(),
            filled: shape.clone(),
            rule,
        });
        self.params.len() - 1
    }

    /// The keys of one param, and the objects beside it.
    fn add_keys<'a>(
        &mut self,
        keys: &ReadKeys<'a>,
        param: usize,
        rule: usize,
        bindings: &[(&'a str, u64)],
    ) -> Result<(), Error> {
        let shape = &keys.shape;
        let whole = |name, shape, slot| KeyDecl {
            name,
            shape,
            slot,
            param,
            region: Region::whole(&keys.shape),
        };
        match keys.keys {
            // Objects are written, never read: other keys, which are only read, have none.
            Keys::Parts(_) => {
                for part in &keys.parts {
                    self.add_other_keys(part, param, rule, bindings)?;
                }
            }
            Keys::Single => {
                let name = self.params[param].name.clone();
                self.add_key(whole(name, shape.clone(), None), rule);
                if let Some((state, module)) = &keys.state {
                    self.add_objects(state, &module.expand(bindings)?, shape, None)?;
                }
            }
            Keys::Stacked(stack) => {
                let (name, slot) = stack.key(bindings)?;
                self.add_key(whole(name, stack.shape(shape), Some(slot)), rule);
                if let (Some((state, _)), Some(module)) = (&keys.state, stack.module(bindings)?) {
                    let slot = Some((slot, stack.layers));
                    self.add_objects(state, &module, shape, slot)?;
                }
            }
        }
        Ok(())
    }

    fn add_other_keys<'a>(
        &mut self,
        part: &ReadPart<'a>,
        param: usize,
        rule: usize,
        outer: &[(&'a str, u64)],
    ) -> Result<(), Error> {
        let shape = Shape::new(part.part.shape.clone());
        let extents = part.extents_in_param(&part.part.shape);
        for bindings in combinations(&part.part.scope, outer) {
            let region = Region::new(evaluate(&part.at, &bindings)?, extents.clone());
            let name = part.tensor.expand(&bindings)?;
            if proper(&region) != proper(&Region::whole(&shape)) {
                self.violations.push(Violation::Piece {
                    tensor: name.clone(),
                    tensor_region: Region::whole(&shape),
                    param: self.params[param].name.clone(),
                    param_region: region.clone(),
                });
            }
            let (shape, slot) = (shape.clone(), None);
            let key = KeyDecl {
                name,
                shape,
                slot,
                param,
                region,
            };
            self.add_key(key, rule);
        }
        Ok(())
    }

    fn add_key(&mut self, key: KeyDecl, rule: usize) {
        let claim = KeyClaim {
            rule,
            is_stack: key.slot.is_some(),
            is_own: key.slot.is_none() && key.name == self.params[key.param].name,
        };
        if let Some(first) = self.key_claims.insert(key.name.clone(), claim) {
            // The params of a stack share one key, and of a param that two rules make it is said already.
            let is_shared = first.is_stack && claim.is_stack && first.rule == rule;
            let is_said = first.is_own && claim.is_own;
            if !(is_shared || is_said) {
                let rule_name = |rule: usize| self.rules[rule].name.clone();
                self.violations.push(Violation::TwoRules {
                    param: key.name.clone(),
                    first: rule_name(first.rule),
                    second: rule_name(rule),
                });
            }
        }
        self.keys.push(key);
    }

    /// `slot` is the place and the extent of a leading axis that the module's layers are stacked along.
    fn add_objects(
        &mut self,
        state: &ModuleState,
        module: &str,
        shape: &Shape,
        slot: Option<(u64, u64)>,
    ) -> Result<(), Error> {
        let count = match state.axis {
            None => 1,
            Some(axis) => *shape.extents().get(axis).ok_or_else(|| Error::Template {
                template: state.module.clone(),
                reason: format!("no axis {axis} in shape {shape}"),
            })?,
        };
        let shard = |offset| match (slot, state.axis) {
            (None, _) => format!("shard_{offset}_{count}"),
            (Some((slot, layers)), None) => format!("shard_{slot}_{layers}"),
            (Some((slot, layers)), Some(_)) => format!("shard_{slot}.{offset}_{layers}.{count}"),
        };
        let object = |offset| ObjectDecl {
            key: format!("{module}._extra_state/{}", shard(offset)),
            value: state.value,
        };
        self.objects.extend((0..count).map(object));
        Ok(())
    }

    fn add_skipped<'a>(
        &mut self,
        part: &ReadPart<'a>,
        rule: usize,
        outer: &[(&'a str, u64)],
    ) -> Result<(), Error> {
        for bindings in combinations(&part.part.scope, outer) {
            let (name, shape) = (
                part.tensor.expand(&bindings)?,
                Shape::new(part.part.shape.clone()),
            );
            self.skipped.push(TensorDecl { name, shape, rule });
        }
        Ok(())
    }

    fn add_pieces<'a>(
        &mut self,
        part: &ReadPart<'a>,
        param: usize,
        rule: usize,
        outer: &[(&'a str, u64)],
    ) -> Result<(), Error> {
        let take = part.part.take.as_ref().unwrap_or(&part.part.shape);
        let extents = part.extents_in_param(take);
        for bindings in combinations(&part.part.scope, outer) {
            let tensor = self.add_tensor(
                part.tensor.expand(&bindings)?,
                &Shape::new(part.part.shape.clone()),
                rule,
            );
            let tensor_region = Region::new(evaluate(&part.from, &bindings)?, take.clone());
            let param_region = Region::new(evaluate(&part.at, &bindings)?, extents.clone());
            self.pieces.push(Piece {
                tensor,
                tensor_region,
                param,
                param_region,
            });
        }
        Ok(())
    }

    /// Adds a name of the tensor that was added last.
    fn add_copy(&mut self, name: String) {
        let Some(&Piece { tensor, .. }) = self.pieces.last() else {
            return;
        };
        self.copies.push(CopyDecl { name, tensor });
    }

    fn add_tensor(&mut self, name: String, shape: &Shape, rule: usize) -> usize {
        if let Some(&tensor) = self.tensor_positions.get(&name) {
            let first = self.tensors[tensor].shape.clone();
            if first != *shape {
                self.violations.push(Violation::TwoShapes {
                    name,
                    first,
                    second: shape.clone(),
                });
            }
            return tensor;
        }
        self.tensor_positions
            .insert(name.clone(), self.tensors.len());
        self.tensors.push(TensorDecl {
            name,
            shape: shape.clone(),
            rule,
        });
        self.tensors.len() - 1
    }

    /// A copy is no tensor of any rule, and of one tensor only.
    fn check_copies(&mut self) {
        let skipped = self.skipped.iter();
        let mut known: HashMap<&str, usize> = skipped
            .map(|tensor| (tensor.name.as_str(), tensor.rule))
            .collect();
        let tensors = self.tensors.iter();
        known.extend(tensors.map(|tensor| (tensor.name.as_str(), tensor.rule)));
        for copy in &self.copies {
            let rule = self.tensors[copy.tensor].rule;
            if let Some(first) = known.insert(&copy.name, rule) {
                self.violations.push(Violation::TwoRules {
                    param: copy.name.clone(),
                    first: self.rules[first].name.clone(),
                    second: self.rules[rule].name.clone(),
                });
            }
        }
    }

    fn finish(mut self) -> Result<Mapping, Error> {
        let mut of_tensor: Vec<Vec<Region>> = vec![Vec::new(); self.tensors.len()];
        let mut of_param: Vec<Vec<Region>> = vec![Vec::new(); self.params.len()];
        for piece in &self.pieces {
            if proper(&piece.tensor_region) != proper(&piece.param_region) {
                self.violations.push(Violation::Piece {
                    tensor: self.tensors[piece.tensor].name.clone(),
                    tensor_region: piece.tensor_region.clone(),
                    param: self.params[piece.param].name.clone(),
                    param_region: piece.param_region.clone(),
                });
            }
            of_tensor[piece.tensor].push(piece.tensor_region.clone());
            of_param[piece.param].push(piece.param_region.clone());
        }
        let tensors = self
            .tensors
            .iter()
            .map(|tensor| (&tensor.name, &tensor.shape))
            .zip(of_tensor);
        let params = self
            .params
            .iter()
            .map(|param| (&param.name, &param.shape))
            .zip(of_param);
        let mut of_keys: Vec<Vec<Region>> = vec![Vec::new(); self.params.len()];
        for key in &self.keys {
            of_keys[key.param].push(key.region.clone());
        }
        let keys = self
            .params
            .iter()
            .map(|param| (&param.name, &param.shape))
            .zip(of_keys);
        let mut of_stacks: BTreeMap<&String, (&Shape, Vec<Region>)> = BTreeMap::new();
        for key in self.keys.iter().filter(|key| key.slot.is_some()) {
            let stack = of_stacks.entry(&key.name);
            let (_, regions) = stack.or_insert_with(|| (&key.shape, Vec::new()));
            regions.push(key.in_key(&key.region));
        }
        let stacks = of_stacks.into_iter();
        let stacks = stacks.map(|(name, (shape, regions))| ((name, shape), regions));
        let all = tensors.chain(params).chain(keys).chain(stacks);
        for ((name, shape), regions) in all {
            let faults = tiling_faults(shape, &regions).into_iter();
            self.violations
                .extend(faults.map(|fault| Violation::Tiling {
                    name: name.clone(),
                    shape: shape.clone(),
                    fault,
                }));
        }
        self.check_copies();
        self.objects.sort();
        let doubled = self
            .objects
            .windows(2)
            .filter(|pair| pair[0].key == pair[1].key);
        self.violations
            .extend(doubled.map(|pair| Violation::TwoObjects {
                key: pair[0].key.clone(),
            }));
        if !self.violations.is_empty() {
            return Err(Error::NotTotal {
                violations: self.violations,
                advice: None,
            });
        }
        Ok(Mapping {
            rules: self.rules,
            tensors: self.tensors,
            params: self.params,
            keys: self.keys,
            pieces: self.pieces,
            objects: self.objects,
            skipped: self.skipped,
            copies: self.copies,
        })
    }
}

/// Extents without those of 1: what two rectangles must share to hold the same elements in the same order.
fn proper(region: &Region) -> Vec<u64> {
    region
        .sizes()
        .iter()
        .copied()
        .filter(|&extent| extent != 1)
        .collect()
}

#[cfg(test)]
mod tests;
