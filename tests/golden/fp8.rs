//! FP8 weights against what PyTorch made of them, through the tensor crate alone.

use std::collections::BTreeSet;

use rialto_tensor::quant::block;
use rialto_tensor::{Dtype, Error, Shape, TensorView, cast};

use crate::world::{Values, fixture, hugging_face, on_disk, safetensors};

const BLOCK: [u64; 2] = [128, 128];

fn stored(file: &str) -> Values {
    safetensors(&std::fs::read(fixture(file)).unwrap())
}

fn cases() -> Values {
    stored("fp8-cases/cases.safetensors")
}

type Tensor = (Dtype, Vec<u64>, Vec<u8>);

fn dequantized(weight: &Tensor, scale: &Tensor) -> Result<Vec<u8>, Error> {
    let shapes = [weight, scale].map(|(_, extents, _)| Shape::new(extents.as_slice()));
    let q = TensorView::new(weight.0, &shapes[0], &weight.2)?;
    let scale = TensorView::new(scale.0, &shapes[1], &scale.2)?;
    let mut out = vec![0xa5; 2 * weight.2.len()];
    block::dequantize(&q, &scale, BLOCK, &mut out)?;
    Ok(out)
}

/// Holds the cases of a kind against what they should give, and says how many there are.
fn assert_cases(kind: &str) -> usize {
    let cases = cases();
    let names = cases.keys().filter_map(|name| name.strip_suffix(".weight"));
    let names: Vec<&str> = names.filter(|name| name.starts_with(kind)).collect();
    for name in &names {
        let part = |part: &str| &cases[&format!("{name}.{part}")];
        let (weight, expected) = (part("weight"), part("expect_bf16"));
        assert_eq!((expected.0, &expected.1), (Dtype::Bf16, &weight.1));
        let found = dequantized(weight, part("weight_scale_inv")).unwrap();
        assert_same(name, &found, &expected.2);
    }
    names.len()
}

/// NaNs included: PyTorch writes one pattern for them, and so do we.
fn assert_same(name: &str, found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let pairs = found.chunks(2).zip(expected.chunks(2));
    if let Some((at, (found, expected))) = pairs.enumerate().find(|(_, (a, b))| a != b) {
        panic!("{name}, element {at}: {found:02x?}, expected {expected:02x?}");
    }
}

/// Every FP8 weight of the checkpoint, with its scales.
fn fp8_weights(checkpoint: &Values) -> impl Iterator<Item = (&String, &Tensor, &Tensor)> {
    let weights = checkpoint
        .iter()
        .filter(|(_, (dtype, ..))| *dtype == Dtype::F8E4m3);
    weights.map(|(name, weight)| (name, weight, &checkpoint[&format!("{name}_scale_inv")]))
}

#[test]
fn every_code_has_the_value_of_pytorch() {
    let cases = cases();
    let (_, _, codes) = &cases["table.codes"];
    let mut found = vec![0xa5; 4 * codes.len()];
    cast::cast_into(Dtype::F8E4m3, Dtype::F32, codes, &mut found).unwrap();
    assert_eq!(codes.iter().collect::<BTreeSet<_>>().len(), 256);
    assert_eq!(found, cases["table.f32"].2);
}

#[test]
fn fc_28_ragged_blocks_and_matrices_smaller_than_one_dequantize_exactly() {
    assert_eq!(assert_cases("ragged_"), 7);
}

#[test]
fn fc_28_every_code_dequantizes_exactly_under_extreme_scales() {
    assert_eq!(assert_cases("allcodes_"), 6);
}

#[test]
fn fc_28_a_grid_that_is_not_the_ceiling_shape_is_refused_with_both() {
    let cases = cases();
    let weight = &cases["ragged_130x257.weight"];
    for extents in [[1, 3], [2, 2], [3, 3], [2, 4], [3, 2]] {
        let scale = vec![0; 4 * (extents[0] * extents[1]) as usize];
        let error = dequantized(weight, &(Dtype::F32, extents.to_vec(), scale)).unwrap_err();
        let expected = format!(
            "a tensor of shape [130, 257] in blocks of [128, 128] needs scales of shape [2, 3], found {extents:?}"
        );
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn fc_26_every_fp8_weight_of_a_checkpoint_becomes_what_pytorch_made_of_it() {
    let checkpoint = hugging_face(on_disk("glm53-tiny").as_ref());
    let mut expected = stored("glm53-tiny-dequantized.safetensors");
    for (name, weight, scale) in fp8_weights(&checkpoint) {
        let (dtype, extents, bytes) = expected.remove(name).expect(name);
        assert_eq!((dtype, &extents), (Dtype::Bf16, &weight.1), "{name}");
        assert_same(name, &dequantized(weight, scale).unwrap(), &bytes);
    }
    assert!(expected.is_empty(), "{:?}", expected.keys());
}

#[test]
fn fc_26_a_stack_of_experts_keeps_the_scales_of_each() {
    let checkpoint = hugging_face(on_disk("glm53-tiny").as_ref());
    let expected = stored("glm53-tiny-dequantized.safetensors");
    for projection in ["gate_proj", "up_proj", "down_proj"] {
        let name = |expert| format!("model.layers.1.mlp.experts.{expert}.{projection}.weight");
        let experts = (0..).map(name);
        let experts = experts.take_while(|name| checkpoint.contains_key(name));
        let experts: Vec<String> = experts.collect();
        assert!(experts.len() > 1, "{projection}");
        let stack = |names: &[String], of: &Values| -> Tensor {
            let (dtype, extents, _) = &of[&names[0]];
            let extents = [&[names.len() as u64], extents.as_slice()].concat();
            let bytes = names.iter().flat_map(|name| of[name].2.clone());
            (*dtype, extents, bytes.collect())
        };
        let scales = experts.iter().map(|name| format!("{name}_scale_inv"));
        let scales = stack(&scales.collect::<Vec<_>>(), &checkpoint);
        let found = dequantized(&stack(&experts, &checkpoint), &scales).unwrap();
        assert_same(projection, &found, &stack(&experts, &expected).2);
    }
}

#[test]
fn fc_27_the_projections_of_the_indexer_are_dequantized_like_any_other() {
    let checkpoint = hugging_face(on_disk("glm53-tiny").as_ref());
    let expected = stored("glm53-tiny-dequantized.safetensors");
    let mut kinds = BTreeSet::new();
    for (name, weight, scale) in fp8_weights(&checkpoint) {
        if let Some((_, kind)) = name.split_once(".indexer.") {
            assert_same(
                name,
                &dequantized(weight, scale).unwrap(),
                &expected[name].2,
            );
            kinds.insert(kind);
        }
    }
    assert_eq!(kinds, BTreeSet::from(["wk.weight", "wq_b.weight"]));
}
