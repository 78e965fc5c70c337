//! The backend that runs every operation on the processor. The others are compared with it.
//!
//! Floor 4 of the house: stands on `rialto-backend`. It has no unsafe code and no instructions beyond what the compiler makes of
//! plain loops.
//!
//! **A row does not see its neighbors.** Threads share rows and elements, never a sum: each sum is made by one
//! function in one order, whatever the number of rows, of threads, or of calls that a prompt is cut into. Nothing is
//! contracted to fused multiplications, and exponentials are this crate's own, so that it is the same on other processors, too;
//! but for sines, cosines and powers of F64, which are the platform's.
//!
//! **Indices come from the device** and cannot be refused when a step is recorded. One that is out of range reads zeros or
//! selects nothing, and writes nothing, as -1 does.
//!
//! ```
//! use rialto_backend::{Choice, OpCall, OpenOptions, Operand, Registry, TensorType};
//! use rialto_cpu::CpuDriver;
//! use rialto_program::op::Scale;
//! use rialto_tensor::Dtype;
//!
//! let registry = Registry::new().with(CpuDriver);
//! let device = registry.open(&Choice::first("cpu"), &OpenOptions::default())?;
//! let vector = TensorType::new(Dtype::F32, [2]);
//! let (x, out) = (device.allocate(&vector)?, device.allocate(&vector)?);
//! let call = OpCall::new(Scale { factor: 3.0 }.into(), [Operand::from(x.clone())], [out.clone()])?;
//! let mut recording = device.record(vec![call])?;
//! device.write(&x, 0, [1.0f32, -2.0].map(f32::to_le_bytes).as_flattened())?;
//! recording.replay()?;
//! let mut bytes = [0; 8];
//! device.read(&out, 0, &mut bytes)?;
//! assert_eq!(bytes, *[3.0f32, -6.0].map(f32::to_le_bytes).as_flattened());
//! # Ok::<(), rialto_backend::Error>(())
//! ```
//!
//! | module | noun |
//! |---|---|
//! | `device` | the driver and the opened device |
//! | `facts` | what the system says of the machine |
//! | `memory` | how much the buffers of a device have, and may have |
//! | `storage` | memory behind a buffer |
//! | `recording` | calls, and which function runs which |
//! | `operand` | what a function reads and writes |
//! | `rows` | sums, products and softmax of a row, in their one order |
//! | `function` | exponentials, and what is made of them |
//! | `weight` | matrices in any encoding, and products with them |
//! | `pages` | where the positions of a token's sequence lie |
//! | `attention` | heads that attend to positions |
//! | the others | one for each family of operations, under its name in `rialto_program::op` |
#![forbid(unsafe_code)]

mod attention;
mod cache;
mod device;
mod embed;
mod facts;
mod function;
mod gqa;
mod indexer;
mod linear;
mod memory;
mod mla;
mod moe;
mod norm;
mod operand;
mod pages;
mod plain;
mod quant;
mod recording;
mod rope;
mod rows;
mod sample;
mod storage;
mod weight;

#[cfg(test)]
mod tests;

pub use device::{CpuBackend, CpuDriver};
