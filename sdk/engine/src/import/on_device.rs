//! What of an import goes to a device, and what of that is tried first.

use std::collections::BTreeMap;

use rialto_tensor::Region;

use super::importing::Importing;
use crate::array::{Scratch, Values};
use crate::decoder::{Decoder, SAMPLE_BYTES, Sampled, Share};
use crate::encoded::Stored;
use crate::runs::bands;
use crate::{Error, Progress};

/// Elements of a rectangle of the sample: those of a band of a run.
const BAND_ELEMENTS: u64 = 1 << 20;

impl Importing<'_> {
    /// The encoded tensors that are converted, by position in the mapping, each with its codec.
    fn all_encoded(&self) -> impl Iterator<Item = (usize, usize)> {
        let (kept, _) = self.plan.kept();
        let encodings = self.plan.binding.encodings.iter().enumerate();
        encodings.filter_map(|(tensor, encoding)| {
            let (codec, _) = encoding.as_ref().filter(|_| kept[tensor])?;
            Some((tensor, *codec))
        })
    }

    /// Who decodes what.
    pub(super) fn share(&self, decoder: &Decoder) -> Share {
        let mut share = Share::default();
        for (tensor, codec) in self.all_encoded() {
            let (name, dtype) = (&self.plan.codecs[codec].name, self.stored(tensor).dtype);
            *match decoder.takes(codec, dtype) {
                Ok(()) => share.on_device.entry(name.clone()).or_default(),
                Err(reason) => {
                    let kind = (name.clone(), dtype.to_string(), reason);
                    share.on_processor.entry(kind).or_default()
                }
            } += 1;
        }
        share
    }

    /// Most elements that the device is given at once: those of a band with the blocks around its ends. None if it has nothing to
    /// decode.
    pub(super) fn largest_rectangle(&self, decoder: &Decoder) -> Option<u64> {
        let taken = self.all_encoded().filter_map(|(tensor, codec)| {
            let stored = self.stored(tensor);
            decoder.takes(codec, stored.dtype).ok()?;
            let longest = self.plan.codecs[codec].block.iter().max();
            let row = stored.shape.extents().last().copied().unwrap_or(1);
            let block = longest.map_or(row, |longest| row.saturating_mul(*longest));
            let around = BAND_ELEMENTS
                .max(block)
                .saturating_add(block.saturating_mul(2));
            Some(around.min(stored.shape.elements().unwrap_or(u64::MAX)))
        });
        taken.max()
    }

    /// Lets a device and the family decode a part of what the device takes: of every shape something, and then more of each, until it
    /// is enough. Ragged ends come first, since there a device errs more easily.
    ///
    /// Errors: those of reading, and of [`Decoder::sample`].
    pub(super) fn sample(
        &self,
        decoder: &Decoder,
        lanes: usize,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let mut shapes = BTreeMap::new();
        for (tensor, codec) in self.all_encoded() {
            let stored = self.stored(tensor);
            if decoder.takes(codec, stored.dtype).is_ok() {
                let shape = (codec, stored.shape.extents());
                shapes.entry(shape).or_insert((tensor, stored));
            }
        }
        let open = shapes.values().filter_map(|&(tensor, stored)| {
            let encoded = self.encoded(tensor)?;
            let whole = Region::whole(&stored.shape);
            let mut parts = bands(&whole, BAND_ELEMENTS, encoded.granule());
            parts.reverse();
            Some((encoded, parts))
        });
        let open: Vec<_> = open.collect();
        let rounds = open.iter().map(|(_, parts)| parts.len()).max();
        let turns = (0..rounds.unwrap_or_default()).flat_map(|round| {
            let parts = open.iter();
            parts.filter_map(move |(encoded, parts)| Some((encoded, parts.get(round)?)))
        });
        let (mut sample, mut elements, mut scratch) = (Vec::new(), 0, Scratch::default());
        for (encoded, part) in turns {
            if elements >= SAMPLE_BYTES {
                break;
            }
            if progress.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let (blocks, mut stored) = (encoded.blocks(part)?, Stored::default());
            encoded.gather(&blocks, &mut stored, &mut scratch)?;
            elements += blocks.elements()?;
            sample.push(Sampled {
                encoded,
                blocks,
                stored,
            });
        }
        if sample.is_empty() {
            progress.note(&decoder.idle_text(&self.share(decoder)));
            return Ok(());
        }
        decoder.sample(self.family, &sample, lanes, progress)
    }
}
