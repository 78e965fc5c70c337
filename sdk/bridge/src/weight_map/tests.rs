//! The five hard mappings of `docs/architecture.md` as rules, and every way to spoil a map.

use rialto_tensor::Dtype;

use super::*;
use crate::{Codec, DtypeRule, StateValue, StoredTensor};

fn bf16() -> DtypeRule {
    DtypeRule::any_of([Dtype::Bf16])
}

fn rule(param: &str, shape: &[u64]) -> MapRule {
    MapRule::new(param, "test", param, shape).dtype(bf16())
}

fn violations(error: Error) -> Vec<String> {
    error.findings()
}

/// Two groups of two query heads, one key and one value head each, head width 3, input width 5.
fn fused_qkv() -> WeightMap {
    let groups = || Scope::new().index("g", 0..2);
    let heads = || Scope::new().index("g", 0..2).index("h", 0..2);
    WeightMap::new([rule("linear_qkv.weight", &[24, 5])
        .part(
            Part::new("q_proj.weight", [12, 5])
                .over(heads())
                .slice(["6*g+3*h", "0"], [3, 5])
                .at(["12*g+3*h", "0"]),
        )
        .part(
            Part::new("k_proj.weight", [6, 5])
                .over(groups())
                .slice(["3*g", "0"], [3, 5])
                .at(["12*g+6", "0"]),
        )
        .part(
            Part::new("v_proj.weight", [6, 5])
                .over(groups())
                .slice(["3*g", "0"], [3, 5])
                .at(["12*g+9", "0"]),
        )])
}

/// Two layers of three experts, gate and up fused, stacked on two leading axes.
fn stacked_experts() -> WeightMap {
    let experts = || Scope::new().index("l", 0..2).index("e", 0..3);
    let part = |name: &str| {
        Part::new(&format!("layers.{{l}}.experts.{{e}}.{name}.weight"), [4, 5]).over(experts())
    };
    WeightMap::new([
        rule("decoder.layers.experts.linear_fc1.weight", &[2, 3, 8, 5])
            .part(part("gate_proj").at(["l", "e", "0", "0"]))
            .part(part("up_proj").at(["l", "e", "4", "0"])),
    ])
}

#[test]
fn grouped_qkv_interleaves_heads_by_group() {
    let mapping = fused_qkv().resolve().unwrap();
    assert_eq!(
        (
            mapping.tensors().len(),
            mapping.params().len(),
            mapping.pieces().len()
        ),
        (3, 1, 8)
    );
    let value_of_group_1 = &mapping.pieces()[7];
    assert_eq!(
        mapping.tensors()[value_of_group_1.tensor].name,
        "v_proj.weight"
    );
    assert_eq!(value_of_group_1.tensor_region, Region::new([3, 0], [3, 5]));
    assert_eq!(value_of_group_1.param_region, Region::new([21, 0], [3, 5]));
}

#[test]
fn stacks_gain_leading_axes_of_one() {
    let mapping = stacked_experts().resolve().unwrap();
    assert_eq!(
        (
            mapping.tensors().len(),
            mapping.params().len(),
            mapping.pieces().len()
        ),
        (12, 1, 12)
    );
    let last = mapping.pieces().last().unwrap();
    assert_eq!(
        mapping.tensors()[last.tensor].name,
        "layers.1.experts.2.up_proj.weight"
    );
    assert_eq!(last.param_region, Region::new([1, 2, 4, 0], [1, 1, 4, 5]));
}

#[test]
fn a_tied_head_is_a_map_without_a_head() {
    let embedding = || {
        rule("embedding.word_embeddings.weight", &[7, 5])
            .part(Part::new("embed_tokens.weight", [7, 5]))
    };
    let tied = WeightMap::new([embedding()]).resolve().unwrap();
    let with_head = [
        stored("embed_tokens.weight", &[7, 5]),
        stored("lm_head.weight", &[7, 5]),
    ];
    let found = violations(tied.bind_tensors(&with_head, &[]).unwrap_err());
    assert_eq!(
        found,
        ["lm_head.weight (BF16 [7, 5] in file) is claimed by no rule"]
    );
    // Two params from one tensor would be a copy: it is seen, not made.
    let copied = WeightMap::new([
        embedding(),
        rule("output_layer.weight", &[7, 5]).part(Part::new("embed_tokens.weight", [7, 5])),
    ]);
    let found = violations(copied.resolve().unwrap_err());
    assert_eq!(
        found,
        ["embed_tokens.weight [7, 5]: [0, 0]+[7, 5] is covered twice"]
    );
}

fn with_mtp(skip: Option<&str>) -> Mapping {
    let mtp = MapRule::new("enorm.weight", "mtp", "mtp.layers.{d}.enorm.weight", [5])
        .over(Scope::new().index("d", 0..1))
        .dtype(bf16())
        .part(Part::new("model.layers.{78+d}.enorm.weight", [5]))
        .skipped(skip);
    WeightMap::new([
        rule("norm.weight", &[5]).part(Part::new("model.norm.weight", [5])),
        mtp,
    ])
    .resolve()
    .unwrap()
}

