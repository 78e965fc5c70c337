//! What the author of a family plugin tests with: everything that must hold of any family, on a tiny checkpoint.
//!
//! Floor 5 of the house: stands on `rialto-engine` and `rialto-host`, and knows no family. A plugin has it as a dev-dependency,
//! and one test:
//!
//! ```no_run
//! # use rialto_bridge::Bridge;
//! # fn the_family_is_sound(family: impl Bridge + 'static) {
//! use rialto_plugin_test::PluginTest;
//!
//! PluginTest::new(family).fixture("tests/tiny").check_all();
//! # }
//! ```
//!
//! A fixture is a Hugging Face directory: `config.json` and safetensors files of a model of the family, as small as its code
//! allows. [`PluginTest::check_all`] fails with every [`Finding`], a line each. Single checks return their findings:
//!
//! | check | what must hold |
//! |---|---|
//! | [`check_description`](PluginTest::check_description) | the plugin says who it is, and nothing twice |
//! | [`check_claim`](PluginTest::check_claim) | it takes the fixture's config, and nobody else's |
//! | [`check_documents`](PluginTest::check_documents) | every answer crosses the ABI unchanged, and is the same when asked again |
//! | [`check_totality`](PluginTest::check_totality) | every tensor, param, layer and stage has its place, and none has two |
//! | [`check_program`](PluginTest::check_program) | the forward pass, if there is one, fits together, and the weights that it names are there |
//! | [`check_meshes`](PluginTest::check_meshes) | on every mesh, in every spelling, import and export give the fixture back bit for bit |
//! | [`check_damage`](PluginTest::check_damage) | a tensor that is not as it should be is refused by name before anything is written |
//! | [`check_library`](PluginTest::check_library) | the built library says what the linked family says |
//!
//! Conversions happen in memory. There is no network, no clock and no chance in it.
//!
//! # What it does not prove
//!
//! **A round trip does not prove which tensor is which param.** Where gate and up are swapped on import, they are swapped
//! back on export, and every check here passes; so it is with two norms of one shape, with heads in another order, and with a
//! dequantizer that is wrong in the same way each time. Nor is a value of the provider ever right or wrong here, nor where a param is
//! cut: a forgotten cut or granule, a rule that should be stacked and is not, give other chunks and keys than Megatron's, and every value
//! comes back. Nor is a forward pass run here: one that fits together may compute another model. What proves them is a checkpoint that the real Megatron-Core saved of the same weights: compare it with an import, with `rialto verify` and
//! once by eye.
//!
//! JSON has no NaN: `json!(f64::NAN)` is `null` before the SDK sees it, and `null` is a value that Megatron may want. A
//! family that computes a number for its provider checks it itself.
//!
//! | module | noun |
//! |---|---|
//! | [`plugin_test`] | a family, its fixtures, and the checks |
//! | [`finding`] | one thing that is wrong |
//! | [`library`] | where cargo puts the library that a test loads |
//! | `subject` | what the checks look at |
//! | `guarded` | a family whose panics are answers |
//! | `fixture`, `tensors` | a directory, and its tensors by an independent reader |
//! | `reading` | what a family says of a fixture: spec, map, mapping |
//! | `conversion`, `run` | an import, an export, and what a run holds |
//! | `spelling` | runs in other spellings, by other code than reads them |
//! | `check` | the checks, a file each |
//! | `error` | an error as a finding tells it |
#![forbid(unsafe_code)]

mod check;
mod conversion;
mod error;
mod fixture;
mod guarded;
mod reading;
mod run;
mod spelling;
mod subject;
mod tensors;

pub mod finding;
pub mod library;
pub mod plugin_test;

pub use finding::{Check, Finding};
pub use library::built_library;
pub use plugin_test::PluginTest;
