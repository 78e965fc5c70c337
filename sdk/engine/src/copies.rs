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
    progress.begin("compare", tensor.range.len());
    let found = first_difference_by(BLOCK_BYTES, checkpoint, [tensor, copy], progress);
    progress.end();
    found
}

/// The same, so many bytes at a time.
fn first_difference_by(
    block_bytes: u64,
    checkpoint: &HfCheckpoint,
    both: [&HfTensor; 2],
    progress: &dyn Progress,
) -> Result<Option<Vec<u64>>, Error> {
    let [tensor, _] = both;
    let len = tensor.range.len();
    let mut blocks = [Vec::new(), Vec::new()];
    let mut at = 0;
    while at < len {
        if progress.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let block = usize_range(0, block_bytes.min(len - at)).end;
        for (bytes, of) in blocks.iter_mut().zip(both) {
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
        progress.advance(block as u64);
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use rialto_checkpoint::safetensors::Header;
    use rialto_checkpoint::store::MemoryStore;
    use rialto_tensor::{Dtype, Shape};

    use super::*;
    use crate::Silent;

    /// A directory with a tensor of 6 x 5 and a copy of it in which one byte is another.
    fn checkpoint(flipped: Option<usize>) -> HfCheckpoint {
        let names = ["copy", "tensor"];
        let shape = || Shape::new([6, 5]);
        let tensors = names.map(|name| (name.to_owned(), Dtype::Bf16, shape()));
        let plan = Header::plan("model.safetensors", tensors, &BTreeMap::new()).unwrap();
        let mut bytes = plan.header_bytes.clone();
        for tensor in &plan.tensors {
            let mut data: Vec<u8> = (0..60).collect();
            if let Some(at) = flipped.filter(|_| tensor.name == "copy") {
                data[at] ^= 1;
            }
            bytes.extend(data);
        }
        let store = MemoryStore::new("directory");
        store.insert("config.json", b"{}".to_vec()).unwrap();
        store.insert("model.safetensors", bytes).unwrap();
        HfCheckpoint::open(Arc::new(store)).unwrap()
    }

    #[test]
    fn the_first_element_that_differs_is_found_in_every_block() {
        for block_bytes in [1, 7, 16, 59, 60, 61] {
            let found = |flipped| {
                let checkpoint = checkpoint(flipped);
                let both = ["tensor", "copy"].map(|name| checkpoint.tensor(name).unwrap());
                first_difference_by(block_bytes, &checkpoint, both, &Silent).unwrap()
            };
            assert_eq!(found(None), None, "{block_bytes}");
            for at in 0..60 {
                let element = at as u64 / 2;
                let index = vec![element / 5, element % 5];
                assert_eq!(found(Some(at)), Some(index), "{block_bytes}: byte {at}");
            }
        }
    }
}
