//! What the host lends to a plugin.

use std::ffi::c_void;

use abi_stable::StableAbi;

use crate::RStr;
use crate::table::{codes, table};

codes! {
    /// Levels of [`HostTable::log`].
    pub mod level {
        /// The run fails.
        pub const ERROR: u32 = 1;
        /// The result needs a look.
        pub const WARN: u32 = 2;
        /// A stage.
        pub const INFO: u32 = 3;
        /// A tensor.
        pub const DEBUG: u32 = 4;
        /// A byte range.
        pub const TRACE: u32 = 5;
    }
}

table! {
    "rialto_host_table";
    /// What the host lends to [`PluginDecl::open`](crate::PluginDecl::open): valid and unchanged for the life of the process.
    #[repr(C)]
    #[derive(Clone, Copy, StableAbi)]
    pub struct HostTable {
        /// Size of this struct in bytes.
        pub struct_size: u32,
        /// The contract's major number as the host has it.
        pub abi_major: u32,
        /// Its minor number.
        pub abi_minor: u32,
        /// Always 0.
        pub reserved: u32,
        /// JSON list of what the host can read in documents: `["rule/map/1"]`, say.
        pub capabilities: RStr<'static>,
        /// First argument of the entries below; opaque, may be null.
        pub context: *mut c_void,
        /// Takes one line of log: its level is one of [`level`], its target the plugin's name, say. May be called from any thread.
        pub log: unsafe extern "C" fn(context: *mut c_void, level: u32, target: RStr<'_>, message: RStr<'_>),
        /// The table of a further service by its id, valid for the life of the process; null if the host does not have it. May be called from any thread.
        pub query_extension: unsafe extern "C" fn(context: *mut c_void, id: RStr<'_>) -> *const c_void,
    }
}

impl HostTable {
    /// Size of the struct, as [`struct_size`](HostTable::struct_size) states it.
    pub const SIZE: u32 = size_of::<HostTable>() as u32;
}

// SAFETY: the table is never written after it is made, and `log` and its context may be used from any thread; both are
// promises of the host that makes it, written at the fields.
unsafe impl Send for HostTable {}
// SAFETY: as for `Send`.
unsafe impl Sync for HostTable {}
