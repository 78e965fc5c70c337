//! Who decodes blocks of an import: the family's hook on the processor, or a device that runs the operation of the same meaning.
//!
//! The seam is [`Backend`]: this crate knows `rialto.dequantize_block/1` and no device. What may go there is decided tensor by tensor
//! from what is stored, and what may not is decoded by the family and named in the report with the reason: nothing falls back in
//! silence. A device that fails is an error.
//!
//! Bytes are those of the processor. That is looked at, not assumed, since a driver may round as it likes: before anything is
//! written a sample of the checkpoint is decoded by both and compared, and so is every [`COMPARED_EVERY`]th rectangle of the run.

mod recordings;
mod report;
mod sample;
mod together;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rialto_backend::{Backend, Error as BackendError};
use rialto_bridge::{Bridge, Codec, EncodedTensor, ModelSpec, ProgramOptions};
use rialto_program::Op;
use rialto_program::op::DequantizeBlock;
use rialto_tensor::format::bf16;
use rialto_tensor::{Dtype, Region};

use crate::array::usize_range;
use crate::locked::locked;
use crate::{Error, Progress};
use recordings::{Form, Recordings};
pub(crate) use report::Share;
pub use report::{DecodingRates, DeviceReport, OnProcessor};
pub(crate) use sample::{SAMPLE_BYTES, Sampled};

/// One of so many rectangles of a run is decoded by the processor, too, and compared.
const COMPARED_EVERY: u64 = 64;

/// A device that decodes tensors of one import, on behalf of any number of lanes.
pub(crate) struct Decoder {
    backend: Arc<dyn Backend>,
    /// As messages call it: `wgpu:0, NAME`.
    name: String,
    /// For each codec of the plan why a device does not decode it, if it does not.
    codecs: Vec<Result<(), String>>,
    recordings: Recordings,
    /// Rectangles that were decoded in the run.
    rectangles: AtomicU64,
    decoded_bytes: AtomicU64,
    compared_bytes: AtomicU64,
    /// What the processor makes of a rectangle that is compared: of one at a time, so that no lane holds more than it was allotted.
    compared: Mutex<Vec<u8>>,
    rates: Mutex<Option<DecodingRates>>,
}

/// Whole blocks of a tensor as they are stored.
pub(crate) struct Rectangle<'a> {
    pub(crate) tensor: &'a str,
    /// Where in the tensor they are.
    pub(crate) blocks: &'a Region,
    /// Sizes of one of them.
    pub(crate) block: &'a [u64],
    pub(crate) encoded: EncodedTensor<'a>,
}

impl Decoder {
    /// A device for tensors of these codecs. `budget_bytes` bounds the memory of the device: half of it at most.
    ///
    /// Errors: [`Error::Device`] for one that does not run the operation.
    pub(crate) fn new(
        backend: &Arc<dyn Backend>,
        family: &dyn Bridge,
        spec: &ModelSpec,
        codecs: &[Codec],
        budget_bytes: u64,
    ) -> Result<Decoder, Error> {
        let info = backend.device();
        let name = format!("{}:{}, {}", info.backend, info.index, info.name);
        let op = Op::from(DequantizeBlock { block: [1, 1] });
        if !backend.capabilities().ops.contains(op.name()) {
            return Err(Error::Device {
                device: name,
                doing: "decoding blocks".to_owned(),
                source: BackendError::UnsupportedOp {
                    backend: info.backend.clone(),
                    op: op.name().to_owned(),
                },
            });
        }
        Ok(Decoder {
            codecs: on_devices(family, spec, codecs),
            recordings: Recordings::new(backend, budget_bytes),
            backend: Arc::clone(backend),
            name,
            rectangles: AtomicU64::new(0),
            decoded_bytes: AtomicU64::new(0),
            compared_bytes: AtomicU64::new(0),
            compared: Mutex::default(),
            rates: Mutex::default(),
        })
    }

