use rialto_tensor::Dtype;
use serde_json::{Map, Value, json};

use super::*;
use crate::{Dim, Element};

fn with(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn f32s(shape: &[u64]) -> ValueType {
    ValueType::new(Element::F32, shape.iter().copied())
}

#[test]
fn an_operation_is_the_same_after_its_attributes_were_written() {
    let ops = [
        Op::from(RmsNorm { eps: 1e-5 }),
        Linear {
            out: LinearOut::F32,
        }
        .into(),
        Rope {
            theta: 8e6,
            dims: 64,
            first: 192,
            pairing: Pairing::Interleaved,
        }
        .into(),
        Reshape { shape: vec![4, 8] }.into(),
        QuantizeBlock {
            block: [1, 128],
            power_of_two: true,
        }
        .into(),
        Argmax {}.into(),
    ];
    for op in ops {
        assert_eq!(Op::parse(op.name(), &op.attributes()).unwrap(), op);
    }
}

#[test]
fn an_unknown_operation_is_named_and_no_fault_of_attributes() {
    let error = Op::parse("acme.swirl/3", &Map::new()).unwrap_err();
    assert_eq!(error.slug(), "program/unknown-op");
    assert!(error.to_string().contains("acme.swirl/3"));
    let later = Op::parse("rialto.linear/2", &Map::new()).unwrap_err();
    assert_eq!(later.slug(), "program/unknown-op");
}

#[test]
fn attributes_that_are_missing_unknown_or_out_of_range_are_refused() {
    let refused = [
        ("rialto.rms_norm/1", json!({})),
        ("rialto.rms_norm/1", json!({"eps": -1.0})),
        ("rialto.rms_norm/1", json!({"eps": 1e-6, "epsilon": 1e-6})),
        ("rialto.embed/1", json!({"scale": 2})),
        (
            "rialto.rope/1",
            json!({"theta": 1e4, "dims": 3, "pairing": "interleaved"}),
        ),
        (
            "rialto.rope/1",
            json!({"theta": 0.0, "dims": 2, "pairing": "interleaved"}),
        ),
        (
            "rialto.rope/1",
            json!({"theta": 1e4, "dims": 2, "pairing": "odd"}),
        ),
        ("rialto.topk/1", json!({"k": 0})),
        (
            "rialto.router/1",
            json!({"scoring": "sigmoid", "top_k": 2, "groups": 2, "top_groups": 3, "normalize": true, "scale": 1.0}),
        ),
        ("rialto.quantize_block/1", json!({"block": [0, 128]})),
    ];
    for (name, attributes) in refused {
        let error = Op::parse(name, &with(attributes.clone())).unwrap_err();
        assert_eq!(error.slug(), "program/attributes", "{name} {attributes}");
    }
}

#[test]
fn each_operation_has_a_signature_of_distinct_names() {
    for name in Op::NAMES {
        let signature = Op::signature_of(name).unwrap();
        let mut names: Vec<&str> = signature
            .inputs
            .iter()
            .chain(signature.outputs)
            .copied()
            .collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "{name}");
        assert!(signature.optional < signature.inputs.len(), "{name}");
        for saved in signature.saved {
            assert!(names.contains(saved), "{name} saves {saved}");
        }
    }
}

/// The page of each operation is the documentation of its struct. Shapes, numerics, determinism, what a backward pass needs, and the
/// source stand in every one.
#[test]
fn every_page_says_shapes_numerics_determinism_backward_and_source() {
    let files = [
        include_str!("embed.rs"),
        include_str!("norm.rs"),
        include_str!("linear.rs"),
        include_str!("rope.rs"),
        include_str!("cache.rs"),
        include_str!("indexer.rs"),
        include_str!("mla.rs"),
        include_str!("gqa.rs"),
        include_str!("moe.rs"),
        include_str!("plain.rs"),
        include_str!("quant.rs"),
        include_str!("sample.rs"),
    ];
    let mut pages = 0;
    for file in files {
        for contract in file.split("impl Contract for ").skip(1) {
            let name = contract.split_whitespace().next().unwrap();
            let declared = file.find(&format!("pub struct {name} ")).unwrap();
            let page = &file[..declared];
            // The page is the comment right above.
            let begin = page.rfind("\n\n").unwrap();
            for part in [
                "**Shapes**",
                "**Numerics**",
                "**Determinism**",
                "**Backward**",
                "**Source**",
            ] {
                assert!(page[begin..].contains(part), "{name} does not say {part}");
            }
            pages += 1;
        }
    }
    assert_eq!(pages, Op::NAMES.len());
}

