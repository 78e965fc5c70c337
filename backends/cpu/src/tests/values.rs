//! Values by hand.

use rialto_program::op::{
    Append, Argmax, Binary, BinaryFunction, Cast, Concat, DequantizeBlock, Embed, Experts, Gather,
    Gqa, IndexerScores, LayerNorm, Linear, LinearOut, MlaAbsorb, MlaExpand, Pairing, QuantizeBlock,
    Reduce, ReduceFunction, Reshape, RmsNorm, Rope, Router, Sample, Scale, Scoring, Slice, Softmax,
    SparseMla, SwiGlu, TopK, Unary, UnaryFunction,
};

use super::*;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

/// Activations of F32.
fn made(op: impl Into<Op>, inputs: &[Input]) -> Vec<Vec<u8>> {
    run(&*device(2), Dtype::F32, &op.into(), inputs)
}

fn single(op: impl Into<Op>, inputs: &[Input]) -> Vec<f32> {
    numbers(&made(op, inputs)[0])
}

/// Activations of BF16.
fn half(op: impl Into<Op>, inputs: &[Input]) -> Vec<f32> {
    halves(&run(&*device(2), Dtype::Bf16, &op.into(), inputs)[0])
}

#[test]
fn embed_copies_rows_and_gives_zeros_for_none() {
    let ids = ints(&[5], &[2, -1, 0, 3, i32::MIN]);
    let table = f32s(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.01, 6.0]);
    let expected = [5.01, 6.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0];
    assert_eq!(single(Embed {}, &[ids.clone(), table.clone()]), expected);
    assert_eq!(half(Embed {}, &[ids, table])[..2], [5.0, 6.0]);
}

#[test]
fn copies_keep_the_bits_of_a_nan() {
    let code = 0xffa5u16.to_le_bytes();
    let x = input(Dtype::Bf16, &[1, 1], code.to_vec());
    let zero = ints(&[1], &[0]);
    let calls: [(Op, Vec<Input>); 6] = [
        (Embed {}.into(), vec![zero.clone(), x.clone()]),
        (Gather {}.into(), vec![x.clone(), zero]),
        (Reshape { shape: vec![1] }.into(), vec![x.clone()]),
        (
            Slice {
                start: 0,
                length: 1,
            }
            .into(),
            vec![x.clone()],
        ),
        (Concat {}.into(), vec![x.clone(), x.clone()]),
        (
            Cast {
                to: LinearOut::Activation,
            }
            .into(),
            vec![x],
        ),
    ];
    for (op, inputs) in calls {
        let made = run(&*device(1), Dtype::Bf16, &op, &inputs);
        assert_eq!(made[0][..2], code, "{}", op.name());
    }
}

#[test]
fn a_root_mean_square_norm_rounds_before_the_weight() {
    let x = [3.0, 4.0, 0.0, 0.0];
    let inputs = [f32s(&[1, 4], &x), f32s(&[4], &[1.0, 2.0, 3.0, 4.0])];
    // The root of 25 / 4.
    assert_eq!(single(RmsNorm { eps: 0.0 }, &inputs), [1.2, 3.2, 0.0, 0.0]);
    let inputs = [bf16s(&[1, 4], &x), f32s(&[4], &[1.004, 1.0, 1.0, 1.0])];
    // 1.2 is 1.203125 in BF16; times 1.004 it is nearer to the next one, which 1.2 times that would not be.
    let found = half(RmsNorm { eps: 0.0 }, &inputs);
    assert_eq!(found[0], 1.203_125_f32 + 0.007_812_5);
}

#[test]
fn a_layer_norm_takes_the_mean_away() {
    let inputs = [
        f32s(&[1, 2], &[1.0, 5.0]),
        f32s(&[2], &[2.0, 3.0]),
        f32s(&[2], &[0.5, 0.0]),
    ];
    assert_eq!(single(LayerNorm { eps: 0.0 }, &inputs), [-1.5, 3.0]);
    // The root of 4 + 12 is 4.
    assert_eq!(single(LayerNorm { eps: 12.0 }, &inputs), [-0.5, 1.5]);
}

