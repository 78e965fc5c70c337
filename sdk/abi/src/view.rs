//! Bytes, text and tensors that are lent for one call.
//!
//! The caller keeps them alive and unchanged until the call returns; the callee keeps no pointer into them. A null
//! pointer with length 0 is an empty slice: an author in C writes it so.

use abi_stable::StableAbi;
pub use abi_stable::std_types::{RSlice, RSliceMut, RStr};

use crate::table::table;

/// Codes of element types. A code keeps its meaning for ever.
pub mod dtype {
    /// Code and safetensors name of every element type.
    pub const CODES: &[(u32, &str)] = &[
        (1, "BF16"),
        (2, "F16"),
        (3, "F32"),
        (4, "F64"),
        (5, "F8_E4M3"),
        (6, "F8_E5M2"),
        (7, "F8_E8M0"),
        (8, "I8"),
        (9, "I16"),
        (10, "I32"),
        (11, "I64"),
        (12, "U8"),
        (13, "U16"),
        (14, "U32"),
        (15, "U64"),
        (16, "BOOL"),
    ];

    /// The code of a safetensors name.
    #[must_use]
    pub fn code_of(name: &str) -> Option<u32> {
        let found = CODES.iter().find(|(_, known)| *known == name);
        found.map(|(code, _)| *code)
    }

    /// The safetensors name of a code.
    #[must_use]
    pub fn name_of(code: u32) -> Option<&'static str> {
        let found = CODES.iter().find(|(known, _)| *known == code);
        found.map(|(_, name)| *name)
    }
}

table! {
    "rialto_tensor";
    /// Dense, row-major tensor bytes that are lent for one call.
    #[repr(C)]
    #[derive(Clone, Copy, StableAbi)]
    pub struct TensorRef {
        /// One of [`dtype::CODES`].
        pub dtype: u32,
        /// How many extents there are.
        pub rank: u32,
        /// The extents in elements, outermost first; may be null if `rank` is 0.
        pub extents: *const u64,
        /// The bytes: little-endian elements, aligned to nothing; may be null if `len` is 0.
        pub data: *const u8,
        /// How many bytes there are: the product of the extents times the element size, which both sides check.
        pub len: u64,
    }
}

impl TensorRef {
    /// The extents.
    ///
    /// # Safety
    ///
    /// `extents` is null or valid for `rank` values for as long as `'a` lasts.
    #[must_use]
    pub unsafe fn extents<'a>(&self) -> &'a [u64] {
        // SAFETY: the caller's promise, passed on.
        unsafe { from_parts(self.extents, u64::from(self.rank)) }
    }

    /// The bytes.
    ///
    /// # Safety
    ///
    /// `data` is null or valid for `len` bytes for as long as `'a` lasts.
    #[must_use]
    pub unsafe fn bytes<'a>(&self) -> &'a [u8] {
        // SAFETY: the caller's promise, passed on.
        unsafe { from_parts(self.data, self.len) }
    }
}

/// The slice behind a view.
///
/// # Safety
///
/// The view's pointer is null or valid for its length for as long as `'a` lasts.
#[must_use]
pub unsafe fn slice<'a, T>(view: RSlice<'a, T>) -> &'a [T] {
    // SAFETY: the caller's promise, passed on.
    unsafe { from_parts(view.as_ptr(), view.len() as u64) }
}

/// The slice behind a mutable view.
///
/// # Safety
///
/// The view's pointer is null or valid for its length for as long as `'a` lasts, and nobody else reads or writes there.
#[must_use]
pub unsafe fn slice_mut<'a, T>(view: RSliceMut<'a, T>) -> &'a mut [T] {
    let (len, data) = (view.len(), view.into_mut_ptr());
    if data.is_null() {
        return &mut [];
    }
    // SAFETY: the pointer is not null, and the rest is the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(data, len) }
}

/// The text behind a view; `None` if it is not UTF-8.
///
/// # Safety
///
/// The view's pointer is null or valid for its length for as long as `'a` lasts.
#[must_use]
pub unsafe fn text(view: RStr<'_>) -> Option<&str> {
    // SAFETY: the caller's promise, passed on. The bytes are checked here rather than believed, as `RStr` would.
    let bytes = unsafe { from_parts(view.as_ptr(), view.len() as u64) };
    std::str::from_utf8(bytes).ok()
}

/// # Safety
///
/// `data` is null or valid for `len` values for as long as `'a` lasts.
unsafe fn from_parts<'a, T>(data: *const T, len: u64) -> &'a [T] {
    // A length that no memory has is none: whoever reads the view finds that it does not fit.
    let is_possible = len <= (isize::MAX as u64) / (size_of::<T>().max(1) as u64);
    if data.is_null() || !is_possible {
        return &[];
    }
    // SAFETY: the pointer is not null, and the rest is the caller's promise. The targets are 64-bit, so the length fits.
    unsafe { std::slice::from_raw_parts(data, len as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_an_empty_slice_and_torn_text_is_none() {
        // SAFETY: a null pointer is allowed here.
        let empty = unsafe { RStr::from_raw_parts(std::ptr::null(), 0) };
        // SAFETY: as above.
        assert!(unsafe { text(empty) } == Some(""));
        let torn = [0xff, 0xfe];
        // SAFETY: the array outlives the view.
        let view = unsafe { RStr::from_raw_parts(torn.as_ptr(), 2) };
        // SAFETY: as above.
        assert!(unsafe { text(view) }.is_none());
    }

    #[test]
    fn a_length_that_no_memory_has_is_not_believed() {
        let value = 7u64;
        for len in [u64::MAX, 1 << 63, 1 << 60] {
            // SAFETY: of so many values none is read.
            let values = unsafe { from_parts(&raw const value, len) };
            assert_eq!(values, [0u64; 0], "{len}");
        }
        // SAFETY: one value is there.
        assert_eq!(unsafe { from_parts(&raw const value, 1) }, [7]);
    }

    #[test]
    fn codes_are_dense_and_names_find_them_again() {
        for (position, &(code, name)) in dtype::CODES.iter().enumerate() {
            assert_eq!(code as usize, position + 1);
            assert_eq!(dtype::code_of(name), Some(code));
            assert_eq!(dtype::name_of(code), Some(name));
        }
        assert_eq!((dtype::name_of(0), dtype::code_of("F4")), (None, None));
    }
}
