//! What the checks look at.

use std::path::PathBuf;

use crate::fixture::Fixture;
use crate::guarded::Guarded;

/// A family, tiny models of it, and its library if it was built.
pub(crate) struct Subject {
    pub(crate) family: Guarded,
    pub(crate) fixtures: Vec<Fixture>,
    pub(crate) library: Option<PathBuf>,
}