    /// Whether tensors that are stored in a dtype and encoded by a codec of the plan are decoded here. The reason, if not.
    pub(crate) fn takes(&self, codec: usize, stored: Dtype) -> Result<(), String> {
        self.codecs[codec].clone()?;
        match stored {
            Dtype::F8E4m3 => Ok(()),
            other => Err(format!("devices decode F8_E4M3, not {other}")),
        }
    }

    /// Decodes what it takes into `out`, as [`rialto_bridge::Dequantizer::dequantize`] does.
    ///
    /// Errors: [`Error::Device`] if the device fails, [`Error::DeviceDiffers`] if what it makes is compared and other bytes.
    pub(crate) fn decode(
        &self,
        family: &dyn Bridge,
        rectangle: &Rectangle<'_>,
        out: &mut [u8],
    ) -> Result<(), Error> {
        self.decode_alone(rectangle, out)?;
        self.decoded_bytes
            .fetch_add(out.len() as u64, Ordering::Relaxed);
        let turn = self.rectangles.fetch_add(1, Ordering::Relaxed) + 1;
        if !turn.is_multiple_of(COMPARED_EVERY) {
            return Ok(());
        }
        let mut expected = locked(&self.compared);
        expected.resize(out.len(), 0);
        family.dequantize(&rectangle.encoded, &mut expected)?;
        self.compare(rectangle, out, &expected)
    }

    /// Decodes and nothing else.
    fn decode_alone(&self, rectangle: &Rectangle<'_>, out: &mut [u8]) -> Result<(), Error> {
        let encoded = &rectangle.encoded;
        let (Some(&shape), &[rows, columns], [scales]) = (
            encoded.tensor.shape().extents().last_chunk(),
            rectangle.block,
            encoded.companions.as_slice(),
        ) else {
            unreachable!("a codec that goes to a device has blocks of two axes, and one companion");
        };
        let form = Form {
            shape,
            block: [rows, columns],
        };
        let elements = usize_range(0, form.elements()).end;
        if elements == 0 {
            return Ok(());
        }
        // Axes before the last two are a batch of matrices, each with blocks of its own.
        let codes = encoded.tensor.bytes().chunks_exact(elements);
        let scales = scales
            .bytes()
            .chunks_exact(usize_range(0, 4 * form.scales()).end);
        let outs = out.chunks_exact_mut(2 * elements);
        for ((codes, scales), out) in codes.zip(scales).zip(outs) {
            let decoded = self.recordings.decode(form, codes, scales, out);
            decoded.map_err(|source| Error::Device {
                device: self.name.clone(),
                doing: format!("decoding {}", rectangle.tensor),
                source,
            })?;
            settle_nans(out);
        }
        Ok(())
    }

    /// Errors: [`Error::DeviceDiffers`] with the first element that is another.
    fn compare(
        &self,
        rectangle: &Rectangle<'_>,
        found: &[u8],
        expected: &[u8],
    ) -> Result<(), Error> {
        self.compared_bytes
            .fetch_add(found.len() as u64, Ordering::Relaxed);
        if found == expected {
            return Ok(());
        }
        let (found, expected) = (found.as_chunks().0, expected.as_chunks().0);
        let position = found.iter().zip(expected).position(|(a, b)| a != b);
        let position = position.unwrap_or_default();
        let sizes = rectangle.blocks.sizes();
        let mut index = rectangle.blocks.offsets().to_vec();
        let mut rest = position as u64;
        for axis in (0..sizes.len()).rev() {
            index[axis] += rest % sizes[axis];
            rest /= sizes[axis];
        }
        Err(Error::DeviceDiffers {
            device: self.name.clone(),
            tensor: rectangle.tensor.to_owned(),
            index,
            expected: u16::from_le_bytes(expected[position]),
            found: u16::from_le_bytes(found[position]),
        })
    }

