//! Operations on any GPU, through wgpu: Vulkan, Metal and DirectX 12, and on a software adapter where there is no GPU.
//!
//! Floor 4 of the house: stands on `rialto-backend`. Shaders are WGSL of the core language under the default limits. Elements stay packed on
//! the device: BF16 two in a word, E4M3 four. An operation leaves F32, and a result in BF16 is rounded by a dispatch of its own.
//!
//! | module | noun |
//! |---|---|
//! | [`device`] | what is there, and an opened device |
//! | `storage` | memory behind a buffer |
//! | `shader` | shaders, and how lines that they share are written |
//! | `recording` | dispatches of recorded calls |
//! | `ops` | which module records which operation |
//! | `plain` | the dispatches of plain operations |
//! | `linear` | those of products with weights |
//! | `moe` | those of a mixture of experts |
#![forbid(unsafe_code)]

pub mod device;
mod linear;
mod moe;
mod ops;
mod plain;
mod recording;
mod shader;
mod storage;

pub use device::{WgpuBackend, WgpuDriver};
