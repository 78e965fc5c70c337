//! What a user allows to be left out though no rule claims it.

use std::collections::HashSet;

use rialto_bridge::StoredTensor;
use rialto_bridge::placement::matches;

use crate::Error;
use crate::summary::Skipped;

/// Takes out of `inventory` what matches one of `patterns` and is not `known` to the mapping, and tells what that was.
pub(crate) fn take_out(
    inventory: &mut Vec<StoredTensor>,
    patterns: &[String],
    known: &HashSet<&str>,
) -> Result<Vec<Skipped>, Error> {
    let mut skipped: Vec<Skipped> = Vec::new();
    let mut failed = None;
    inventory.retain(|stored| {
        let is_known = known.contains(stored.name.as_str());
        let pattern = patterns
            .iter()
            .find(|pattern| matches(pattern, &stored.name));
        let Some(pattern) = pattern.filter(|_| !is_known) else {
            return true;
        };
        match stored.shape.elements() {
            Ok(elements) => Skipped::count(&mut skipped, &format!("--ignore {pattern}"), elements),
            Err(error) => failed = Some(error),
        }
        false
    });
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(skipped),
    }
}
