//! The command line: the real binary in a scratch directory; exit code, stdout as JSON, and what lies there afterwards.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by failing"
)]

mod conversion;
mod devices;
mod field_cases;
mod interrupts;
mod kills;
mod machine;
mod mapping;
mod models;
mod plans;
mod plugin_in_c;
mod plugins;
mod refusals;
mod verify;
mod world;
