//! How a call ended.

use abi_stable::StableAbi;

use crate::OwnedBytes;
use crate::table::{codes, table};

codes! {
    /// Status codes. A code keeps its meaning for ever; a reader treats one it does not know as [`INTERNAL`](code::INTERNAL).
    pub mod code {
        /// Done.
        pub const OK: u32 = 0;
        /// The caller asked for something that makes no sense.
        pub const INVALID_ARGUMENT: u32 = 1;
        /// It is not there.
        pub const NOT_FOUND: u32 = 2;
        /// It is understood and not supported.
        pub const UNSUPPORTED: u32 = 3;
        /// The data is corrupt.
        pub const CORRUPT: u32 = 4;
        /// Reading or writing failed.
        pub const IO: u32 = 5;
        /// Memory or budget is spent.
        pub const MEMORY: u32 = 6;
        /// A device failed.
        pub const DEVICE: u32 = 7;
        /// Two sides of the ABI do not fit.
        pub const ABI_MISMATCH: u32 = 8;
        /// Somebody asked to stop.
        pub const CANCELLED: u32 = 9;
        /// A mapping is not total.
        pub const NOT_TOTAL: u32 = 10;
        /// A verification found a difference.
        pub const DIFFERS: u32 = 11;
        /// The callee panicked; the instance answers no more.
        pub const PANIC: u32 = 12;
        /// A fault of the callee's own.
        pub const INTERNAL: u32 = 13;
    }
}

table! {
    "rialto_status";
    /// What every call returns.
    #[repr(C)]
    #[derive(StableAbi)]
    pub struct Status {
        /// One of [`code`]: 0 is done.
        pub code: u32,
        /// Why not, if it is not done: UTF-8, either a JSON object `{"slug", "message", "help"}` or plain text.
        pub detail: OwnedBytes,
    }
}

impl Status {
    /// Done.
    #[must_use]
    pub const fn ok() -> Status {
        Status {
            code: code::OK,
            detail: OwnedBytes::EMPTY,
        }
    }

    /// Not done, and why.
    #[must_use]
    pub fn new(code: u32, detail: Vec<u8>) -> Status {
        Status {
            code,
            detail: OwnedBytes::new(detail),
        }
    }
}
