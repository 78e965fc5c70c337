//! What a plugin hands over: a weight map, and its expansion; a forward pass, and whether it is sound.

use std::collections::{HashMap, HashSet};

use rialto_bridge::{
    Forms, KeyDecl, LayerAxis, Mapping, Mesh, Part, Rule, Scope, StoredTensor, WeightMap, document,
};

use rialto_program::Program;

use crate::memory::bounded;

/// A map of a few hundred bytes may stand for a million pieces, by design; what is beyond this many is not expanded here.
const PIECES: u64 = 512;

/// The input as either.
pub fn check(input: &[u8]) {
    check_map(input);
    check_program(input);
}

/// A program that is read is written to one that reads the same. Sound or not, it is checked in bounded memory; if it is, every phase
/// has the types of what it leaves, and so it is once more.
fn check_program(input: &[u8]) {
    let decoded = bounded(input.len(), || {
        document::decode::<Program>("program", input)
    });
    let Ok(program) = decoded else {
        return;
    };
    // What it requires is left out: an operation may be one that nobody has.
    let bytes = document::encode("program", &[], &program).expect("a program has a JSON form");
    let again: Program = document::decode("program", &bytes).expect("what was written can be read");
    assert_eq!(again, program);
    assert!(program.requirements().is_sorted());

    match bounded(input.len(), || program.check()) {
        Ok(types) => {
            assert_eq!(types.len(), program.phases.len());
            for (types, phase) in types.iter().zip(&program.phases) {
                let left = phase.outputs.iter().chain(&phase.stream);
                assert!(
                    left.into_iter().all(|name| types.contains_key(name)),
                    "{phase:?}"
                );
                let calls = phase.calls.iter();
                assert!(
                    calls.into_iter().all(|call| call.operation().is_ok()),
                    "{phase:?}"
                );
            }
            assert_eq!(again.check().as_ref(), Ok(&types));
        }
        // Every message is put together from what the document says.
        Err(error) => assert!(!error.to_string().is_empty() && error.code() > 0),
    }
}

