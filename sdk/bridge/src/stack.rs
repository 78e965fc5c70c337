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

    /// The key of a param, and its place on the leading axis. Errors: also for a place beyond its end.
    pub(crate) fn key(&self, bindings: &[(&str, u64)]) -> Result<(String, u64), Error> {
        let (key, slot) = (self.key.expand(bindings)?, self.slot.evaluate(bindings)?);
        if slot < self.layers {
            return Ok((key, slot));
        }
        let layers = self.layers;
        Err(Error::Template {
            template: key,
            reason: format!(
                "layer {slot} of a stack of {layers}: stacked layers count from 0, and none is left out"
            ),
        })
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

    /// What of the param a rectangle of the key's tensor holds; `None` if it holds nothing of it. The inverse of [`KeyDecl::in_key`],
    /// also for a rectangle of several layers.
    #[must_use]
    pub fn in_param(&self, region: &Region) -> Option<Region> {
        if self.slot.is_none() {
            return Some(region.clone());
        }
        self.layers_before(region)?;
        let ([_, offsets @ ..], [_, sizes @ ..]) = (region.offsets(), region.sizes()) else {
            return None;
        };
        Some(Region::new(offsets, sizes))
    }

    /// How many layers of a rectangle of the key's tensor stand in it before the param's; 0 for a key that is no stack, `None` if the
    /// rectangle holds nothing of the param.
    #[must_use]
    pub fn layers_before(&self, region: &Region) -> Option<u64> {
        let Some(slot) = self.slot else {
            return Some(0);
        };
        let (first, layers) = (*region.offsets().first()?, *region.sizes().first()?);
        slot.checked_sub(first).filter(|before| *before < layers)
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        DtypeRule, Form, Forms, ModuleState, Part, Scope, StateValue, StoredTensor, WeightMap,
    };

    /// A matrix of three layers, `[4, 2]` each.
    fn rule() -> MapRule {
        let module = ModuleState::new("decoder.layers.{i}.fc", StateValue::EmptyTensor);
        MapRule::new("fc", "mlp", "decoder.layers.{i}.fc.weight", [4, 2])
            .over(Scope::new().index("i", 0..3))
            .dtype(DtypeRule::any_of([Dtype::Bf16, Dtype::F32]))
            .state(module)
            .stacked("i")
            .part(Part::new("model.{i}.gate", [2, 2]))
            .part(Part::new("model.{i}.up", [2, 2]).at(["2", "0"]))
            .params_also(Form::new(
                "split",
                [
                    Part::new("decoder.layers.{i}.fc.weight_w", [2, 2]),
                    Part::new("decoder.layers.{i}.fc.weight_v", [2, 2]).at(["2", "0"]),
                ],
            ))
    }

    fn map(rules: impl IntoIterator<Item = MapRule>) -> WeightMap {
        WeightMap::new(rules)
    }

    fn stored(name: &str, shape: &[u64]) -> StoredTensor {
        StoredTensor {
            name: name.to_owned(),
            dtype: Dtype::Bf16,
            shape: Shape::new(shape),
            place: "file".to_owned(),
        }
    }

    fn keys(mapping: &Mapping) -> Vec<(&str, &[u64], Option<u64>)> {
        let keys = mapping.keys().iter();
        keys.map(|key| (key.name.as_str(), key.shape.extents(), key.slot))
            .collect()
    }

    fn objects(mapping: &Mapping) -> Vec<&str> {
        let objects = mapping.objects().iter();
        objects.map(|object| object.key.as_str()).collect()
    }

    #[test]
    fn params_of_a_stack_have_one_key_and_an_object_each() {
        let mapping = map([rule()]).resolve().unwrap();
        let key = "decoder.layers.fc.weight";
        let slot = |slot| (key, &[3, 4, 2][..], Some(slot));
        assert_eq!(keys(&mapping), [slot(0), slot(1), slot(2)]);
        assert_eq!(
            objects(&mapping),
            [0, 1, 2].map(|i| format!("decoder.layers.fc._extra_state/shard_{i}_3"))
        );
        // What is mapped is single layers all the same.
        assert_eq!(mapping.params()[2].name, "decoder.layers.2.fc.weight");
        assert_eq!(mapping.pieces().len(), 6);
    }

    #[test]
    fn per_layer_each_has_its_own() {
        let map = map([rule()]);
        let forms = Forms::own(&map).with_layer_axis(&map, LayerAxis::PerLayer);
        assert!(forms.has_per_layer() && !Forms::own(&map).has_per_layer());
        let mapping = map.resolve_as(&forms).unwrap();
        let key = ("decoder.layers.1.fc.weight", &[4, 2][..], None);
        assert_eq!(keys(&mapping)[1], key);
        assert_eq!(
            objects(&mapping)[1],
            "decoder.layers.1.fc._extra_state/shard_0_1"
        );
        assert_eq!(
            forms.notices(&map),
            ["params in the spelling per-layer: 1 rule"]
        );
    }

    #[test]
    fn a_stack_of_experts_counts_layers_first() {
        let module = ModuleState::new("layers.{i}.experts.fc", StateValue::EmptyTensor).along(0);
        let experts = MapRule::new("fc", "moe", "layers.{i}.experts.fc.weight", [2, 4])
            .over(Scope::new().index("i", 0..2))
            .dtype(DtypeRule::any_of([Dtype::Bf16]))
            .state(module)
            .stacked("i")
            .part(Part::new("model.{i}", [2, 4]));
        let mapping = map([experts]).resolve().unwrap();
        assert_eq!(mapping.keys()[1].shape.extents(), [2, 2, 4]);
        let expected = ["0.0", "0.1", "1.0", "1.1"];
        assert_eq!(
            objects(&mapping),
            expected.map(|at| format!("layers.experts.fc._extra_state/shard_{at}_2.2"))
        );
    }

    /// Which of three spellings a checkpoint has, its names say.
    #[test]
    fn a_checkpoint_is_read_in_the_form_that_it_is_in() {
        let map = map([rule()]);
        let slots = |names: &[String]| {
            let names: HashSet<&str> = names.iter().map(String::as_str).collect();
            let forms = Forms::own(&map).of_params(&map, &names).unwrap();
            let mapping = map.resolve_as(&forms).unwrap();
            let keys = mapping.keys();
            (keys.len(), keys[0].slot.is_some(), keys[0].name.clone())
        };
        let stacked = vec!["decoder.layers.fc.weight".to_owned()];
        let layers = |ending: &str| [0, 1, 2].map(|i| format!("decoder.layers.{i}.fc.{ending}"));
        let own = "decoder.layers.0.fc.weight".to_owned();
        let split = "decoder.layers.0.fc.weight_w".to_owned();
        assert_eq!(slots(&stacked), (3, true, stacked[0].clone()));
        assert_eq!(slots(&layers("weight")), (3, false, own.clone()));
        // Two layers of three say it as well, and nothing at all says what is written.
        assert_eq!(slots(&layers("weight")[1..]), (3, false, own));
        let halves = [layers("weight_w"), layers("weight_v")].concat();
        assert_eq!(slots(&halves), (6, false, split));
        assert_eq!(slots(&[]), (3, true, stacked[0].clone()));
    }

    #[test]
    fn what_is_wrong_with_a_stack_is_said_once() {
        let mapping = map([rule()]).resolve().unwrap();
        let key = "decoder.layers.fc.weight";
        let found = mapping.find_params(&[stored(key, &[3, 4, 2])]);
        assert_eq!((found.keys, found.violations.len()), (vec![Some(0); 3], 0));
        for inventory in [
            vec![],
            vec![stored(key, &[2, 4, 2])],
            vec![stored(key, &[4, 2])],
        ] {
            let found = mapping.find_params(&inventory);
            assert_eq!((found.keys, found.violations.len()), (vec![None; 3], 1));
            assert!(found.violations[0].to_string().contains(key));
        }
    }

    #[test]
    fn a_rule_that_cannot_be_stacked_is_refused_in_either_form() {
        let named = |param: &str, module: &str| {
            let mut rule = rule();
            rule.param = param.to_owned();
            rule.state = Some(ModuleState::new(module, StateValue::EmptyTensor));
            rule.param_forms.clear();
            rule
        };
        let (param, module) = ("layers.{i}.fc", "layers.{i}.fc");
        for (rule, said) in [
            (rule().stacked("j"), "stacked index j is not in scope"),
            (named("layers.x{i}.fc", module), "not one part between dots"),
            (named(param, "layers.fc"), "not one part between dots"),
            (
                named(param, "layers.{2*i}.fc"),
                "module layers.{2*i}.fc counts otherwise",
            ),
            (rule().padded(0, 8), "neither padded nor kept beside"),
            (rule().kept_beside("why"), "neither padded nor kept beside"),
        ] {
            let map = map([rule]);
            for axis in [LayerAxis::Stacked, LayerAxis::PerLayer] {
                let mut forms = Forms::own(&map).with_layer_axis(&map, axis);
                let names = HashSet::from(["model.0.gate"]);
                forms = forms.of_tensors(&map, &names).unwrap();
                let error = map.resolve_as(&forms).unwrap_err().to_string();
                assert!(error.contains(said), "{error}");
            }
        }
    }

    /// The layers of a stack are all of 0 up to their number, once.
    #[test]
    fn a_stack_has_neither_gaps_nor_layers_twice() {
        let over = |values: &[u64]| {
            let mut rule = rule();
            rule.scope = Scope::new().index("i", values.iter().copied());
            map([rule]).resolve().map(|mapping| mapping.keys().len())
        };
        assert_eq!(over(&[2, 0, 1]), Ok(3));
        for values in [&[1, 2, 3][..], &[0, 2, 4], &[0, 1, 1]] {
            assert!(over(values).is_err(), "{values:?}");
        }
        // Nor is it a param's own key, whichever comes first.
        let mut plain = rule();
        plain.name = "plain".to_owned();
        plain.param = "decoder.layers.fc.weight".to_owned();
        plain.scope = Scope::new();
        (plain.stack, plain.state, plain.param_forms) = (None, None, Vec::new());
        plain.parts = vec![Part::new("plain", [4, 2])];
        for rules in [[rule(), plain.clone()], [plain, rule()]] {
            let error = map(rules).resolve().unwrap_err();
            let findings = error.findings();
            let said = |finding: &String| {
                finding.contains("param decoder.layers.fc.weight is made by rule")
            };
            assert!(findings.iter().any(said), "{findings:?}");
        }
        // Nor do two rules share one, though no param is of both.
        let mut other = rule();
        other.param = "decoder.{i}.layers.fc.weight".to_owned();
        other.name = "other".to_owned();
        (other.state, other.param_forms) = (None, Vec::new());
        other.parts = vec![Part::new("other.{i}", [4, 2])];
        let error = map([rule(), other]).resolve().unwrap_err();
        assert!(
            error
                .findings()
                .iter()
                .any(|finding| finding.contains("rule other")),
            "{error}"
        );
    }

    #[test]
    fn layers_of_unlike_dtypes_cannot_be_one_tensor() {
        let map = map([rule()]);
        let mixed = [Dtype::Bf16, Dtype::F32, Dtype::Bf16];
        let mapping = map.resolve().unwrap();
        assert_eq!(mapping.check_stacks(&[Dtype::F32; 3]), Ok(()));
        let error = mapping.check_stacks(&mixed).unwrap_err();
        assert_eq!(error.findings().len(), 1);
        assert!(
            error.to_string().contains("decoder.layers.fc.weight"),
            "{error}"
        );
        assert!(error.help().unwrap().contains("--layer-axis per-layer"));
        let forms = Forms::own(&map).with_layer_axis(&map, LayerAxis::PerLayer);
        assert_eq!(map.resolve_as(&forms).unwrap().check_stacks(&mixed), Ok(()));
    }

    #[test]
    fn a_document_with_a_stack_asks_for_a_reader_that_knows_it() {
        assert!(map([rule()]).requirements().contains(&"rule/stack/1"));
        let mut plain = rule();
        plain.stack = None;
        assert!(!map([plain]).requirements().contains(&"rule/stack/1"));
    }

    proptest! {
        /// A chunk of some layers holds each of them at its place, and no other.
        #[test]
        fn a_rectangle_of_a_layer_is_found_in_every_chunk_that_has_it(
            first in 0u64..6, layers in 0u64..6, slot in 0u64..12, row in 0u64..4, rows in 1u64..4,
        ) {
            let key = KeyDecl {
                name: "key".to_owned(),
                shape: Shape::new([12, 8, 2]),
                slot: Some(slot),
                param: 0,
                region: Region::new([0, 0], [8, 2]),
            };
            let chunk = Region::new([first, row, 0], [layers, rows, 2]);
            let inside = (first..first + layers).contains(&slot);
            let found = key.in_param(&chunk);
            prop_assert_eq!(found.is_some(), inside);
            prop_assert_eq!(key.layers_before(&chunk), inside.then(|| slot.wrapping_sub(first)));
            if let Some(region) = found {
                let stored = key.in_key(&region);
                prop_assert_eq!(stored.intersection(&chunk), Some(stored.clone()));
                prop_assert_eq!(key.layers_before(&stored), Some(0));
                prop_assert_eq!(key.in_param(&stored), Some(region));
            }
        }
    }
}
