//! Recorded decodings of matrices, with their buffers, for many lanes on one device.
//!
//! A shape is recorded once and replayed. A lane has a recording to itself from its first write to its last read, so that lanes neither
//! wait for each other's bytes nor overwrite them. What lies on the device is bounded: recordings that nobody uses give way, those used
//! longest ago first, and a lane waits while those in use take the room.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rialto_backend::{Backend, Buffer, Error, OpCall, Operand, Recording, TensorType};
use rialto_program::op::DequantizeBlock;
use rialto_tensor::Dtype;

use crate::locked::locked;

/// Most bytes of a device, unless a single matrix takes more: more lanes at once than any device keeps apart.
const MOST_BYTES: u64 = 128 << 20;

/// Bytes of a device for an element of a matrix: its code, its BF16, and the F32 that a backend may keep between.
const ELEMENT_BYTES: u64 = 1 + 2 + 4;

/// Bytes of a scale.
const SCALE_BYTES: u64 = 4;

/// What is decoded alike: `[n, k]` and the rows and columns of a block, whose scales are `[ceil(n/rows), ceil(k/columns)]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) shape: [u64; 2],
    pub(super) block: [u64; 2],
}

impl Form {
    fn grid(&self) -> [u64; 2] {
        [0, 1].map(|axis| self.shape[axis].div_ceil(self.block[axis]))
    }

    pub(super) fn elements(&self) -> u64 {
        self.shape[0] * self.shape[1]
    }

    pub(super) fn scales(&self) -> u64 {
        self.grid()[0] * self.grid()[1]
    }

    fn bytes(&self) -> u64 {
        self.elements() * ELEMENT_BYTES + self.scales() * SCALE_BYTES
    }
}

/// A device's recordings.
pub(super) struct Recordings {
    backend: Arc<dyn Backend>,
    room_bytes: u64,
    pool: Mutex<Pool>,
    freed: Condvar,
}

/// Written by whoever takes a recording or gives it back.
#[derive(Default)]
struct Pool {
    /// Those that no lane has, the one used last at the end.
    idle: Vec<Recorded>,
    /// How many lanes have one.
    in_use: usize,
    /// Bytes of all, and the most that there were.
    held_bytes: u64,
    most_bytes: u64,
}

struct Recorded {
    form: Form,
    codes: Buffer,
    scales: Buffer,
    out: Buffer,
    recording: Box<dyn Recording>,
}

/// A lane's part of the room, which comes back whatever happens to the lane, since others wait for it.
struct Taken<'a> {
    of: &'a Recordings,
    form: Form,
    /// None once a call has failed: what it has left in buffers nobody knows.
    recorded: Option<Recorded>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut pool = locked(&self.of.pool);
        pool.in_use -= 1;
        match self.recorded.take() {
            Some(recorded) => pool.idle.push(recorded),
            None => pool.held_bytes -= self.form.bytes(),
        }
        self.of.freed.notify_all();
    }
}

impl Recordings {
    /// For a device, of whose memory they take half of a budget at most.
    pub(super) fn new(backend: &Arc<dyn Backend>, budget_bytes: u64) -> Recordings {
        Recordings {
            backend: Arc::clone(backend),
            room_bytes: (budget_bytes / 2).min(MOST_BYTES),
            pool: Mutex::default(),
            freed: Condvar::new(),
        }
    }

    /// Most bytes of the device that can be in use at once, where no matrix has more elements.
    pub(super) fn bound_bytes(&self, elements: u64) -> u64 {
        // Even blocks of one element have no more scales.
        self.room_bytes
            .max(elements.saturating_mul(ELEMENT_BYTES + SCALE_BYTES))
    }

    /// Most bytes of the device that were in use at once.
    pub(super) fn most_bytes(&self) -> u64 {
        locked(&self.pool).most_bytes
    }

    /// Decodes codes `[n, k]` and F32 scales into BF16 `[n, k]`, all dense. Waits while other lanes have all the room.
    ///
    /// Errors: those of the device.
    pub(super) fn decode(
        &self,
        form: Form,
        codes: &[u8],
        scales: &[u8],
        out: &mut [u8],
    ) -> Result<(), Error> {
        let mut taken = self.take(form);
        let mut recorded = match taken.recorded.take() {
            Some(recorded) => recorded,
            None => self.record(form)?,
        };
        self.backend.write(&recorded.codes, 0, codes)?;
        self.backend.write(&recorded.scales, 0, scales)?;
        recorded.recording.replay()?;
        self.backend.read(&recorded.out, 0, out)?;
        taken.recorded = Some(recorded);
        Ok(())
    }

