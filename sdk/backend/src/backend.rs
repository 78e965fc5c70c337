//! The trait that a backend implements.

use std::collections::BTreeSet;

use rialto_tensor::Dtype;
use serde::Serialize;

use crate::{Buffer, DeviceInfo, Error, OpCall, TensorType};

/// What a device can do, as data: asked before anything is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// Names of the operations it runs.
    pub ops: BTreeSet<String>,
    /// Element types that activations may have.
    #[serde(serialize_with = "names")]
    pub activations: Vec<Dtype>,
    /// Whether weights may stay E4M3 codes in blocks.
    pub runs_block_weights: bool,
    /// Whether the result for a row is the same bits whatever other rows the step has: then prompts in pieces, cached decoding and
    /// batches are the same as one sequence at a time, bit for bit. Of a cache that is larger than the device binds at once it is so for the
    /// same pages.
    pub is_row_invariant: bool,
    /// Most bytes that an operation may need at once of a tensor, if there is a limit: of its last axis a row, in F32; of the heads of MLA
    /// a head's matrix; of blocks to be quantized a row of blocks; of experts what a token's choices have between two products; of a
    /// router three words for each expert; all of a page table. Tensors of any size run in such pieces.
    pub max_piece_bytes: Option<u64>,
}

fn names<S: serde::Serializer>(dtypes: &[Dtype], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(dtypes.iter().map(|dtype| dtype.safetensors_name()))
}

/// An opened device. Calls may come from any thread.
///
/// Errors of the device, which may come of every call that returns any, and of [`Recording::replay`]: [`Error::Lost`] and
/// [`Error::Deadline`], after which the device is not used again and every call says the same; [`Error::Refused`] for a call that the
/// device's own checks do not let through, after which others go on.
pub trait Backend: Send + Sync {
    /// What it is.
    fn device(&self) -> &DeviceInfo;

    /// What it can do.
    fn capabilities(&self) -> &Capabilities;

    /// Memory for elements of a type. What it holds is not defined.
    ///
    /// Errors: [`Error::Program`] for a shape of more bytes than can be counted, [`Error::UnsupportedElement`], [`Error::BufferSize`],
    /// [`Error::Memory`]; those of the device.
    fn allocate(&self, tensor: &TensorType) -> Result<Buffer, Error>;

    /// Copies bytes into a buffer, after what was replayed before and before what is replayed after. Little-endian, dense. Other bytes
    /// stay, also those that another thread writes at the same time.
    ///
    /// Errors: [`Error::BufferRange`], [`Error::ForeignBuffer`], [`Error::Memory`] for what the bytes pass through; those of the
    /// device, also of what was replayed before.
    fn write(&self, buffer: &Buffer, offset_bytes: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Copies bytes out of a buffer, after what was replayed before; waits for it. Errors: as [`Backend::write`].
    fn read(&self, buffer: &Buffer, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), Error>;

    /// Prepares a list of calls to be run in order. Workspaces are allocated here, and everything that can be refused is.
    ///
    /// Errors: [`Error::UnsupportedOp`], [`Error::UnsupportedElement`], [`Error::Operand`], [`Error::ForeignBuffer`],
    /// [`Error::BufferSize`] for what an operation needs in one piece, [`Error::Memory`]; those of the device.
    fn record(&self, calls: Vec<OpCall>) -> Result<Box<dyn Recording>, Error>;
}

/// A recorded list of calls. It keeps its buffers.
pub trait Recording: Send {
    /// Runs the calls on what the buffers hold now. It may return before they are done; [`Backend::read`] waits.
    ///
    /// Errors: [`Error::Memory`] for what a device needs to be given work; those of the device, as [`Backend`] lists them.
    fn replay(&mut self) -> Result<(), Error>;

    /// What a replay asks of the device. All 0 on a device that does not count.
    fn counts(&self) -> Counts {
        Counts::default()
    }
}

/// What a replay asks of a device: it depends on the recording alone, and on nothing that varies from one run to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Kernels that are started.
    pub dispatches: u64,
    /// Times that the host hands work to the device.
    pub submits: u64,
    /// Bytes of memory that kernels are given to read and write, counted for each kernel.
    pub bound_bytes: u64,
}