#[test]
fn a_product_is_the_same_in_every_encoding() {
    let x = f32s(&[2, 3], &[1.0, 2.0, 3.0, -1.0, 0.5, 0.0]);
    let weight = [1.0, -2.0, 0.5, 2.0, 4.0, -1.0];
    let expected = [-1.5, 7.0, -2.0, 0.0];
    for weight in [
        f32s(&[2, 3], &weight),
        bf16s(&[2, 3], &weight),
        // 1, -1, 1, 1, 2, -2 in blocks of 1 by 2.
        codes(
            &[2, 3],
            &[0x38, 0xc0, 0x38, 0x38, 0x40, 0xc0],
            [1, 2],
            &[1.0, 0.5, 2.0, 0.5],
        ),
    ] {
        assert_eq!(single(Linear::default(), &[x.clone(), weight]), expected);
    }
}

#[test]
fn a_code_in_a_block_is_rounded_to_bf16_before_it_is_multiplied() {
    let x = f32s(&[1, 1], &[1.0]);
    // 1.125 times 1.001 is 1.126125, and 1.125 in BF16.
    let weight = codes(&[1, 1], &[0x39], [128, 128], &[1.001]);
    assert_eq!(single(Linear::default(), &[x, weight]), [1.125]);
}

#[test]
fn a_product_over_nothing_is_zero() {
    let inputs = [f32s(&[2, 0], &[]), f32s(&[3, 0], &[])];
    assert_eq!(single(Linear::default(), &inputs), [0.0; 6]);
}

#[test]
fn positions_rotate_pairs_and_leave_the_rest() {
    let x = [9.0, 1.0, 2.0, 3.0, 4.0];
    let rope = |pairing, position| {
        let op = Rope {
            theta: 100.0,
            dims: 4,
            first: 1,
            pairing,
        };
        single(op, &[f32s(&[1, 5], &x), ints(&[1], &[position])])
    };
    let ((s, c), (t, d)) = (1f64.sin_cos(), 0.1f64.sin_cos());
    let [s, c, t, d] = [s, c, t, d].map(|number| number as f32);
    assert_eq!(
        rope(Pairing::Interleaved, 1),
        [
            9.0,
            c - 2.0 * s,
            2.0 * c + s,
            3.0 * d - 4.0 * t,
            4.0 * d + 3.0 * t
        ]
    );
    assert_eq!(
        rope(Pairing::HalfSplit, 1),
        [
            9.0,
            c - 3.0 * s,
            2.0 * d - 4.0 * t,
            3.0 * c + s,
            4.0 * d + 2.0 * t
        ]
    );
    assert_eq!(rope(Pairing::HalfSplit, 0), x);
    assert_eq!(rope(Pairing::Interleaved, -1), x);
}

/// One token at position 2 of sequence 0, whose pages of two positions are 1 and 0; another that is padding.
fn places() -> Vec<Input> {
    vec![
        ints(&[2], &[0, -1]),
        ints(&[2], &[2, 0]),
        ints(&[1, 3], &[1, 0, -1]),
    ]
}

#[test]
fn append_writes_the_row_of_a_position_and_nothing_for_padding() {
    let rows = f32s(&[2, 2], &[7.0, 8.0, 9.0, 9.0]);
    let cache = bf16s(&[2, 2, 2], &[0.5; 8]);
    let inputs = [vec![rows, cache], places()].concat();
    let expected = [7.0, 8.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5];
    assert_eq!(half(Append {}, &inputs), expected);
}

