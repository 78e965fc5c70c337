//! An adapter for unit tests, which a machine may not have: the rule of `rialto_tests::device::skip`, in a crate below it.

use crate::settings::Settings;
use crate::{WgpuBackend, WgpuDriver};

/// The first adapter, if this machine has one; otherwise says on standard error that something is skipped.
///
/// # Panics
///
/// If there is none and the environment variable `RIALTO_REQUIRE` lists `wgpu`, or if there is one and it cannot be told why it is
/// not open.
pub(crate) fn opened_or_skip(settings: Settings) -> Option<WgpuBackend> {
    match WgpuDriver::with_settings(settings).open_adapter(0) {
        Ok(device) => Some(device),
        Err(error) => {
            assert_eq!(error.slug(), "backend/no-device", "{error}");
            let required = std::env::var("RIALTO_REQUIRE").unwrap_or_default();
            skip(&required, &error.to_string());
            None
        }
    }
}

#[allow(
    clippy::print_stderr,
    reason = "whoever runs the tests has to see what was not tested"
)]
fn skip(required: &str, why: &str) {
    assert!(
        !required.split(',').any(|name| name.trim() == "wgpu"),
        "wgpu is required and missing: {why}"
    );
    eprintln!("SKIP wgpu: {why}");
}

#[test]
fn without_an_adapter_tests_are_skipped() {
    skip("", "no adapter");
    skip("pinned,cuda", "no adapter");
}

#[test]
#[should_panic(expected = "wgpu is required and missing: no adapter")]
fn without_an_adapter_that_is_required_tests_fail() {
    skip("pinned, wgpu", "no adapter");
}
