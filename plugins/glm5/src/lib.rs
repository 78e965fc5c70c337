//! The GLM-5 family (`GlmMoeDsaForCausalLM`): mixture of experts, multi-latent attention, and sparse attention whose
//! indexer results are shared between layers.
//!
//! A plugin like anybody else's: it depends on `rialto-plugin` alone. It reads like a model card:
//!
//! | file | says |
//! |---|---|
//! | [`config`] | what each key of `config.json` means, and which values are refused |
//! | [`spec`] | the releases, the model's numbers, and the same in Megatron's words |
//! | [`weights`] | which tensor is which param, in the order of the forward pass, and how params are cut |
//! | [`codec`] | how matrices are stored in FP8 |
//! | `settings` | which provider fields a user may set |
//! | [`layout`] | which layers a pipeline stage holds |
//! | [`program`] | the forward pass, from token ids to logits |
#![forbid(unsafe_code)]

pub mod codec;
pub mod config;
pub mod layout;
pub mod program;
mod settings;
pub mod spec;
pub mod weights;

use rialto_plugin::prelude::*;

/// The family. It keeps no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Glm5;

impl Bridge for Glm5 {
    fn describe(&self) -> Description {
        Description {
            name: "glm5".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary:
                "GLM-5 family: MoE, multi-latent attention, sparse attention with shared indexers"
                    .to_owned(),
            architectures: vec![config::ARCHITECTURE.to_owned()],
            releases: spec::RELEASES.iter().map(|r| r.name.to_owned()).collect(),
        }
    }
}

rialto_plugin::export_plugin!(Glm5);
