//! Tables to calls. Every function of a plugin is called from here, and nowhere else.
//!
//! What is believed about a library, and since when: nothing before [`Library::open`] returns; after it, that the symbol's
//! bytes are mapped; after [`Library::declaration`], that they are a declaration of this contract; after
//! [`Library::instance`], that its table has no null entries. That the functions behind it keep the contract can only be
//! believed: `docs/abi.md` says so to authors, and to users what it means.

use std::ffi::c_void;
use std::path::Path;
use std::sync::OnceLock;

use libloading::os::unix::{Library as Opened, RTLD_LOCAL, RTLD_NOW, Symbol};
use rialto_abi::decl::{self, ABI_MAJOR, ABI_MINOR, MAGIC};
use rialto_abi::layout::{self, LayoutMismatch};
use rialto_abi::{
    BridgeHandle, BridgeTable, DEQUANTIZE, DequantizeTable, HostTable, OwnedBytes, PROGRAM,
    PluginDecl, ProgramTable, RSlice, RStr, SYMBOL, Status, TensorRef, level, view,
};
use rialto_bridge::document;

/// An opened library. It is never closed: code and data of a Rust library may be in use by threads, thread-locals and
/// panic hooks of its own for as long as the process lives.
pub(crate) struct Library {
    declaration: *const PluginDecl,
}

// SAFETY: a declaration is immutable data of a library that stays open.
unsafe impl Send for Library {}
// SAFETY: as for `Send`.
unsafe impl Sync for Library {}

/// Why a symbol's bytes are not a declaration.
pub(crate) enum DeclFault {
    Magic([u8; 8]),
    Size(u32),
}

