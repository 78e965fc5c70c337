//! What runs operations: devices, buffers on them, recorded lists of calls, and the pages of caches.
//!
//! Floor 3 of the house: stands on `rialto-program`. The set of backends is open: a backend is a [`Driver`] that says which devices
//! there are and opens one, and a [`Backend`] that is one. It knows operations and no model.
//!
//! A step is recorded once and replayed many times. What changes from step to step, such as tokens and positions, lies in buffers;
//! a recorded call has no number of the host's that would change. So a recording can be a CUDA graph or a command buffer of wgpu.
//!
//! ```no_run
//! use rialto_backend::{Backend, Error, OpCall, Operand, TensorType};
//! use rialto_program::op::Linear;
//! use rialto_tensor::Dtype;
//!
//! fn product(device: &dyn Backend, x: &[u8], w: &[u8]) -> Result<Vec<u8>, Error> {
//!     let buffer = |shape: [u64; 2]| device.allocate(&TensorType::new(Dtype::F32, shape));
//!     let (rows, weight, out) = (buffer([5, 64])?, buffer([32, 64])?, buffer([5, 32])?);
//!     let (inputs, outputs) = ([rows.clone(), weight.clone()], [out.clone()]);
//!     let call = OpCall::new(Linear::default().into(), inputs.map(Operand::from), outputs)?;
//!     let mut recording = device.record(vec![call])?;
//!     device.write(&rows, 0, x)?;
//!     device.write(&weight, 0, w)?;
//!     recording.replay()?;
//!     let mut bytes = vec![0; 5 * 32 * 4];
//!     device.read(&out, 0, &mut bytes)?;
//!     Ok(bytes)
//! }
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`device`] | devices as they are described, and drivers, which find them |
//! | [`registry`] | the drivers of an application, and which device is meant |
//! | [`budget`] | memory that the buffers of a device share |
//! | [`buffer`] | memory of a device, with its type |
//! | [`call`] | an operation on buffers, whose shapes have been checked |
//! | [`backend`] | the trait |
//! | [`cache`] | which pages of the caches belong to which sequence |
#![forbid(unsafe_code)]

pub mod backend;
pub mod budget;
pub mod buffer;
pub mod cache;
pub mod call;
pub mod device;
pub mod error;
pub mod registry;

pub use backend::{Backend, Capabilities, Counts, Recording};
pub use budget::{Budget, Share};
pub use buffer::{Buffer, TensorType};
pub use cache::{PagePool, SequencePages};
pub use call::{Blocks, OpCall, Operand};
pub use device::{DeviceInfo, DeviceKind, Driver, OpenOptions, Probe, Rejected};
pub use error::Error;
pub use registry::{Choice, NotBuilt, Passed, Registry, Which};
