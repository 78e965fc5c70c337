//! Tensors of a Hugging Face checkpoint as values: as they are stored, or decoded by the family block by block.

use rialto_bridge::binding::Encoding;
use rialto_bridge::{Bridge, Codec, EncodedTensor};
use rialto_checkpoint::hf::{HfCheckpoint, HfTensor};
use rialto_checkpoint::store::PageBuffer;
use rialto_tensor::{Dtype, Region, Shape, TensorView};

use crate::Error;
use crate::array::{Array, Bytes, Extent, Handle, Scratch, Values, usize_range};
use crate::decoder::{Decoder, Rectangle};
use crate::runs::{joint_runs, runs};

/// The values of a tensor that was bound: decoded by the family if it is encoded. `at` finds what stands at a position of the
/// inventory; only a family has codecs.
pub(crate) fn values<'a>(
    family: Option<&'a dyn Bridge>,
    codecs: &'a [Codec],
    checkpoint: &'a HfCheckpoint,
    tensor: &'a HfTensor,
    encoding: Option<&Encoding>,
    at: impl Fn(usize) -> &'a HfTensor,
) -> Box<dyn Values + Sync + 'a> {
    match (encoding, family) {
        (Some((codec, companions)), Some(family)) => {
            let companions: Vec<_> = companions.iter().map(|&position| at(position)).collect();
            let codec = &codecs[*codec];
            Box::new(Encoded::new(family, codec, checkpoint, tensor, &companions))
        }
        _ => Box::new(stored(checkpoint, tensor)),
    }
}

/// The tensor as it is stored, without touching its bytes.
pub(crate) fn stored<'a>(checkpoint: &'a HfCheckpoint, tensor: &HfTensor) -> Array<'a> {
    let source = Handle::Borrowed(checkpoint.source(tensor.file));
    let bytes = Bytes::File {
        source,
        offset: tensor.range.start,
        check: None,
    };
    let region = Region::whole(&tensor.shape);
    Array {
        dtype: tensor.dtype,
        extents: vec![Extent { region, bytes }],
    }
}

/// An encoded tensor. What is read of it is decoded: the blocks around it, and no more.
pub(crate) struct Encoded<'a> {
    family: &'a dyn Bridge,
    /// What decodes it in the family's place.
    device: Option<&'a Decoder>,
    codec: &'a Codec,
    name: &'a str,
    shape: &'a Shape,
    codes: Array<'a>,
    companions: Vec<(Array<'a>, &'a Shape)>,
}

/// Blocks of an encoded tensor as they are stored, with what of the companions belongs to them.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    shape: Shape,
    codes: PageBuffer,
    companions: Vec<(Dtype, Shape, PageBuffer)>,
}

impl<'a> Encoded<'a> {
    /// The tensor with its companions, which were bound to it by the codec.
    pub(crate) fn new(
        family: &'a dyn Bridge,
        codec: &'a Codec,
        checkpoint: &'a HfCheckpoint,
        tensor: &'a HfTensor,
        companions: &[&'a HfTensor],
    ) -> Encoded<'a> {
        let beside = companions
            .iter()
            .map(|tensor| (stored(checkpoint, tensor), &tensor.shape));
        Encoded {
            family,
            device: None,
            codec,
            name: &tensor.name,
            shape: &tensor.shape,
            codes: stored(checkpoint, tensor),
            companions: beside.collect(),
        }
    }