#[test]
fn shapes_are_inferred_for_extents_of_a_step_and_for_numbers() {
    let x = ValueType::new(Element::Activation, [Dim::Tokens, Dim::Size(96)]);
    let out = Op::from(Linear::default())
        .infer(&[x, f32s(&[48, 96])])
        .unwrap();
    assert_eq!(
        out,
        [ValueType::new(
            Element::Activation,
            [Dim::Tokens, Dim::Size(48)]
        )]
    );
    let of_step = |name| crate::step::type_of(name).unwrap();
    let cache = |dims: [Dim; 3]| ValueType::new(Element::Activation, dims);
    let scores = Op::from(IndexerScores {
        scale: 1.0,
        head_scale: 1.0,
    });
    let out = scores.infer(&[
        ValueType::new(Element::Activation, [Dim::Tokens, 8.into(), 32.into()]),
        ValueType::new(Element::F32, [Dim::Tokens, 8.into()]),
        cache([Dim::Pool, Dim::Page, 32.into()]),
        of_step("row_seq"),
        of_step("row_pos"),
        of_step("page_table"),
    ]);
    assert_eq!(
        out.unwrap(),
        [ValueType::new(Element::F32, [Dim::Tokens, Dim::Context])]
    );
    let ints = |shape: &[u64]| ValueType::new(Element::I32, shape.iter().copied());
    let out = scores.infer(&[
        f32s(&[5, 8, 32]),
        f32s(&[5, 8]),
        f32s(&[9, 16, 32]),
        ints(&[5]),
        ints(&[5]),
        ints(&[2, 3]),
    ]);
    assert_eq!(out.unwrap(), [f32s(&[5, 48])]);
}

/// A call of each operation that fits, in the order of their names.
fn fitting() -> Vec<(Op, Vec<ValueType>)> {
    let ints = |shape: &[u64]| ValueType::new(Element::I32, shape.iter().copied());
    let cached = |width| [f32s(&[9, 16, width]), ints(&[5]), ints(&[5]), ints(&[2, 3])];
    let codes = f32s(&[3, 4]).with_element(Element::Of(Dtype::F8E4m3));
    vec![
        (Embed {}.into(), vec![ints(&[5]), f32s(&[7, 4])]),
        (RmsNorm { eps: 0.0 }.into(), vec![f32s(&[5, 4]), f32s(&[4])]),
        (
            LayerNorm { eps: 0.0 }.into(),
            vec![f32s(&[5, 4]), f32s(&[4]), f32s(&[4])],
        ),
        (Linear::default().into(), vec![f32s(&[5, 4]), f32s(&[3, 4])]),
        (
            Rope {
                theta: 1e4,
                dims: 4,
                first: 0,
                pairing: Pairing::HalfSplit,
            }
            .into(),
            vec![f32s(&[5, 2, 4]), ints(&[5])],
        ),
        (
            Append {}.into(),
            [vec![f32s(&[5, 2, 4])], cached(8).to_vec()].concat(),
        ),
        (
            IndexerScores {
                scale: 1.0,
                head_scale: 1.0,
            }
            .into(),
            [vec![f32s(&[5, 2, 4]), f32s(&[5, 2])], cached(4).to_vec()].concat(),
        ),
        (TopK { k: 2 }.into(), vec![f32s(&[5, 9])]),
        (
            MlaAbsorb { value: 2 }.into(),
            vec![f32s(&[5, 2, 3]), f32s(&[10, 4])],
        ),
        (
            SparseMla { scale: 1.0 }.into(),
            [
                vec![f32s(&[5, 2, 4]), f32s(&[5, 2, 3]), ints(&[5, 6])],
                cached(7).to_vec(),
            ]
            .concat(),
        ),
        (
            MlaExpand { value: 2 }.into(),
            vec![f32s(&[5, 2, 4]), f32s(&[10, 4])],
        ),
        (
            Gqa {
                groups: 2,
                scale: 1.0,
            }
            .into(),
            [
                vec![f32s(&[5, 4, 3]), f32s(&[9, 16, 6])],
                cached(6).to_vec(),
            ]
            .concat(),
        ),
        (
            Router {
                scoring: Scoring::Sigmoid,
                top_k: 2,
                groups: 2,
                top_groups: 1,
                normalize: true,
                epsilon: 0.0,
                scale: 1.0,
            }
            .into(),
            vec![f32s(&[5, 8]), f32s(&[8])],
        ),
        (
            Experts {}.into(),
            vec![
                f32s(&[5, 4]),
                ints(&[5, 2]),
                f32s(&[5, 2]),
                f32s(&[8, 3, 4]),
                f32s(&[8, 3, 4]),
                f32s(&[8, 4, 3]),
            ],
        ),
        (SwiGlu {}.into(), vec![f32s(&[5, 4]), f32s(&[5, 4])]),
        (
            Unary {
                function: UnaryFunction::Silu,
            }
            .into(),
            vec![f32s(&[5])],
        ),
        (
            Binary {
                function: BinaryFunction::Add,
            }
            .into(),
            vec![f32s(&[5, 4]), f32s(&[4])],
        ),
        (Scale { factor: 2.0 }.into(), vec![f32s(&[5])]),
        (Softmax {}.into(), vec![f32s(&[5])]),
        (
            Reduce {
                function: ReduceFunction::Sum,
            }
            .into(),
            vec![f32s(&[5, 4])],
        ),
        (Gather {}.into(), vec![f32s(&[5, 4]), ints(&[2])]),
        (Concat {}.into(), vec![f32s(&[5, 4]), f32s(&[5, 2])]),
        (
            Slice {
                start: 1,
                length: 2,
            }
            .into(),
            vec![f32s(&[5, 3])],
        ),
        (Reshape { shape: vec![2, 2] }.into(), vec![f32s(&[5, 4])]),
        (Cast { to: LinearOut::F32 }.into(), vec![f32s(&[5, 4])]),
        (
            QuantizeBlock {
                block: [2, 2],
                power_of_two: false,
            }
            .into(),
            vec![f32s(&[3, 4])],
        ),
        (
            DequantizeBlock { block: [2, 2] }.into(),
            vec![codes, f32s(&[2, 2])],
        ),
        (Argmax {}.into(), vec![f32s(&[5, 9])]),
        (
            Sample {}.into(),
            vec![
                f32s(&[5, 9]),
                f32s(&[5]),
                ints(&[5]),
                f32s(&[5]),
                f32s(&[5]),
                f32s(&[5]),
            ],
        ),
    ]
}

