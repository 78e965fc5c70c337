//! `model.safetensors.index.json`.

use rialto_checkpoint::index::Index;
use rialto_tensor::Location;

use crate::memory::bounded;

/// No shard that is read lies outside the checkpoint, and an index that is written is read again as it was.
pub fn check(input: &[u8]) {
    let location = Location::file("fuzz");
    let Ok(index) = bounded(input.len(), || Index::parse(input, &location)) else {
        return;
    };
    for file in index.weight_map.values() {
        let mut parts = file.split('/');
        let is_inside = parts.all(|part| !matches!(part, "" | "." | ".."));
        assert!(is_inside && !file.contains('\0'), "{file:?} is no name");
    }
    let bytes = index.write();
    let again = Index::parse(&bytes, &location).expect("what was written can be read");
    assert_eq!(again, index);
    assert_eq!(again.write(), bytes);
}
