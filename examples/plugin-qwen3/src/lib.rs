//! Qwen3 (`Qwen3ForCausalLM`): dense layers that are all alike, grouped-query attention with normed heads, and a head that may
//! be the embedding.
//!
//! Built as a third party builds a plugin: it depends on `rialto-plugin` alone. `docs/writing-a-plugin.md` tells how it came to
//! be. It reads like a model card:
//!
//! | file | says |
//! |---|---|
//! | [`config`] | what each key of `config.json` means, which values are refused, and the same in Megatron's words |
//! | [`weights`] | which tensor is which param, in the order of the forward pass, and how params are cut |
//! | [`layout`] | which layers a pipeline stage holds |
//! | [`program`] | the forward pass, from token ids to logits |
//! | `settings` | which provider fields a user may set |
#![forbid(unsafe_code)]

pub mod config;
pub mod layout;
pub mod program;
mod settings;
pub mod weights;

use rialto_plugin::prelude::*;

/// The family. It keeps no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Qwen3;

impl Bridge for Qwen3 {
    fn describe(&self) -> Description {
        Description {
            name: "qwen3".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary: "Qwen3 dense models: grouped-query attention with normed heads".to_owned(),
            architectures: vec![config::ARCHITECTURE.to_owned()],
            releases: vec![config::RELEASE.to_owned()],
        }
    }
}

/// Every tensor is stored as it is.
impl Dequantizer for Qwen3 {}

rialto_plugin::export_plugin!(Qwen3);
