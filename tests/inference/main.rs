//! Models run by rialto, against what transformers computed of the same weights, and against themselves where the bits must not
//! depend on how they are run.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by failing"
)]
#![allow(
    clippy::print_stdout,
    reason = "how much of a tolerance is used is worth a look"
)]

mod bf16;
mod counts;
mod devices;
mod exact;
mod failures;
mod forms;
mod goldens;
mod offload;
mod planted;
mod records;
mod refused;
mod world;
