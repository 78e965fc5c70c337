//! Rows that do not see their neighbors.

use rialto_program::op::{
    Append, Argmax, Binary, BinaryFunction, Cast, Concat, DequantizeBlock, Embed, Experts, Gather,
    Gqa, IndexerScores, LayerNorm, Linear, LinearOut, MlaAbsorb, MlaExpand, Pairing, QuantizeBlock,
    Reduce, ReduceFunction, Reshape, RmsNorm, Rope, Router, Sample, Scale, Scoring, Slice, Softmax,
    SparseMla, SwiGlu, TopK, Unary, UnaryFunction,
};

use super::*;

/// Tokens of a batch.
const TOKENS: u64 = 11;

/// A call, and which of its inputs have a row for each token.
pub(super) struct Case {
    pub(super) op: Op,
    inputs: Vec<Input>,
    by_token: &'static [usize],
}

/// Numbers that look like chance.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn numbers(&mut self, shape: &[u64]) -> Vec<f32> {
        let count: u64 = shape.iter().product();
        (0..count)
            .map(|_| (self.next() % 20_001) as f32 / 1e4 - 1.0)
            .collect()
    }

    fn f32s(&mut self, shape: &[u64]) -> Input {
        f32s(shape, &self.numbers(shape))
    }

    /// Activations.
    fn floats(&mut self, dtype: Dtype, shape: &[u64]) -> Input {
        match dtype {
            Dtype::Bf16 => bf16s(shape, &self.numbers(shape)),
            _ => self.f32s(shape),
        }
    }

    fn ints(&mut self, shape: &[u64], from: i64, to: i64) -> Input {
        let count: u64 = shape.iter().product();
        let numbers: Vec<i32> = (0..count)
            .map(|_| (from + (self.next() % (to - from) as u64) as i64) as i32)
            .collect();
        ints(shape, &numbers)
    }

    /// A weight in each encoding; blocks that the matrix cuts.
    fn weights(&mut self, shape: &[u64]) -> [Input; 3] {
        let numbers = self.numbers(shape);
        let block = [5, 48];
        let grid = quant::block::grid(&Shape::new(shape), block).unwrap();
        let scales = self.numbers(grid.extents());
        // All but NaN.
        let bytes: Vec<u8> = numbers.iter().map(|_| (self.next() % 0x7f) as u8).collect();
        [
            f32s(shape, &numbers),
            bf16s(shape, &numbers),
            codes(shape, &bytes, block, &scales),
        ]
    }
}

/// Sequences, positions and pages of the tokens: three sequences, a padding token, pages that are missing or none.
fn places() -> [Input; 3] {
    [
        ints(&[TOKENS], &[0, 0, 0, 1, 2, 2, -1, 1, 1, 9, 0]),
        ints(&[TOKENS], &[0, 1, 2, 40, 13, 14, 3, 41, 42, 5, 47]),
        ints(
            &[3, 6],
            &[4, 9, 2, 0, 11, 6, 1, 3, 5, 7, 8, 10, 12, 13, -1, 99, -1, -1],
        ),
    ]
}

