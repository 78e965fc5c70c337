//! The conformance suite: each operation on each device, against an oracle in F64 that was written from the contracts alone. A
//! backend is done when it is green.
//!
//! `checks` has a function for each operation; `spoiled` plants faults into a device, and `faults` sees that the checks find them.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by failing"
)]

mod checks;
mod counts;
mod devices;
mod faults;
mod harness;
mod ideal;
mod input;
mod limits;
mod numbers;
mod oracle;
mod shaders;
mod spoiled;
