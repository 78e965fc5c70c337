//! A device around the processor's that fails, or errs, at a call of one's choice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rialto_backend::{
    Backend, Buffer, Capabilities, DeviceInfo, DeviceKind, Driver, Error, OpCall, OpenOptions,
    Recording, TensorType,
};
use rialto_cpu::CpuDriver;

/// What it does wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wrong {
    #[default]
    Nothing,
    /// The call of that number fails, and all after it: a device that is lost stays lost.
    LostAt(u64),
    /// From the read of that number on, one bit of the last element is another.
    BitFrom(u64),
}

/// What is counted.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) calls: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) records: AtomicU64,
}

pub(crate) struct FaultyDevice {
    inner: Arc<dyn Backend>,
    info: DeviceInfo,
    capabilities: Capabilities,
    wrong: Wrong,
    pub(crate) counts: Arc<Counts>,
}

/// The processor as a device, as it is.
pub(crate) fn processor() -> Arc<dyn Backend> {
    CpuDriver.open(0, &OpenOptions::default()).unwrap()
}

impl FaultyDevice {
    pub(crate) fn new(wrong: Wrong) -> FaultyDevice {
        let inner = processor();
        let mut info = inner.device().clone();
        "faulty".clone_into(&mut info.backend);
        info.kind = DeviceKind::Software;
        FaultyDevice {
            info,
            capabilities: inner.capabilities().clone(),
            inner,
            wrong,
            counts: Arc::default(),
        }
    }

    /// One that runs these operations alone.
    pub(crate) fn with_ops(ops: &[&str]) -> FaultyDevice {
        let mut device = FaultyDevice::new(Wrong::Nothing);
        device.capabilities.ops = ops.iter().map(|&op| op.to_owned()).collect::<BTreeSet<_>>();
        device
    }

    fn call(&self) -> Result<(), Error> {
        call(self.wrong, &self.counts)
    }
}

fn call(wrong: Wrong, counts: &Counts) -> Result<(), Error> {
    let number = counts.calls.fetch_add(1, Ordering::Relaxed);
    match wrong {
        Wrong::LostAt(at) if number >= at => Err(Error::Lost {
            device: "the faulty one".to_owned(),
            reason: format!("it was to be at call {at}"),
        }),
        _ => Ok(()),
    }
}

impl Backend for FaultyDevice {
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&self, tensor: &TensorType) -> Result<Buffer, Error> {
        self.call()?;
        self.inner.allocate(tensor)
    }

    fn write(&self, buffer: &Buffer, offset_bytes: u64, bytes: &[u8]) -> Result<(), Error> {
        self.call()?;
        self.inner.write(buffer, offset_bytes, bytes)
    }

    fn read(&self, buffer: &Buffer, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.call()?;
        let number = self.counts.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.read(buffer, offset_bytes, bytes)?;
        if matches!(self.wrong, Wrong::BitFrom(from) if number >= from) {
            bytes[bytes.len() - 2] ^= 1;
        }
        Ok(())
    }

    fn record(&self, calls: Vec<OpCall>) -> Result<Box<dyn Recording>, Error> {
        self.call()?;
        self.counts.records.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(FaultyRecording {
            inner: self.inner.record(calls)?,
            wrong: self.wrong,
            counts: Arc::clone(&self.counts),
        }))
    }
}

struct FaultyRecording {
    inner: Box<dyn Recording>,
    wrong: Wrong,
    counts: Arc<Counts>,
}

impl Recording for FaultyRecording {
    fn replay(&mut self) -> Result<(), Error> {
        call(self.wrong, &self.counts)?;
        self.inner.replay()
    }
}
