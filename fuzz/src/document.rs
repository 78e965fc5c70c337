//! A weight map as a plugin hands it over, and its expansion.

use std::collections::HashSet;

use rialto_bridge::{Mapping, Part, Rule, Scope, WeightMap, document};

use crate::memory::bounded;

/// A map of a few hundred bytes may stand for a million pieces, by design; what is beyond this many is not expanded here.
const PIECES: u64 = 512;

/// A document that is read is written to one that reads the same. An expanded map is total: every piece lies in its tensor
/// and its param, holds as many elements in both, and tensors and params have as many elements as their pieces together.
pub fn check(input: &[u8]) {
    let decoded = bounded(input.len(), || {
        document::decode::<WeightMap>("weight map", input)
    });
    let Ok(map) = decoded else {
        return;
    };
    let bytes =
        document::encode("weight map", &map.requirements(), &map).expect("a map has a JSON form");
    let again: WeightMap =
        document::decode("weight map", &bytes).expect("what was written can be read");
    assert_eq!(again, map);

    if pieces(&map) > PIECES {
        return;
    }
    match bounded(input.len(), || map.resolve()) {
        Ok(mapping) => check_mapping(&mapping),
        // Every message is put together from what the document says.
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Pieces and objects that a map stands for.
fn pieces(map: &WeightMap) -> u64 {
    let values = |scope: &Scope| {
        let lens = scope
            .indices()
            .iter()
            .map(|index| index.values.len() as u64);
        lens.fold(1, u64::saturating_mul)
    };
    let mut sum = 0u64;
    for rule in &map.rules {
        let Rule::Map(rule) = rule else { continue };
        let axis = rule.state.as_ref().and_then(|state| state.axis);
        let objects = axis
            .and_then(|axis| rule.shape.get(axis))
            .copied()
            .unwrap_or(1);
        let parts = rule.parts.iter().map(|part: &Part| values(&part.scope));
        let each = parts.fold(objects, u64::saturating_add).max(1);
        sum = sum.saturating_add(values(&rule.scope).saturating_mul(each));
    }
    sum
}

fn check_mapping(mapping: &Mapping) {
    let volume = |extents: &[u64]| {
        let extents = extents.iter().map(|&extent| u128::from(extent));
        extents.fold(1, u128::saturating_mul)
    };
    let mut of_tensor = vec![0; mapping.tensors().len()];
    let mut of_param = vec![0; mapping.params().len()];
    for piece in mapping.pieces() {
        let (tensor, param) = (
            &mapping.tensors()[piece.tensor],
            &mapping.params()[piece.param],
        );
        assert!(piece.tensor_region.is_inside(&tensor.shape), "{piece:?}");
        assert!(piece.param_region.is_inside(&param.shape), "{piece:?}");
        let elements = volume(piece.tensor_region.sizes());
        assert_eq!(elements, volume(piece.param_region.sizes()), "{piece:?}");
        of_tensor[piece.tensor] += elements;
        of_param[piece.param] += elements;
    }
    let mut names = HashSet::new();
    for (tensor, elements) in mapping.tensors().iter().zip(of_tensor) {
        assert_eq!(elements, volume(tensor.shape.extents()), "{tensor:?}");
        assert!(names.insert(&tensor.name), "{tensor:?}");
    }
    names.clear();
    for (param, elements) in mapping.params().iter().zip(of_param) {
        assert_eq!(elements, volume(param.shape.extents()), "{param:?}");
        assert!(names.insert(&param.name), "{param:?}");
    }
    assert!(
        mapping
            .objects()
            .windows(2)
            .all(|pair| pair[0].key < pair[1].key)
    );

    // What the map itself expects may still be refused (two dtypes for one param), with an error.
    let inventory = mapping.nominal_tensors("fuzz");
    if let Ok(binding) = mapping.bind_tensors(&inventory, &[]) {
        assert_eq!(binding.tensors.len(), mapping.tensors().len());
        assert_eq!(binding.param_dtypes.len(), mapping.params().len());
    }
}
