//! What a user allows to be left out though no rule claims it.

use std::collections::{HashMap, HashSet};

use rialto_bridge::placement::matches;
use rialto_bridge::{StoredTensor, Violation};

use crate::Error;
use crate::summary::Skipped;

/// Takes out of `inventory` what the mapping leaves unclaimed and one of `patterns` matches. Tells what that was, and which
/// patterns matched nothing of the kind.
///
/// `held` gives the violations of holding the inventory against the mapping. What a rule or a codec needs is never taken.
pub(crate) fn take_out(
    inventory: &mut Vec<StoredTensor>,
    patterns: &[String],
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
    let mut taken: HashMap<&str, &String> = HashMap::new();
    for name in unclaimed {
        if let Some(pattern) = patterns.iter().find(|pattern| matches(pattern, name)) {
            taken.insert(name, pattern);
        }
    }
    let mut skipped: Vec<Skipped> = Vec::new();
    for stored in inventory.iter() {
        if let Some(pattern) = taken.get(stored.name.as_str()) {
            let elements = stored.shape.elements()?;
            Skipped::count(&mut skipped, &format!("--ignore {pattern}"), elements)?;
        }
    }
    inventory.retain(|stored| !taken.contains_key(stored.name.as_str()));
    let used: HashSet<&String> = taken.into_values().collect();
    let unused = patterns.iter().filter(|pattern| !used.contains(pattern));
    let notices =
        unused.map(|pattern| format!("--ignore {pattern:?} matches nothing that is left over"));
    Ok((skipped, notices.collect()))
}
