//! The torch_dist format: PyTorch's distributed checkpoint, as Megatron-Core writes and reads it.
//!
//! ```text
//! run/
//!   latest_checkpointed_iteration.txt    42, or the word release            [`RunDirectory`]
//!   iter_0000042/                                                           [`TorchDistCheckpoint`]
//!     metadata.json                      the format's name and version
//!     .metadata                          tensors, chunks, places: a pickle  [`Metadata`]
//!     __0_0.distcp  __0_1.distcp …       items one after another            [`FilePlan`]
//!     common.pt                          what is not sharded                [`Object`]
//!     integrity.json                     digests of all files, perhaps      [`Integrity`]
//!     run_config.yaml  train_state.pt    Megatron-Bridge's
//! ```
//!
//! An *item* is one complete `torch.save` stream: a zip archive with a pickle and, for a tensor, its bytes
//! ([`TensorItem`], [`StoredTensor`]). A tensor is global and cut into *chunks*, an item each; which rank wrote a chunk
//! carries no meaning. Offset and length of every item follow from dtype and shape, so a writer knows every position
//! before it has a byte of data, and a `.metadata` that is written last makes the checkpoint complete. A save without
//! collectives leaves a `__0.metadata`, `__1.metadata`, … of every rank instead, which are read as one.
//!
//! A run in training stores more than its model, which [`TrainingState`] tells apart by name.
//!
//! Nothing in a pickle is executed: names of functions stay names, and a file that means harm is refused or inert.

mod checkpoint;
mod integrity;
mod item;
mod metadata;
mod object;
mod pickle;
mod plan;
mod ranks;
mod run_directory;
mod state;
mod stored;
mod training;
mod zip;

pub use checkpoint::TorchDistCheckpoint;
pub use integrity::Integrity;
pub use item::TensorItem;
pub use metadata::{Chunk, Metadata, ObjectEntry, TensorEntry};
pub use object::{Object, object_item, read_object};
pub use plan::{Body, Content, DATA_ALIGNMENT, FileLimit, FilePlan, PlannedFile, PlannedItem};
pub use run_directory::{
    RunDirectory, TRACKER_FILE, description_bytes, iteration_directory, tracker_bytes,
};
pub use state::{
    COMMON_STATE_OBJECT, common_pt, common_state, empty_extra_state, no_extra_state, train_state,
    train_state_pt,
};
pub use stored::{StoredTensor, read_tensor_item};
pub use training::TrainingState;

/// The file that lists what a checkpoint holds; written last.
pub const METADATA_FILE: &str = ".metadata";
/// The file by which Megatron-Core knows a sharded checkpoint.
pub const DESCRIPTION_FILE: &str = "metadata.json";
/// The file that lists digests of the others, if the writer left one.
pub const INTEGRITY_FILE: &str = "integrity.json";
/// The file of the state that is not sharded.
pub const COMMON_FILE: &str = "common.pt";
