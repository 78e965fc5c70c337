//! The adapters that suites run on: as they are, and as less than they are, since a shape that tests can afford meets no limit of a
//! real one.

use rialto_wgpu::{Settings, WgpuDriver};

/// An adapter as it is; as the least that this backend runs on; and with bindings and buffers that few tensors fit and dispatches that
/// do little: seams between these are where shapes of the suites have rows.
#[must_use]
pub fn adapters() -> [(&'static str, WgpuDriver); 3] {
    let narrow = Settings {
        binding_bytes: Some(8 << 10),
        buffer_bytes: Some(32 << 10),
        dispatch_work: Some(1 << 16),
        ..least()
    };
    [
        ("wgpu", WgpuDriver::new()),
        (
            "wgpu with bindings of 1 MiB",
            WgpuDriver::with_settings(least()),
        ),
        (
            "wgpu with bindings of 8 KiB",
            WgpuDriver::with_settings(narrow),
        ),
    ]
}

/// Bindings of 1 MiB and workgroups of 128 invocations.
fn least() -> Settings {
    Settings {
        binding_bytes: Some(1 << 20),
        invocations: Some(128),
        ..Settings::default()
    }
}

/// What WebGPU promises everywhere, on any adapter the same: counts of what is run do not depend on it then.
#[must_use]
pub fn core() -> WgpuDriver {
    WgpuDriver::with_settings(Settings {
        binding_bytes: Some(128 << 20),
        buffer_bytes: Some(256 << 20),
        invocations: Some(256),
        dispatch_work: Some(1 << 28),
        ..Settings::default()
    })
}
