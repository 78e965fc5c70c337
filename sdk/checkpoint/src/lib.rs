//! Reads and writes the two checkpoint formats that rialto bridges, as bytes at offsets.
//!
//! Floor 2 of the house: stands on `rialto-tensor`.
//!
//! ```
//! use std::sync::Arc;
//! use rialto_checkpoint::hf::{CONFIG_FILE, HfCheckpoint, HfPlan, INDEX_FILE, ShardLimit};
//! use rialto_checkpoint::store::memory::{MemorySlot, MemoryTarget};
//! use rialto_checkpoint::store::Target;
//! use rialto_tensor::{Dtype, Shape};
//!
//! # fn main() -> Result<(), rialto_checkpoint::Error> {
//! // Plan: every offset is known before a byte is written.
//! let tensors = vec![("model.norm.weight".to_owned(), Dtype::Bf16, Shape::new([2]))];
//! let plan = HfPlan::new(tensors, ShardLimit::Bytes(5 << 30))?;
//! let shard = &plan.shards[0];
//!
//! // Write: nothing appears before the commit.
//! let slot = MemorySlot::default();
//! let target = Box::new(MemoryTarget::new("out", slot.clone()));
//! let sink = target.create(&shard.name)?;
//! sink.write_at(0, &shard.header_bytes)?;
//! sink.write_at(shard.tensors[0].range.start, &[0x80, 0x3f, 0x00, 0x40])?;
//! target.create(INDEX_FILE)?.write_at(0, &plan.index_bytes)?;
//! target.create(CONFIG_FILE)?.write_at(0, b"{}")?;
//! target.commit()?;
//!
//! // Read: index and headers are checked before any tensor is.
//! let store = slot.lock().expect("nobody panicked").take().expect("was committed");
//! let checkpoint = HfCheckpoint::open(Arc::new(store))?;
//! let norm = checkpoint.tensor("model.norm.weight").expect("was planned");
//! let mut bytes = [0; 4];
//! checkpoint.source(norm.file).read_at(norm.range.start, &mut bytes)?;
//! assert_eq!(bytes, [0x80, 0x3f, 0x00, 0x40]);
//! # Ok(())
//! # }
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`store`] | directories to read, and directories that appear whole |
//! | [`safetensors`] | one shard: its header, read or planned |
//! | [`index`] | which shard holds which tensor |
//! | [`hf`] | a Hugging Face directory |
//! | [`torch_dist`] | a Megatron-Core run directory: metadata, items, objects |
//! | [`run_config`] | the file Megatron-Bridge reads beside the weights |
//! | [`records`] | the files in which a run leaves what it did |
//! | [`error`] | what can be wrong, with code, slug and help |
#![forbid(unsafe_code)]

pub mod error;
pub mod hf;
pub mod index;
pub mod records;
pub mod run_config;
pub mod safetensors;
pub mod store;
pub mod torch_dist;

mod spread;
mod unique;

pub use error::Error;