/// A document that is read is written to one that reads the same. A map that is expanded, in its own spelling or in another
/// that it has, is total: every piece lies in its tensor and its param, and holds as many elements in both; tensors and
/// params have as many elements as their pieces together, and as their keys.
fn check_map(input: &[u8]) {
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
    let (stacked, single) = (LayerAxis::Stacked, LayerAxis::PerLayer);
    for (asked, axis) in [(false, stacked), (false, single), (true, stacked)] {
        let resolve = || {
            let own = Forms::own(&map).with_layer_axis(&map, axis);
            let forms = if asked { other(&map, own)? } else { own };
            map.resolve_as(&forms)
        };
        match bounded(input.len(), resolve) {
            Ok(mapping) => {
                check_mapping(&mapping);
                check_padding(&mapping);
            }
            // Every message is put together from what the document says.
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// Another spelling than the map's own, where it has one: that of the tensors is asked for, that of the params is found
/// by names without an index.
fn other(map: &WeightMap, own: Forms) -> Result<Forms, rialto_bridge::Error> {
    let rules = || map.rules.iter().filter_map(map_rule);
    let names = |form: &rialto_bridge::Form| form.name.clone();
    let asked = rules().filter_map(|rule| rule.tensor_forms.first().map(names));
    let asked: Vec<String> = asked.collect();
    let forms = rules().flat_map(|rule| rule.param_forms.iter().chain(&rule.tensor_forms));
    let parts = forms.flat_map(|form| &form.parts);
    let there: HashSet<&str> = parts.map(|part| part.tensor.as_str()).collect();
    let found = own.of_tensors(map, &there)?.of_params(map, &there)?;
    if asked.is_empty() {
        return Ok(found);
    }
    found.with_tensors(map, &asked)
}

fn map_rule(rule: &Rule) -> Option<&rialto_bridge::MapRule> {
    match rule {
        Rule::Map(rule) => Some(rule),
        _ => None,
    }
}

/// Pieces, keys and objects that a map stands for in all its spellings together.
fn pieces(map: &WeightMap) -> u64 {
    let values = |scope: &Scope| {
        let indices = scope.indices().iter();
        let lens = indices.map(|index| index.values.len() as u64);
        lens.fold(1, u64::saturating_mul)
    };
    let mut sum = 0u64;
    for rule in map.rules.iter().filter_map(map_rule) {
        let axis = rule.state.as_ref().and_then(|state| state.axis);
        let objects = axis.and_then(|axis| rule.shape.get(axis)).copied();
        let forms = rule.tensor_forms.iter().chain(&rule.param_forms);
        let parts = forms.flat_map(|form| &form.parts).chain(&rule.parts);
        let parts = parts.map(|part: &Part| values(&part.scope));
        let each = parts.fold(objects.unwrap_or(1), u64::saturating_add);
        sum = sum.saturating_add(values(&rule.scope).saturating_mul(each.max(1)));
    }
    sum
}

fn volume(extents: &[u64]) -> u128 {
    let extents = extents.iter().map(|&extent| u128::from(extent));
    extents.fold(1, u128::saturating_mul)
}

fn check_mapping(mapping: &Mapping) {
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
    let of_keys = check_keys(mapping);
    assert_eq!(of_keys, of_param, "keys and pieces do not hold the same");
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
    // A map that names a codec has none here and is refused before that.
    let inventory = mapping.nominal_tensors("fuzz", &[]);
    let bound = inventory.and_then(|inventory| mapping.bind_tensors(&inventory, &[]));
    if let Ok(binding) = bound {
        assert_eq!(binding.tensors.len(), mapping.tensors().len());
        assert_eq!(binding.param_dtypes.len(), mapping.params().len());
    }
}

/// A key alone is as large as what it holds; those of one stack hold a slot each, and together all of it. Gives the elements of each
/// param that its keys hold.
fn check_keys(mapping: &Mapping) -> Vec<u128> {
    let mut of_params = vec![0; mapping.params().len()];
    let mut of_stacks: HashMap<&str, (u128, u128)> = HashMap::new();
    let mut alone = HashSet::new();
    for key in mapping.keys() {
        let param = &mapping.params()[key.param];
        assert!(key.region.is_inside(&param.shape), "{key:?}");
        let elements = volume(key.region.sizes());
        of_params[key.param] += elements;
        let whole = volume(key.shape.extents());
        if key.slot.is_none() {
            assert_eq!(elements, whole, "{key:?}");
            assert!(alone.insert(&key.name), "{key:?} is there twice");
            continue;
        }
        let stored = key.in_key(&key.region);
        assert!(stored.is_inside(&key.shape), "{key:?}");
        assert_eq!(key.in_param(&stored).as_ref(), Some(&key.region), "{key:?}");
        let stack = of_stacks.entry(&key.name).or_insert((0, whole));
        assert_eq!(stack.1, whole, "{key:?}");
        stack.0 += elements;
    }
    for (name, (held, whole)) in of_stacks {
        assert_eq!(held, whole, "{name}");
        assert!(!alone.contains(&name.to_owned()), "{name} is there twice");
    }
    of_params
}

/// Padded or not, pieces fill what they filled, and no key reaches outside its param. A checkpoint that is as long as a mesh
/// makes the params is read so long.
fn check_padding(mapping: &Mapping) {
    for tp in [1, 3] {
        let Ok(padded) = mapping.clone().padded(&Mesh { tp, ..Mesh::SINGLE }) else {
            continue;
        };
        for (before, after) in mapping.params().iter().zip(padded.params()) {
            assert_eq!(after.filled, before.shape, "{after:?}");
            let extents = before.shape.extents().iter();
            let mut extents = extents.zip(after.shape.extents());
            assert!(extents.all(|(before, after)| before <= after), "{after:?}");
        }
        for piece in padded.pieces() {
            let param = &padded.params()[piece.param];
            assert!(piece.param_region.is_inside(&param.filled), "{piece:?}");
        }
        let of_keys = check_keys(&padded);
        let inventory = padded.keys().iter().map(|key| StoredTensor {
            name: key.name.clone(),
            dtype: padded.rule(padded.params()[key.param].rule).dtype.accepts[0],
            shape: key.shape.clone(),
            place: "fuzz".to_owned(),
        });
        let inventory: Vec<_> = inventory.collect();
        let read = mapping.clone().padded_as(&inventory);
        // A key may lack an axis of its param, and then cannot be longer on it; one without elements is at every end.
        let is_plain = |key: &KeyDecl| {
            key.shape.rank() == key.region.rank() && !key.region.sizes().contains(&0)
        };
        if mapping.keys().iter().all(is_plain) {
            assert_eq!(read, padded);
            for (param, elements) in padded.params().iter().zip(of_keys) {
                assert_eq!(elements, volume(param.shape.extents()), "{param:?}");
            }
        }
        drop(read.find_params(&inventory));
    }
}
