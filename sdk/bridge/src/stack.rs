//! Params of layers that are alike, which Megatron stores as one tensor with a leading layer axis.
//!
//! A GPT model whose layers are all of one kind keeps `decoder.layers.{i}.mlp.linear_fc2.weight` of all its layers under the key
//! `decoder.layers.mlp.linear_fc2.weight`, of shape `[layers, ...]`. A rule says so with [`MapRule::stack`]; its params,
//! pieces, placement and stages are those of single layers all the same. Only keys and objects know of the stack.
//! Source: `TransformerBlock.sharded_state_dict` of Megatron-Core.

use std::collections::BTreeMap;

use rialto_tensor::{Dtype, Region, Shape};
use serde::{Deserialize, Serialize};

use crate::template::{Expression, Template};
use crate::{Error, KeyDecl, MapRule, Mapping, Violation};

/// How the params of layers that are alike are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerAxis {
    /// As one tensor for all layers, where the rules say that they are alike: what Megatron demands if nothing tells it otherwise.
    #[default]
    Stacked,
    /// As one tensor for each layer, which Megatron demands of a checkpoint whose content metadata has
    /// `non_homogeneous_layers`.
    PerLayer,
}

/// The names of a stacked rule, read once for all values of the indices.
pub(crate) struct Stack {
    key: Template,
    module: Option<Template>,
    /// The place on the leading axis.
    slot: Expression,
    /// Extent of the leading axis.
    pub(crate) layers: u64,
}

impl Stack {
    /// Errors: [`Error::Template`] for a rule that cannot be stacked.
    pub(crate) fn of(rule: &MapRule) -> Result<Option<Stack>, Error> {
        let Some(index) = &rule.stack else {
            return Ok(None);
        };
        let wrong = |reason: String| Error::Template {
            template: rule.param.clone(),
            reason,
        };
        let mut indices = rule.scope.indices().iter();
        let Some(scope) = indices.find(|other| other.name == *index) else {
            return Err(wrong(format!("stacked index {index} is not in scope")));
        };
        if rule.padding.is_some() || rule.beside.is_some() {
            let reason = "a stacked param is neither padded nor kept beside Megatron's own";
            return Err(wrong(reason.to_owned()));
        }
        let (key, slot) = Template::parse(&rule.param)?.without(index)?;
        let module = match &rule.state {
            Some(state) => {
                let (module, of_module) = Template::parse(&state.module)?.without(index)?;
                if of_module != slot {
                    return Err(wrong(format!("module {} counts otherwise", state.module)));
                }
                Some(module)
            }
            None => None,
        };
        Ok(Some(Stack {
            key,
            module,
            slot,
            layers: scope.values.len() as u64,
        }))
    }

    /// The key of a param, and its place on the leading axis.
    pub(crate) fn key(&self, bindings: &[(&str, u64)]) -> Result<(String, u64), Error> {
        Ok((self.key.expand(bindings)?, self.slot.evaluate(bindings)?))
    }

    /// The key of a param's module; none if it keeps no object.
    pub(crate) fn module(&self, bindings: &[(&str, u64)]) -> Result<Option<String>, Error> {
        let module = self.module.as_ref();
        module.map(|module| module.expand(bindings)).transpose()
    }

    /// The shape of the stored tensor.
    pub(crate) fn shape(&self, param: &Shape) -> Shape {
        Shape::new([&[self.layers], param.extents()].concat())
    }
}

impl KeyDecl {
    /// What of the key's tensor is this rectangle of the param. For keys that hold a param whole, alone or in a stack.
    #[must_use]
    pub fn in_key(&self, region: &Region) -> Region {
        match self.slot {
            Some(slot) => Region::new(
                [&[slot], region.offsets()].concat(),
                [&[1], region.sizes()].concat(),
            ),
            None => region.clone(),
        }
    }

    /// What of the param a rectangle of the key's tensor holds, and how many such rectangles of as many elements stand in it
    /// before; `None` if it holds nothing of it. The inverse of [`KeyDecl::in_key`] for one layer.
    #[must_use]
    pub fn in_param(&self, region: &Region) -> Option<(Region, u64)> {
        let Some(slot) = self.slot else {
            return Some((region.clone(), 0));
        };
        let ([first, offsets @ ..], [layers, sizes @ ..]) = (region.offsets(), region.sizes())
        else {
            return None;
        };
        let before = slot.checked_sub(*first).filter(|before| before < layers)?;
        Some((Region::new(offsets, sizes), before))
    }
}

impl Mapping {
    /// Refuses params that are stored as one tensor and have unlike dtypes, which are given as one for each param.
    ///
    /// Errors: [`Error::NotTotal`] with every such tensor.
    pub fn check_stacks(&self, dtypes: &[Dtype]) -> Result<(), Error> {
        let mut of_key: BTreeMap<&str, Vec<Dtype>> = BTreeMap::new();
        for key in self.keys.iter().filter(|key| key.slot.is_some()) {
            let found = of_key.entry(&key.name).or_default();
            if !found.contains(&dtypes[key.param]) {
                found.push(dtypes[key.param]);
            }
        }
        let mixed = of_key.into_iter().filter(|(_, dtypes)| dtypes.len() > 1);
        let violations = mixed.map(|(key, dtypes)| Violation::MixedDtypes {
            param: key.to_owned(),
            dtypes,
        });
        let violations: Vec<Violation> = violations.collect();
        if violations.is_empty() {
            return Ok(());
        }
        let advice = "layers of unlike dtypes cannot be one tensor; `--dtype bf16` or `--layer-axis per-layer` makes a checkpoint";
        Err(Error::NotTotal {
            violations,
            advice: Some(advice.to_owned()),
        })
    }
}
