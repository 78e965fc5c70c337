//! The five hard mappings of `docs/architecture.md` as rules, and every way to spoil a map.

use std::collections::HashSet;

use rialto_tensor::Dtype;

use super::*;
use crate::{Codec, Companion, DtypeRule, Form, Scope, StateValue, StoredTensor};

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
    assert!(params.holds_mtp(&HashSet::from(["norm.weight", "mtp.layers.0.enorm.weight"])));
    assert!(!params.holds_mtp(&HashSet::from(["norm.weight"])));
}

/// A 4-bit format: packed codes, a scale per block and a scale per tensor.
fn four_bit() -> Codec {
    let companion = |suffix: &str, dtype, block: [u64; 2]| Companion {
        suffixes: vec![suffix.to_owned()],
        dtype,
        block: block.to_vec(),
    };
    Codec {
        name: "nvfp4/1".to_owned(),
        stored: vec![Dtype::U8],
        decoded: Dtype::Bf16,
        block: vec![1, 16],
        companions: vec![
            companion("_scale", Dtype::F8E4m3, [1, 16]),
            companion("_scale_2", Dtype::F32, [0, 0]),
        ],
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

/// FP8 matrices with a scale for each 4 x 4 block.
fn fp8() -> Codec {
    Codec {
        name: "block_fp8/4x4".to_owned(),
        stored: vec![Dtype::F8E4m3],
        decoded: Dtype::Bf16,
        block: vec![4, 4],
        companions: vec![Companion {
            suffixes: vec!["_scale_inv".to_owned(), "_scale".to_owned()],
            dtype: Dtype::F32,
            block: vec![4, 4],
        }],
    }
}

#[test]
fn a_scale_must_have_one_element_a_block_and_an_encoded_tensor_beside_it() {
    let mapping = WeightMap::new([rule("w", &[5, 8]).part(Part::new("w.weight", [5, 8]))])
        .resolve()
        .unwrap();
    let bind = |dtype, scale: &str, scale_dtype, scale_shape: &[u64]| {
        let typed = |name: &str, shape: &[u64], dtype| StoredTensor {
            dtype,
            ..stored(name, shape)
        };
        let inventory = [
            typed("w.weight", &[5, 8], dtype),
            typed(scale, scale_shape, scale_dtype),
        ];
        mapping.bind_tensors(&inventory, &[fp8()])
    };
    let (code, float) = (Dtype::F8E4m3, Dtype::F32);
    let bound = bind(code, "w.weight_scale_inv", float, &[2, 2]).unwrap();
    assert_eq!(bound.encodings, [Some((0, vec![1]))]);
    assert!(bound.aliases.is_empty());
    // Under its other name only the shape proves what it means.
    let bound = bind(code, "w.weight_scale", float, &[2, 2]).unwrap();
    assert_eq!(
        (bound.encodings, bound.aliases),
        (vec![Some((0, vec![1]))], vec![1])
    );
    let refused = |dtype, scale, scale_dtype, shape| {
        violations(bind(dtype, scale, scale_dtype, shape).unwrap_err())
    };
    for (scale_dtype, shape) in [
        (float, &[1, 2][..]),
        (float, &[2, 3]),
        (float, &[2]),
        (float, &[1, 1]),
        (Dtype::Bf16, &[2, 2]),
    ] {
        let found = refused(code, "w.weight_scale_inv", scale_dtype, shape);
        let expected = format!(
            "w.weight_scale_inv is {scale_dtype} {} in file, expected F32 [2, 2]: one for each 4x4 block of w.weight [5, 8]",
            Shape::new(shape)
        );
        assert_eq!(found, [expected]);
        let found = refused(code, "w.weight_scale", scale_dtype, shape);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].ends_with("needs w.weight_scale_inv, which is missing"));
        assert!(found[1].starts_with("w.weight_scale (") && found[1].contains("no rule"));
    }
    for scale in ["w.weight_scale_inv", "w.weight_scale"] {
        let found = refused(Dtype::Bf16, scale, float, &[2, 2]);
        assert_eq!(
            found,
            [format!(
                "{scale} in file is a scale of w.weight, which is stored as BF16 and needs none"
            )]
        );
    }
    for unknown in ["w.input_scale", "w.weight_scale_2", "w.weight_zero_point"] {
        let found = refused(code, unknown, float, &[2, 2]).join("\n");
        assert!(found.contains(&format!(
            "{unknown} (F32 [2, 2] in file) is claimed by no rule"
        )));
    }
}

