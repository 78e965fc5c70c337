//! Tensors that are there once more.

use rialto_tensor::{Dtype, Shape};

use crate::{DtypeRule, Form, MapRule, Part, Scope, StoredTensor, WeightMap};

fn rule() -> MapRule {
    MapRule::new("embedding", "embedding", "embedding.weight", [4, 2])
        .dtype(DtypeRule::any_of([Dtype::Bf16, Dtype::F32]))
        .part(Part::new("embed.weight", [4, 2]))
        .copied_as("head.weight")
}

fn stored(name: &str, dtype: Dtype, shape: [u64; 2]) -> StoredTensor {
    StoredTensor {
        name: name.to_owned(),
        dtype,
        shape: Shape::new(shape),
        place: "file".to_owned(),
    }
}

#[test]
fn a_copy_may_be_there_or_not() {
    let mapping = WeightMap::new([rule()]).resolve().unwrap();
    let own = stored("embed.weight", Dtype::Bf16, [4, 2]);
    let copy = stored("head.weight", Dtype::Bf16, [4, 2]);
    let bound = mapping
        .bind_tensors(std::slice::from_ref(&own), &[])
        .unwrap();
    assert!(bound.copies.is_empty());
    let bound = mapping.bind_tensors(&[copy, own], &[]).unwrap();
    assert_eq!((bound.tensors, bound.copies), (vec![1], vec![(0, 0)]));
    // It is no tensor of its own: nobody asks for it, and an export does not write it.
    assert_eq!(mapping.tensors().len(), 1);
}

#[test]
fn a_copy_of_another_shape_or_dtype_or_without_its_tensor_is_a_violation() {
    let mapping = WeightMap::new([rule()]).resolve().unwrap();
    let own = stored("embed.weight", Dtype::Bf16, [4, 2]);
    for (copy, said) in [
        (
            stored("head.weight", Dtype::Bf16, [5, 2]),
            "head.weight has shape [5, 2]",
        ),
        (
            stored("head.weight", Dtype::F32, [4, 2]),
            "dtypes BF16 and F32",
        ),
        (
            stored("head.weight", Dtype::I8, [4, 2]),
            "head.weight has dtype I8",
        ),
    ] {
        let found = mapping.find_tensors(&[own.clone(), copy], &[]);
        assert!(found.copies.is_empty());
        let violations: Vec<String> = found.violations.iter().map(ToString::to_string).collect();
        assert!(
            violations.iter().any(|line| line.contains(said)),
            "{violations:?}"
        );
    }
    let alone = mapping.find_tensors(&[stored("head.weight", Dtype::Bf16, [4, 2])], &[]);
    assert_eq!(alone.violations.len(), 1);
    assert!(
        alone.violations[0]
            .to_string()
            .contains("embed.weight is missing")
    );
}

#[test]
fn only_a_param_that_is_one_tensor_has_copies() {
    let two = rule().part(Part::new("more.weight", [4, 2]).at(["4", "0"]));
    let sliced = {
        let mut rule = rule();
        rule.parts = vec![Part::new("embed.weight", [8, 2]).slice(["0", "0"], [4, 2])];
        rule
    };
    let otherwise = rule().tensors_also(Form::new("old", [Part::new("old.weight", [4, 2])]));
    for rule in [two, sliced, otherwise, rule().skipped(Some("why"))] {
        let error = WeightMap::new([rule]).resolve().unwrap_err().to_string();
        assert!(
            error.contains("one tensor in one spelling has copies"),
            "{error}"
        );
    }
}

#[test]
fn a_copy_is_no_other_rule_s_tensor() {
    let head = MapRule::new("head", "head", "output.weight", [4, 2])
        .dtype(DtypeRule::any_of([Dtype::Bf16]))
        .part(Part::new("head.weight", [4, 2]));
    for rules in [[rule(), head.clone()], [head, rule()]] {
        let error = WeightMap::new(rules).resolve().unwrap_err();
        assert!(
            error.to_string().contains("head.weight is made by rule"),
            "{error}"
        );
    }
}

#[test]
fn a_copy_is_of_one_tensor_and_no_tensor_that_is_left_out() {
    let layers = Scope::new().index("i", 0..2);
    let twice = MapRule::new("layers", "mlp", "layers.{i}", [4, 2])
        .over(layers)
        .dtype(DtypeRule::any_of([Dtype::Bf16]))
        .part(Part::new("model.{i}", [4, 2]))
        .copied_as("head.weight");
    let error = WeightMap::new([twice]).resolve().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("head.weight is made by rule layers"),
        "{error}"
    );
    let skipped = MapRule::new("old", "old", "old", [4, 2])
        .dtype(DtypeRule::any_of([Dtype::Bf16]))
        .part(Part::new("head.weight", [4, 2]))
        .skipped(Some("of the past"));
    for rules in [[rule(), skipped.clone()], [skipped, rule()]] {
        let error = WeightMap::new(rules).resolve().unwrap_err();
        assert!(
            error.to_string().contains("head.weight is made by rule"),
            "{error}"
        );
    }
}

#[test]
fn the_names_of_copies_are_no_longer_than_any_name() {
    let long = rule().copied_as(&"x".repeat(5000));
    let error = WeightMap::new([long]).resolve().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("bytes of a template in rule embedding"),
        "{error}"
    );
}

#[test]
fn a_document_with_copies_asks_for_a_reader_that_knows_them() {
    assert!(
        WeightMap::new([rule()])
            .requirements()
            .contains(&"rule/copies/1")
    );
}
