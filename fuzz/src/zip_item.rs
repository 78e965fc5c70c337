//! An item of a data file, whole: zip archive, pickle, storages.

use rialto_checkpoint::store::Source;
use rialto_checkpoint::torch_dist::{object_item, read_object, read_tensor_item};
use rialto_tensor::{ByteRange, Location};

use crate::memory::bounded;
use crate::source::BytesSource;

/// See [`check_item`]. Input: the item.
pub fn check(input: &[u8]) {
    check_item(input);
}

/// As a tensor: its storage lies in the item, dense bytes lie in the storage, and reading gives as many bytes as dtype and
/// shape need. As an object: if nothing in it is opaque, it is written to bytes that read back to the same object.
pub(crate) fn check_item(item: &[u8]) {
    let source = BytesSource::new(item);
    let all = ByteRange::new(0, source.len());
    let location = Location::file("fuzz");

    let tensor = bounded(item.len(), || {
        let tensor = read_tensor_item(&source, all, &location).ok()?;
        let bytes = tensor.read(&source).expect("the storage lies in the file");
        Some((tensor, bytes))
    });
    if let Some((tensor, bytes)) = tensor {
        let size = tensor.size.size_bytes(tensor.dtype);
        assert_eq!(size, Ok(bytes.len() as u64), "{tensor:?}");
        assert!(tensor.data.start <= tensor.data.end, "{tensor:?}");
        assert!(tensor.data.end <= all.end, "{tensor:?}");
        if let Some(dense) = tensor.dense_bytes() {
            assert!(tensor.data.start <= dense.start, "{tensor:?}");
            assert!(dense.end <= tensor.data.end, "{tensor:?}");
            assert_eq!(Ok(dense.len()), size, "{tensor:?}");
            let dense = dense.start as usize..dense.end as usize;
            assert_eq!(bytes, item[dense], "{tensor:?}");
        }
        // Whether the checksum holds is the input's choice.
        let _ = tensor.verify(&source, "fuzz");
    }

    let Ok(object) = bounded(item.len(), || read_object(&source, all, &location)) else {
        return;
    };
    let Ok(written) = object_item(&object) else {
        return;
    };
    let source = BytesSource::new(&written);
    let all = ByteRange::new(0, source.len());
    let again = read_object(&source, all, &location).expect("what was written can be read");
    // Bytes rather than objects: a NaN differs from itself.
    assert!(
        object_item(&again).is_ok_and(|bytes| bytes == written),
        "{object:?}"
    );
}
