//! What the host lends to a plugin: its log, and the list of what it can read.
//!
//! A plugin that is linked rather than loaded has no host table: its log lines go nowhere and it has every capability
//! that it was built with.

use crate::shim;

/// How much a line of log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The run fails.
    Error,
    /// The result needs a look.
    Warn,
    /// A stage.
    Info,
    /// A tensor.
    Debug,
    /// A byte range.
    Trace,
}

/// Writes one line to the host's log. May be called from any thread.
///
/// ```
/// use rialto_plugin::host::{Level, log};
///
/// log(Level::Debug, "toy", "the head is tied");
/// ```
pub fn log(level: Level, target: &str, message: &str) {
    use rialto_abi::level;

    let level = match level {
        Level::Error => level::ERROR,
        Level::Warn => level::WARN,
        Level::Info => level::INFO,
        Level::Debug => level::DEBUG,
        Level::Trace => level::TRACE,
    };
    shim::log(level, target, message);
}

/// Whether the host can read a document that requires this (`rule/map/1`, `op/rialto.gqa/1`), so that a plugin may choose another
/// form, or other operations.
#[must_use]
pub fn has_capability(requirement: &str) -> bool {
    match shim::host_capabilities() {
        Some(capabilities) => capabilities.iter().any(|known| known == requirement),
        None => rialto_bridge::document::is_known(requirement),
    }
}
