//! The golden suite: what rialto makes of a checkpoint, against what the real code made of the same one.
//!
//! Expected values come from transformers, PyTorch and Megatron-Core (`tests/fixtures/ORIGIN.md`) or are derived from a
//! config by a second path. Every test runs with the family linked and with the family loaded from its library.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by failing"
)]
#![allow(
    clippy::print_stderr,
    reason = "a failing test says which way of holding the family failed"
)]

mod bounded;
mod config_keys;
mod counts;
mod damage;
mod decoding;
mod encoded;
mod excerpt;
mod export;
mod failing_stores;
mod faulty_device;
mod field_cases;
mod filters;
mod forms;
mod fp8;
mod import;
mod mapping_cases;
mod mixed;
mod on_device;
mod padding;
mod provider;
mod qwen3;
mod reference;
mod refusals;
mod runs;
mod shards;
mod stages;
mod torch_dist;
mod verify;
mod world;
mod written;
