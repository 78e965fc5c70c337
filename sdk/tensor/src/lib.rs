//! What a tensor is, before anybody says what it is for: element type, shape, rectangles of it, and where its bytes lie.
//!
//! Floor 1 of the house: this crate imports no other crate of rialto, and every other crate may import it.
//!
//! ```
//! use rialto_tensor::{Dtype, Region, Shape, tiling_faults};
//!
//! // A fused gate|up matrix of 8 rows, written as two halves.
//! let shape = Shape::new([8, 4]);
//! let halves = [Region::new([0, 0], [4, 4]), Region::new([4, 0], [4, 4])];
//! assert!(tiling_faults(&shape, &halves).is_empty());
//! assert_eq!(shape.size_bytes(Dtype::Bf16), Ok(64));
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`dtype`] | element types and their names in safetensors and PyTorch |
//! | [`shape`] | extents, outermost first, with checked arithmetic |
//! | [`region`] | a rectangle of a tensor, and whether rectangles tile it |
//! | [`held`] | how much memory a value takes |
//! | [`location`] | the file, tensor and bytes an error speaks of |
//! | [`view`] | borrowed bytes with dtype and shape |
//! | [`mod@format`] | number formats: what each code stands for |
//! | [`cast`] | changes of element type |
//! | [`quant`] | dequantization: codes and scales to values |
//! | [`compare`] | where two tensors differ, and by how much |
//! | [`simd`] | which instructions the loops use |
//!
//! Unsafe code is denied but for one file, that of the instructions of x86-64 in [`simd`]: what a processor has beyond its
//! target is known at run time only, and a store that goes past the caches has no safe name.
#![deny(unsafe_code)]

pub mod cast;
pub mod compare;
pub mod dtype;
pub mod error;
pub mod format;
pub mod held;
pub mod location;
pub mod quant;
pub mod region;
pub mod shape;
pub mod simd;
pub mod view;

pub use compare::{Comparison, Difference};
pub use dtype::Dtype;
pub use error::Error;
pub use location::{ByteRange, Location};
pub use region::{Region, TilingFault, tiling_faults};
pub use shape::Shape;
pub use view::TensorView;