    /// The same, decoded by a device, which takes it.
    pub(crate) fn on(self, device: Option<&'a Decoder>) -> Encoded<'a> {
        Encoded { device, ..self }
    }

    /// The blocks around a rectangle.
    pub(crate) fn blocks(&self, region: &Region) -> Result<Region, Error> {
        let blocks = self.codec.blocks_around(region, self.shape);
        blocks.ok_or_else(|| self.too_few_axes())
    }

    /// Reads whole blocks.
    pub(crate) fn gather(
        &self,
        blocks: &Region,
        stored: &mut Stored,
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        gather(&self.codes, blocks, &mut stored.codes, scratch)?;
        stored.shape = blocks.shape();
        let count = self.companions.len();
        stored.companions.resize_with(count, || {
            (self.codes.dtype, Shape::default(), PageBuffer::default())
        });
        let described = self.codec.companions.iter().zip(&self.companions);
        for ((described, (array, found)), into) in described.zip(&mut stored.companions) {
            let part = described.region(blocks, self.shape, found);
            let part = part.ok_or_else(|| self.too_few_axes())?;
            gather(array, &part, &mut into.2, scratch)?;
            (into.0, into.1) = (array.dtype, part.shape());
        }
        Ok(())
    }

    /// What was read of whole blocks.
    pub(crate) fn rectangle<'b>(
        &'b self,
        blocks: &'b Region,
        stored: &'b Stored,
    ) -> Result<Rectangle<'b>, Error> {
        let companions = stored.companions.iter();
        let companions =
            companions.map(|(dtype, shape, buffer)| TensorView::new(*dtype, shape, buffer.bytes()));
        Ok(Rectangle {
            tensor: self.name,
            blocks,
            block: &self.codec.block,
            encoded: EncodedTensor {
                codec: &self.codec.name,
                tensor: TensorView::new(self.codes.dtype, &stored.shape, stored.codes.bytes())?,
                companions: companions.collect::<Result<_, _>>()?,
            },
        })
    }

    /// Decodes whole blocks into `out`, which has room for their elements.
    fn decode(&self, blocks: &Region, out: &mut [u8], scratch: &mut Scratch) -> Result<(), Error> {
        // Taken out, because gathering needs the rest.
        let mut stored = std::mem::take(&mut scratch.stored);
        let gathered = self.gather(blocks, &mut stored, scratch);
        let decoded = gathered.and_then(|()| {
            let rectangle = self.rectangle(blocks, &stored)?;
            match self.device {
                Some(device) => device.decode(self.family, &rectangle, out),
                None => Ok(self.family.dequantize(&rectangle.encoded, out)?),
            }
        });
        scratch.stored = stored;
        decoded
    }

    fn too_few_axes(&self) -> Error {
        Error::Bridge(rialto_bridge::Error::Codec {
            codec: self.codec.name.clone(),
            reason: format!("a tensor of shape {} has too few axes", self.shape),
        })
    }
}

impl Values for Encoded<'_> {
    fn dtype(&self) -> Dtype {
        self.codec.decoded
    }

    fn read(
        &self,
        region: &Region,
        place: &Region,
        out_shape: &Shape,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        let blocks = self.blocks(region)?;
        let width = self.codec.decoded.size_bytes();
        let elements = region.elements()?;
        if blocks == *region
            && let Some((first, length)) = runs(place, out_shape).next()
            && length == elements
        {
            // Whole blocks that lie together where they go need no second place.
            let range = usize_range(first * width, length * width);
            return self.decode(&blocks, &mut out[range], scratch);
        }
        let mut decoded = std::mem::take(&mut scratch.decoded);
        let length = byte_length(&blocks.shape(), self.codec.decoded)?;
        let read = self.decode(&blocks, decoded.at(0, length), scratch);
        if read.is_ok() {
            let stored = runs(&region.relative_to(&blocks), &blocks.shape());
            for (from, to, length) in joint_runs(stored, runs(place, out_shape)) {
                let from = usize_range(from * width, length * width);
                out[usize_range(to * width, length * width)]
                    .copy_from_slice(&decoded.bytes()[from]);
            }
        }
        scratch.decoded = decoded;
        read
    }

    fn granule(&self) -> u64 {
        self.codec.block.iter().copied().max().unwrap_or(1).max(1)
    }
}

/// Reads a rectangle as dense bytes into a buffer.
fn gather(
    array: &Array<'_>,
    region: &Region,
    buffer: &mut PageBuffer,
    scratch: &mut Scratch,
) -> Result<(), Error> {
    let shape = region.shape();
    let bytes = buffer.at(array.place_of(region), byte_length(&shape, array.dtype)?);
    array.read(region, &Region::whole(&shape), &shape, bytes, scratch)
}

fn byte_length(shape: &Shape, dtype: Dtype) -> Result<usize, Error> {
    let length = shape.size_bytes(dtype)?;
    let length = usize::try_from(length).map_err(|_| rialto_tensor::Error::ShapeOverflow {
        shape: shape.clone(),
    })?;
    Ok(length)
}