#[test]
fn append_of_what_it_writes_is_refused() {
    let device = device(1);
    let rows = filled(&*device, &TensorType::new(Dtype::F32, [2, 1, 2]), &[0; 16]);
    let mut operands = vec![Operand::from(rows.clone()), Operand::from(rows)];
    let places = places();
    operands.extend(
        places
            .iter()
            .map(|input| Operand::from(filled(&*device, &input.tensor, &input.bytes))),
    );
    let call = OpCall::new(Append {}.into(), operands, []).unwrap();
    let error = device.record(vec![call]).err().unwrap();
    assert_eq!(error.slug(), "backend/operand");
}

#[test]
fn indexer_scores_sum_what_fires_up_to_the_own_position() {
    let op = IndexerScores {
        scale: 0.5,
        head_scale: 2.0,
    };
    let q = f32s(&[2, 2, 1], &[1.0, -1.0, 1.0, 1.0]);
    let weights = f32s(&[2, 2], &[3.0, -1.0, 1.0, 1.0]);
    // Positions 2, 3, 0, 1.
    let keys = f32s(&[2, 2, 1], &[0.0, 9.0, 4.0, -2.0]);
    let inputs = [vec![q, weights, keys], places()].concat();
    let mut expected = vec![12.0, -2.0, 0.0];
    expected.extend([-INF; 9]);
    assert_eq!(single(op, &inputs), expected);
}

#[test]
fn topk_puts_positions_in_order_and_pads() {
    let scores = f32s(&[2, 4], &[1.0, 3.0, 2.0, 3.0, -INF, NAN, -1.0, -INF]);
    let made = made(TopK { k: 3 }, &[scores]);
    assert_eq!(integers(&made[0]), [1, 2, 3, 2, -1, -1]);
}

#[test]
fn absorbing_and_expanding_take_their_rows_of_each_head() {
    // For each of two heads a row of keys and two of values.
    let kv_b = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -1.0, 1.0, 0.5, 0.0, 0.0, 0.5];
    let kv_b = f32s(&[6, 2], &kv_b);
    let q = f32s(&[1, 2, 1], &[2.0, 3.0]);
    let absorbed = single(MlaAbsorb { value: 2 }, &[q, kv_b.clone()]);
    assert_eq!(absorbed, [2.0, 4.0, -3.0, 3.0]);
    let x = f32s(&[1, 2, 2], &[1.0, 1.0, 2.0, 4.0]);
    let expanded = single(MlaExpand { value: 2 }, &[x, kv_b]);
    assert_eq!(expanded, [7.0, 11.0, 1.0, 2.0]);
}

#[test]
fn a_scale_is_that_of_the_absolute_row_of_a_head() {
    // Heads of three rows in blocks of two: the second head's row of keys is in the second block's second row.
    let kv_b = codes(&[6, 1], &[0x38; 6], [2, 1], &[1.0, 2.0, 4.0]);
    let q = f32s(&[1, 2, 1], &[1.0, 1.0]);
    let absorbed = single(MlaAbsorb { value: 2 }, &[q.clone(), kv_b.clone()]);
    assert_eq!(absorbed, [1.0, 2.0]);
    let expanded = single(MlaExpand { value: 2 }, &[q, kv_b]);
    assert_eq!(expanded, [1.0, 2.0, 4.0, 4.0]);
}

#[test]
fn sparse_attention_reads_what_is_selected_and_no_later() {
    let q = f32s(&[2, 1, 1], &[1.0, 1.0]);
    let q_rope = f32s(&[2, 1, 1], &[1.0, 1.0]);
    // Positions 2, 3, 0, 1 as latent and rope; each latent plus rope is 4.
    let cache = [1.0, 3.0, 9.0, 9.0, 6.0, -2.0, 5.0, -1.0];
    let attend = |indices: [i32; 8]| {
        let indices = ints(&[2, 4], &indices);
        let cache = f32s(&[2, 2, 2], &cache);
        let inputs = [vec![q.clone(), q_rope.clone(), indices, cache], places()].concat();
        single(SparseMla { scale: 1.0 }, &inputs)
    };
    let padding = [0; 4];
    let attend = |of_token: [i32; 4]| {
        let all = [of_token, padding].concat();
        attend(all.try_into().unwrap())
    };
    assert_eq!(attend([0, 2, -1, -1]), [3.5, 0.0]);
    assert_eq!(attend([-1, 0, 3, 2]), [3.5, 0.0]);
    assert_eq!(attend([0, 0, 0, 2]), [(6.0 + 6.0 + 6.0 + 1.0) / 4.0, 0.0]);
    assert_eq!(attend([-1, 3, 5, i32::MAX]), [0.0, 0.0]);
}

