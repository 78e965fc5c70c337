//! How many dispatches, submits and bytes each operation asks of an adapter, against a table. These are what a software adapter can say
//! of speed: its times are not those of a GPU.
//!
//! All calls of an operation's check are counted. The table is `counts.tsv`; `RIALTO_COUNTS=write` writes it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rialto_backend::{
    Backend, Blocks, Buffer, Capabilities, Counts, DeviceInfo, Error, OpCall, Operand, Recording,
    Registry, TensorType,
};
use rialto_tests::adapters::core;
use rialto_tests::counting::{differences, sum};
use rialto_tests::device::device_or_skip;

use crate::checks;
use crate::ideal::Ideal;

/// A device that records on another what an ideal one answers: nothing has to run to be counted.
struct Shadowed {
    ideal: Ideal,
    shadow: Arc<dyn Backend>,
    counted: Mutex<(u64, Counts)>,
}

impl Shadowed {
    fn count(&self, call: &OpCall) -> Result<Counts, Error> {
        let buffer = |buffer: &Buffer| self.shadow.allocate(buffer.tensor());
        let operand = |operand: &Operand| -> Result<Operand, Error> {
            let blocks = match &operand.blocks {
                Some(blocks) => Some(Blocks {
                    scales: buffer(&blocks.scales)?,
                    block: blocks.block,
                }),
                None => None,
            };
            Ok(Operand {
                values: buffer(&operand.values)?,
                blocks,
            })
        };
        let inputs = call.inputs().iter().map(operand);
        let outputs = call.outputs().iter().map(buffer);
        let inputs: Vec<Operand> = inputs.collect::<Result<_, _>>()?;
        let outputs: Vec<Buffer> = outputs.collect::<Result<_, _>>()?;
        let call = OpCall::new(call.op().clone(), inputs, outputs)?;
        Ok(self.shadow.record(vec![call])?.counts())
    }
}

impl Backend for Shadowed {
    fn device(&self) -> &DeviceInfo {
        self.ideal.device()
    }

    fn capabilities(&self) -> &Capabilities {
        self.ideal.capabilities()
    }

    fn allocate(&self, tensor: &TensorType) -> Result<Buffer, Error> {
        self.ideal.allocate(tensor)
    }

    fn write(&self, buffer: &Buffer, offset_bytes: u64, bytes: &[u8]) -> Result<(), Error> {
        self.ideal.write(buffer, offset_bytes, bytes)
    }

    fn read(&self, buffer: &Buffer, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.ideal.read(buffer, offset_bytes, bytes)
    }

    fn record(&self, calls: Vec<OpCall>) -> Result<Box<dyn Recording>, Error> {
        for call in &calls {
            let counts = self.count(call)?;
            let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
            *counted = (counted.0 + 1, sum(counted.1, counts));
        }
        self.ideal.record(calls)
    }
}

#[test]
fn no_operation_asks_more_of_an_adapter_than_it_did() {
    let registry = Registry::new().with(core());
    let Some(shadow) = device_or_skip(&registry, "wgpu") else {
        return;
    };
    let mut lines = Vec::new();
    for (op, check) in checks::ALL {
        let device = Shadowed {
            ideal: Ideal::new(),
            shadow: Arc::clone(&shadow),
            counted: Mutex::default(),
        };
        check(&device).unwrap_or_else(|reason| panic!("{reason}"));
        let (calls, counts) = *device.counted.lock().unwrap();
        // A call whose tensors have an element takes a dispatch, and what it reads and writes is bound.
        assert!(counts.dispatches > 0 && counts.bound_bytes > 0, "{op}");
        assert!(counts.submits <= calls, "{op}: a call is one submit");
        lines.push(((*op).to_owned(), calls, counts));
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/counts.tsv");
    assert_eq!(differences(&file, &lines), [] as [String; 0]);
}