/// Why there is no instance.
pub(crate) enum OpenFault {
    Refused(Answer),
    Null(&'static str),
}

/// A status that is not OK: its code and detail.
pub(crate) struct Answer {
    pub(crate) code: u32,
    pub(crate) detail: Vec<u8>,
}

impl Library {
    /// Opens a library whose headers have been checked. Its initializers run.
    pub(crate) fn open(file: &Path) -> Result<Opened, String> {
        // SAFETY: the initializers are foreign code, and whoever chose the file accepts that it runs; that the file has
        // the bytes its headers name was established by `elf::check`.
        let opened = unsafe { Opened::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
        // libloading keeps the loader's own words, which name what is missing, one level down.
        opened.map_err(|error| {
            let words = std::error::Error::source(&error).map(ToString::to_string);
            words.unwrap_or_else(|| error.to_string())
        })
    }

    /// Finds the declaration's symbol, and keeps the library for the life of the process.
    pub(crate) fn symbol(opened: Opened) -> Option<Library> {
        // SAFETY: the type is only a pointer here; what it points to is checked by `declaration`.
        let found: Result<Symbol<*const PluginDecl>, _> = unsafe { opened.get(SYMBOL) };
        let declaration = found.ok().map(Symbol::into_raw);
        std::mem::forget(opened);
        let declaration = declaration?.cast_const().cast::<PluginDecl>();
        (!declaration.is_null()).then_some(Library { declaration })
    }

    /// The declaration. Magic and size are read first: a symbol of that name may be anything.
    pub(crate) fn declaration(&self) -> Result<PluginDecl, DeclFault> {
        // SAFETY: the symbol is mapped, and its first bytes are read as bytes, without alignment. A symbol shorter than
        // this at the very end of a mapping is not defended against.
        let magic: [u8; 8] = unsafe { self.declaration.cast::<[u8; 8]>().read_unaligned() };
        if magic != MAGIC {
            return Err(DeclFault::Magic(magic));
        }
        let place = self
            .declaration
            .wrapping_byte_add(size_of_val(&magic))
            .cast::<u32>();
        // SAFETY: the magic says that a size follows.
        let size = unsafe { place.read_unaligned() };
        if size != PluginDecl::SIZE {
            return Err(DeclFault::Size(size));
        }
        // SAFETY: magic and size say that a whole declaration lies here; every field is valid for any bytes but `open`,
        // which is null or, as the contract has it, the function.
        Ok(unsafe { self.declaration.read_unaligned() })
    }

    /// Compares the layout report, if the declaration has one that this host can read. Returns whether it had.
    pub(crate) fn compare_layout(declaration: &PluginDecl) -> Result<bool, LayoutMismatch> {
        let is_readable = decl::unpadded(&declaration.layout_version) == decl::LAYOUT_VERSION
            && !declaration.layout.is_null();
        if is_readable {
            // SAFETY: the versions were compared just now, and the library stays open.
            unsafe { layout::compare(declaration.layout) }?;
        }
        Ok(is_readable)
    }

    /// Makes an instance and checks that its table has no null entry.
    pub(crate) fn instance(declaration: &PluginDecl) -> Result<Instance, OpenFault> {
        let open = declaration.open.ok_or(OpenFault::Null("open"))?;
        let mut handle = BridgeHandle::EMPTY;
        // SAFETY: the host table lives as long as the process, the handle is valid for a write, and `open` is the
        // function of a declaration that passed the handshake.
        let status = unsafe { open(host_table(), &raw mut handle) };
        answered(status).map_err(OpenFault::Refused)?;
        if handle.table.is_null() {
            return Err(OpenFault::Null("bridge table"));
        }
        let bridge = layout::TABLES
            .iter()
            .find(|table| table.name == "BridgeTable")
            .expect("the list of tables has the one that every plugin must fill");
        for entry in bridge.fields {
            let place = handle
                .table
                .wrapping_byte_add(entry.offset)
                .cast::<*const c_void>();
            // SAFETY: `open` said OK and a table is never smaller than its contract; the entry is read as an address.
            let address = unsafe { place.read() };
            if address.is_null() {
                return Err(OpenFault::Null(entry.name));
            }
        }
        // SAFETY: the table is valid for the life of the process, and no entry is null.
        let table = unsafe { &*handle.table };
        let mut instance = Instance {
            handle: handle.instance,
            table,
            dequantizer: None,
            program: None,
        };
        // SAFETY: the id is this table's, which is one function.
        instance.dequantizer = unsafe { instance.query(DEQUANTIZE) };
        // SAFETY: as above.
        instance.program = unsafe { instance.query(PROGRAM) };
        Ok(instance)
    }
}

/// An instance of a plugin. It is released when dropped.
pub(crate) struct Instance {
    handle: *mut c_void,
    table: &'static BridgeTable,
    dequantizer: Option<&'static DequantizeTable>,
    program: Option<&'static ProgramTable>,
}

// SAFETY: the contract lets every entry be called from any thread, by several at once; `release` is called once, when
// nobody else has the instance.
unsafe impl Send for Instance {}
// SAFETY: as for `Send`.
unsafe impl Sync for Instance {}

/// An entry that answers a document with a document: those of `bridge/1`, and that of an extension with its table.
#[derive(Clone, Copy)]
pub(crate) enum Entry {
    Describe,
    Claim,
    MapConfig,
    UnmapConfig,
    WeightMap,
    Placement,
    PipelineLayout,
    Codecs,
    Program(&'static ProgramTable),
}

impl Entry {
    /// Its name in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Entry::Describe => "describe",
            Entry::Claim => "claim",
            Entry::MapConfig => "map_config",
            Entry::UnmapConfig => "unmap_config",
            Entry::WeightMap => "weight_map",
            Entry::Placement => "placement",
            Entry::PipelineLayout => "pipeline_layout",
            Entry::Codecs => "codecs",
            Entry::Program(_) => "program",
        }
    }
}

impl Instance {
    /// Asks one entry.
    pub(crate) fn ask(&self, entry: Entry, request: &[u8]) -> Result<OwnedBytes, Answer> {
        let table = self.table;
        let call = match entry {
            Entry::Describe => table.describe,
            Entry::Claim => table.claim,
            Entry::MapConfig => table.map_config,
            Entry::UnmapConfig => table.unmap_config,
            Entry::WeightMap => table.weight_map,
            Entry::Placement => table.placement,
            Entry::PipelineLayout => table.pipeline_layout,
            Entry::Codecs => table.codecs,
            Entry::Program(table) => table.program,
        };
        let mut reply = OwnedBytes::EMPTY;
        // SAFETY: the handle is the one that came with the table, or was asked for an extension's, and is not released, since
        // `self` is alive; request and reply live until the call returns.
        let status = unsafe { call(self.handle, RSlice::from_slice(request), &mut reply) };
        answered(status)?;
        Ok(reply)
    }

    /// Whether the plugin has an extension.
    pub(crate) fn has_extension(&self, id: &str) -> bool {
        !self.extension(id).is_null()
    }