#[test]
fn dense_attention_reads_all_positions_up_to_the_own_one() {
    let op = Gqa {
        groups: 1,
        scale: 1.0,
    };
    // Two heads of one group: one sees all keys alike, to the other one is far more.
    let q = f32s(&[2, 2, 1], &[0.0, 200.0, 1.0, 1.0]);
    let keys = f32s(&[2, 2, 1], &[0.0, 9.0, 0.0, 1.0]);
    let values = f32s(&[2, 2, 1], &[1.0, 99.0, 6.0, 5.0]);
    let inputs = [vec![q, keys, values], places()].concat();
    assert_eq!(single(op, &inputs), [4.0, 5.0, 0.0, 0.0]);
}

#[test]
fn a_router_chooses_with_the_bias_and_weighs_without() {
    let router = |groups, top_groups, normalize, bias: &[f32]| {
        let op = Router {
            scoring: Scoring::Sigmoid,
            top_k: 2,
            groups,
            top_groups,
            normalize,
            epsilon: 0.0,
            scale: 2.0,
        };
        let logits = f32s(&[1, 4], &[0.0, INF, 0.0, 0.0]);
        let made = made(op, &[logits, f32s(&[4], bias)]);
        (integers(&made[0]), numbers(&made[1]))
    };
    let zeros = [0.0; 4];
    assert_eq!(router(1, 1, false, &zeros), (vec![0, 1], vec![1.0, 2.0]));
    let bias = [0.0, -5.0, 0.0, 1.0];
    assert_eq!(router(1, 1, true, &bias), (vec![0, 3], vec![1.0, 1.0]));
    let bias = [0.0, -1.0, 0.0, 1.0];
    assert_eq!(router(2, 1, false, &bias), (vec![2, 3], vec![1.0, 1.0]));
    let op = Router {
        scoring: Scoring::Softmax,
        top_k: 1,
        groups: 1,
        top_groups: 1,
        normalize: false,
        epsilon: 0.0,
        scale: 1.0,
    };
    let made = made(op, &[f32s(&[1, 2], &[0.0, 0.0])]);
    assert_eq!(
        (integers(&made[0]), numbers(&made[1])),
        (vec![0], vec![0.5])
    );
}

#[test]
fn experts_are_weighed_and_nobody_is_none() {
    // Gates are so large that silu is the identity.
    let inputs = [
        f32s(&[3, 1], &[1.0, 2.0, 3.0]),
        ints(&[3, 2], &[1, 0, -1, 7, 0, -1]),
        f32s(&[3, 2], &[0.5, 2.0, 1.0, 1.0, 1.0, NAN]),
        f32s(&[2, 1, 1], &[200.0, 400.0]),
        f32s(&[2, 1, 1], &[1.0, -1.0]),
        f32s(&[2, 1, 1], &[0.5, 0.25]),
    ];
    // Expert 0 makes 100 x^2, expert 1 -100 x^2.
    assert_eq!(single(Experts {}, &inputs), [150.0, 0.0, 900.0]);
}

