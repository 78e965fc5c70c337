//! The tables as a caller in C has them: wrong arguments come back as a status.

use std::ffi::c_void;
use std::ptr;

use rialto_abi::{
    BridgeHandle, BridgeTable, DEQUANTIZE, DequantizeTable, EXTENSIONS, HostTable, OwnedBytes,
    PROGRAM, PluginDecl, ProgramTable, RSlice, RSliceMut, RStr, Status, TensorRef, dtype,
};
use serde_json::Value;

use crate::library::HOST;

unsafe extern "C" {
    /// The declaration of the toy that is linked into this suite.
    static rialto_plugin_v1: PluginDecl;
}

fn open(host: *const HostTable, handle: &mut BridgeHandle) -> Status {
    // SAFETY: the linked declaration is a whole one.
    let open = unsafe { rialto_plugin_v1.open }.unwrap();
    // SAFETY: the host is null or static, the handle is valid for a write.
    unsafe { open(host, handle) }
}

fn opened() -> (BridgeHandle, &'static BridgeTable) {
    let mut handle = BridgeHandle::EMPTY;
    assert_eq!(open(&raw const HOST, &mut handle).code, 0);
    // SAFETY: `open` said OK.
    let table = unsafe { &*handle.table };
    (handle, table)
}

/// Asks for a claim.
fn claim(opened: (BridgeHandle, &BridgeTable), request: RSlice<'_, u8>) -> (Status, OwnedBytes) {
    let (handle, table) = opened;
    let mut reply = OwnedBytes::EMPTY;
    // SAFETY: the instance is open; request and reply live until the call returns.
    let status = unsafe { (table.claim)(handle.instance, request, &mut reply) };
    (status, reply)
}

fn extension(opened: (BridgeHandle, &BridgeTable), id: RStr<'_>) -> *const c_void {
    let (handle, table) = opened;
    // SAFETY: the instance is open and the id lives until the call returns.
    unsafe { (table.query_extension)(handle.instance, id) }
}

fn release(opened: (BridgeHandle, &BridgeTable)) {
    let (handle, table) = opened;
    // SAFETY: no call is running, and each test does this last.
    let status = unsafe { (table.release)(handle.instance) };
    assert_eq!(status.code, 0);
}

/// Code, slug and message of a status.
fn told(status: &Status) -> (u32, String, String) {
    let detail: Value = serde_json::from_slice(status.detail.bytes()).unwrap();
    let text = |key: &str| detail[key].as_str().unwrap().to_owned();
    (status.code, text("slug"), text("message"))
}

#[test]
fn a_host_that_does_not_fit_is_refused_and_the_handle_left_alone() {
    let mut handle = BridgeHandle::EMPTY;
    let older = HostTable {
        abi_major: 0,
        ..HOST
    };
    let smaller = HostTable {
        struct_size: 8,
        ..HOST
    };
    for (host, word) in [
        (ptr::null(), "host table is null"),
        (&raw const older, "abi is 0, this plugin expects 1"),
        (&raw const smaller, "size is 8"),
    ] {
        let (code, slug, message) = told(&open(host, &mut handle));
        assert_eq!((code, slug.as_str()), (8, "plugin/host"));
        assert!(message.contains(word), "{message}");
        assert!(handle.table.is_null());
    }
}

#[test]
fn a_request_that_is_no_document_is_refused_and_the_instance_goes_on() {
    let opened = opened();
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    let unknown = br#"{"schema": 1, "body": {"confug": ""}}"#;
    for request in [&b""[..], b"{", b"\xff\xfe", unknown, &deep] {
        let (status, reply) = claim(opened, RSlice::from_slice(request));
        let (code, slug, message) = told(&status);
        assert_eq!(
            (code, slug.as_str()),
            (4, "document/unreadable"),
            "{message}"
        );
        assert!(message.contains("claim request"), "{message}");
        assert!(reply.bytes().is_empty());
    }
    // SAFETY: a null slice of no bytes is allowed.
    let null = unsafe { RSlice::from_raw_parts(ptr::null(), 0) };
    assert_eq!(claim(opened, null).0.code, 4);
    let request = br#"{"schema": 1, "body": {"config": "{}"}}"#;
    let (status, reply) = claim(opened, RSlice::from_slice(request));
    assert_eq!(status.code, 0);
    let reply: Value = serde_json::from_slice(reply.bytes()).unwrap();
    assert_eq!(reply["body"]["claim"], "no");
    release(opened);
}

