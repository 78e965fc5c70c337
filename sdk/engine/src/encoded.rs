//! Encoded tensors: decoded whole by the family before their pieces are taken.

use rialto_bridge::{Bridge, Codec, EncodedTensor};
use rialto_checkpoint::hf::{HfCheckpoint, HfTensor};
use rialto_tensor::{Region, TensorView};

use crate::Error;
use crate::array::{Array, Bytes, Extent, Handle};

/// The tensor as it is stored, without touching its bytes.
pub(crate) fn stored<'a>(checkpoint: &'a HfCheckpoint, tensor: &HfTensor) -> Array<'a> {
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

/// The tensor's values, decoded by the family's hook. Memory: the tensor once as stored and once decoded.
pub(crate) fn decoded<'a>(
    family: &dyn Bridge,
    codec: &Codec,
    checkpoint: &HfCheckpoint,
    tensor: &HfTensor,
    companions: &[&HfTensor],
) -> Result<Array<'a>, Error> {
    let bytes = whole(checkpoint, tensor)?;
    let companion_bytes = companions
        .iter()
        .map(|tensor| whole(checkpoint, tensor))
        .collect::<Result<Vec<_>, _>>()?;
    let views = companions.iter().zip(&companion_bytes);
    let views = views.map(|(tensor, bytes)| TensorView::new(tensor.dtype, &tensor.shape, bytes));
    let encoded = EncodedTensor {
        codec: &codec.name,
        tensor: TensorView::new(tensor.dtype, &tensor.shape, &bytes)?,
        companions: views.collect::<Result<_, _>>()?,
    };
    let length = usize::try_from(tensor.shape.size_bytes(codec.decoded)?)
        .expect("a stored tensor was just read whole");
    let mut values = vec![0; length];
    family.dequantize(&encoded, &mut values)?;
    let region = Region::whole(&tensor.shape);
    let extents = vec![Extent {
        region,
        bytes: Bytes::Memory(values),
    }];
    Ok(Array {
        dtype: codec.decoded,
        extents,
    })
}

fn whole(checkpoint: &HfCheckpoint, tensor: &HfTensor) -> Result<Vec<u8>, Error> {
    let length =
        usize::try_from(tensor.range.len()).map_err(|_| rialto_tensor::Error::ShapeOverflow {
            shape: tensor.shape.clone(),
        })?;
    let mut bytes = vec![0; length];
    checkpoint
        .source(tensor.file)
        .read_at(tensor.range.start, &mut bytes)?;
    Ok(bytes)
}
