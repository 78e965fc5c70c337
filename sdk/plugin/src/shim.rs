//! Bridge to tables. Every function that C can call is here; each runs the bridge under `catch_unwind`.
//!
//! An instance is a boxed bridge and the memory of its first panic. After a panic the bridge may be in any state, so it is
//! asked nothing more: every further call returns what the first one did. Other instances are not touched.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::{Once, OnceLock};

pub use rialto_abi::PluginDecl;
use rialto_abi::decl::{ABI_MAJOR, panic_strategy};
use rialto_abi::view::{self, dtype};
use rialto_abi::{
    BridgeHandle, BridgeTable, DEQUANTIZE, DequantizeTable, HostTable, OwnedBytes, PROGRAM,
    ProgramTable, RSlice, RSliceMut, RStr, Status, TensorRef, code,
};
use rialto_bridge::error::panic_words;
use rialto_bridge::request::{
    ClaimRequest, ErrorDetail, MapConfigRequest, PipelineLayoutRequest, ProgramRequest,
    SpecRequest, UnmapConfigRequest,
};
use rialto_bridge::{Bridge, EncodedTensor, Error, RawConfig, document};
use rialto_tensor::{Dtype, Shape, TensorView};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Kinds of errors that this side makes itself, as (slug, code); `docs/errors.md` lists them.
pub const KINDS: &[(&str, u32)] = &[HOST_REFUSED];

/// The plugin refused the host: no table, one of another size, or another major version of the contract.
const HOST_REFUSED: (&str, u32) = ("plugin/host", code::ABI_MISMATCH);

/// Makes the bridge that a library exports; `export_plugin!` implements it.
pub trait Export {
    /// A new instance's bridge.
    fn construct() -> Box<dyn Bridge>;
}

/// The declaration of a library that exports `E`.
#[must_use]
pub const fn declare<E: Export>(name: &str, version: &str) -> PluginDecl {
    let strategy = if cfg!(panic = "unwind") {
        panic_strategy::UNWIND
    } else {
        panic_strategy::ABORT
    };
    PluginDecl::new(name, version, strategy, open::<E>)
}

static BRIDGE: BridgeTable = BridgeTable {
    describe,
    claim,
    map_config,
    unmap_config,
    weight_map,
    placement,
    pipeline_layout,
    codecs,
    query_extension,
    release,
};

static DEQUANTIZER: DequantizeTable = DequantizeTable { dequantize };

static FORWARD_PASS: ProgramTable = ProgramTable { program };

/// The host's table; written once, by the first `open`.
static HOST: OnceLock<&'static HostTable> = OnceLock::new();

/// Writes one line to the host's log, if there is a host.
pub(crate) fn log(level: u32, target: &str, message: &str) {
    if let Some(host) = HOST.get() {
        // SAFETY: the table came through `open`, whose contract makes it valid for the life of the process and its
        // entries callable from any thread; both texts live until the call returns.
        unsafe { (host.log)(host.context, level, target.into(), message.into()) };
    }
}

/// The host's list of what it can read; `None` if there is no host.
pub(crate) fn host_capabilities() -> Option<Vec<String>> {
    let host = HOST.get()?;
    // SAFETY: the table came through `open`, whose contract makes its text valid for the life of the process.
    let text = unsafe { view::text(host.capabilities) };
    Some(
        text.and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default(),
    )
}

/// What the `instance` pointer points to.
struct Instance {
    bridge: Box<dyn Bridge>,
    /// The first panic; written once, by the call that panicked.
    panic: OnceLock<Panicked>,
}

/// Where an instance panicked, and with what words.
#[derive(Clone)]
struct Panicked {
    entry: &'static str,
    message: String,
}

impl Panicked {
    fn status(&self) -> Status {
        status_of(&Error::Panic {
            entry: self.entry.to_owned(),
            message: self.message.clone(),
        })
    }
}