/// At least a call of each operation, the activations of a dtype.
pub(super) fn cases(dtype: Dtype) -> Vec<Case> {
    let chance = &mut Chance(7);
    let mut cases = Vec::new();
    let mut case = |op: Op, inputs: Vec<Input>, by_token: &'static [usize]| {
        cases.push(Case {
            op,
            inputs,
            by_token,
        });
    };
    let t = TOKENS;
    let [row_seq, row_pos, page_table] = places();
    let mut x = |shape: &[u64]| chance.floats(dtype, shape);
    let eps = 1e-5;
    case(RmsNorm { eps }.into(), vec![x(&[t, 67]), x(&[67])], &[0]);
    let inputs = vec![x(&[t, 67]), x(&[67]), x(&[67])];
    case(LayerNorm { eps }.into(), inputs, &[0]);
    for pairing in [Pairing::Interleaved, Pairing::HalfSplit] {
        let op = Rope {
            theta: 1e4,
            dims: 6,
            first: 3,
            pairing,
        };
        case(op.into(), vec![x(&[t, 3, 10]), row_pos.clone()], &[0, 1]);
    }
    case(SwiGlu {}.into(), vec![x(&[t, 37]), x(&[t, 37])], &[0, 1]);
    for function in [
        UnaryFunction::Silu,
        UnaryFunction::Sigmoid,
        UnaryFunction::Relu,
        UnaryFunction::Tanh,
        UnaryFunction::Exp,
    ] {
        case(Unary { function }.into(), vec![x(&[t, 501])], &[0]);
    }
    for function in [
        BinaryFunction::Add,
        BinaryFunction::Subtract,
        BinaryFunction::Multiply,
        BinaryFunction::Divide,
    ] {
        let op = Binary { function };
        case(op.into(), vec![x(&[t, 501]), x(&[t, 501])], &[0, 1]);
        case(op.into(), vec![x(&[t, 501]), x(&[501])], &[0]);
    }
    case(Scale { factor: 0.3 }.into(), vec![x(&[t, 501])], &[0]);
    case(Softmax {}.into(), vec![x(&[t, 67])], &[0]);
    for function in [
        ReduceFunction::Sum,
        ReduceFunction::Mean,
        ReduceFunction::Max,
    ] {
        case(Reduce { function }.into(), vec![x(&[t, 2, 67])], &[0]);
    }
    case(Concat {}.into(), vec![x(&[t, 5]), x(&[t, 9])], &[0, 1]);
    let op = Slice {
        start: 3,
        length: 4,
    };
    case(op.into(), vec![x(&[t, 9])], &[0]);
    case(
        Reshape { shape: vec![4, 3] }.into(),
        vec![x(&[t, 12])],
        &[0],
    );
    for to in [LinearOut::Activation, LinearOut::F32] {
        case(Cast { to }.into(), vec![x(&[t, 12])], &[0]);
    }
    let op = QuantizeBlock {
        block: [1, 16],
        power_of_two: false,
    };
    case(op.into(), vec![x(&[t, 40])], &[0]);
    let paged = |cache: Input| vec![cache, row_seq.clone(), row_pos.clone(), page_table.clone()];
    let caches = [x(&[13, 8, 40]), x(&[13, 8, 40])];
    let [keys, values] = caches;
    let op = Gqa {
        groups: 2,
        scale: 0.3,
    };
    let inputs = [vec![x(&[t, 6, 20]), keys.clone()], paged(values)].concat();
    case(op.into(), inputs, &[0, 3, 4]);
    let (q, q_rope) = (x(&[t, 6, 32]), x(&[t, 6, 8]));
    let scored = x(&[t, 6, 40]);
    let appended = x(&[t, 5, 8]);
    let inputs = [vec![appended], paged(keys.clone())].concat();
    case(Append {}.into(), inputs, &[0, 2, 3]);

    let indices = chance.ints(&[t, 37], -1, 50);
    let inputs = [vec![q, q_rope, indices], paged(keys.clone())].concat();
    case(SparseMla { scale: 0.3 }.into(), inputs, &[0, 1, 2, 4, 5]);
    let op = IndexerScores {
        scale: 0.3,
        head_scale: 0.2,
    };
    let inputs = [vec![scored, chance.f32s(&[t, 6])], paged(keys)].concat();
    case(op.into(), inputs, &[0, 1, 3, 4]);
    case(TopK { k: 30 }.into(), vec![chance.f32s(&[t, 67])], &[0]);
    let inputs = vec![chance.ints(&[t], -1, 9), chance.floats(dtype, &[9, 21])];
    case(Embed {}.into(), inputs, &[0]);
    let inputs = vec![chance.floats(dtype, &[9, 21]), chance.ints(&[t], -2, 12)];
    case(Gather {}.into(), inputs, &[1]);
    let inputs = vec![chance.ints(&[9, 2], -50, 50), chance.ints(&[t], -1, 9)];
    case(Gather {}.into(), inputs, &[1]);
    for (scoring, groups) in [(Scoring::Sigmoid, 4), (Scoring::Softmax, 1)] {
        let op = Router {
            scoring,
            top_k: 3,
            groups,
            top_groups: groups.min(2),
            normalize: true,
            epsilon: 1e-20,
            scale: 2.5,
        };
        let inputs = vec![chance.f32s(&[t, 16]), chance.f32s(&[16])];
        case(op.into(), inputs, &[0]);
    }
    for weight in chance.weights(&[21, 101]) {
        for out in [LinearOut::Activation, LinearOut::F32] {
            let inputs = vec![chance.floats(dtype, &[t, 101]), weight.clone()];
            case(Linear { out }.into(), inputs, &[0]);
        }
    }
    for weight in chance.weights(&[3 * (11 + 7), 61]) {
        let inputs = vec![chance.floats(dtype, &[t, 3, 11]), weight.clone()];
        case(MlaAbsorb { value: 7 }.into(), inputs, &[0]);
        let inputs = vec![chance.floats(dtype, &[t, 3, 61]), weight];
        case(MlaExpand { value: 7 }.into(), inputs, &[0]);
    }
    let [gates, ups] = [(); 2].map(|()| chance.weights(&[6, 19, 53]));
    let downs = chance.weights(&[6, 53, 19]);
    for ((gate, up), down) in gates.into_iter().zip(ups).zip(downs) {
        let inputs = vec![
            chance.floats(dtype, &[t, 53]),
            chance.ints(&[t, 3], -1, 7),
            chance.f32s(&[t, 3]),
            gate,
            up,
            down,
        ];
        case(Experts {}.into(), inputs, &[0, 1, 2]);
    }
    let [_, _, codes] = chance.weights(&[t, 101]);
    let scales = f32s(&[t, 3], &chance.numbers(&[t, 3]));
    let codes = Input {
        blocks: None,
        ..codes
    };
    let op = DequantizeBlock { block: [1, 48] };
    case(op.into(), vec![codes, scales], &[0, 1]);
    let logits = chance.f32s(&[t, 67]);
    case(Argmax {}.into(), vec![logits.clone()], &[0]);
    let half = |from: f32| {
        let numbers: Vec<f32> = (0..t).map(|row| from + row as f32 / 22.0).collect();
        f32s(&[t], &numbers)
    };
    let top_k = chance.ints(&[t], 0, 40);
    let inputs = vec![logits, half(0.0), top_k, half(0.5), half(-0.3), half(0.0)];
    case(Sample {}.into(), inputs, &[0, 1, 2, 3, 4, 5]);
    cases
}

