//! Which spelling of each rule a checkpoint uses, or shall use.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::limits::{check_spelling, combinations};
use crate::stack::{LayerAxis, Stack};
use crate::template::Template;
use crate::{Error, Form, MapRule, Part, Rule, WeightMap};

/// The habit of storing layers that are alike as one tensor.
const STACKED: &str = "stacked";
/// What the other habit is called.
const PER_LAYER: &str = "per-layer";

/// For every rule of a map, the spelling of its tensors and that of its param: the rule's own, or one of its forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forms {
    /// Positions in [`MapRule::tensor_forms`], one a rule.
    tensors: Vec<Option<usize>>,
    /// One a rule.
    params: Vec<ParamSpelling>,
    /// Whether the rule may be absent and is: nothing of it was found, or nothing was looked for.
    absent: Vec<bool>,
}

/// How the param of a rule is spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParamSpelling {
    /// As the rule says: under its own key, or in the stack that it names.
    Own,
    /// Under its own key, though the rule names a stack.
    PerLayer,
    /// By its position in [`MapRule::param_forms`].
    Form(usize),
}

/// The keys of a rule's param.
pub(crate) enum Keys<'a> {
    /// One, the param's name.
    Single,
    /// One for all params of a stack.
    Stacked(Stack),
    /// Those of a form.
    Parts(&'a [Part]),
}

impl<'a> Keys<'a> {
    /// The parts that name them, of a form alone.
    pub(crate) fn parts(&self) -> &'a [Part] {
        match self {
            Keys::Parts(parts) => parts,
            Keys::Single | Keys::Stacked(_) => &[],
        }
    }
}

impl Forms {
    /// The rules' own spellings: what a conversion writes if nothing else is asked for.
    #[must_use]
    pub fn own(map: &WeightMap) -> Forms {
        let own = vec![None; map.rules.len()];
        let absent = map
            .rules
            .iter()
            .map(|Rule::Map(rule)| rule.beside.is_some());
        Forms {
            params: vec![ParamSpelling::Own; own.len()],
            tensors: own,
            absent: absent.collect(),
        }
    }

    /// The same rules, absent or not, in their own spellings.
    #[must_use]
    pub fn in_own_spelling(&self) -> Forms {
        Forms {
            tensors: vec![None; self.absent.len()],
            params: vec![ParamSpelling::Own; self.absent.len()],
            absent: self.absent.clone(),
        }
    }

    /// With the spellings in which these tensors are there.
    ///
    /// Errors: [`Error::Template`], [`Error::Unsupported`] for a map beyond any model's.
    pub fn of_tensors(mut self, map: &WeightMap, names: &HashSet<&str>) -> Result<Forms, Error> {
        for (position, Rule::Map(rule)) in map.rules.iter().enumerate() {
            if !rule.tensor_forms.is_empty() || rule.beside.is_some() {
                let own = Spelling::of_parts(rule, &rule.parts, names)?;
                let (best, chosen) = best(rule, own, &rule.tensor_forms, names)?;
                self.tensors[position] = chosen;
                self.absent[position] = rule.beside.is_some() && best.there == 0;
            }
        }
        Ok(self)
    }

    /// With the spellings in which these params are there. One program wrote them all, so the rules agree on its habits.
    ///
    /// Errors: as above.
    pub fn of_params(mut self, map: &WeightMap, names: &HashSet<&str>) -> Result<Forms, Error> {
        let rules = map.rules.iter();
        let candidates = rules.map(|Rule::Map(rule)| Candidate::of_param(rule, names));
        let candidates: Vec<Vec<Candidate<'_>>> = candidates.collect::<Result<_, _>>()?;
        let agreed = agreed_habits(&candidates);
        for (position, Rule::Map(rule)) in map.rules.iter().enumerate() {
            let best = best_of(&candidates[position], &agreed);
            self.params[position] = best.form;
            self.absent[position] = rule.beside.is_some() && best.spelling.there == 0;
        }
        Ok(self)
    }