    /// A recording of that form, or room for one.
    fn take(&self, form: Form) -> Taken<'_> {
        let bytes = form.bytes();
        let mut pool = locked(&self.pool);
        let recorded = loop {
            let found = pool.idle.iter().rposition(|idle| idle.form == form);
            if let Some(position) = found {
                break Some(pool.idle.remove(position));
            }
            while pool.held_bytes + bytes > self.room_bytes && !pool.idle.is_empty() {
                pool.held_bytes -= pool.idle.remove(0).form.bytes();
            }
            if pool.held_bytes + bytes <= self.room_bytes || pool.in_use == 0 {
                pool.held_bytes += bytes;
                pool.most_bytes = pool.most_bytes.max(pool.held_bytes);
                break None;
            }
            let waited = self.freed.wait(pool);
            pool = waited.unwrap_or_else(PoisonError::into_inner);
        };
        pool.in_use += 1;
        Taken {
            of: self,
            form,
            recorded,
        }
    }

    fn record(&self, form: Form) -> Result<Recorded, Error> {
        let buffer = |dtype, shape: [u64; 2]| self.backend.allocate(&TensorType::new(dtype, shape));
        let codes = buffer(Dtype::F8E4m3, form.shape)?;
        let scales = buffer(Dtype::F32, form.grid())?;
        let out = buffer(Dtype::Bf16, form.shape)?;
        let inputs = [&codes, &scales].map(|buffer| Operand::from(buffer.clone()));
        let op = DequantizeBlock { block: form.block };
        let call = OpCall::new(op.into(), inputs, [out.clone()])?;
        Ok(Recorded {
            form,
            codes,
            scales,
            out,
            recording: self.backend.record(vec![call])?,
        })
    }
}

#[cfg(test)]
mod tests {
    use rialto_backend::{Driver, OpenOptions};
    use rialto_cpu::CpuDriver;

    use super::*;

    fn form(rows: u64) -> Form {
        Form {
            shape: [rows, 6],
            block: [4, 4],
        }
    }

    /// 1.0 under scales that are 1, 2, 3, ... from block to block.
    fn check(recordings: &Recordings, rows: u64) {
        let form = form(rows);
        let codes = vec![0x38; form.elements() as usize];
        let scales = (1..=form.scales()).map(|scale| scale as f32);
        let scales: Vec<u8> = scales.flat_map(f32::to_le_bytes).collect();
        let mut out = vec![0xff; 2 * codes.len()];
        recordings.decode(form, &codes, &scales, &mut out).unwrap();
        for (position, bits) in (0..).zip(out.as_chunks().0) {
            let (row, column) = (position / 6, position % 6);
            let expected = (row / 4 * 2 + column / 4 + 1) as f32;
            let found = f32::from_bits(u32::from(u16::from_le_bytes(*bits)) << 16);
            assert_eq!(found, expected, "{rows} rows, at {row}, {column}");
        }
    }

    #[test]
    fn lanes_share_a_room_that_holds_one_recording_or_all() {
        let backend = CpuDriver.open(0, &OpenOptions::default()).unwrap();
        for (room_bytes, most_bytes) in [
            (0, form(9).bytes()),
            (form(9).bytes(), form(9).bytes()),
            (u64::MAX, MOST_BYTES),
        ] {
            let recordings = Recordings::new(&backend, room_bytes.saturating_mul(2));
            std::thread::scope(|scope| {
                for lane in 0..4 {
                    let recordings = &recordings;
                    scope.spawn(move || {
                        (0..40).for_each(|turn| check(recordings, 1 + (lane + turn) % 9));
                    });
                }
            });
            let found = recordings.most_bytes();
            assert!(found >= form(9).bytes() && found <= most_bytes, "{found}");
            let pool = locked(&recordings.pool);
            let idle: u64 = pool.idle.iter().map(|idle| idle.form.bytes()).sum();
            assert_eq!((pool.in_use, pool.held_bytes), (0, idle));
        }
    }

    #[test]
    fn room_comes_back_from_a_lane_that_has_failed() {
        let backend = CpuDriver.open(0, &OpenOptions::default()).unwrap();
        let recordings = Recordings::new(&backend, 0);
        let too_short = recordings.decode(form(4), &[0; 24], &[0; 4], &mut [0; 50]);
        assert!(too_short.is_err());
        assert_eq!(locked(&recordings.pool).held_bytes, 0);
        check(&recordings, 4);
    }
}
