//! The driver, and the opened device.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};
use rialto_backend::{
    Backend, Budget, Buffer, Capabilities, DeviceInfo, DeviceKind, Driver, Error, OpCall,
    OpenOptions, Probe, Recording, TensorType,
};
use rialto_program::Op;
use rialto_tensor::{Dtype, simd};

use crate::facts::{self, cores};
use crate::recording::CpuRecording;
use crate::storage::Storage;

/// Name of the backend.
pub(crate) const NAME: &str = "cpu";

/// More threads than a machine has cores, or nearly any: a larger number is a slip.
const MOST_THREADS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// Finds the processor, which every machine has.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuDriver;

impl Driver for CpuDriver {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> Probe {
        Probe {
            devices: vec![describe()],
            ..Probe::default()
        }
    }

    fn open(&self, index: usize, options: &OpenOptions) -> Result<Arc<dyn Backend>, Error> {
        match index {
            0 => Ok(Arc::new(CpuBackend::open(options)?)),
            _ => Err(Error::NoDevice {
                backend: NAME.to_owned(),
                asked: index.to_string(),
                reason: "all processors are device 0".to_owned(),
                probe: Box::new(self.probe()),
            }),
        }
    }
}

/// What is known of the processor.
fn describe() -> DeviceInfo {
    let tier = match simd::check() {
        Ok(tier) => tier.to_string(),
        Err(error) => error.to_string(),
    };
    let details = [("cores", cores().to_string()), ("simd", tier)];
    DeviceInfo {
        backend: NAME.to_owned(),
        index: 0,
        name: facts::processor(),
        kind: DeviceKind::Processor,
        memory_bytes: facts::memory_bytes(),
        details: BTreeMap::from(details.map(|(key, value)| (key.to_owned(), value))),
        limits: BTreeMap::new(),
        features: BTreeSet::new(),
    }
}

/// The processor, opened, with threads of its own.
pub struct CpuBackend {
    info: DeviceInfo,
    capabilities: Capabilities,
    queue: Arc<Queue>,
}

/// Threads, memory, and the one order in which all that is asked of a device happens. Each buffer of the device knows it: by that
/// they are told from those of another.
pub(crate) struct Queue {
    pool: ThreadPool,
    turn: Mutex<()>,
    pub(crate) memory: Arc<Budget>,
}

impl Queue {
    /// Waits until everything before is done. While the guard lives, no other call of the device reads or writes a buffer; so locks
    /// of single buffers are never waited for, in whatever order they are taken.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does work on the threads of the device.
    pub(crate) fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.pool.install(work)
    }
}

impl CpuBackend {
    /// Opens the processor with a number of threads. Errors: [`Error::Threads`] for too many, [`Error::Lost`] if they cannot be
    /// started.
    pub fn open(options: &OpenOptions) -> Result<CpuBackend, Error> {
        let mut info = describe();
        let threads = options.threads.unwrap_or_else(cores);
        let most = MOST_THREADS.max(cores());
        if threads > most {
            return Err(Error::Threads {
                asked: threads.get(),
                most: most.get(),
                cores: cores().get(),
            });
        }
        let details = &mut info.details;
        details.insert("threads".to_owned(), threads.to_string());
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads.get())
            .thread_name(|index| format!("rialto-cpu-{index}"))
            .build();
        let pool = pool.map_err(|error| Error::Lost {
            device: info.name.clone(),
            reason: format!("{threads} threads could not be started: {error}"),
        })?;
        let capabilities = Capabilities {
            ops: Op::NAMES.iter().map(|&name| name.to_owned()).collect(),
            activations: vec![Dtype::F32, Dtype::Bf16],
            runs_block_weights: true,
            is_row_invariant: true,
            max_piece_bytes: None,
        };
        let queue = Queue {
            pool,
            turn: Mutex::new(()),
            // All of the machine's: what others have of it is looked at when much is asked for.
            memory: Budget::new(info.memory_bytes),
        };
        Ok(CpuBackend {
            info,
            capabilities,
            queue: Arc::new(queue),
        })
    }
}

impl Backend for CpuBackend {
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Errors: those of the trait, [`Error::UnsupportedElement`] for others than F32, BF16, I32 and F8_E4M3.
    fn allocate(&self, tensor: &TensorType) -> Result<Buffer, Error> {
        let storage = Storage::allocate(tensor, &self.queue, &self.info.name)?;
        Ok(Buffer::new(tensor.clone(), Arc::new(storage)))
    }

    fn write(&self, buffer: &Buffer, offset_bytes: u64, bytes: &[u8]) -> Result<(), Error> {
        let storage = Storage::of(buffer, &self.queue)?;
        let begin = range(buffer, offset_bytes, bytes.len())?;
        let _turn = self.queue.turn();
        storage.write().write_bytes(begin, bytes);
        Ok(())
    }

    fn read(&self, buffer: &Buffer, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let storage = Storage::of(buffer, &self.queue)?;
        let begin = range(buffer, offset_bytes, bytes.len())?;
        let _turn = self.queue.turn();
        storage.read().read_bytes(begin, bytes);
        Ok(())
    }

    fn record(&self, calls: Vec<OpCall>) -> Result<Box<dyn Recording>, Error> {
        Ok(Box::new(CpuRecording::new(calls, &self.queue)?))
    }
}