    /// With tensors spelled as the forms of these names, where a rule has one.
    ///
    /// Errors: [`Error::Unsupported`] for a name that no rule has, with those that there are.
    pub fn with_tensors(mut self, map: &WeightMap, asked: &[String]) -> Result<Forms, Error> {
        let known = map.form_names(|rule| &rule.tensor_forms);
        if let Some(unknown) = asked.iter().find(|name| !known.contains(&name.as_str())) {
            let supported = if known.is_empty() {
                "none: this family has one spelling".to_owned()
            } else {
                known.join(", ")
            };
            return Err(Error::Unsupported {
                what: "the spelling of the tensors".to_owned(),
                found: format!("{unknown:?}"),
                supported,
            });
        }
        for (chosen, Rule::Map(rule)) in self.tensors.iter_mut().zip(&map.rules) {
            let mut forms = rule.tensor_forms.iter();
            if let Some(form) = forms.position(|form| asked.contains(&form.name)) {
                *chosen = Some(form);
            }
        }
        Ok(self)
    }

    /// With params that the rules stack stored as asked.
    #[must_use]
    pub fn with_layer_axis(mut self, map: &WeightMap, axis: LayerAxis) -> Forms {
        for (spelling, Rule::Map(rule)) in self.params.iter_mut().zip(&map.rules) {
            if rule.stack.is_some() {
                *spelling = match axis {
                    LayerAxis::Stacked => ParamSpelling::Own,
                    LayerAxis::PerLayer => ParamSpelling::PerLayer,
                };
            }
        }
        self
    }

    /// Whether params that the rules stack have a key each. A loader of Megatron must be told.
    #[must_use]
    pub fn has_per_layer(&self) -> bool {
        self.params.contains(&ParamSpelling::PerLayer)
    }

    /// A line for each spelling that is not the rules' own.
    #[must_use]
    pub fn notices(&self, map: &WeightMap) -> Vec<String> {
        let mut lines: Vec<(String, usize)> = Vec::new();
        let rules = || map.rules.iter();
        let tensors = rules().zip(&self.tensors).filter_map(|(rule, &form)| {
            let Rule::Map(rule) = rule;
            Some(("tensors", rule.tensor_forms[form?].name.as_str()))
        });
        let params = rules().zip(&self.params).filter_map(|(rule, &form)| {
            let Rule::Map(rule) = rule;
            let name = match form {
                ParamSpelling::Own => return None,
                ParamSpelling::PerLayer => PER_LAYER,
                ParamSpelling::Form(form) => &rule.param_forms[form].name,
            };
            Some(("params", name))
        });
        for (side, name) in tensors.chain(params) {
            let line = format!("{side} in the spelling {name}");
            match lines.iter_mut().find(|(known, _)| *known == line) {
                Some((_, count)) => *count += 1,
                None => lines.push((line, 1)),
            }
        }
        lines
            .into_iter()
            .map(|(line, count)| match count {
                1 => format!("{line}: 1 rule"),
                _ => format!("{line}: {count} rules"),
            })
            .collect()
    }

    /// Whether rule number `position` may be absent, and is.
    pub(crate) fn is_absent(&self, position: usize) -> bool {
        self.absent.get(position).copied().unwrap_or_default()
    }

    /// The parts that spell the tensors of rule number `position`.
    pub(crate) fn parts<'a>(&self, position: usize, rule: &'a MapRule) -> &'a [Part] {
        match self.tensors.get(position).copied().flatten() {
            Some(form) => &rule.tensor_forms[form].parts,
            None => &rule.parts,
        }
    }

    /// The keys of the param of rule number `position`. Errors: [`Error::Template`] for a rule that cannot be stacked.
    pub(crate) fn keys<'a>(&self, position: usize, rule: &'a MapRule) -> Result<Keys<'a>, Error> {
        // A stack that cannot be is refused also where it is not asked for.
        let stack = Stack::of(rule)?;
        Ok(match self.params.get(position) {
            Some(ParamSpelling::Form(form)) => Keys::Parts(&rule.param_forms[*form].parts),
            Some(ParamSpelling::PerLayer) => Keys::Single,
            Some(ParamSpelling::Own) | None => stack.map_or(Keys::Single, Keys::Stacked),
        })
    }
}

/// How many of a spelling's names are there.
#[derive(Clone, Copy)]
struct Spelling {
    there: u64,
    all: u64,
}

impl Spelling {
    fn of_parts(rule: &MapRule, parts: &[Part], names: &HashSet<&str>) -> Result<Spelling, Error> {
        check_spelling(rule, parts)?;
        let mut spelling = Spelling { there: 0, all: 0 };
        for part in parts {
            let template = Template::parse(&part.tensor)?;
            for outer in combinations(&rule.scope, &[]) {
                for bindings in combinations(&part.scope, &outer) {
                    spelling.count(&template.expand(&bindings)?, names);
                }
            }
        }
        Ok(spelling)
    }

