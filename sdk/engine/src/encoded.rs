//! Tensors of a Hugging Face checkpoint as values: as they are stored, or decoded by the family block by block.

use rialto_bridge::binding::Encoding;
use rialto_bridge::{Bridge, Codec, EncodedTensor};
use rialto_checkpoint::hf::{HfCheckpoint, HfTensor};
use rialto_tensor::{Dtype, Region, Shape, TensorView};

use crate::Error;
use crate::array::{Array, Bytes, Extent, Handle, Values};

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
fn stored<'a>(checkpoint: &'a HfCheckpoint, tensor: &HfTensor) -> Array<'a> {
    let source = Handle::Borrowed(checkpoint.source(tensor.file));
    let bytes = Bytes::File {
        source,
        offset: tensor.range.start,
    };
    let region = Region::whole(&tensor.shape);
    Array {
        dtype: tensor.dtype,
        extents: vec![Extent { region, bytes }],
    }
}

/// An encoded tensor. What is read of it is decoded: the blocks around it, and no more.
struct Encoded<'a> {
    family: &'a dyn Bridge,
    codec: &'a Codec,
    shape: &'a Shape,
    codes: Array<'a>,
    companions: Vec<(Array<'a>, &'a Shape)>,
}

impl<'a> Encoded<'a> {
    /// The tensor with its companions, which were bound to it by the codec.
    fn new(
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
            codec,
            shape: &tensor.shape,
            codes: stored(checkpoint, tensor),
            companions: beside.collect(),
        }
    }

    /// Decodes the blocks around a rectangle. Memory: their elements once as stored and once decoded.
    fn decode(&self, region: &Region) -> Result<(Region, Vec<u8>), Error> {
        let too_few_axes = || rialto_bridge::Error::Codec {
            codec: self.codec.name.clone(),
            reason: format!("a tensor of shape {} has too few axes", self.shape),
        };
        let blocks = self.codec.blocks_around(region, self.shape);
        let blocks = blocks.ok_or_else(too_few_axes)?;
        let codes = gather(&self.codes, &blocks)?;
        let mut scales = Vec::with_capacity(self.companions.len());
        for (described, (array, found)) in self.codec.companions.iter().zip(&self.companions) {
            let part = described.region(&blocks, self.shape, found);
            let part = part.ok_or_else(too_few_axes)?;
            scales.push((array.dtype, part.shape(), gather(array, &part)?));
        }
        let shape = blocks.shape();
        let companions = scales
            .iter()
            .map(|(dtype, shape, bytes)| TensorView::new(*dtype, shape, bytes));
        let encoded = EncodedTensor {
            codec: &self.codec.name,
            tensor: TensorView::new(self.codes.dtype, &shape, &codes)?,
            companions: companions.collect::<Result<_, _>>()?,
        };
        let mut values = buffer(&shape, self.codec.decoded)?;
        self.family.dequantize(&encoded, &mut values)?;
        Ok((blocks, values))
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
    ) -> Result<(), Error> {
        let (blocks, values) = self.decode(region)?;
        let decoded = Array {
            dtype: self.codec.decoded,
            extents: vec![Extent {
                region: blocks,
                bytes: Bytes::Memory(values),
            }],
        };
        decoded.read(region, place, out_shape, out)
    }

    fn granule(&self) -> u64 {
        self.codec.block.iter().copied().max().unwrap_or(1).max(1)
    }
}

/// A rectangle as dense bytes.
fn gather(array: &Array<'_>, region: &Region) -> Result<Vec<u8>, Error> {
    let shape = region.shape();
    let mut bytes = buffer(&shape, array.dtype)?;
    array.read(region, &Region::whole(&shape), &shape, &mut bytes)?;
    Ok(bytes)
}

fn buffer(shape: &Shape, dtype: Dtype) -> Result<Vec<u8>, Error> {
    let length = shape.size_bytes(dtype)?;
    let length = usize::try_from(length).map_err(|_| rialto_tensor::Error::ShapeOverflow {
        shape: shape.clone(),
    })?;
    Ok(vec![0; length])
}
