//! What a user allows to be left out though no rule claims it.

use std::collections::{HashMap, HashSet};

use rialto_bridge::placement::matches;
use rialto_bridge::{CopyDecl, StoredTensor, Violation};

use crate::Error;
use crate::summary::Skipped;

/// Takes out of `inventory` what one of `patterns` matches and the mapping leaves unclaimed or names as one of `copies`. Tells what that was, and which
/// patterns matched nothing of the kind.
///
/// `held` gives the violations of holding the inventory against the mapping. What a rule or a codec needs is never taken.
pub(crate) fn take_out(
    inventory: &mut Vec<StoredTensor>,
    patterns: &[String],
    copies: &[CopyDecl],
    held: impl FnOnce(&[StoredTensor]) -> Vec<Violation>,
) -> Result<(Vec<Skipped>, Vec<String>), Error> {
    if patterns.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let violations = held(inventory);
    let unclaimed = violations.iter().filter_map(|violation| match violation {
        Violation::Unclaimed { name, .. } => Some(name.as_str()),
        Violation::Stray { companion, .. } => Some(companion.as_str()),
        _ => None,
    });
    let there: HashSet<&str> = inventory
        .iter()
        .map(|stored| stored.name.as_str())
        .collect();
    let mut taken: HashMap<&str, &String> = HashMap::new();
    let copies = copies.iter().map(|copy| copy.name.as_str());
    let copies = copies.filter(|name| there.contains(name));
    for name in unclaimed.chain(copies) {
        if let Some(pattern) = patterns.iter().find(|pattern| matches(pattern, name)) {
            taken.insert(name, pattern);
        }
    }
    let mut skipped: Vec<Skipped> = Vec::new();
    for stored in inventory.iter() {
        if let Some(pattern) = taken.get(stored.name.as_str()) {
            let elements = stored.shape.elements()?;
            Skipped::count(
                &mut skipped,
                &format!("--allow-unmapped {pattern}"),
                elements,
            )?;
        }
    }
    let used: HashSet<&String> = taken.values().copied().collect();
    let taken: HashSet<String> = taken.into_keys().map(str::to_owned).collect();
    inventory.retain(|stored| !taken.contains(&stored.name));
    let unused = patterns.iter().filter(|pattern| !used.contains(pattern));
    let notices = unused
        .map(|pattern| format!("--allow-unmapped {pattern:?} matches nothing that is left over"));
    Ok((skipped, notices.collect()))
}
