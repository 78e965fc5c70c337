//! What an application depends on to use plugins: find them, check them, load them.
//!
//! Floor 4 of the house: stands on `rialto-abi`, `rialto-tensor`, `rialto-program` and `rialto-bridge`. A plugin that is loaded is a
//! `dyn Bridge` like one that is linked, and says the same in the same words, errors included.
//!
//! ```no_run
//! use rialto_bridge::{MapOptions, RawConfig};
//! use rialto_host::{Registry, SearchPath};
//!
//! let registry = Registry::search(&SearchPath::from_environment())?;
//! let config = RawConfig::parse(&std::fs::read("GLM-5.2/config.json")?)?;
//! let claimed = registry.claim(&config)?;
//! let spec = claimed.plugin.bridge().map_config(&config, &MapOptions::default())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Loading is running foreign code: a library that is not what it says can crash the process, and nothing here can tell
//! (`docs/abi.md`). What can be told before that, is: see [`Step`].
//!
//! | module | noun |
//! |---|---|
//! | [`mod@check`] | the handshake, step by step |
//! | [`elf`] | whether a file can be opened without killing the process |
//! | [`plugin`] | a loaded plugin |
//! | [`registry`] | where plugins are looked for, and which one takes a config |
//! | [`error`] | why a file is not a usable plugin |
//! | `library` | tables to calls; the only unsafe code of this crate |
#![deny(unsafe_code)]

pub mod check;
pub mod elf;
pub mod error;
#[allow(unsafe_code, reason = "this module is the wall between Rust and C")]
mod library;
pub mod plugin;
pub mod registry;

pub use check::{CheckReport, Outcome, Step, StepReport, check, load};
pub use error::Error;
pub use plugin::LoadedPlugin;
pub use registry::{Claimed, Found, Listing, Origin, Refused, Registry, SearchPath};