#[test]
fn a_skipped_tensor_makes_no_param_and_may_be_absent() {
    let mapping = with_mtp(Some("MTP dropped"));
    assert_eq!(
        (
            mapping.tensors().len(),
            mapping.params().len(),
            mapping.skipped().len()
        ),
        (1, 1, 1)
    );
    let both = [
        stored("model.norm.weight", &[5]),
        stored("model.layers.78.enorm.weight", &[5]),
    ];
    assert_eq!(mapping.bind_tensors(&both, &[]).unwrap().skipped, [(1, 1)]);
    assert!(
        mapping
            .bind_tensors(&both[..1], &[])
            .unwrap()
            .skipped
            .is_empty()
    );
}

#[test]
fn an_mtp_layer_that_is_wholly_missing_is_explained() {
    let error = with_mtp(None)
        .bind_tensors(&[stored("model.norm.weight", &[5])], &[])
        .unwrap_err();
    assert!(
        error.help().unwrap().contains("--mtp drop"),
        "{:?}",
        error.help()
    );
    let params = with_mtp(None);
    assert!(params.holds_mtp(["norm.weight", "mtp.layers.0.enorm.weight"]));
    assert!(!params.holds_mtp(["norm.weight"]));
}

/// A 4-bit format: packed codes, a scale per block and a scale per tensor.
fn four_bit() -> Codec {
    let companions = ["_scale", "_scale_2"].map(str::to_owned).to_vec();
    Codec {
        name: "nvfp4/1".to_owned(),
        stored: Dtype::U8,
        decoded: Dtype::Bf16,
        companions,
    }
}

#[test]
fn two_companions_are_claimed_with_their_tensor() {
    let mapping = WeightMap::new([rule("w", &[4, 8]).part(Part::new("w.weight", [4, 8]))])
        .resolve()
        .unwrap();
    let typed = |name: &str, shape: &[u64], dtype| StoredTensor {
        dtype,
        ..stored(name, shape)
    };
    let mut inventory = vec![
        typed("w.weight", &[4, 8], Dtype::U8),
        typed("w.weight_scale", &[4, 1], Dtype::F8E4m3),
        typed("w.weight_scale_2", &[], Dtype::F32),
    ];
    let binding = mapping.bind_tensors(&inventory, &[four_bit()]).unwrap();
    assert_eq!(binding.encodings, [Some((0, vec![1, 2]))]);
    assert_eq!(binding.param_dtypes, [Dtype::Bf16]);
    inventory.pop();
    let found = violations(mapping.bind_tensors(&inventory, &[four_bit()]).unwrap_err());
    assert_eq!(
        found,
        ["w.weight is stored as U8 in file and needs w.weight_scale_2, which is missing"]
    );
}

fn stored(name: &str, shape: &[u64]) -> StoredTensor {
    StoredTensor {
        name: name.to_owned(),
        dtype: Dtype::Bf16,
        shape: Shape::new(shape),
        place: "file".to_owned(),
    }
}

#[test]
fn any_tensor_deleted_renamed_reshaped_retyped_or_doubled_is_named() {
    for map in [fused_qkv(), stacked_experts()] {
        let mapping = map.resolve().unwrap();
        let whole = mapping.nominal_tensors("file");
        assert!(mapping.bind_tensors(&whole, &[]).is_ok());
        for position in 0..whole.len() {
            let name = whole[position].name.clone();
            let spoil = |change: &dyn Fn(&mut Vec<StoredTensor>)| {
                let mut inventory = whole.clone();
                change(&mut inventory);
                violations(mapping.bind_tensors(&inventory, &[]).expect_err(&name)).join("\n")
            };
            assert!(
                spoil(&|all| drop(all.remove(position))).contains(&format!("{name} is missing"))
            );
            let renamed = spoil(&|all| all[position].name.push('x'));
            assert!(
                renamed.contains(&format!("{name} is missing"))
                    && renamed.contains(&format!("{name}x (BF16"))
            );
            assert!(
                spoil(&|all| all[position].shape = Shape::new([3, 3]))
                    .contains(&format!("{name} has shape [3, 3]"))
            );
            assert!(
                spoil(&|all| all[position].dtype = Dtype::F16)
                    .contains(&format!("{name} has dtype F16"))
            );
            assert!(
                spoil(&|all| all.push(whole[position].clone()))
                    .contains(&format!("{name} is there twice"))
            );
        }
    }
}

#[test]
fn any_param_deleted_or_added_is_named() {
    let mapping = fused_qkv().resolve().unwrap();
    let param = stored("linear_qkv.weight", &[24, 5]);
    assert!(mapping.bind_params(std::slice::from_ref(&param)).is_ok());
    assert!(
        violations(mapping.bind_params(&[]).unwrap_err())[0]
            .starts_with("linear_qkv.weight is missing")
    );
    let found = violations(
        mapping
            .bind_params(&[param, stored("surplus", &[1])])
            .unwrap_err(),
    );
    assert_eq!(found, ["surplus (BF16 [1] in file) is claimed by no rule"]);
}

