//! Tables beyond the first. Each has an id with a version and never changes; a plugin that lacks one still loads.

use std::ffi::c_void;

use abi_stable::StableAbi;

use crate::{RSlice, RSliceMut, RStr, Status, TensorRef};

/// Id of [`DequantizeTable`].
pub const DEQUANTIZE: &str = "dequantize/1";

/// `dequantize/1`: decodes tensors that the Hugging Face side stores encoded.
#[repr(C)]
#[derive(Clone, Copy, StableAbi)]
pub struct DequantizeTable {
    /// Decodes one tensor, or whole blocks of one: instance, codec name, stored elements, the companions of those blocks in
    /// the order of the codec's list, output.
    ///
    /// The output is dense and row-major, of the stored elements' shape and the codec's decoded dtype; its length is the
    /// caller's claim and is checked by the callee. All views are valid until the call returns. May be called from any
    /// thread and by several threads at once.
    pub dequantize: unsafe extern "C" fn(
        *mut c_void,
        RStr<'_>,
        TensorRef,
        RSlice<'_, TensorRef>,
        RSliceMut<'_, u8>,
    ) -> Status,
}