/// The first byte of a range that lies inside of a buffer.
fn range(buffer: &Buffer, offset_bytes: u64, length: usize) -> Result<usize, Error> {
    let size_bytes = buffer.tensor().size_bytes()?;
    let end = offset_bytes.saturating_add(length as u64);
    match end <= size_bytes {
        // It was allocated: its bytes can be counted.
        true => Ok(offset_bytes as usize),
        false => Err(Error::BufferRange {
            tensor: buffer.tensor().clone(),
            size_bytes,
            begin: offset_bytes,
            end,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rialto_backend::Operand;
    use rialto_program::op::Scale;

    fn opened() -> Arc<dyn Backend> {
        CpuDriver.open(0, &OpenOptions::default()).unwrap()
    }

    #[test]
    fn there_is_one_device_on_every_machine() {
        let probe = CpuDriver.probe();
        assert_eq!((probe.devices.len(), probe.absent), (1, None));
        let device = &probe.devices[0];
        assert!(!device.name.is_empty());
        assert!(device.details.contains_key("cores") && device.details.contains_key("simd"));
        let error = CpuDriver.open(1, &OpenOptions::default()).err().unwrap();
        assert_eq!(error.slug(), "backend/no-device");
    }

    #[test]
    fn more_threads_than_any_machine_has_are_refused_with_how_many_this_one_has() {
        let open = |threads| {
            let threads = NonZeroUsize::new(threads);
            CpuDriver.open(0, &OpenOptions { threads })
        };
        for asked in [1_000_000, usize::MAX] {
            let error = open(asked).err().unwrap();
            assert_eq!((error.slug(), error.code()), ("backend/threads", 1));
            let said = error.to_string();
            assert!(said.contains(&asked.to_string()), "{said}");
            assert!(said.contains(&format!("{} cores", cores())), "{said}");
            assert!(error.help().is_some());
        }
        // More than there are cores is slow, and allowed.
        assert!(open(cores().get() + 1).is_ok());
    }

    #[test]
    fn bytes_are_written_and_read_wherever_they_begin() {
        let device = opened();
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::I32, Dtype::F8E4m3] {
            let buffer = device.allocate(&TensorType::new(dtype, [6, 4])).unwrap();
            let size = 24 * dtype.size_bytes() as usize;
            let mut expected: Vec<u8> = (0..size as u8).collect();
            device.write(&buffer, 0, &expected).unwrap();
            for (begin, end) in [(1, 3), (5, 6), (2, 13), (7, 7), (size - 1, size), (0, size)] {
                let piece: Vec<u8> = (begin..end).map(|byte| 200 - byte as u8).collect();
                device.write(&buffer, begin as u64, &piece).unwrap();
                expected[begin..end].copy_from_slice(&piece);
                let mut found = vec![0; size];
                device.read(&buffer, 0, &mut found).unwrap();
                assert_eq!(found, expected);
                let mut found = vec![0; end - begin];
                device.read(&buffer, begin as u64, &mut found).unwrap();
                assert_eq!(found, piece);
            }
        }
    }

    #[test]
    fn bytes_outside_of_a_buffer_are_refused() {
        let device = opened();
        let buffer = device
            .allocate(&TensorType::new(Dtype::F32, [2, 2]))
            .unwrap();
        for (begin, length) in [(16, 1), (0, 17), (13, 4), (u64::MAX, 2)] {
            let error = device.write(&buffer, begin, &vec![0; length]).unwrap_err();
            assert_eq!(error.slug(), "backend/buffer-range");
            let error = device
                .read(&buffer, begin, &mut vec![0; length])
                .unwrap_err();
            assert_eq!(error.slug(), "backend/buffer-range");
        }
        device.write(&buffer, 16, &[]).unwrap();
    }

    #[test]
    fn memory_that_is_not_there_and_elements_that_are_not_computed_with_are_refused() {
        let device = opened();
        let slug = |dtype, shape: [u64; 2]| {
            let tensor = TensorType::new(dtype, shape);
            device.allocate(&tensor).unwrap_err().slug()
        };
        assert_eq!(slug(Dtype::F32, [1 << 40, 1 << 20]), "backend/memory");
        assert_eq!(slug(Dtype::F32, [1 << 40, 1 << 40]), "backend/buffer-size");
        assert_eq!(slug(Dtype::F64, [1, 1]), "backend/unsupported-element");
        // More than the machine has, which the system would promise.
        if let Some(bytes) = device.device().memory_bytes {
            assert_eq!(slug(Dtype::F8E4m3, [bytes, 1]), "backend/memory");
        }
    }

    #[test]
    fn a_buffer_counts_until_its_last_owner_ends_and_one_that_was_refused_never_does() {
        let device = CpuBackend::open(&OpenOptions::default()).unwrap();
        let held = || device.queue.memory.held();
        let tensor = TensorType::new(Dtype::F32, [250, 4]);
        let buffers = [(); 2].map(|()| device.allocate(&tensor).unwrap());
        let kept = buffers[0].clone();
        assert_eq!(held(), 8000);
        device
            .allocate(&TensorType::new(Dtype::F8E4m3, [1 << 62]))
            .unwrap_err();
        assert_eq!(held(), 8000);
        drop(buffers);
        assert_eq!(held(), 4000);
        drop(kept);
        assert_eq!(held(), 0);
    }

    #[test]
    fn a_buffer_of_another_device_is_refused() {
        let (device, other) = (opened(), opened());
        let tensor = TensorType::new(Dtype::F32, [1]);
        let mine = device.allocate(&tensor).unwrap();
        let foreign = other.allocate(&tensor).unwrap();
        let error = device.write(&foreign, 0, &[0; 4]).unwrap_err();
        assert_eq!(error.slug(), "backend/foreign-buffer");
        let op = Scale { factor: 1.0 };
        for (x, out) in [(&mine, &foreign), (&foreign, &mine)] {
            let call = OpCall::new(op.into(), [Operand::from(x.clone())], [out.clone()]).unwrap();
            let error = device.record(vec![call]).err().unwrap();
            assert_eq!(error.slug(), "backend/foreign-buffer");
        }
    }
}