    fn of_param(rule: &MapRule, names: &HashSet<&str>) -> Result<Spelling, Error> {
        let template = Template::parse(&rule.param)?;
        Spelling::of_keys(rule, names, |bindings| template.expand(bindings))
    }

    fn of_stack(rule: &MapRule, stack: &Stack, names: &HashSet<&str>) -> Result<Spelling, Error> {
        Spelling::of_keys(rule, names, |bindings| Ok(stack.key(bindings)?.0))
    }

    /// Of one key for each param, which may be the same one.
    fn of_keys(
        rule: &MapRule,
        names: &HashSet<&str>,
        key: impl Fn(&[(&str, u64)]) -> Result<String, Error>,
    ) -> Result<Spelling, Error> {
        check_spelling(rule, &[])?;
        let mut spelling = Spelling { there: 0, all: 0 };
        for bindings in combinations(&rule.scope, &[]) {
            spelling.count(&key(&bindings)?, names);
        }
        Ok(spelling)
    }

    fn count(&mut self, name: &str, names: &HashSet<&str>) {
        self.all += 1;
        self.there += u64::from(names.contains(name));
    }

    /// Whether a larger share of the names is there than of the other's.
    fn beats(self, other: Spelling) -> bool {
        let share = |a: Spelling, b: Spelling| u128::from(a.there) * u128::from(b.all);
        share(self, other) > share(other, self)
    }
}

/// A spelling that a param may be found in.
struct Candidate<'a> {
    form: ParamSpelling,
    habits: BTreeSet<&'a str>,
    spelling: Spelling,
}

impl<'a> Candidate<'a> {
    /// All spellings of a rule's param, its own first.
    fn of_param(rule: &'a MapRule, names: &HashSet<&str>) -> Result<Vec<Candidate<'a>>, Error> {
        let mut candidates = Vec::new();
        let mut single = Candidate {
            form: ParamSpelling::Own,
            habits: BTreeSet::new(),
            spelling: Spelling { there: 0, all: 0 },
        };
        if let Some(stack) = Stack::of(rule)? {
            candidates.push(Candidate {
                form: ParamSpelling::Own,
                habits: BTreeSet::from([STACKED]),
                spelling: Spelling::of_stack(rule, &stack, names)?,
            });
            single.form = ParamSpelling::PerLayer;
        }
        if !rule.param_forms.is_empty() || rule.beside.is_some() || rule.stack.is_some() {
            single.spelling = Spelling::of_param(rule, names)?;
        }
        candidates.push(single);
        for (position, form) in rule.param_forms.iter().enumerate() {
            candidates.push(Candidate {
                form: ParamSpelling::Form(position),
                habits: form.habits(),
                spelling: Spelling::of_parts(rule, &form.parts, names)?,
            });
        }
        Ok(candidates)
    }
}

/// Whether the checkpoint has each habit, as most rules say that could have it and have anything there.
///
/// A name may belong to another param in another spelling (one layer's norm to the next layer), so a rule alone can be
/// mistaken. What the most rules have a say in is settled first, and the others are asked again under that.
fn agreed_habits<'a>(candidates: &[Vec<Candidate<'a>>]) -> BTreeMap<&'a str, bool> {
    let mut agreed = BTreeMap::new();
    loop {
        let mut votes: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for candidates in candidates {
            let best = best_of(candidates, &agreed);
            if best.spelling.there == 0 {
                continue;
            }
            let habits = candidates.iter().flat_map(|candidate| &candidate.habits);
            let open = habits.filter(|habit| !agreed.contains_key(*habit));
            for habit in open.copied().collect::<BTreeSet<_>>() {
                let (yes, all) = votes.entry(habit).or_default();
                *yes += usize::from(best.habits.contains(habit));
                *all += 1;
            }
        }
        let Some((habit, (yes, all))) = votes.into_iter().max_by_key(|(_, (_, all))| *all) else {
            return agreed;
        };
        agreed.insert(habit, 2 * yes > all);
    }
}