#[test]
fn an_encoded_tensor_needs_the_axes_of_a_block() {
    let mapping = WeightMap::new([rule("w", &[8]).part(Part::new("w.weight", [8]))])
        .resolve()
        .unwrap();
    let inventory = [StoredTensor {
        dtype: Dtype::F8E4m3,
        ..stored("w.weight", &[8])
    }];
    assert_eq!(
        violations(mapping.bind_tensors(&inventory, &[fp8()]).unwrap_err()),
        ["w.weight is stored as F8_E4M3 [8] in file, too few axes for blocks of 4x4"]
    );
}

/// Two layers of two experts: per expert or fused on one side, stacked or one key an expert and half on the other.
fn experts_with_forms() -> WeightMap {
    let experts = || Scope::new().index("e", 0..2);
    let each =
        |name: &str| Part::new(&format!("layers.{{i}}.{{e}}.{name}"), [4, 5]).over(experts());
    let half = |suffix: &str| {
        let key = format!("decoder.{{i}}.{{e}}.fc1_{suffix}");
        Part::new(&key, [4, 5]).over(experts())
    };
    WeightMap::new([rule("decoder.{i}.fc1", &[2, 8, 5])
        .over(Scope::new().index("i", 0..2))
        .part(each("gate").at(["e", "0", "0"]))
        .part(each("up").at(["e", "4", "0"]))
        .tensors_also(Form::new(
            "fused",
            [Part::new("layers.{i}.gate_up", [2, 8, 5])],
        ))
        .params_also(Form::new("old", [Part::new("old.{i}.fc1", [2, 8, 5])]))
        .params_also(Form::new(
            "halves",
            [half("w").at(["e", "0", "0"]), half("v").at(["e", "4", "0"])],
        ))])
}

#[test]
fn the_spelling_that_is_there_is_the_one_that_is_read() {
    let map = experts_with_forms();
    let found = |tensors: &[&str], params: &[&str]| {
        let names = |list: &[&str]| list.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let (tensors, params) = (names(tensors), names(params));
        let tensors: HashSet<&str> = tensors.iter().map(String::as_str).collect();
        let params: HashSet<&str> = params.iter().map(String::as_str).collect();
        let forms = Forms::own(&map).of_tensors(&map, &tensors).unwrap();
        forms.of_params(&map, &params).unwrap()
    };
    assert_eq!(found(&[], &[]), Forms::own(&map));
    let fused = ["layers.0.gate_up", "layers.1.gate_up"];
    let halves = [
        "decoder.0.0.fc1_w",
        "decoder.0.0.fc1_v",
        "decoder.1.1.fc1_w",
    ];
    let forms = found(&fused, &halves);
    assert_eq!(
        forms.notices(&map),
        [
            "tensors in the spelling fused: 1 rule",
            "params in the spelling halves: 1 rule"
        ]
    );
    let mapping = map.resolve_as(&forms).unwrap();
    let (tensors, keys) = (mapping.tensors(), mapping.keys());
    assert_eq!(
        (tensors.len(), mapping.params().len(), keys.len()),
        (2, 2, 8)
    );
    assert_eq!(tensors[1].name, "layers.1.gate_up");
    // Grouped by param, part by part.
    assert_eq!(
        (keys[7].name.as_str(), keys[7].param),
        ("decoder.1.1.fc1_v", 1)
    );
    assert_eq!(keys[7].region, Region::new([1, 4, 0], [1, 4, 5]));
    // One name of another spelling does not outweigh the whole of the own one; more of a share does.
    let own = [
        "layers.0.0.gate",
        "layers.0.0.up",
        "layers.0.1.gate",
        "layers.0.1.up",
    ];
    let with_stray: Vec<&str> = own.iter().chain(&fused[..1]).copied().collect();
    assert_eq!(
        found(&with_stray, &["decoder.0.fc1", "old.0.fc1"]),
        Forms::own(&map)
    );
    let damaged = ["old.0.fc1", "old.1.fc1", "decoder.0.fc1"];
    assert_eq!(
        found(&[], &damaged).notices(&map),
        ["params in the spelling old: 1 rule"]
    );
}

#[test]
fn a_spelling_can_be_asked_for_by_name() {
    let map = experts_with_forms();
    let fused = Forms::own(&map)
        .with_tensors(&map, &["fused".to_owned()])
        .unwrap();
    assert_eq!(map.resolve_as(&fused).unwrap().tensors().len(), 2);
    let error = Forms::own(&map)
        .with_tensors(&map, &["halves".to_owned()])
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the spelling of the tensors is not supported: found \"halves\", supported: fused"
    );
}

