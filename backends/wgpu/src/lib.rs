//! Operations on any GPU, through wgpu: Vulkan, Metal and DirectX 12, and on a software adapter where there is no GPU.
//!
//! Floor 4 of the house: stands on `rialto-backend`. Shaders are WGSL of the core language under the default limits. Elements stay packed on
//! the device: BF16 two in a word, E4M3 four. An operation leaves F32, and a result in BF16 is rounded by a dispatch of its own.
//!
//! | module | noun |
//! |---|---|
//! | [`adapters`] | what is there, and how it is opened |
//! | `probe` | which adapters are devices, and why others are not |
//! | [`settings`] | how much of an adapter is used |
//! | [`device`] | an opened device |
//! | `shared` | what it shares with its recordings |
//! | `allocation` | memory of a device, counted |
//! | `wait` | waits, each of which ends |
//! | `storage` | memory behind a buffer |
//! | `shader` | shaders, and how lines that they share are written |
//! | `launch` | a dispatch that is being put together |
//! | `recorder` | what operations write their dispatches into |
//! | `recording` | a recorded list of calls |
//! | `replay` | dispatches, ready to be run |
//! | `ops` | which module records which operation |
//! | `plain` | the dispatches of plain operations |
//! | `norm` | those of what goes over whole rows |
//! | `rope` | those of rotary position embedding |
//! | `linear` | those of products with weights |
//! | `router` | those that choose experts |
//! | `experts` | those of a mixture of experts |
//! | `cache` | where rows of caches are, and the dispatch that writes them |
//! | `indexer` | the dispatches that choose positions |
//! | `attention` | those of attention over caches |
//! | `quant` | those of block-scaled E4M3 |
//! | `sample` | those of choosing the next token |
#![forbid(unsafe_code)]

pub mod adapters;
mod allocation;
mod attention;
mod cache;
pub mod device;
mod experts;
mod indexer;
mod launch;
mod linear;
mod norm;
#[cfg(test)]
mod opened;
mod ops;
mod plain;
mod probe;
mod quant;
mod recorder;
mod recording;
mod replay;
mod rope;
mod router;
mod sample;
pub mod settings;
mod shader;
mod shared;
mod storage;
mod wait;

pub use adapters::WgpuDriver;
pub use device::WgpuBackend;
pub use settings::Settings;

/// Name of the backend.
pub(crate) const NAME: &str = "wgpu";