/// The spelling of which most is there, among those that have the habits agreed on as far as the rule knows them.
fn best_of<'a, 'b>(
    candidates: &'b [Candidate<'a>],
    agreed: &BTreeMap<&str, bool>,
) -> &'b Candidate<'a> {
    let is_known = |habit: &str| candidates.iter().any(|other| other.habits.contains(habit));
    let agrees = |candidate: &&Candidate<'_>| {
        let mut agreed = agreed.iter();
        agreed.all(|(habit, is)| !is_known(habit) || candidate.habits.contains(habit) == *is)
    };
    let better = |best: &'b Candidate<'a>, other: &'b Candidate<'a>| {
        if other.spelling.beats(best.spelling) {
            other
        } else {
            best
        }
    };
    let mut agreeing = candidates.iter().filter(agrees);
    // Habits that no spelling of this rule joins: what is missing of either will be named.
    let first = agreeing.next().unwrap_or(&candidates[0]);
    agreeing.fold(first, better)
}

/// The form of which more is there than of the rule's own spelling and of every form before it, and how much that is.
fn best(
    rule: &MapRule,
    own: Spelling,
    forms: &[Form],
    names: &HashSet<&str>,
) -> Result<(Spelling, Option<usize>), Error> {
    let (mut best, mut chosen) = (own, None);
    for (position, form) in forms.iter().enumerate() {
        let spelling = Spelling::of_parts(rule, &form.parts, names)?;
        if spelling.beats(best) {
            (best, chosen) = (spelling, Some(position));
        }
    }
    Ok((best, chosen))
}

#[cfg(test)]
mod tests {
    use rialto_tensor::Dtype;

    use super::*;
    use crate::{DtypeRule, Scope};

    /// Three layers, of which the first has another norm than the others. Today a layer is two, so that the name of the second
    /// layer's norm in the past is that of the first layer's today.
    fn map() -> WeightMap {
        let rule = |name: &str, layers: std::ops::Range<u64>, today: &str, past: &str| {
            MapRule::new(name, "test", today, [4])
                .over(Scope::new().index("i", layers))
                .dtype(DtypeRule::any_of([Dtype::Bf16]))
                .part(Part::new(&format!("{name}.{{i}}"), [4]))
                .params_also(Form::new("past", [Part::new(past, [4])]))
                .params_also(Form::new(
                    "past+old",
                    [Part::new(&format!("old.{past}"), [4])],
                ))
        };
        WeightMap::new([
            rule("first norm", 0..1, "l.{2*i+1}.norm", "l.{i}.norm"),
            rule("attention", 0..3, "l.{2*i}.attention", "l.{i}.attention"),
            rule("norm", 1..3, "l.{2*i+1}.norm", "l.{i}.norm"),
        ])
    }

    const PAST: ParamSpelling = ParamSpelling::Form(0);
    const OLD: ParamSpelling = ParamSpelling::Form(1);

    fn found(names: &[&str]) -> Vec<ParamSpelling> {
        let names = names.iter().copied().collect();
        let map = map();
        Forms::own(&map).of_params(&map, &names).unwrap().params
    }

    #[test]
    fn a_rule_that_could_be_either_goes_with_the_others() {
        let attention = ["l.0.attention", "l.1.attention", "l.2.attention"];
        let norms = ["l.0.norm", "l.1.norm", "l.2.norm"];
        assert_eq!(found(&[attention, norms].concat()), [PAST; 3]);
        let attention = ["l.0.attention", "l.2.attention", "l.4.attention"];
        let norms = ["l.1.norm", "l.3.norm", "l.5.norm"];
        assert_eq!(found(&[attention, norms].concat()), [ParamSpelling::Own; 3]);
    }

    #[test]
    fn habits_are_settled_one_by_one_and_a_rule_without_a_say_keeps_its_own() {
        let old = [
            "old.l.0.attention",
            "old.l.1.attention",
            "old.l.2.attention",
        ];
        let norms = ["old.l.1.norm", "old.l.2.norm"];
        // Nothing of the first rule is there: it is named as the others are spelled.
        assert_eq!(found(&[old.as_slice(), &norms].concat()), [OLD; 3]);
        assert_eq!(found(&[]), [ParamSpelling::Own; 3]);
    }

    #[test]
    fn one_key_of_another_era_changes_nobody_s_mind() {
        let mixed = [
            "l.0.attention",
            "l.1.attention",
            "l.2.attention",
            "l.0.norm",
            "l.3.norm",
            "l.5.norm",
        ];
        // Three layers say it is the past, and so the two norms of today are missing as the past calls them.
        assert_eq!(found(&mixed), [PAST; 3]);
    }
}
