//! Runs programs: a model's forward pass on a device, step by step, for any mixture of sequences.
//!
//! Floor 4 of the house: stands on `rialto-program`, `rialto-bridge` and `rialto-backend`. It knows neither a model nor a file: the
//! program comes from a family, weights from whatever is a [`WeightSource`](rialto_bridge::WeightSource), operations from a backend.
//!
//! ```no_run
//! use std::sync::Arc;
//! use rialto_backend::Backend;
//! use rialto_bridge::WeightSource;
//! use rialto_program::Program;
//! use rialto_runtime::{LoadOptions, Model, Rows, Session, SessionOptions, Work};
//!
//! fn logits<S: WeightSource>(program: Program, weights: &S, device: Arc<dyn Backend>) -> Result<Vec<f32>, Box<dyn std::error::Error>>
//! where
//!     S::Error: std::error::Error + 'static,
//! {
//!     let model = Model::load(program, weights, device, &LoadOptions::default(), &mut |_| true)?;
//!     let mut session = Session::new(Arc::new(model), "forward", &SessionOptions::default())?;
//!     let sequence = session.begin();
//!     let work = Work { sequence, tokens: &[1, 2, 3], rows: Rows::Last };
//!     let mut outputs = session.step(&[work], &[], &["logits"])?;
//!     Ok(outputs.take("logits")?.to_f32())
//! }
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`model`] | a program with its params on a device |
//! | [`plan`] | where params will lie, known before one is read |
//! | `params` | how a param lies in memory, and the way there |
//! | [`experts`] | those in host memory, and slots on the device that they are brought to |
//! | [`session`] | sequences, their caches, and steps of them |
//! | `recorded` | a phase, recorded for so many tokens |
//! | `cut` | where a recorded step is cut, since experts are to be brought |
//! | [`tensor`] | elements in the host's memory |
//! | [`sampling`] | how the next token is chosen |
//! | [`mod@generate`] | prompts and what follows them |
//! | [`mod@compare`] | how far two models are apart, layer by layer |
#![forbid(unsafe_code)]

pub mod compare;
mod cut;
pub mod error;
pub mod experts;
pub mod generate;
pub mod model;
mod params;
pub mod plan;
mod recorded;
pub mod sampling;
pub mod session;
pub mod tensor;

pub use compare::{Comparison, StreamDifference, compare};
pub use error::{Error, LoadError, WeightFault};
pub use experts::ExpertCounts;
pub use generate::{Event, GenerateOptions, Generated, Stop, generate};
pub use model::{LoadOptions, Model, check_tokens};
pub use plan::{ExpertMemory, LoadPlan};
pub use recorded::cache_row_bytes;
pub use sampling::Sampling;
pub use session::{Outputs, Rows, SequenceId, Session, SessionOptions, Work};
pub use tensor::Tensor;
