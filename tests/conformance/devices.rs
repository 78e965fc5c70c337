//! What the checks run on.

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};

use rialto_backend::{Backend, Choice, OpenOptions, Registry};
use rialto_cpu::CpuDriver;
use rialto_program::Op;
use rialto_tests::adapters::adapters;
use rialto_tests::device::device_or_skip;

use crate::harness::Verdict;
use crate::ideal::Ideal;

fn registry() -> Registry {
    Registry::new().with(CpuDriver)
}

fn cpu(threads: usize) -> Arc<dyn Backend> {
    let options = OpenOptions {
        threads: NonZeroUsize::new(threads),
    };
    let opened = registry().open(&Choice::first("cpu"), &options);
    opened.unwrap_or_else(|error| panic!("every machine has a processor: {error}"))
}

/// Devices by name. The first is the oracle itself, so that what was worked out by hand is held against it, too. Of the processor
/// there is one that shares its work among more threads than rows often are.
pub(crate) fn devices() -> &'static [(&'static str, Arc<dyn Backend>)] {
    static DEVICES: OnceLock<Vec<(&'static str, Arc<dyn Backend>)>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let mut devices: Vec<(&'static str, Arc<dyn Backend>)> = vec![
            ("ideal", Arc::new(Ideal::new())),
            ("cpu", cpu(1)),
            ("cpu of 3 threads", cpu(3)),
        ];
        for (name, driver) in adapters() {
            let registry = Registry::new().with(driver);
            devices.extend(device_or_skip(&registry, "wgpu").map(|device| (name, device)));
        }
        devices
    })
}

/// Runs a check on each device.
pub(crate) fn each(check: impl Fn(&dyn Backend) -> Verdict) {
    for (name, device) in devices() {
        if let Err(reason) = check(&**device) {
            panic!("{name}: {reason}");
        }
    }
}

#[test]
fn the_processor_runs_every_operation_in_either_type_and_row_by_row() {
    let device = cpu(1);
    let can = device.capabilities();
    for op in Op::NAMES {
        assert!(can.ops.contains(*op), "{op}");
    }
    assert_eq!(can.activations.len(), 2);
    assert!(can.runs_block_weights && can.is_row_invariant);
}