#[test]
fn tensors_of_one_param_must_have_one_dtype() {
    let map = WeightMap::new([MapRule {
        dtype: DtypeRule::any_of([Dtype::Bf16, Dtype::F32]),
        ..rule("fc1", &[4, 5])
    }
    .part(Part::new("gate", [2, 5]))
    .part(Part::new("up", [2, 5]).at(["2", "0"]))]);
    let mapping = map.resolve().unwrap();
    let inventory = [
        stored("gate", &[2, 5]),
        StoredTensor {
            dtype: Dtype::F32,
            ..stored("up", &[2, 5])
        },
    ];
    let found = violations(mapping.bind_tensors(&inventory, &[]).unwrap_err());
    assert_eq!(
        found,
        ["the tensors of fc1 have dtypes BF16 and F32, expected one"]
    );
}

#[test]
fn parts_that_do_not_tile_or_do_not_agree_are_named() {
    let gap = WeightMap::new([rule("fc1", &[8, 5]).part(Part::new("gate", [4, 5]))])
        .resolve()
        .unwrap_err();
    assert_eq!(
        violations(gap),
        ["fc1 [8, 5]: [4, 0]+[4, 5] is not covered"]
    );
    let half_read = WeightMap::new([
        rule("q", &[2, 5]).part(Part::new("qkv", [4, 5]).slice(["0", "0"], [2, 5]))
    ]);
    assert_eq!(
        violations(half_read.resolve().unwrap_err()),
        ["qkv [4, 5]: [2, 0]+[2, 5] is not covered"]
    );
    let turned = WeightMap::new([rule("w", &[5, 4]).part(Part::new("w", [4, 5]))])
        .resolve()
        .unwrap_err();
    assert_eq!(
        violations(turned)[0],
        "w [5, 4]: [0, 0]+[4, 5] reaches outside"
    );
    let flattened = WeightMap::new([rule("w", &[5]).part(Part::new("w", [4, 5]))])
        .resolve()
        .unwrap_err();
    assert_eq!(
        violations(flattened)[0],
        "w [0, 0]+[4, 5] and w [0]+[5] do not hold the same elements"
    );
    let doubled = WeightMap::new([
        rule("w", &[4]).part(Part::new("a", [4])),
        MapRule::new("second", "test", "w", [4])
            .dtype(bf16())
            .part(Part::new("b", [4])),
    ]);
    assert_eq!(
        violations(doubled.resolve().unwrap_err()),
        ["param w is made by rule w and by rule second"]
    );
}

#[test]
fn objects_stand_beside_their_params_one_or_one_an_index() {
    let state = |axis| ModuleState {
        module: "m.fc1".to_owned(),
        value: StateValue::EmptyTensor,
        axis,
    };
    let one = WeightMap::new([rule("m.fc1.weight", &[3, 5])
        .state(state(None))
        .part(Part::new("w", [3, 5]))]);
    let keys = |map: WeightMap| {
        map.resolve()
            .unwrap()
            .objects()
            .iter()
            .map(|object| object.key.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(one), ["m.fc1._extra_state/shard_0_1"]);
    let each = WeightMap::new([rule("m.fc1.weight", &[2, 5])
        .state(state(Some(0)))
        .part(Part::new("w", [2, 5]))]);
    assert_eq!(
        keys(each),
        [
            "m.fc1._extra_state/shard_0_2",
            "m.fc1._extra_state/shard_1_2"
        ]
    );
}

#[test]
fn a_map_crosses_as_json_and_an_unknown_rule_kind_is_named() {
    let json = serde_json::to_string(&fused_qkv()).unwrap();
    assert_eq!(
        serde_json::from_str::<WeightMap>(&json).unwrap(),
        fused_qkv()
    );
    let error =
        serde_json::from_str::<WeightMap>(r#"{"rules": [{"rule": "transpose"}]}"#).unwrap_err();
    assert!(error.to_string().contains("transpose"), "{error}");
}

#[test]
fn a_map_beyond_the_limit_is_refused_before_it_expands() {
    let part = Part::new("e.{e}", [5]).over(Scope::new().index("e", 0..2000));
    let part = part.at(["e", "0"]);
    let wide = rule("stack.{l}", &[2000, 5])
        .over(Scope::new().index("l", 0..2000))
        .part(part);
    let error = WeightMap::new([wide]).resolve().unwrap_err();
    assert!(
        error.to_string().contains("found 4000000 pieces"),
        "{error}"
    );
    // Objects count by an extent, of which nothing in the rule is as long.
    let state = ModuleState {
        module: "m".to_owned(),
        value: StateValue::EmptyTensor,
        axis: Some(0),
    };
    let tall = rule("w", &[1 << 40, 1])
        .state(state)
        .part(Part::new("w", [1 << 40, 1]));
    let error = WeightMap::new([tall]).resolve().unwrap_err();
    assert!(error.to_string().contains("at rule w"), "{error}");
}