/// Numbers of F64 that F32 has no finite one for: of whatever attribute is a float, found by how it is written.
#[test]
fn a_float_of_any_operation_that_is_infinite_in_f32_is_refused_by_name() {
    let mut found = Vec::new();
    for (op, _) in fitting() {
        let with = op.attributes();
        for (attribute, _) in with.iter().filter(|(_, value)| value.is_f64()) {
            for beyond in [1e300, -1e300, 3.5e38] {
                let mut with = with.clone();
                with.insert(attribute.clone(), json!(beyond));
                let error = Op::parse(op.name(), &with).expect_err(attribute);
                assert_eq!(error.slug(), "program/attributes");
                assert!(error.to_string().contains(attribute), "{error}");
            }
            found.push(attribute.clone());
        }
    }
    found.sort_unstable();
    let floats = [
        "eps",
        "eps",
        "epsilon",
        "factor",
        "head_scale",
        "scale",
        "scale",
        "scale",
        "scale",
        "theta",
    ];
    assert_eq!(found, floats);
    // Not written as text, they may be no numbers.
    let inputs = [f32s(&[5])];
    assert!(Op::from(Scale { factor: f64::NAN }).infer(&inputs).is_err());
}

/// One call of each operation that fits, and the same with one input changed: nothing that does not fit is taken.
#[test]
fn inputs_of_another_shape_or_element_are_refused() {
    let fitting = fitting();
    let names: Vec<&str> = fitting.iter().map(|(op, _)| op.name()).collect();
    assert_eq!(names, Op::NAMES);
    for (op, inputs) in fitting {
        let outputs = op.infer(&inputs).unwrap();
        assert_eq!(outputs.len(), op.signature().outputs.len(), "{}", op.name());
        assert_eq!(op.infer(&[]).unwrap_err().slug(), "program/operands");
        assert!(
            op.infer(&[inputs.clone(), vec![f32s(&[1])]].concat())
                .is_err()
        );
        for position in 0..inputs.len() {
            let port = op.signature().inputs[position];
            let mut element = inputs.clone();
            element[position] = element[position].with_element(Element::Of(Dtype::I64));
            assert!(
                op.infer(&element).is_err(),
                "{} takes {port} of I64",
                op.name()
            );
            // Plain functions take any shape.
            let takes_any = inputs.len() == 1
                || port == "table"
                || port == "page_table"
                || port == "x" && ["rialto.gather/1", "rialto.rope/1"].contains(&op.name());
            if !takes_any {
                let mut shape = inputs.clone();
                shape[position].shape.push(Dim::Size(77));
                assert!(
                    op.infer(&shape).is_err(),
                    "{} takes {port} of another shape",
                    op.name()
                );
            }
        }
    }
}