#[test]
fn an_extension_that_nobody_knows_is_null() {
    let opened = opened();
    for &id in EXTENSIONS {
        assert!(!extension(opened, id.into()).is_null(), "{id}");
    }
    for id in ["dequantize/2", "program/2", "", "DEQUANTIZE/1", "op-pack/1"] {
        assert!(extension(opened, id.into()).is_null(), "{id}");
    }
    let torn = [0xff_u8];
    // SAFETY: the bytes outlive the view; that they are not UTF-8 is the point.
    let id = unsafe { RStr::from_raw_parts(torn.as_ptr(), 1) };
    assert!(extension(opened, id).is_null());
    release(opened);
}

#[test]
fn an_extension_refuses_a_request_that_is_no_document_as_the_table_does() {
    let opened = opened();
    let found = extension(opened, PROGRAM.into()).cast::<ProgramTable>();
    // SAFETY: an extension's table is of its id's type and static.
    let table = unsafe { &*found };
    let unknown = br#"{"schema": 1, "body": {"spec": null}}"#;
    for request in [&b""[..], b"{", b"\xff\xfe", unknown] {
        let mut reply = OwnedBytes::EMPTY;
        let request = RSlice::from_slice(request);
        // SAFETY: the instance is open; request and reply live until the call returns.
        let status = unsafe { (table.program)(opened.0.instance, request, &mut reply) };
        let (code, slug, message) = told(&status);
        assert_eq!((code, slug.as_str()), (4, "document/unreadable"));
        assert!(message.contains("program request"), "{message}");
        assert!(reply.bytes().is_empty());
    }
    release(opened);
}

#[test]
fn a_tensor_that_does_not_fit_its_length_is_refused() {
    let opened = opened();
    let found = extension(opened, DEQUANTIZE.into()).cast::<DequantizeTable>();
    // SAFETY: an extension's table is of its id's type and static.
    let dequantizer = unsafe { &*found };
    let (extents, codes) = ([2_u64, 3], [128_u8; 6]);
    let whole = TensorRef {
        dtype: dtype::code_of("U8").unwrap(),
        rank: 2,
        extents: extents.as_ptr(),
        data: codes.as_ptr(),
        len: 6,
    };
    let huge = [u64::MAX, 2];
    let another = |edit: fn(&mut TensorRef)| {
        let mut tensor = whole;
        edit(&mut tensor);
        tensor
    };
    let overflowing = TensorRef {
        extents: huge.as_ptr(),
        ..whole
    };
    for (tensor, word) in [
        (another(|tensor| tensor.dtype = 0), "dtype code 0"),
        (another(|tensor| tensor.dtype = 99), "dtype code 99"),
        (another(|tensor| tensor.len = 5), "needs 6 bytes, found 5"),
        (
            another(|tensor| tensor.data = ptr::null()),
            "needs 6 bytes, found 0",
        ),
        (overflowing, "overflows"),
        (whole, "one F32 scale is needed"),
    ] {
        let mut out = [9_u8; 24];
        let (codec, none) = ("toy_int8/1".into(), RSlice::from_slice(&[]));
        let view = RSliceMut::from_mut_slice(&mut out);
        // SAFETY: the instance is open; every pointer is null or valid for the call.
        let status =
            unsafe { (dequantizer.dequantize)(opened.0.instance, codec, tensor, none, view) };
        let (code, slug, message) = told(&status);
        assert_eq!((code, slug.as_str()), (4, "codec/refused"), "{message}");
        assert!(message.contains(word), "{message}");
        assert_eq!(out, [9; 24], "nothing was written");
    }
    release(opened);
}