impl Instance {
    /// Runs one entry. Nothing but a status leaves it.
    fn run(
        &self,
        entry: &'static str,
        call: impl FnOnce(&dyn Bridge) -> Result<(), Error>,
    ) -> Status {
        if let Some(panic) = self.panic.get() {
            return panic.status();
        }
        match caught(entry, || call(&*self.bridge)) {
            Ok(Ok(())) => Status::ok(),
            Ok(Err(error)) => status_of(&error),
            Err(panic) => self.panic.get_or_init(|| panic).status(),
        }
    }
}

fn status_of(error: &Error) -> Status {
    // Strings always have a JSON form; without one the code still crosses.
    let detail = serde_json::to_vec(&ErrorDetail::of(error)).unwrap_or_default();
    Status::new(error.code(), detail)
}

thread_local! {
    /// How many entries are running on this thread; written by `caught`.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Where the last panic on this thread was; written by the hook, taken by `caught`.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A plugin's standard library is its own, so the host's panic hook never runs here. Without one of ours every panic
/// would be printed on stderr; ours keeps its place for the message that the host shows.
fn install_panic_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if DEPTH.get() == 0 {
                previous(info);
            } else {
                PLACE.set(info.location().map(ToString::to_string));
            }
        }));
    });
}

fn caught<T>(entry: &'static str, call: impl FnOnce() -> T) -> Result<T, Panicked> {
    DEPTH.set(DEPTH.get() + 1);
    let outcome = panic::catch_unwind(AssertUnwindSafe(call));
    DEPTH.set(DEPTH.get() - 1);
    outcome.map_err(|payload| {
        let mut message = panic_words(payload);
        if let Some(place) = PLACE.take() {
            message.push_str(&format!(" ({place})"));
        }
        Panicked { entry, message }
    })
}

/// Makes an instance.
///
/// # Safety
///
/// `host` is null or a table that stays valid for the life of the process; `handle` is null or valid for one write.
unsafe extern "C" fn open<E: Export>(host: *const HostTable, handle: *mut BridgeHandle) -> Status {
    let refused = |what: &str, found: String, supported: String| {
        status_of(&Error::Plugin {
            code: HOST_REFUSED.1,
            slug: HOST_REFUSED.0.to_owned(),
            message: format!("{what} is {found}, this plugin expects {supported}"),
            help: Some("use a rialto of the plugin's abi".to_owned()),
            findings: Vec::new(),
        })
    };
    // SAFETY: the caller promises that a host table that is not null stays valid.
    let Some(host) = (unsafe { host.as_ref() }) else {
        return refused("the host table", "null".to_owned(), "a table".to_owned());
    };
    if host.struct_size != HostTable::SIZE {
        let (found, expected) = (host.struct_size.to_string(), HostTable::SIZE.to_string());
        return refused("the host table's size", found, expected);
    }
    if host.abi_major != ABI_MAJOR {
        return refused(
            "the host's abi",
            host.abi_major.to_string(),
            ABI_MAJOR.to_string(),
        );
    }
    if handle.is_null() {
        return refused(
            "the handle",
            "null".to_owned(),
            "a place to write to".to_owned(),
        );
    }
    let _ = HOST.set(host);
    install_panic_hook();
    match caught("open", E::construct) {
        Ok(bridge) => {
            let instance = Box::into_raw(Box::new(Instance {
                bridge,
                panic: OnceLock::new(),
            }));
            let filled = BridgeHandle {
                instance: instance.cast(),
                table: &raw const BRIDGE,
            };
            // SAFETY: the pointer is not null, and the caller promises that it is valid for a write.
            unsafe { handle.write(filled) };
            Status::ok()
        }
        Err(panic) => panic.status(),
    }
}

