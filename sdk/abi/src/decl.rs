//! The one exported symbol: who a library is and what it was built for.
//!
//! Every text in it is an array of bytes, not a pointer. So the whole declaration is one read of a known size: a host
//! that has only the symbol's address and the size in the file can print name, version and target of a library it is
//! about to refuse, without following a pointer that a stranger wrote, and a tool can find it in the file by its magic.

use std::ffi::c_void;

use abi_stable::StableAbi;

use crate::table::{codes, table};
use crate::{BridgeHandle, HostTable, Status};

/// Name of the exported symbol. Another meaning of the same fields would be another symbol.
pub const SYMBOL: &str = "rialto_plugin_v1";

/// First bytes of a declaration: the first version of the contract, for good.
pub const MAGIC: [u8; 8] = *b"RIALTOV1";

/// The contract's major number: another one does not load.
pub const ABI_MAJOR: u32 = 1;

/// The contract's minor number: new codes and extensions raise it. Any two load together.
pub const ABI_MINOR: u32 = 1;

/// Version of this crate.
pub const ABI_CRATE_VERSION: &str = env!("CARGO_PKG_VERSION");

/// What made [`PluginDecl::layout`]; the report is looked at only if both sides name the same.
pub const LAYOUT_VERSION: &str = "abi_stable 0.11.3";

/// The target triple this crate was built for.
pub const TARGET: &str = env!("RIALTO_TARGET");

codes! {
    /// How a library's panics end.
    pub mod panic_strategy {
        /// It has none: a library written in C.
        pub const NONE: u32 = 0;
        /// They unwind to the table entry, which turns them into [`code::PANIC`](crate::code::PANIC).
        pub const UNWIND: u32 = 1;
        /// They end the process. Such a library is refused.
        pub const ABORT: u32 = 2;
    }
}

table! {
    "rialto_plugin_decl";
    /// What a plugin exports as `rialto_plugin_v1`. Texts are padded with NUL.
    #[repr(C)]
    #[derive(Clone, Copy, StableAbi)]
    pub struct PluginDecl {
        /// [`MAGIC`], without a NUL.
        pub magic: [u8; 8],
        /// Size of this struct in bytes.
        pub struct_size: u32,
        /// [`ABI_MAJOR`] of the header or crate that the plugin was built with.
        pub abi_major: u32,
        /// [`ABI_MINOR`] of the same.
        pub abi_minor: u32,
        /// How its panics end: one of [`panic_strategy`].
        pub panic_strategy: u32,
        /// Target triple: pointer width and endianness follow from it.
        pub target: [u8; 64],
        /// Version of the `rialto-abi` crate; empty in C.
        pub abi_crate_version: [u8; 32],
        /// What made `layout` ([`LAYOUT_VERSION`]); empty in C.
        pub layout_version: [u8; 32],
        /// Name of the plugin's package, UTF-8.
        pub name: [u8; 64],
        /// Its version, UTF-8.
        pub version: [u8; 64],
        /// The layout report ([`layout::report`](crate::layout::report)); null in C, or wherever else none is made.
        pub layout: *const c_void,
        /// Makes an instance. The host table stays valid for the life of the process. On [`code::OK`](crate::code::OK) the
        /// handle is filled in; otherwise it is left alone. May be called from any thread, and more than once.
        pub open: Option<unsafe extern "C" fn(host: *const HostTable, handle: *mut BridgeHandle) -> Status>,
    }
}

// SAFETY: a declaration is never written after it is made, and what `layout` points to is immutable static data of the
// same library; both are established by whoever exports the symbol (`export_plugin!` in Rust).
unsafe impl Sync for PluginDecl {}

impl PluginDecl {
    /// Size of the struct, as [`struct_size`](PluginDecl::struct_size) states it.
    pub const SIZE: u32 = size_of::<PluginDecl>() as u32;

    /// The declaration of a Rust plugin that is built with this crate.
    #[must_use]
    pub const fn new(
        name: &str,
        version: &str,
        panic_strategy: u32,
        open: unsafe extern "C" fn(*const HostTable, *mut BridgeHandle) -> Status,
    ) -> PluginDecl {
        PluginDecl {
            magic: MAGIC,
            struct_size: PluginDecl::SIZE,
            abi_major: ABI_MAJOR,
            abi_minor: ABI_MINOR,
            panic_strategy,
            target: padded(TARGET),
            abi_crate_version: padded(ABI_CRATE_VERSION),
            layout_version: padded(LAYOUT_VERSION),
            name: padded(name),
            version: padded(version),
            layout: crate::layout::report(),
            open: Some(open),
        }
    }
}

/// Text as a declaration holds it. Fails the build if there is no room for a NUL at the end.
#[must_use]
pub const fn padded<const N: usize>(text: &str) -> [u8; N] {
    let bytes = text.as_bytes();
    assert!(bytes.len() < N, "this text is too long for a declaration");
    let mut padded = [0; N];
    let mut at = 0;
    while at < bytes.len() {
        padded[at] = bytes[at];
        at += 1;
    }
    padded
}

/// The text of a padded array, on one line: up to the first NUL, what is not printable replaced by `?`.
#[must_use]
pub fn unpadded(padded: &[u8]) -> String {
    let end = padded
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(padded.len());
    String::from_utf8_lossy(&padded[..end])
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_the_padding_and_control_characters_do_not() {
        assert_eq!(unpadded(&padded::<8>("toy")), "toy");
        assert_eq!(unpadded(b"a\x1b[1mb\nc"), "a?[1mb?c");
        assert_eq!(unpadded(b"full"), "full");
    }

    #[test]
    fn a_declaration_has_no_padding() {
        assert_eq!(PluginDecl::SIZE, 8 + 4 * 4 + 64 + 32 + 32 + 64 + 64 + 8 + 8);
    }
}