#[test]
fn forms_that_do_not_tile_the_param_or_cut_a_key_are_refused() {
    let with = |form: Form| {
        let WeightMap { rules } = experts_with_forms();
        let Rule::Map(rule) = rules[0].clone();
        let map = WeightMap::new([MapRule {
            param_forms: vec![form],
            ..rule
        }]);
        let names = HashSet::from(["x.0", "x.1"]);
        let forms = Forms::own(&map).of_params(&map, &names).unwrap();
        map.resolve_as(&forms)
    };
    let key = || Part::new("x.{i}", [2, 8, 5]);
    assert!(with(Form::new("x", [key()])).is_ok());
    let gap = with(Form::new("x", [Part::new("x.{i}", [1, 8, 5])])).unwrap_err();
    assert!(
        gap.to_string()
            .contains("[1, 0, 0]+[1, 8, 5] is not covered"),
        "{gap}"
    );
    let doubled = with(Form::new("x", [key(), key()])).unwrap_err();
    assert!(doubled.to_string().contains("covered twice"), "{doubled}");
    let reordered = with(Form::new("x", [Part::new("x.{i}", [8, 2, 5])])).unwrap_err();
    assert!(
        reordered.to_string().contains("reaches outside"),
        "{reordered}"
    );
    let cut = with(Form::new("x", [key().slice(["0", "0", "0"], [1, 8, 5])])).unwrap_err();
    assert!(cut.to_string().contains("taken whole"), "{cut}");
}

/// A head that Megatron has no place for, beside a norm that it has.
fn with_optional_head() -> WeightMap {
    WeightMap::new([
        rule("norm", &[5]).part(Part::new("norm.weight", [5])),
        rule("head.{d}", &[7, 5])
            .over(Scope::new().index("d", 0..2))
            .part(Part::new("head.{d}.weight", [7, 5]))
            .kept_beside("Megatron has none"),
    ])
}

#[test]
fn what_may_be_absent_is_mapped_if_any_of_it_is_there_and_then_must_be_whole() {
    let map = with_optional_head();
    assert_eq!(map.requirements(), ["rule/beside/1", "rule/map/1"]);
    let resolve = |names: &[&'static str]| {
        let names = names.iter().copied().collect();
        let forms = Forms::own(&map).of_tensors(&map, &names).unwrap();
        map.resolve_as(&forms).unwrap()
    };
    let norm = stored("norm.weight", &[5]);
    let without = resolve(&["norm.weight"]);
    assert_eq!((without.tensors().len(), without.params().len()), (1, 1));
    assert!(
        without
            .bind_tensors(std::slice::from_ref(&norm), &[])
            .is_ok()
    );
    assert_eq!(map.resolve().unwrap(), without);

    let with = resolve(&["norm.weight", "head.1.weight"]);
    assert_eq!((with.tensors().len(), with.params().len()), (3, 3));
    let found = violations(
        with.bind_tensors(&[norm, stored("head.1.weight", &[7, 5])], &[])
            .unwrap_err(),
    );
    assert_eq!(
        found,
        ["head.0.weight is missing, expected with shape [7, 5] by rule head.{d}"]
    );
    // The same from the other side.
    let names = HashSet::from(["norm", "head.0"]);
    let forms = Forms::own(&map).of_params(&map, &names).unwrap();
    assert_eq!(map.resolve_as(&forms).unwrap().keys().len(), 3);
}

#[test]
fn a_map_with_forms_requires_a_reader_that_knows_them() {
    assert_eq!(
        experts_with_forms().requirements(),
        ["rule/forms/1", "rule/map/1"]
    );
    assert_eq!(stacked_experts().requirements(), ["rule/map/1"]);
}