/// The same call with some of the tokens alone.
fn cut(case: &Case, begin: u64, end: u64) -> Vec<Input> {
    let mut inputs = case.inputs.clone();
    for &position in case.by_token {
        let input = &mut inputs[position];
        let mut extents = input.tensor.shape.extents().to_vec();
        let row = input.bytes.len() / extents[0] as usize;
        input.bytes = input.bytes[begin as usize * row..end as usize * row].to_vec();
        extents[0] = end - begin;
        input.tensor.shape = Shape::new(extents);
    }
    inputs
}

#[test]
fn a_row_is_the_same_bits_alone_in_pieces_and_in_a_batch() {
    let device = device(2);
    for dtype in [Dtype::F32, Dtype::Bf16] {
        for case in cases(dtype) {
            if case.op.name() == "rialto.append/1" {
                continue;
            }
            let whole = run(&*device, dtype, &case.op, &case.inputs);
            for pieces in [1, 3, 8] {
                let mut found = vec![Vec::new(); whole.len()];
                for begin in (0..TOKENS).step_by(pieces) {
                    let inputs = cut(&case, begin, TOKENS.min(begin + pieces as u64));
                    let made = run(&*device, dtype, &case.op, &inputs);
                    for (found, made) in found.iter_mut().zip(made) {
                        found.extend(made);
                    }
                }
                assert!(
                    found == whole,
                    "{} of {dtype}, {pieces} rows at a time",
                    case.op.name()
                );
            }
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let devices = [1, 2, 8].map(device);
    for dtype in [Dtype::F32, Dtype::Bf16] {
        for case in cases(dtype) {
            let [one, two, eight] = devices
                .each_ref()
                .map(|device| run(&**device, dtype, &case.op, &case.inputs));
            assert!(one == two && one == eight, "{} of {dtype}", case.op.name());
        }
    }
}

#[test]
fn a_step_without_tokens_makes_nothing() {
    let device = device(2);
    for case in cases(Dtype::Bf16) {
        let inputs = cut(&case, 0, 0);
        let made = run(&*device, Dtype::Bf16, &case.op, &inputs);
        let is_append = case.op.name() == "rialto.append/1";
        assert!(is_append || made.iter().all(Vec::is_empty));
    }
}