#[test]
fn experts_round_gates_and_products_to_the_type_of_their_input() {
    // 257 is 256 in BF16, also when it is made by up.
    let inputs = [
        bf16s(&[1, 1], &[1.0]),
        ints(&[1, 1], &[0]),
        f32s(&[1, 1], &[1.0]),
        f32s(&[1, 2, 1], &[257.0, 100.0]),
        f32s(&[1, 2, 1], &[1.0, 2.57]),
        f32s(&[1, 1, 2], &[1.0, 0.0]),
    ];
    assert_eq!(half(Experts {}, &inputs), [256.0]);
    // 2.57 is 2.5625 in BF16; a hundred of it is 256.25, and 256.
    let mut inputs = inputs;
    inputs[5] = f32s(&[1, 1, 2], &[0.0, 1.0]);
    assert_eq!(half(Experts {}, &inputs), [256.0]);
}

#[test]
fn functions_of_elements_are_what_they_are_called() {
    let unary = |function, x: &[f32]| single(Unary { function }, &[f32s(&[3], x)]);
    let x = [-1.0, 0.0, 2.0];
    assert_eq!(unary(UnaryFunction::Relu, &x), [0.0, 0.0, 2.0]);
    let e = std::f32::consts::E;
    assert_eq!(unary(UnaryFunction::Exp, &[0.0, 1.0, -INF]), [1.0, e, 0.0]);
    assert_eq!(
        unary(UnaryFunction::Tanh, &[0.0, 99.0, -99.0]),
        [0.0, 1.0, -1.0]
    );
    assert_eq!(
        unary(UnaryFunction::Sigmoid, &[0.0, 99.0, -INF]),
        [0.5, 1.0, 0.0]
    );
    assert_eq!(
        unary(UnaryFunction::Silu, &[0.0, 99.0, -1e3]),
        [0.0, 99.0, 0.0]
    );
    let binary = |function| {
        let inputs = [
            f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]),
            f32s(&[2], &[2.0, -4.0]),
        ];
        single(Binary { function }, &inputs)
    };
    assert_eq!(binary(BinaryFunction::Add), [3.0, -2.0, 5.0, 0.0]);
    assert_eq!(binary(BinaryFunction::Subtract), [-1.0, 6.0, 1.0, 8.0]);
    assert_eq!(binary(BinaryFunction::Multiply), [2.0, -8.0, 6.0, -16.0]);
    assert_eq!(binary(BinaryFunction::Divide), [0.5, -0.5, 1.5, -1.0]);
    let inputs = [f32s(&[2], &[99.0, 0.0]), f32s(&[2], &[2.0, 5.0])];
    assert_eq!(single(SwiGlu {}, &inputs), [198.0, 0.0]);
    assert_eq!(single(Scale { factor: 0.5 }, &[f32s(&[1], &[3.0])]), [1.5]);
}

#[test]
fn one_buffer_may_be_two_inputs() {
    let device = device(2);
    let tensor = TensorType::new(Dtype::F32, [1]);
    let x = filled(&*device, &tensor, &3f32.to_le_bytes());
    let out = device.allocate(&tensor).unwrap();
    let op = Binary {
        function: BinaryFunction::Multiply,
    };
    let inputs = [x.clone(), x].map(Operand::from);
    let call = OpCall::new(op.into(), inputs, [out.clone()]).unwrap();
    device.record(vec![call]).unwrap().replay().unwrap();
    assert_eq!(numbers(&bytes_of(&*device, &out)), [9.0]);
}

#[test]
fn a_row_of_negative_infinity_alone_has_no_softmax() {
    let x = f32s(&[2, 2], &[5.0, 5.0, -INF, -INF]);
    assert_eq!(single(Softmax {}, &[x]), [0.5, 0.5, 0.0, 0.0]);
}

