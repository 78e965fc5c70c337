//! Bytes that cross together with the function that frees them: memory goes back to the side that made it.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr;

use abi_stable::StableAbi;

use crate::table::table;

table! {
    "rialto_owned";
    /// Bytes that are handed over: the side that receives them releases them, in Rust by dropping this value.
    #[repr(C)]
    #[derive(StableAbi)]
    pub struct OwnedBytes {
        /// First byte; null if there are none.
        data: *mut u8,
        /// How many there are.
        len: u64,
        /// Whatever `release` needs: the capacity in Rust, anything in C.
        context: *mut c_void,
        /// Frees the bytes; null if nothing has to be freed. Called at most once, from any thread.
        release: Option<unsafe extern "C" fn(data: *mut u8, len: u64, context: *mut c_void)>,
    }
}

impl OwnedBytes {
    /// No bytes, nothing to free.
    pub const EMPTY: OwnedBytes = OwnedBytes {
        data: ptr::null_mut(),
        len: 0,
        context: ptr::null_mut(),
        release: None,
    };

    /// Hands over a vector without copying it.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> OwnedBytes {
        let mut bytes = ManuallyDrop::new(bytes);
        OwnedBytes {
            data: bytes.as_mut_ptr(),
            len: bytes.len() as u64,
            context: ptr::without_provenance_mut(bytes.capacity()),
            release: Some(release_vector),
        }
    }

    /// The bytes; none of a length that no memory has.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        if self.data.is_null() || self.len > isize::MAX as u64 {
            return &[];
        }
        // SAFETY: `data` is valid for `len` bytes until `release`: by `new` for ours, and for one that came over the
        // ABI by the library whose table entry the caller vouched for when it made the (unsafe) call. The targets are
        // 64-bit, so the length fits.
        unsafe { std::slice::from_raw_parts(self.data, self.len as usize) }
    }
}

impl Drop for OwnedBytes {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            // SAFETY: these are the three values the maker stored beside the function, and `take` makes it the only call.
            unsafe { release(self.data, self.len, self.context) };
        }
    }
}

/// Frees what [`OwnedBytes::new`] took apart.
///
/// # Safety
///
/// The arguments are the ones `new` stored, and this is the only call with them.
unsafe extern "C" fn release_vector(data: *mut u8, len: u64, context: *mut c_void) {
    // SAFETY: pointer, length and capacity are those of a vector that `new` gave up; the caller promises both.
    drop(unsafe { Vec::from_raw_parts(data, len as usize, context.addr()) });
}

impl std::fmt::Debug for OwnedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OwnedBytes({} bytes)", self.bytes().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_crosses_and_is_freed() {
        let bytes = OwnedBytes::new(vec![1, 2, 3]);
        assert_eq!(bytes.bytes(), [1, 2, 3]);
        assert_eq!(OwnedBytes::new(Vec::new()).bytes(), [0u8; 0]);
        assert_eq!(OwnedBytes::EMPTY.bytes(), [0u8; 0]);
    }

    #[test]
    fn a_length_that_no_memory_has_is_not_believed() {
        let mut byte = 7;
        for len in [u64::MAX, 1 << 63] {
            let owned = OwnedBytes {
                data: &raw mut byte,
                len,
                context: ptr::null_mut(),
                release: None,
            };
            assert_eq!(owned.bytes(), [0u8; 0]);
        }
    }
}
