//! Sums of sizes.

use crate::Error;

/// Adds to a total. Errors: [`Error::TooLarge`]: sizes of a config may each be sound, and their sum not.
pub(crate) fn add(total: &mut u64, more: u64) -> Result<(), Error> {
    *total = total.checked_add(more).ok_or(Error::TooLarge)?;
    Ok(())
}