/// Ends an instance.
///
/// # Safety
///
/// `instance` came from `open`, no call on it is running, and none follows.
unsafe extern "C" fn release(instance: *mut c_void) -> Status {
    // SAFETY: the caller promises that `open` made it, from a box, and that it is given back once.
    let instance = unsafe { Box::from_raw(instance.cast::<Instance>()) };
    match caught("release", move || drop(instance)) {
        Ok(()) => Status::ok(),
        Err(panic) => panic.status(),
    }
}

/// Reads the request, asks, writes the reply.
///
/// # Safety
///
/// `instance` came from `open` and is not released; `request` is valid for this call.
unsafe fn answer<Q: DeserializeOwned>(
    entry: &'static str,
    instance: *mut c_void,
    request: RSlice<'_, u8>,
    reply: &mut OwnedBytes,
    ask: impl FnOnce(&dyn Bridge, Q) -> Result<Vec<u8>, Error>,
) -> Status {
    // SAFETY: the caller promises that `open` made it and that it is not released; calls take it by shared reference.
    let instance = unsafe { &*instance.cast::<Instance>() };
    // SAFETY: the caller promises that the request is valid for this call.
    let request = unsafe { view::slice(request) };
    instance.run(entry, |bridge| {
        let question = document::decode(&format!("{entry} request"), request)?;
        *reply = OwnedBytes::new(ask(bridge, question)?);
        Ok(())
    })
}

fn encode<A: Serialize>(entry: &str, requires: &[&str], body: &A) -> Result<Vec<u8>, Error> {
    document::encode(&format!("{entry} reply"), requires, body)
}

fn config(text: &str) -> Result<RawConfig, Error> {
    RawConfig::parse(text.as_bytes())
}

