//! What each fuzz target checks. The programs in `targets/` only hand the input over.
//!
//! Every target goes through the public function that a checkpoint from the net reaches, holds it to its promises, and
//! lets it take no more memory than [`memory`] allows. That nothing takes longer than a second, libFuzzer watches.
//!
//! | module | reads |
//! |---|---|
//! | [`safetensors_header`] | the header of a shard |
//! | [`index`] | `model.safetensors.index.json` |
//! | [`pickle`] | the pickle inside an item |
//! | [`zip_item`] | a whole item: an object or a tensor |
//! | [`metadata`] | `.metadata` of a torch_dist checkpoint |
//! | [`config`] | `config.json`, and edits of it |
//! | [`document`] | what a plugin hands over: a weight map, and its expansion; a forward pass, and whether it is sound |
//! | [`memory`] | the allocator that counts |

pub mod config;
pub mod document;
pub mod index;
pub mod memory;
pub mod metadata;
pub mod pickle;
pub mod safetensors_header;
pub mod zip_item;

mod source;
