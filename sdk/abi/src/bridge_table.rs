//! `bridge/1`: what every plugin answers.
//!
//! All calls but two have one form: a request document goes in, a reply document comes out. Both are UTF-8 JSON in the
//! envelope `{"schema": 1, "requires": [...], "body": ...}`; `docs/abi.md` lists the bodies. Every entry may be called
//! from any thread and by several threads at once, and none is null.

use std::ffi::c_void;

use abi_stable::StableAbi;

use crate::table::table;
use crate::{OwnedBytes, RSlice, RStr, Status};

table! {
    "rialto_bridge_table";
    /// The entries of `bridge/1`, none of them null.
    #[repr(C)]
    #[derive(Clone, Copy, StableAbi)]
    pub struct BridgeTable {
        /// Who the plugin is and what it serves. Request body: `null`.
        pub describe: unsafe extern "C" fn(
            instance: *mut c_void,
            request: RSlice<'_, u8>,
            reply: &mut OwnedBytes,
        ) -> Status,
        /// Whether it takes a config.
        pub claim: unsafe extern "C" fn(
            instance: *mut c_void,
            request: RSlice<'_, u8>,
            reply: &mut OwnedBytes,
        ) -> Status,
        /// `config.json` to a model spec.
        pub map_config: unsafe extern "C" fn(
            instance: *mut c_void,
            request: RSlice<'_, u8>,
            reply: &mut OwnedBytes,
        ) -> Status,
        /// What must change in a config so that it describes a model spec.
        pub unmap_config: unsafe extern "C" fn(
            instance: *mut c_void,
            request: RSlice<'_, u8>,
            reply: &mut OwnedBytes,
        ) -> Status,
        /// The rules that join tensors and params.
        pub weight_map: unsafe extern "C" fn(
            instance: *mut c_void,
            request: RSlice<'_, u8>,
            reply: &mut OwnedBytes,
        ) -> Status,
        /// How params are cut over a mesh.
        pub placement: unsafe extern "C" fn(
            instance: *mut c_void,
            request: RSlice<'_, u8>,
            reply: &mut OwnedBytes,
        ) -> Status,
        /// Which pipeline stage holds which layers.
        pub pipeline_layout: unsafe extern "C" fn(
            instance: *mut c_void,
            request: RSlice<'_, u8>,
            reply: &mut OwnedBytes,
        ) -> Status,
        /// The encodings of the model's tensors.
        pub codecs: unsafe extern "C" fn(
            instance: *mut c_void,
            request: RSlice<'_, u8>,
            reply: &mut OwnedBytes,
        ) -> Status,
        /// The table of an extension by its id; null if the plugin does not have it. The table is valid for the life of the
        /// process.
        pub query_extension: unsafe extern "C" fn(instance: *mut c_void, id: RStr<'_>) -> *const c_void,
        /// Ends the instance. No call on it is running, and none follows.
        pub release: unsafe extern "C" fn(instance: *mut c_void) -> Status,
    }
}

table! {
    "rialto_bridge_handle";
    /// An instance and the table that speaks for it: what [`PluginDecl::open`](crate::PluginDecl::open) fills in.
    #[repr(C)]
    #[derive(Clone, Copy, StableAbi)]
    pub struct BridgeHandle {
        /// First argument of every entry; opaque, may be null.
        pub instance: *mut c_void,
        /// The entries; valid for the life of the process.
        pub table: *const BridgeTable,
    }
}

impl BridgeHandle {
    /// Not filled in yet.
    pub const EMPTY: BridgeHandle = BridgeHandle {
        instance: std::ptr::null_mut(),
        table: std::ptr::null(),
    };
}
