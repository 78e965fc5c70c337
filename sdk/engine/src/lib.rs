//! Moves a model between a Hugging Face checkpoint and a Megatron-Core checkpoint, by a plan, under a bounded memory.
//!
//! Floor 4 of the house: stands on `rialto-bridge` and `rialto-checkpoint`, and knows neither a family nor the ABI.
//!
//! ```no_run
//! use std::sync::Arc;
//! use rialto_bridge::Bridge;
//! use rialto_checkpoint::store::{LocalStore, LocalTarget, Overwrite};
//! use rialto_engine::{ImportPlan, Options, RunOptions, Silent};
//!
//! fn import(family: &dyn Bridge) -> Result<(), rialto_engine::Error> {
//!     let source = Arc::new(LocalStore::open("glm-5.2")?);
//!     let plan = ImportPlan::new(family, source, &Options::default())?;
//!     println!("{} tensors, {} bytes", plan.summary().source.tensors, plan.summary().source.bytes);
//!     let target = Box::new(LocalTarget::create("run", Overwrite::Refuse)?);
//!     let report = plan.run(family, target, &RunOptions::default(), &Silent)?;
//!     println!("{} bytes in {:.1} s", report.bytes, report.seconds);
//!     Ok(())
//! }
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`options`] | what a user may ask of a conversion |
//! | [`filter`] | a part of a model |
//! | [`summary`] | what a plan will do, as data |
//! | [`stages`] | what each rank of a mesh holds |
//! | [`mod@probe`] | how fast this machine reads and writes |
//! | [`import`] | Hugging Face to Megatron |
//! | [`export`] | Megatron to Hugging Face |
//! | [`audit`](mod@audit) | whether a result is what its run wrote |
//! | [`verify`](mod@verify) | whether two checkpoints hold the same weights |
//! | [`run`](mod@run) | doing it: units, lanes, journal, many processes, manifest and report |
//! | [`stream`] | tensors one after the other, without files |
//! | [`weights`] | a checkpoint's weights by name, for whoever runs the model |
//! | [`progress`] | how a run reports and is stopped |
#![forbid(unsafe_code)]

mod array;
mod assemble;
mod beside;
mod checks;
mod copies;
mod data_files;
mod decoder;
mod encoded;
mod locked;
mod order;
mod padding;
mod params;
mod reading;
mod runs;
mod side_files;
mod total;
mod unmapped;

pub mod audit;
pub mod error;
pub mod export;
pub mod filter;
pub mod import;
pub mod options;
pub mod probe;
pub mod progress;
pub mod run;
pub mod stages;
pub mod stream;
pub mod summary;
pub mod verify;
pub mod weights;

pub use audit::{Audit, audit};
pub use decoder::{DecodingRates, DeviceReport, OnProcessor};
pub use error::Error;
pub use export::{ExportPlan, MegatronSource, is_hugging_face, run_directory};
pub use filter::{Filter, Ranges};
pub use import::{ImportPlan, parse_config, source_config};
pub use options::{ChunkChoice, DtypeChoice, ExportOptions, Options};
pub use probe::{Rates, probe};
pub use progress::{Progress, Silent};
pub use run::{HashChoice, Manifest, RunOptions, RunReport, World};
pub use stages::{Pipeline, StageShare, Suggestions};
pub use stream::{Names, TensorPart, TensorStream};
pub use summary::{Direction, Encoded, Group, Side, Skipped, Summary};
pub use verify::{Contents, VerifyOptions, VerifySource, verify};
pub use weights::Weights;
