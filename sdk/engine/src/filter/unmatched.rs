//! What of a filter matches nothing, and what would.

use std::collections::{BTreeMap, BTreeSet};

use rialto_bridge::placement::matches;

use super::{Filter, Ranges, number_after};

/// How many names are shown that are like one that nothing has.
const SHOWN: usize = 3;

/// Each number and pattern of a filter that is of none of the tensors, with what there is. A range whose end is none of the
/// numbers is one too: whoever gives it takes the model for a larger one.
pub(super) fn of<'a>(filter: &Filter, names: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
    let mut unmatched = Vec::new();
    for (what, asked) in [("layers", &filter.layers), ("experts", &filter.experts)] {
        let Some(Ranges(asked)) = asked else {
            continue;
        };
        let numbers = names.clone().filter_map(|name| number_after(name, what));
        let there: BTreeSet<u64> = numbers.collect();
        for &(first, last) in asked {
            if there.contains(&first) && there.contains(&last) {
                continue;
            }
            let asked = Ranges(vec![(first, last)]);
            unmatched.push(match there.is_empty() {
                true => format!("--{what} {asked}, where no tensor has {what} in its name"),
                false => format!("--{what} {asked}, expected some of {}", Ranges::of(&there)),
            });
        }
    }
    let patterns = (filter.include.iter().map(|pattern| ("--include", pattern)))
        .chain(filter.exclude.iter().map(|pattern| ("--exclude", pattern)));
    for (option, pattern) in patterns {
        if names.clone().any(|name| matches(pattern, name)) {
            continue;
        }
        let near = near(pattern, names.clone()).join(", ");
        unmatched.push(format!(
            "{option} {pattern}, expected a name such as {near}"
        ));
    }
    unmatched
}

/// The names most like a pattern. Those that differ only in numbers are shown as one, with the numbers that there are.
fn near<'a>(pattern: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut forms: BTreeMap<String, Vec<BTreeSet<u64>>> = BTreeMap::new();
    for name in names {
        let (form, numbers) = form(name);
        let seen = forms.entry(form).or_default();
        seen.resize(numbers.len(), BTreeSet::new());
        for (seen, number) in seen.iter_mut().zip(numbers) {
            seen.insert(number);
        }
    }
    let (pattern, _) = form(pattern);
    let mut forms: Vec<_> = forms.into_iter().collect();
    forms.sort_by_key(|(form, _)| distance(&pattern, form));
    let shown = forms.into_iter().take(SHOWN).map(|(form, numbers)| {
        let mut numbers = numbers.iter().map(Ranges::of);
        let part = |part| match part {
            NUMBER => numbers
                .next()
                .map_or_else(String::new, |there| there.to_string()),
            part => part.to_owned(),
        };
        form.split('.').map(part).collect::<Vec<_>>().join(".")
    });
    shown.collect()
}

/// What stands for a number in a form.
const NUMBER: &str = "#";

/// A name with its numbers taken out.
fn form(name: &str) -> (String, Vec<u64>) {
    let mut numbers = Vec::new();
    let parts = name.split('.').map(|part| match part.parse() {
        Ok(number) => {
            numbers.push(number);
            NUMBER
        }
        Err(_) => part,
    });
    let form = parts.collect::<Vec<_>>().join(".");
    (form, numbers)
}

/// How many characters have to change for a pattern to match a text; `*` stands for any run of them.
fn distance(pattern: &str, text: &str) -> usize {
    let text: Vec<char> = text.chars().collect();
    let mut before: Vec<usize> = (0..=text.len()).collect();
    for character in pattern.chars() {
        let is_any = character == '*';
        let mut row = vec![before[0] + usize::from(!is_any)];
        for (at, other) in text.iter().enumerate() {
            row.push(match is_any {
                true => before[at + 1].min(row[at]),
                false => {
                    let replaced = before[at] + usize::from(character != *other);
                    replaced.min(before[at + 1] + 1).min(row[at] + 1)
                }
            });
        }
        before = row;
    }
    before[text.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 6] = [
        "lm_head.weight",
        "model.embed_tokens.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.mlp.experts.0.up_proj.weight",
        "model.layers.1.mlp.experts.1.up_proj.weight",
        "model.layers.1.mlp.gate.weight",
    ];

    fn found(filter: &Filter) -> Vec<String> {
        of(filter, NAMES.into_iter())
    }

    fn with_patterns(include: &[&str], exclude: &[&str]) -> Filter {
        let owned = |patterns: &[&str]| patterns.iter().map(|&one| one.to_owned()).collect();
        Filter {
            include: owned(include),
            exclude: owned(exclude),
            ..Filter::default()
        }
    }

    #[test]
    fn what_matches_is_not_mentioned() {
        let filter = Filter {
            layers: Some("0-1".parse().unwrap()),
            experts: Some("1".parse().unwrap()),
            ..with_patterns(&["model.*", "lm_head*"], &["*gate*"])
        };
        assert_eq!(found(&filter), [""; 0]);
        assert_eq!(found(&Filter::default()), [""; 0]);
    }

    #[test]
    fn every_number_that_there_is_not_is_named_beside_those_there_are() {
        let filter = Filter {
            layers: Some("0,1-2,99".parse().unwrap()),
            experts: Some("8".parse().unwrap()),
            ..Filter::default()
        };
        assert_eq!(
            found(&filter),
            [
                "--layers 1-2, expected some of 0-1",
                "--layers 99, expected some of 0-1",
                "--experts 8, expected some of 0-1",
            ]
        );
        let none = of(&filter, ["lm_head.weight"].into_iter());
        assert!(none[0].contains("no tensor has layers"), "{none:?}");
    }

    #[test]
    fn a_pattern_that_matches_nothing_is_named_beside_the_names_that_are_like_it() {
        let filter = with_patterns(&["model.*", "typo.weight"], &["model.layer.3.mlp.gate*"]);
        let found = found(&filter);
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("--include typo.weight, expected a name such as "));
        let near = "--exclude model.layer.3.mlp.gate*, expected a name such as model.layers.1.mlp.gate.weight, ";
        assert!(found[1].starts_with(near), "{found:?}");
        let far = with_patterns(&[], &["model.layers.9.mlp.experts.*.up_proj.weight"]);
        let far = super::of(&far, NAMES.into_iter());
        assert!(
            far[0].contains("model.layers.1.mlp.experts.0-1.up_proj.weight"),
            "{far:?}"
        );
    }

    #[test]
    fn a_distance_counts_what_a_pattern_does_not_match() {
        for (pattern, text, expected) in [
            ("*", "anything", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("a*c", "abbbc", 0),
            ("model.layer.*", "model.layers.x", 1),
            ("abd", "abc", 1),
        ] {
            assert_eq!(distance(pattern, text), expected, "{pattern} {text}");
        }
    }
}
