//! Devices that a machine may not have.

use std::sync::Arc;

use rialto_backend::{Backend, Choice, OpenOptions, Registry};

/// What tells Vulkan's loader that a machine has no driver, for a process of its own.
pub const HIDE_DRIVERS: [(&str, &str); 2] = [
    ("VK_DRIVER_FILES", "/nonexistent"),
    ("VK_ICD_FILENAMES", "/nonexistent"),
];

/// Says on standard error that something is skipped, and why. The environment variable `RIALTO_REQUIRE` lists what must not be,
/// separated by commas, so that a job for a device cannot be green without one.
///
/// # Panics
///
/// If it must not be skipped.
#[allow(
    clippy::print_stderr,
    reason = "whoever runs the tests has to see what was not tested"
)]
pub fn skip(what: &str, why: &str) {
    let required = std::env::var("RIALTO_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|name| name.trim() == what),
        "{what} is required and missing: {why}"
    );
    eprintln!("SKIP {what}: {why}");
}

/// The first device of a backend, if there is one; otherwise [`skip`].
///
/// # Panics
///
/// As [`skip`].
#[must_use]
pub fn device_or_skip(registry: &Registry, backend: &str) -> Option<Arc<dyn Backend>> {
    match registry.open(&Choice::first(backend), &OpenOptions::default()) {
        Ok(device) => Some(device),
        Err(error) => {
            skip(backend, &error.to_string());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_nobody_has_is_skipped() {
        assert!(device_or_skip(&Registry::new(), "abacus").is_none());
    }
}
