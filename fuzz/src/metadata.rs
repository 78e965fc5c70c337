//! `.metadata` of a torch_dist checkpoint.

use rialto_checkpoint::store::check_name;
use rialto_checkpoint::torch_dist::{Metadata, TensorEntry};
use rialto_tensor::Location;

use crate::memory::bounded;

/// Pairs of chunks are compared up to this many chunks a tensor; beyond, volumes alone are.
const PAIRS: usize = 32;

/// What is decoded is as promised: chunks tile their tensors, places do not wrap, files stay in the directory. Encoded, it
/// decodes to the same again.
pub fn check(input: &[u8]) {
    let location = Location::file("fuzz");
    let Ok(metadata) = bounded(input.len(), || Metadata::decode(input, &location)) else {
        return;
    };
    for (name, entry) in &metadata.tensors {
        check_tensor(name, entry);
        assert!(!metadata.objects.contains_key(name), "{name} is two things");
        assert!(
            !metadata.reformulated.contains_key(name),
            "{name} is two things"
        );
        for chunk in &entry.chunks {
            check_place(&chunk.file, chunk.offset, chunk.len);
        }
    }
    for entry in metadata.objects.values() {
        check_place(&entry.file, entry.offset, entry.len);
    }

    let bytes = metadata.encode();
    let again = Metadata::decode(&bytes, &location).expect("what was encoded can be decoded");
    assert_eq!(again.tensors, metadata.tensors);
    assert_eq!(again.objects, metadata.objects);
    assert_eq!(again.encode(), bytes);
}

fn check_tensor(name: &str, entry: &TensorEntry) {
    let volume = |extents: &[u64]| {
        extents
            .iter()
            .map(|&extent| u128::from(extent))
            .product::<u128>()
    };
    entry
        .shape
        .size_bytes(entry.dtype)
        .expect("the size was checked");
    let mut covered = 0;
    for (position, chunk) in entry.chunks.iter().enumerate() {
        assert!(
            chunk.region.is_inside(&entry.shape),
            "{name}: {} is outside",
            chunk.region
        );
        covered += volume(chunk.region.sizes());
        for other in &entry.chunks[..position.min(PAIRS)] {
            let common = chunk.region.intersection(&other.region);
            assert_eq!(
                common, None,
                "{name}: {} and {}",
                chunk.region, other.region
            );
        }
    }
    assert_eq!(
        covered,
        volume(entry.shape.extents()),
        "{name} is not tiled"
    );
}

fn check_place(file: &str, offset: u64, len: u64) {
    check_name(file, &Location::default()).expect("the name was checked");
    assert!(
        offset.checked_add(len).is_some(),
        "{file}: {offset} and {len}"
    );
}
