//! Reads and writes the two checkpoint formats that rialto bridges, as bytes at offsets.
//!
//! Floor 2 of the house: stands on `rialto-tensor`.
#![forbid(unsafe_code)]

pub mod error;
pub mod store;

pub use error::Error;
