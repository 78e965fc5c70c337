//! Tensors that a Hugging Face checkpoint holds once more under another name.

use rialto_checkpoint::hf::{HfCheckpoint, HfTensor};
use rialto_tensor::Region;

use crate::array::usize_range;
use crate::{Error, Progress};

/// Bytes that are compared at a time.
const BLOCK_BYTES: u64 = 1 << 20;

/// The first element in which a tensor and its copy differ, by its index; none if they are of the same bits. Both are of one
/// dtype and shape.
///
/// Errors: what reading says; [`Error::Cancelled`].
pub(crate) fn first_difference(
    checkpoint: &HfCheckpoint,
    tensor: &HfTensor,
    copy: &HfTensor,
    progress: &dyn Progress,
) -> Result<Option<Vec<u64>>, Error> {
    let len = tensor.range.len();
    let mut blocks = [Vec::new(), Vec::new()];
    let mut at = 0;
    while at < len {
        if progress.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let block = usize_range(0, BLOCK_BYTES.min(len - at)).end;
        for (bytes, of) in blocks.iter_mut().zip([tensor, copy]) {
            bytes.resize(block, 0);
            let source = checkpoint.source(of.file);
            source.read_at(of.range.start + at, bytes)?;
        }
        let mut pairs = blocks[0].iter().zip(&blocks[1]);
        if let Some(byte) = pairs.position(|(a, b)| a != b) {
            let element = (at + byte as u64) / tensor.dtype.size_bytes();
            return Ok(Some(Region::whole(&tensor.shape).index_of(element)));
        }
        at += block as u64;
    }
    Ok(None)
}

/// Refuses a copy that is another tensor: which of the two the model uses, its config and its bits say differently.
///
/// Errors: [`Error::Copy`], and as above.
pub(crate) fn check(
    checkpoint: &HfCheckpoint,
    tensor: &HfTensor,
    copy: &HfTensor,
    progress: &dyn Progress,
) -> Result<(), Error> {
    match first_difference(checkpoint, tensor, copy, progress)? {
        None => Ok(()),
        Some(index) => Err(Error::Copy {
            file: checkpoint.files()[copy.file].name.clone(),
            copy: copy.name.clone(),
            tensor: tensor.name.clone(),
            index,
        }),
    }
}
