//! Where every field stands, and whether two sides agree on it.
//!
//! Two things say so: [`TABLES`], plain numbers that a test compares with a kept file, that `docs/abi.md` prints and the C header is made of; and
//! abi_stable's report, which a Rust plugin carries in its declaration and which names types as well as places.

use std::ffi::c_void;

use abi_stable::StableAbi;
use abi_stable::abi_stability::abi_checking::check_layout_compatibility;
use abi_stable::type_layout::TypeLayout;

use crate::{
    BridgeHandle, BridgeTable, DequantizeTable, HostTable, OwnedBytes, PluginDecl, ProgramTable,
    RSlice, RStr, Status, TensorRef,
};

/// One struct that crosses: its places in bytes, and what its definition says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLayout {
    /// Name of the struct.
    pub name: &'static str,
    /// Its name in C.
    pub c_name: &'static str,
    /// What is written about it.
    pub about: &'static str,
    /// Its size.
    pub size: usize,
    /// Its alignment.
    pub align: usize,
    /// Its fields, in order.
    pub fields: &'static [FieldLayout],
}

/// One field of a struct that crosses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLayout {
    /// Its name, on both sides.
    pub name: &'static str,
    /// Where it begins.
    pub offset: usize,
    /// Its type as it is written in Rust; [`FieldLayout::in_c`] is the same in C.
    pub written: &'static str,
    /// What is written about it.
    pub about: &'static str,
}

/// A number that stands for something, under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// Its name.
    pub name: &'static str,
    /// The number.
    pub value: u32,
    /// What is written about it.
    pub about: &'static str,
}

/// Every struct that crosses. `RStr`, `RSlice` and `RSliceMut` are a pointer and a length.
pub const TABLES: &[TableLayout] = &[
    PluginDecl::LAYOUT,
    HostTable::LAYOUT,
    BridgeHandle::LAYOUT,
    BridgeTable::LAYOUT,
    DequantizeTable::LAYOUT,
    TensorRef::LAYOUT,
    Status::LAYOUT,
    OwnedBytes::LAYOUT,
    ProgramTable::LAYOUT,
];

// abi_stable keeps the fields of its views private; these are the places `docs/abi.md` promises to authors in C.
const _: () = assert!(size_of::<RStr<'_>>() == 16 && size_of::<RSlice<'_, u8>>() == 16);

/// One value from which the report reaches every frozen table. A table of a later extension does not join it: it would
/// make older plugins look different.
#[repr(C)]
#[derive(StableAbi)]
struct Frozen {
    declaration: *const PluginDecl,
    dequantize: *const DequantizeTable,
}

/// The report of this build, as [`PluginDecl::layout`] holds it.
///
/// Names are compared as well as types: those of fields, and those of the parameters of a table's functions.
#[must_use]
pub const fn report() -> *const c_void {
    let layout: *const TypeLayout = Frozen::LAYOUT;
    layout.cast()
}

/// Two sides that do not agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutMismatch {
    /// Version of `rialto-abi` on this side.
    pub expected: String,
    /// Version on the other side.
    pub found: String,
    /// How many types differ.
    pub differences: usize,
    /// What differs, in hundreds of lines.
    pub report: String,
}

/// Compares the report of another build with this one's.
///
/// # Safety
///
/// `found` is the report of a library that stays loaded, made by the same abi_stable as [`report`]: the caller has
/// compared [`LAYOUT_VERSION`](crate::decl::LAYOUT_VERSION) before.
///
/// # Errors
///
/// [`LayoutMismatch`] if the other side was built with tables of another shape or an incompatible version.
pub unsafe fn compare(found: *const c_void) -> Result<(), LayoutMismatch> {
    let expected: &'static TypeLayout = Frozen::LAYOUT;
    // SAFETY: the caller promises that this is a report of the same kind and that it lives as long as the process.
    let found: &'static TypeLayout = unsafe { &*found.cast::<TypeLayout>() };
    check_layout_compatibility(expected, found).map_err(|errors| LayoutMismatch {
        expected: expected.package_version().to_string(),
        found: found.package_version().to_string(),
        differences: errors.errors.len(),
        report: errors.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_agrees_with_itself_and_differs_from_another_types() {
        // SAFETY: it is our own report.
        assert_eq!(unsafe { compare(report()) }, Ok(()));
        let other: *const TypeLayout = <HostTable as StableAbi>::LAYOUT;
        // SAFETY: it is a report of this very build, of another type.
        let mismatch = unsafe { compare(other.cast()) }.unwrap_err();
        assert!(mismatch.differences > 0 && !mismatch.report.is_empty());
    }
}