/// A matrix that is published in codes with a scale for each block of 2 x 4, and a norm that is not.
#[test]
fn a_rule_that_says_encoded_gives_codes_and_scales_where_nothing_is_stored() {
    let codec = Codec {
        name: "block/2x4".to_owned(),
        stored: vec![Dtype::F8E4m3, Dtype::F8E5m2],
        decoded: Dtype::Bf16,
        block: vec![2, 4],
        companions: vec![Companion {
            suffixes: vec!["_scale".to_owned(), "_scales".to_owned()],
            dtype: Dtype::F32,
            block: vec![2, 4],
        }],
    };
    let codecs = std::slice::from_ref(&codec);
    let map = |shape: &[u64], encoded: Option<&str>| {
        let w = rule("w", shape).part(Part::new("w.weight", shape));
        WeightMap::new([
            rule("norm", &[9]).part(Part::new("norm.weight", [9])),
            w.encoded(encoded),
        ])
    };
    let marked = map(&[5, 9], Some("block/2x4"));
    assert_eq!(marked.requirements(), ["rule/encoded/1", "rule/map/1"]);
    assert_eq!(map(&[5, 9], None).requirements(), ["rule/map/1"]);

    let mapping = marked.resolve().unwrap();
    let nominal = mapping.nominal_tensors("config", codecs).unwrap();
    let found = nominal.iter().map(|t| (t.name.as_str(), t.dtype, &t.shape));
    assert_eq!(
        found.collect::<Vec<_>>(),
        [
            ("norm.weight", Dtype::Bf16, &Shape::new([9])),
            ("w.weight", Dtype::F8E4m3, &Shape::new([5, 9])),
            ("w.weight_scale", Dtype::F32, &Shape::new([3, 3])),
        ]
    );
    let bound = mapping.bind_tensors(&nominal, codecs).unwrap();
    assert_eq!(bound.encodings, [None, Some((0, vec![2]))]);

    // What is stored decides: the mark is no claim on it.
    let plain = [stored("norm.weight", &[9]), stored("w.weight", &[5, 9])];
    let bound = mapping.bind_tensors(&plain, codecs).unwrap();
    assert_eq!(bound.encodings, [None, None]);

    let unknown = mapping.nominal_tensors("config", &[]).unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "codec \"block/2x4\" is not known to this family"
    );
    let empty = Codec {
        stored: Vec::new(),
        ..codec.clone()
    };
    let nothing = mapping.nominal_tensors("config", &[empty]).unwrap_err();
    assert_eq!(
        nothing.to_string(),
        "codec block/2x4: it has no stored dtype"
    );
    // A vector has no blocks of two axes.
    let vector = map(&[9], Some("block/2x4")).resolve().unwrap();
    let nominal = vector.nominal_tensors("config", codecs).unwrap();
    let found = violations(vector.bind_tensors(&nominal, codecs).unwrap_err());
    assert_eq!(
        found,
        ["w.weight is stored as F8_E4M3 [9] in config, too few axes for blocks of 2x4"]
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
        let whole = mapping.nominal_tensors("file", &[]).unwrap();
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
fn an_index_without_values_is_no_work_however_many_the_others_have() {
    // A billion combinations of the other indices, of which none is a piece.
    let thousand = || (0..1000).collect::<Vec<u64>>();
    let scope = Scope::new().index("i", thousand()).index("j", thousand());
    let scope = scope.index("k", thousand()).index("l", []);
    let map = WeightMap::new([rule("w{i}.{j}.{k}.{l}", &[1]).over(scope.clone())]);
    assert!(map.resolve().unwrap().params().is_empty());
    let part = Part::new("t{i}.{j}.{k}.{l}", [1]).over(scope);
    let map = WeightMap::new([rule("w", &[0]).part(part)]);
    assert!(map.resolve().unwrap().pieces().is_empty());
}

#[test]
fn combinations_run_through_the_last_index_first() {
    let scope = Scope::new().index("i", [7, 8]).index("j", [1, 2, 3]);
    let found: Vec<Vec<u64>> = combinations(&scope, &[("o", 5)])
        .map(|bindings| bindings.into_iter().map(|(_, value)| value).collect())
        .collect();
    let expected = [
        [5, 7, 1],
        [5, 7, 2],
        [5, 7, 3],
        [5, 8, 1],
        [5, 8, 2],
        [5, 8, 3],
    ];
    assert_eq!(found, expected);
    let no_index = Scope::new();
    let once: Vec<_> = combinations(&no_index, &[("o", 5)]).collect();
    assert_eq!(once, [[("o", 5)]]);
}

#[test]
fn a_rule_beyond_any_model_is_refused() {
    let deep = (0..17).fold(Scope::new(), |scope, _| scope.index("i", [0]));
    let long = "w".repeat(5000);
    let part = |part: Part| rule("w", &[1]).part(part);
    for rule in [
        rule("w", &[1; 65]),
        rule(&long, &[1]),
        rule("w", &[1]).over(deep.clone()),
        part(Part::new("t", [1; 65])),
        part(Part::new(&long, [1])),
        part(Part::new("t", [1]).at([&long])),
        part(Part::new("t", [1]).over(deep)),
    ] {
        let error = WeightMap::new([rule]).resolve().unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
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
    // Nor are the names of a spelling made to see which of them are there.
    let thousands = || Scope::new().index("e", 0..2000).index("f", 0..2000);
    let part = |name: &str| Part::new(name, [5]).over(thousands());
    let spelled = rule("w", &[5]).tensors_also(Form::new("other", [part("t{e}.{f}")]));
    let spelled = spelled.params_also(Form::new("other", [part("p{e}.{f}")]));
    let spelled = WeightMap::new([spelled]);
    let forms = || Forms::own(&spelled);
    let names = HashSet::new();
    assert!(forms().of_tensors(&spelled, &names).is_err());
    assert!(forms().of_params(&spelled, &names).is_err());
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
