//! How much of an adapter is used.

use std::time::Duration;

/// What a device is held to, where it is less than the adapter gives: to see on one machine what another would do, and to share an
/// adapter with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Most bytes of a binding. A tensor that has more is bound in parts.
    pub binding_bytes: Option<u64>,
    /// Most bytes of a buffer. A tensor that has more is in several.
    pub buffer_bytes: Option<u64>,
    /// Most invocations of a workgroup, 128 at least.
    pub invocations: Option<u32>,
    /// Most multiplications and additions of a dispatch; what takes more is several, down to a row, a head or 64 columns of a product.
    pub dispatch_work: Option<u64>,
    /// Most bytes that buffers have together, those of recordings among them. More is refused.
    pub memory_bytes: Option<u64>,
    /// How long the device may take for what was submitted. Afterwards it is not used again.
    pub deadline: Duration,
    /// Whether adapters are taken to have no compute shaders: tests see what is said then.
    #[doc(hidden)]
    pub lacks_compute: bool,
    /// Parts of shaders and what stands in their place, by the shader's name: tests plant faults with it.
    #[doc(hidden)]
    pub edits: Vec<(&'static str, &'static str, &'static str)>,
}

impl Default for Settings {
    /// All of it, and a minute.
    fn default() -> Settings {
        Settings {
            binding_bytes: None,
            buffer_bytes: None,
            invocations: None,
            dispatch_work: None,
            memory_bytes: None,
            deadline: Duration::from_secs(60),
            lacks_compute: false,
            edits: Vec::new(),
        }
    }
}