    /// Most bytes that it takes on top of a budget, with so many lanes and no rectangle of more elements.
    pub(crate) fn bytes_besides(&self, elements: u64, lanes: u64, budget_bytes: u64) -> u64 {
        // What a backend passes through is on its way into buffers or out of them.
        let buffers = self.recordings.bound_bytes(elements).saturating_mul(2);
        let decoded = elements.saturating_mul(2);
        // A sample is there before the lanes, in the place of what the budget is for: codes with their scales, which are F32 and no
        // more than the codes, and what each lane compares.
        let codes = SAMPLE_BYTES.saturating_add(elements).saturating_mul(1 + 4);
        let sample = codes.saturating_add(decoded.saturating_mul(2).saturating_mul(lanes));
        buffers.saturating_add(decoded.max(sample.saturating_sub(budget_bytes)))
    }

    /// What it has done, of tensors that were dealt out so.
    pub(crate) fn report(&self, share: Share) -> DeviceReport {
        DeviceReport::new(
            self.backend.device(),
            share,
            locked(&self.rates).clone(),
            [&self.decoded_bytes, &self.compared_bytes].map(|bytes| bytes.load(Ordering::Relaxed)),
            self.recordings.most_bytes(),
        )
    }

    /// What a person should know of a device that has nothing to do.
    pub(crate) fn idle_text(&self, share: &Share) -> String {
        let reason = share.on_processor.keys().next();
        let reason = match reason {
            Some((codec, dtype, reason)) => format!("{dtype} in {codec}: {reason}"),
            None => "no tensor that is converted is encoded".to_owned(),
        };
        format!("device {} has nothing to decode ({reason})", self.name)
    }

    /// Says what a sample has shown, and remembers it.
    fn note(&self, rates: DecodingRates, progress: &dyn Progress) {
        let text = rates.text(self.backend.device());
        tracing::info!(target: "rialto::engine", device = self.name, "{text}");
        progress.note(&text);
        *locked(&self.rates) = Some(rates);
    }
}

/// Gives every NaN the bits that the processor writes. The operation says that NaN stays NaN and not which, and devices have their
/// own: that of PyTorch on a CPU is the one of a checkpoint.
fn settle_nans(out: &mut [u8]) {
    /// The bits of infinity: above are NaNs.
    const INFINITY: u16 = 0x7f80;
    for element in out.as_chunks_mut().0 {
        let bits = u16::from_le_bytes(*element);
        let is_nan = bits & 0x7fff > INFINITY;
        *element = if is_nan { bf16::NAN_OF_F32 } else { bits }.to_le_bytes();
    }
}

/// Of each codec whether it means what `rialto.dequantize_block/1` does: the model's program lists those that do. Else why a device does
/// not decode it.
fn on_devices(family: &dyn Bridge, spec: &ModelSpec, codecs: &[Codec]) -> Vec<Result<(), String>> {
    if codecs.is_empty() {
        return Vec::new();
    }
    let program = family.program(spec, &ProgramOptions::default());
    let check = |codec: &Codec| match &program {
        Err(error) => Err(format!(
            "nothing says that it means what devices do: {error}"
        )),
        Ok(program) if !program.block_codecs.contains(&codec.name) => {
            Err("the model's program does not say that it means what devices do".to_owned())
        }
        Ok(_) => {
            let is_matrix = codec.block.len() == 2 && !codec.block.contains(&0);
            let companions = codec.companions.as_slice();
            let is_scaled = matches!(companions, [scale] if scale.dtype == Dtype::F32 && scale.block == codec.block);
            match codec.decoded == Dtype::Bf16 && is_matrix && is_scaled {
                true => Ok(()),
                false => Err(
                    "it is not BF16 in blocks of rows and columns, an F32 scale each".to_owned(),
                ),
            }
        }
    };
    codecs.iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nan_gets_the_bits_of_the_processor_and_nothing_else_is_touched() {
        let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let mut found = all.clone();
        settle_nans(&mut found);
        for (found, bits) in found.as_chunks().0.iter().zip(0..=u16::MAX) {
            let expected = match bf16::decode(bits).is_nan() {
                true => bf16::NAN_OF_F32,
                false => bits,
            };
            assert_eq!(u16::from_le_bytes(*found), expected);
        }
    }
}
