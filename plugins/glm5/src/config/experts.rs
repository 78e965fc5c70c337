//! How many experts there are, and how a token chooses among them.

use rialto_plugin::prelude::*;

/// Other names of `n_routed_experts`.
const ALIASES: [&str; 2] = ["num_experts", "num_local_experts"];

/// Most experts that a config may have.
const MOST_EXPERTS: u64 = 1 << 16;

/// The number of routed experts.
///
/// `n_routed_experts` decides when it is there. Some versions of transformers add `num_experts` with a value that no model
/// of this size has, so another number under another name is a notice and no more. Without it another name is good enough,
/// unless two of them disagree. Source: `n_routed_experts`, `num_experts`, `num_local_experts`.
pub(super) fn routed(config: &RawConfig, notices: &mut Vec<String>) -> Result<u64, Error> {
    let key = "n_routed_experts";
    let mut aliases = ALIASES.iter().filter(|alias| config.value(alias).is_some());
    if let Some(own) = config.value(key) {
        let others = aliases.filter(|alias| config.value(alias) != Some(own));
        notices.extend(others.map(|alias| {
            contradiction(
                &format!("{alias} {}", config.values()[*alias]),
                &format!("{key} {own}"),
            )
        }));
        return config.bounded(key, MOST_EXPERTS);
    }
    let Some(first) = aliases.next() else {
        let names = ALIASES.join(" or ");
        return Err(config.wrong(key, &format!("a whole number here or in {names}")));
    };
    let experts = config.bounded(first, MOST_EXPERTS)?;
    for other in aliases {
        if config.optional_integer(other)? != Some(experts) {
            return Err(config.wrong(other, &format!("{first} {experts}, as there is no {key}")));
        }
    }
    Ok(experts)
}

/// What a token chooses: groups, and experts within the chosen ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// `n_group`; the published 1 if absent.
    pub(super) groups: u64,
    /// `topk_group`; the published 1 if absent.
    pub(super) chosen_groups: u64,
    /// `num_experts_per_tok`.
    pub(super) experts: u64,
}

impl Choice {
    /// Reads the choice among so many experts. A group is scored by its two best experts, so there must be two in each;
    /// and who chooses more experts than the chosen groups have would choose some that were ruled out.
    pub(super) fn read(config: &RawConfig, experts: u64) -> Result<Choice, Error> {
        let groups = config.optional_integer("n_group")?.unwrap_or(1);
        let fits =
            groups == 1 || (groups > 1 && experts.is_multiple_of(groups) && experts / groups >= 2);
        if !fits {
            let expected =
                format!("1 or a divisor of {experts} experts with at least 2 in each group");
            return Err(config.wrong("n_group", &expected));
        }
        let chosen_groups = config.optional_integer("topk_group")?.unwrap_or(1);
        if !(1..=groups).contains(&chosen_groups) {
            return Err(config.wrong("topk_group", &format!("1 to n_group {groups}")));
        }
        let most = chosen_groups * (experts / groups);
        Ok(Choice {
            groups,
            chosen_groups,
            experts: config.bounded("num_experts_per_tok", most)?,
        })
    }
}