#[test]
fn a_reduction_of_nothing_is_what_its_page_says() {
    let reduce = |function, x: &Input| single(Reduce { function }, std::slice::from_ref(x));
    let x = f32s(&[2, 2], &[1.0, 2.0, NAN, 7.0]);
    assert_eq!(reduce(ReduceFunction::Sum, &x)[0], 3.0);
    assert_eq!(reduce(ReduceFunction::Mean, &x)[0], 1.5);
    let most = reduce(ReduceFunction::Max, &x);
    assert!(most[0] == 2.0 && most[1].is_nan());
    let nothing = f32s(&[1, 0], &[]);
    assert_eq!(reduce(ReduceFunction::Sum, &nothing), [0.0]);
    assert!(reduce(ReduceFunction::Mean, &nothing)[0].is_nan());
    assert_eq!(reduce(ReduceFunction::Max, &nothing), [-INF]);
}

#[test]
fn rows_are_gathered_joined_and_cut() {
    let x = f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let indices = ints(&[3], &[1, -1, 5]);
    let gathered = single(Gather {}, &[x.clone(), indices.clone()]);
    assert_eq!(gathered, [3.0, 4.0, 0.0, 0.0, 0.0, 0.0]);
    let whole = made(Gather {}, &[ints(&[2], &[7, 8]), indices]);
    assert_eq!(integers(&whole[0]), [8, 0, 0]);
    let joined = single(Concat {}, &[x.clone(), f32s(&[2, 1], &[8.0, 9.0])]);
    assert_eq!(joined, [1.0, 2.0, 8.0, 3.0, 4.0, 9.0]);
    let op = Slice {
        start: 1,
        length: 1,
    };
    assert_eq!(single(op, &[x]), [2.0, 4.0]);
}

#[test]
fn blocks_are_quantized_and_decoded_each_by_its_scale() {
    let x = f32s(&[2, 3], &[896.0, -448.0, 0.0, 2.0, 4.0, INF]);
    let op = QuantizeBlock {
        block: [2, 2],
        power_of_two: false,
    };
    let found = made(op, &[x]);
    // 2 / 2 and 4 / 2 in the first block; in the second zero, and infinity, which is no part of the scale.
    assert_eq!(found[0], [0x7e, 0xf6, 0x00, 0x38, 0x40, 0x7e]);
    assert_eq!(numbers(&found[1]), [2.0, 1.0]);
    let codes = input(Dtype::F8E4m3, &[2, 3], found[0].clone());
    let scales = f32s(&[1, 2], &[2.0, 1.001]);
    let decoded = single(DequantizeBlock { block: [2, 2] }, &[codes, scales]);
    assert_eq!(decoded, [896.0, -448.0, 0.0, 2.0, 4.0, 448.0]);
}

#[test]
fn the_largest_logit_is_the_next_token() {
    let logits = f32s(&[3, 3], &[1.0, 2.0, 2.0, NAN, -INF, NAN, NAN, NAN, NAN]);
    assert_eq!(integers(&made(Argmax {}, &[logits])[0]), [1, 1, -1]);
}

#[test]
fn each_row_is_sampled_its_own_way() {
    let logits = [0.25f32, 0.75].map(f32::ln).repeat(4);
    let inputs = [
        f32s(&[4, 2], &logits),
        f32s(&[4], &[1.0, 1.0, 0.0, 1.0]),
        ints(&[4], &[0, 0, 0, 1]),
        f32s(&[4], &[1.0; 4]),
        f32s(&[4], &[0.0; 4]),
        f32s(&[4], &[0.7, 0.8, 0.8, 0.8]),
    ];
    assert_eq!(integers(&made(Sample {}, &inputs)[0]), [1, 0, 1, 1]);
}