    fn extension(&self, id: &str) -> *const c_void {
        // SAFETY: as in `ask`; the id lives until the call returns.
        unsafe { (self.table.query_extension)(self.handle, id.into()) }
    }

    /// The table of an extension; none if the plugin does not have it, or has it with a hole.
    ///
    /// # Safety
    ///
    /// `T` is the type of the id's table, and one function.
    unsafe fn query<T>(&self, id: &str) -> Option<&'static T> {
        let table = self.extension(id).cast::<Option<unsafe extern "C" fn()>>();
        // SAFETY: an extension's table is null or, as the contract has it, of the id's type and valid for the life of the
        // process; its one entry is read as a function that may be null.
        let entry = unsafe { table.as_ref() }?;
        entry.as_ref()?;
        // SAFETY: as above, and the entry is not null.
        Some(unsafe { &*table.cast::<T>() })
    }

    /// The entry of `program/1`. `None` if the plugin does not have the extension.
    pub(crate) fn program(&self) -> Option<Entry> {
        self.program.map(Entry::Program)
    }

    /// Decodes a tensor. `None` if the plugin does not have the extension.
    pub(crate) fn dequantize(
        &self,
        codec: &str,
        tensor: TensorRef,
        companions: &[TensorRef],
        out: &mut [u8],
    ) -> Option<Result<(), Answer>> {
        let table = self.dequantizer?;
        // SAFETY: as in `ask`; the pointers in the tensors were made from slices that the caller borrows for this call,
        // and the output is borrowed mutably.
        let status = unsafe {
            (table.dequantize)(
                self.handle,
                codec.into(),
                tensor,
                companions.into(),
                out.into(),
            )
        };
        Some(answered(status))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: nobody else has the instance, and it is released here only.
        let status = unsafe { (self.table.release)(self.handle) };
        if let Err(answer) = answered(status) {
            let said = String::from_utf8_lossy(&answer.detail).into_owned();
            tracing::warn!(target: "rialto::plugin", code = answer.code, "a plugin failed to release an instance: {said}");
        }
    }
}

fn answered(status: Status) -> Result<(), Answer> {
    match status.code {
        rialto_abi::code::OK => Ok(()),
        code => Err(Answer {
            code,
            detail: status.detail.bytes().to_vec(),
        }),
    }
}

/// The one host table of this process.
fn host_table() -> &'static HostTable {
    static CAPABILITIES: OnceLock<String> = OnceLock::new();
    static TABLE: OnceLock<HostTable> = OnceLock::new();
    let capabilities =
        CAPABILITIES.get_or_init(|| serde_json::Value::from(document::capabilities()).to_string());
    TABLE.get_or_init(|| HostTable {
        struct_size: HostTable::SIZE,
        abi_major: ABI_MAJOR,
        abi_minor: ABI_MINOR,
        reserved: 0,
        capabilities: capabilities.as_str().into(),
        context: std::ptr::null_mut(),
        log,
        query_extension,
    })
}

/// There are no services beyond the table yet; a plugin that was built for a later host learns it here.
///
/// # Safety
///
/// The id is valid for this call; it is not read.
unsafe extern "C" fn query_extension(_context: *mut c_void, _id: RStr<'_>) -> *const c_void {
    std::ptr::null()
}

/// Passes a line of a plugin's log on to whoever subscribed to the host's.
///
/// # Safety
///
/// Both texts are valid for this call.
unsafe extern "C" fn log(_context: *mut c_void, level: u32, target: RStr<'_>, message: RStr<'_>) {
    // SAFETY: the caller promises that the target is valid for this call.
    let plugin = unsafe { view::text(target) }.unwrap_or("?");
    // SAFETY: the caller promises that the message is valid for this call.
    let message = unsafe { view::text(message) }.unwrap_or("a message that is not UTF-8");
    // A subscriber is the application's code; its panic must not unwind into a plugin.
    let logged = std::panic::catch_unwind(|| match level {
        level::ERROR => tracing::error!(target: "rialto::plugin", plugin, "{message}"),
        level::WARN => tracing::warn!(target: "rialto::plugin", plugin, "{message}"),
        level::INFO => tracing::info!(target: "rialto::plugin", plugin, "{message}"),
        level::DEBUG => tracing::debug!(target: "rialto::plugin", plugin, "{message}"),
        _ => tracing::trace!(target: "rialto::plugin", plugin, "{message}"),
    });
    if let Err(payload) = logged {
        // Dropping it may panic again.
        std::mem::forget(payload);
    }
}
