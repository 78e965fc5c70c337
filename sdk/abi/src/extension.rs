//! Tables beyond the first. Each has an id with a version and never changes; a plugin that lacks one still loads.

use std::ffi::c_void;

use abi_stable::StableAbi;

use crate::table::table;
use crate::{OwnedBytes, RSlice, RSliceMut, RStr, Status, TensorRef};

/// Id of [`DequantizeTable`].
pub const DEQUANTIZE: &str = "dequantize/1";

/// Id of [`ProgramTable`]; since 1.1.
pub const PROGRAM: &str = "program/1";

/// Every id of this version, in the order in which they came.
pub const EXTENSIONS: &[&str] = &[DEQUANTIZE, PROGRAM];

table! {
    "rialto_dequantize_table";
    /// `dequantize/1`: decodes tensors that the Hugging Face side stores encoded.
    #[repr(C)]
    #[derive(Clone, Copy, StableAbi)]
    pub struct DequantizeTable {
        /// Decodes one tensor, or whole blocks of one, with the companions of those blocks in the order of the codec's list.
        ///
        /// The output is dense and row-major, little-endian and aligned to nothing, of the stored elements' shape and the codec's decoded dtype;
        /// its length is the caller's claim and is checked by the callee. All views are valid until the call returns. May be called from any
        /// thread and by several threads at once.
        pub dequantize: unsafe extern "C" fn(
            instance: *mut c_void,
            codec: RStr<'_>,
            tensor: TensorRef,
            companions: RSlice<'_, TensorRef>,
            out: RSliceMut<'_, u8>,
        ) -> Status,
    }
}

table! {
    "rialto_program_table";
    /// `program/1`: says what the forward pass of a model is.
    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct ProgramTable {
        /// The forward pass of a model, as a document like those of `bridge/1`. May be called from any thread and by several threads at once.
        pub program: unsafe extern "C" fn(
            instance: *mut c_void,
            request: RSlice<'_, u8>,
            reply: &mut OwnedBytes,
        ) -> Status,
    }
}