/// Device values that nobody should have written are passed over, as -1 is.
#[test]
fn wrong_indices_select_nothing() {
    let wrong = [i32::MIN, -2, 99, i32::MAX];
    let one = |value| ints(&[1], &[value]);
    for value in wrong {
        for (row_seq, row_pos, table) in [(value, 0, 0), (0, value, 0), (0, 0, value)] {
            let places = vec![one(row_seq), one(row_pos), ints(&[1, 1], &[table])];
            // A position past the table still sees those before it.
            let is_later = row_pos > 0;
            let of_all = if is_later { 3.0 } else { 0.0 };
            let cache = f32s(&[1, 1, 2], &[3.0, 3.0]);
            let (q, rope) = (f32s(&[1, 1, 1], &[1.0]), f32s(&[1, 1, 1], &[1.0]));
            let heads = vec![q.clone(), rope, ints(&[1, 2], &[0, value]), cache.clone()];
            let inputs = [heads, places.clone()].concat();
            assert_eq!(single(SparseMla { scale: 1.0 }, &inputs), [of_all]);
            let wide = f32s(&[1, 1, 2], &[1.0, 1.0]);
            let op = Gqa {
                groups: 1,
                scale: 1.0,
            };
            let inputs = [
                vec![wide.clone(), cache.clone(), cache.clone()],
                places.clone(),
            ];
            assert_eq!(single(op, &inputs.concat()), [of_all; 2]);
            let op = IndexerScores {
                scale: 1.0,
                head_scale: 1.0,
            };
            let heads = vec![wide.clone(), f32s(&[1, 1], &[1.0]), cache.clone()];
            let score = if is_later { 6.0 } else { -INF };
            assert_eq!(single(op, &[heads, places.clone()].concat()), [score]);
            let inputs = [vec![wide, cache], places].concat();
            assert_eq!(single(Append {}, &inputs), [3.0; 2]);
        }
    }
}

/// Extents of zero beside outputs that have elements.
#[test]
fn tables_and_sums_of_nothing_make_zeros() {
    let places = |pages| {
        vec![
            ints(&[1], &[0]),
            ints(&[1], &[0]),
            ints(&[1, pages], &[0].repeat(pages as usize)),
        ]
    };
    let x = f32s(&[1, 1, 2], &[1.0, 1.0]);
    let no_pool = f32s(&[0, 4, 2], &[]);
    let op = Gqa {
        groups: 1,
        scale: 1.0,
    };
    let inputs = [vec![x.clone(), no_pool.clone(), no_pool.clone()], places(1)].concat();
    assert_eq!(single(op, &inputs), [0.0; 2]);
    let caches = vec![f32s(&[2, 0, 2], &[]), f32s(&[2, 4, 2], &[1.0; 16])];
    for cache in caches {
        let inputs = [vec![x.clone(), cache.clone(), cache], places(0)].concat();
        assert_eq!(single(op, &inputs), [0.0; 2]);
    }
    let op = MlaAbsorb { value: 1 };
    let inputs = [f32s(&[1, 1, 0], &[]), f32s(&[1, 2], &[1.0, 1.0])];
    assert_eq!(single(op, &inputs), [0.0; 2]);
    let inputs = [f32s(&[1, 1, 0], &[]), f32s(&[2, 0], &[])];
    assert_eq!(single(MlaExpand { value: 1 }, &inputs), [0.0]);
    let inputs = [ints(&[1], &[0]), f32s(&[0, 2], &[])];
    assert_eq!(single(Embed {}, &inputs), [0.0; 2]);
    for (experts, k, inner) in [(0, 1, 3), (2, 0, 3), (2, 1, 0)] {
        let weight =
            |shape: [u64; 3]| f32s(&shape, &vec![1.0; shape.iter().product::<u64>() as usize]);
        let inputs = [
            f32s(&[1, 2], &[1.0, 1.0]),
            ints(&[1, k], &[0].repeat(k as usize)),
            f32s(&[1, k], &[1.0].repeat(k as usize)),
            weight([experts, inner, 2]),
            weight([experts, inner, 2]),
            weight([experts, 2, inner]),
        ];
        assert_eq!(
            single(Experts {}, &inputs),
            [0.0; 2],
            "{experts} {k} {inner}"
        );
    }
    assert_eq!(
        integers(&made(TopK { k: 1 }, &[f32s(&[1, 0], &[])])[0]),
        [-1]
    );
    assert_eq!(integers(&made(Argmax {}, &[f32s(&[1, 0], &[])])[0]), [-1]);
}