macro_rules! entries {
    ($($(#[$doc:meta])* $entry:ident($request:ty) = |$bridge:ident, $question:pat_param| $reply:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// `instance` came from `open` and is not released; `request` is valid for this call.
        unsafe extern "C" fn $entry(
            instance: *mut c_void,
            request: RSlice<'_, u8>,
            reply: &mut OwnedBytes,
        ) -> Status {
            let name = stringify!($entry);
            let ask = |$bridge: &dyn Bridge, $question: $request| $reply;
            // SAFETY: the caller's promises, passed on.
            unsafe { answer(name, instance, request, reply, ask) }
        }
    )*};
}

entries! {
    /// `Bridge::describe`.
    describe(()) = |bridge, ()| encode("describe", &[], &bridge.describe());
    /// `ConfigMapping::claim`.
    claim(ClaimRequest) = |bridge, asked| encode("claim", &[], &bridge.claim(&config(&asked.config)?)?);
    /// `ConfigMapping::map_config`.
    map_config(MapConfigRequest) = |bridge, asked| {
        encode("map_config", &[], &bridge.map_config(&config(&asked.config)?, &asked.options)?)
    };
    /// `ConfigMapping::unmap_config`.
    unmap_config(UnmapConfigRequest) = |bridge, asked| {
        encode("unmap_config", &[], &bridge.unmap_config(&asked.spec, &config(&asked.reference)?)?)
    };
    /// `WeightMapping::weight_map`.
    weight_map(SpecRequest) = |bridge, asked| {
        let map = bridge.weight_map(&asked.spec)?;
        encode("weight_map", &map.requirements(), &map)
    };
    /// `WeightMapping::placement`.
    placement(SpecRequest) = |bridge, asked| encode("placement", &[], &bridge.placement(&asked.spec)?);
    /// `PipelineMapping::pipeline_layout`.
    pipeline_layout(PipelineLayoutRequest) = |bridge, asked| {
        encode("pipeline_layout", &[], &bridge.pipeline_layout(&asked.spec, &asked.request)?)
    };
    /// `Dequantizer::codecs`.
    codecs(SpecRequest) = |bridge, asked| encode("codecs", &[], &bridge.codecs(&asked.spec)?);
    /// `ForwardPass::program`. The host holds it against its own operations, and checks that it is sound.
    program(ProgramRequest) = |bridge, asked| {
        let program = bridge.program(&asked.spec, &asked.options)?;
        let requires = program.requirements();
        let requires: Vec<&str> = requires.iter().map(String::as_str).collect();
        encode("program", &requires, &program)
    };
}

/// The table of an extension, null if there is none of that id.
///
/// # Safety
///
/// `id` is valid for this call.
unsafe extern "C" fn query_extension(_instance: *mut c_void, id: RStr<'_>) -> *const c_void {
    // SAFETY: the caller promises that the id is valid for this call. Nothing below can panic.
    match unsafe { view::text(id) } {
        Some(DEQUANTIZE) => (&raw const DEQUANTIZER).cast(),
        Some(PROGRAM) => (&raw const FORWARD_PASS).cast(),
        _ => ptr::null(),
    }
}

/// `Dequantizer::dequantize`.
///
/// # Safety
///
/// `instance` came from `open` and is not released; all views, and the pointers in the tensors, are valid for this call,
/// and nobody else reads or writes `out` meanwhile.
unsafe extern "C" fn dequantize(
    instance: *mut c_void,
    codec: RStr<'_>,
    tensor: TensorRef,
    companions: RSlice<'_, TensorRef>,
    out: RSliceMut<'_, u8>,
) -> Status {
    // SAFETY: the caller promises that `open` made it and that it is not released; calls take it by shared reference.
    let instance = unsafe { &*instance.cast::<Instance>() };
    // SAFETY: the caller promises that the name is valid for this call.
    let codec = unsafe { view::text(codec) };
    // SAFETY: the caller promises that the list is valid for this call.
    let companions = unsafe { view::slice(companions) };
    // SAFETY: the caller promises that the output is valid for this call and nobody else's meanwhile.
    let out = unsafe { view::slice_mut(out) };
    instance.run("dequantize", |bridge| {
        let invalid = |reason: String| Error::Codec {
            codec: codec.unwrap_or_default().to_owned(),
            reason,
        };
        let name = codec.ok_or_else(|| invalid("its name is not UTF-8".to_owned()))?;
        let parts: Vec<(Dtype, Shape, &[u8])> = std::iter::once(&tensor)
            .chain(companions)
            .map(|part| {
                let dtype = dtype::name_of(part.dtype).and_then(|name| name.parse().ok());
                let dtype = dtype
                    .ok_or_else(|| invalid(format!("dtype code {} is not known", part.dtype)))?;
                // SAFETY: the caller promises that the pointers in the tensors are valid for this call.
                let extents = unsafe { part.extents() };
                // SAFETY: as above.
                let bytes = unsafe { part.bytes() };
                Ok((dtype, Shape::new(extents), bytes))
            })
            .collect::<Result<_, Error>>()?;
        let views: Vec<TensorView<'_>> = parts
            .iter()
            .map(|(dtype, shape, bytes)| TensorView::new(*dtype, shape, bytes))
            .collect::<Result<_, _>>()
            .map_err(|error| invalid(error.to_string()))?;
        let encoded = EncodedTensor {
            codec: name,
            tensor: views[0],
            companions: views[1..].to_vec(),
        };
        bridge.dequantize(&encoded, out)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_with_its_words_and_its_place() {
        install_panic_hook();
        let panicked = caught("claim", || panic!("rule {} is odd", 7))
            .map(|()| 0)
            .unwrap_err();
        assert!(
            panicked.message.starts_with("rule 7 is odd ("),
            "{}",
            panicked.message
        );
        assert!(
            panicked.message.contains("shim.rs:"),
            "{}",
            panicked.message
        );
        let panicked = caught("claim", || panic::panic_any(7_u32))
            .map(|()| 0)
            .unwrap_err();
        assert!(
            panicked.message.starts_with("a payload that is not text"),
            "{}",
            panicked.message
        );
        assert_eq!(DEPTH.get(), 0);
    }
}
