//! The family that takes a config, among the plugins found.

use std::sync::Arc;

use rialto_bridge::{Bridge, RawConfig};
use rialto_host::{Registry, SearchPath};

use crate::arguments::Common;
use crate::failure::Failure;
use crate::output::Output;

/// Where plugins are looked for.
pub(crate) fn search_path(common: &Common) -> SearchPath {
    let given = common.plugin.iter();
    given.fold(SearchPath::from_environment(), |path, file| {
        path.plugin(file)
    })
}

/// Loads what is found on the search path. Files that are no plugin do not stop the others, unless given by `--plugin`.
pub(crate) fn registry(common: &Common) -> Result<Registry, Failure> {
    Ok(Registry::search(&search_path(common))?)
}

/// The family of a config; says which one and why.
pub(crate) fn claim(
    common: &Common,
    config: &RawConfig,
    output: &Output,
) -> Result<Arc<dyn Bridge>, Failure> {
    let registry = registry(common)?;
    let claimed = registry.claim(config)?;
    output.note(&format!(
        "{} by {}: {}",
        claimed.release,
        claimed.plugin.file().display(),
        claimed.reason
    ));
    for other in &claimed.others {
        let file = other.file().display();
        output.note(&format!(
            "note: {file} takes it too; the first in search order is used"
        ));
    }
    for (plugin, error) in &claimed.failed {
        output.note(&format!(
            "note: {} failed when asked: {error}",
            plugin.file().display()
        ));
    }
    Ok(claimed.plugin.bridge())
}
