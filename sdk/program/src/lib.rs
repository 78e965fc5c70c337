//! The forward pass of a model as data: operations with contracts, and programs that call them.
//!
//! Floor 2 of the house: stands on `rialto-tensor`. A family's plugin makes a [`Program`] of its model; what runs it knows no
//! model, and what is run knows no buffer. A third party brings another wiring of known operations without touching the SDK.
//!
//! ```
//! use rialto_program::{Builder, PhaseBuilder, Program};
//!
//! // A model of one matrix: each token's row of the embedding, normed, against the same matrix.
//! let mut program = Builder::new();
//! let (table, gain) = (program.param("embed.weight", [64, 16]), program.param("norm.weight", [16]));
//! let mut forward = program.phase("forward");
//! let x = forward.embed("hidden.0", &table);
//! let normed = forward.rms_norm("hidden.final", &x, &gain, 1e-6);
//! let last = forward.gather("head.rows", &normed, "rows");
//! let logits = forward.linear_f32("logits", &last, &table);
//! forward.output(&logits);
//! let program: Program = program.finish()?;
//! assert_eq!(program.phase("forward").unwrap().calls.len(), 4);
//! # Ok::<(), rialto_program::Error>(())
//! ```
//!
//! A program is the *single-device* one and says nothing of batch sizes: how many tokens a step has, of which sequences and at
//! which positions, are **values of the step** ([`step`]), so that a recorded step stays valid from one to the next.
//!
//! | module | noun |
//! |---|---|
//! | [`value`] | element types and shapes of values, with the extents that are known at a step only |
//! | [`step`] | the values that every step brings: tokens, their sequences and positions, pages |
//! | [`op`] | operations: names, attributes, shapes, numerics |
//! | [`graph`] | params, caches, phases, calls |
//! | `check` | whether a program is sound |
//! | [`builder`] | how an author writes one |
//! | [`excerpt`] | a part of a phase, between values that are given and values that are wanted |
#![forbid(unsafe_code)]

pub mod builder;
mod check;
pub mod error;
pub mod excerpt;
pub mod graph;
pub mod op;
pub mod step;
pub mod value;

pub use builder::{Builder, PhaseBuilder};
pub use check::PhaseTypes;
pub use error::{Error, Fault};
pub use graph::{CacheDecl, Call, Carried, ParamDecl, Phase, Program, Stored, ValueDecl};
pub use op::{Op, Signature};
pub use value::{Dim, Element, ValueType};
