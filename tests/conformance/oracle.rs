//! Every operation in F64, from the text of its contract. It is not fast and shares nothing with any backend.

mod attention;
mod copies;
mod linear;
mod moe;
mod norm;
mod plain;
mod quant;
mod sample;

use rialto_backend::TensorType;
use rialto_program::Op;

use crate::input::Input;
use crate::numbers::Span;

/// What an output has to be.
#[derive(Clone, Debug)]
pub(crate) enum Expected {
    /// Floats, each within a span.
    Spans(Vec<Span>),
    /// I32.
    Ints(Vec<i32>),
    /// E4M3; any NaN for a NaN.
    Codes(Vec<u8>),
    /// These bytes: what is a copy.
    Bytes(Vec<u8>),
}

impl Expected {
    /// These numbers and no others.
    #[must_use]
    pub(crate) fn exactly(values: &[f64]) -> Expected {
        Expected::Spans(values.iter().copied().map(Span::exact).collect())
    }

    /// Whether nothing is asked of an element.
    #[must_use]
    pub(crate) fn is_any(&self, element: usize) -> bool {
        match self {
            Expected::Spans(spans) => spans[element].is_any(),
            _ => false,
        }
    }
}

/// What a call has to make of its inputs.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The outputs.
    pub(crate) outputs: Vec<Expected>,
    /// An input that is written, with its bytes after it.
    pub(crate) written: Option<(usize, Vec<u8>)>,
    /// Why the answer is not the only right one: two numbers are nearer than F32 tells apart, and something is chosen by them.
    pub(crate) doubt: Option<String>,
}

impl From<Expected> for Answer {
    fn from(output: Expected) -> Answer {
        Answer {
            outputs: vec![output],
            written: None,
            doubt: None,
        }
    }
}

impl From<Vec<Span>> for Answer {
    fn from(output: Vec<Span>) -> Answer {
        Expected::Spans(output).into()
    }
}

/// The answer to a call.
pub(crate) fn answer(op: &Op, inputs: &[Input], outputs: &[TensorType]) -> Answer {
    let out = outputs.first().map(|tensor| tensor.dtype);
    // Append alone has no output, and does not ask for its type.
    let dtype = out.unwrap_or(rialto_tensor::Dtype::F32);
    match op {
        Op::Embed(_) => copies::embed(inputs, dtype).into(),
        Op::RmsNorm(op) => norm::rms_norm(op, inputs).into(),
        Op::LayerNorm(op) => norm::layer_norm(op, inputs).into(),
        Op::Linear(_) => linear::linear(inputs, dtype).into(),
        Op::Rope(op) => plain::rope(op, inputs).into(),
        Op::Append(_) => Answer {
            outputs: Vec::new(),
            written: Some((1, copies::append(inputs))),
            doubt: None,
        },
        Op::IndexerScores(op) => attention::indexer_scores(op, inputs).into(),
        Op::TopK(op) => Expected::Ints(sample::topk(op, inputs)).into(),
        Op::MlaAbsorb(op) => linear::absorb(op, inputs).into(),
        Op::SparseMla(op) => attention::sparse_mla(op, inputs).into(),
        Op::MlaExpand(op) => linear::expand(op, inputs).into(),
        Op::Gqa(op) => attention::gqa(op, inputs).into(),
        Op::Router(op) => moe::router(op, inputs),
        Op::Experts(_) => moe::experts(inputs).into(),
        Op::SwiGlu(_) => plain::swiglu(inputs).into(),
        Op::Unary(op) => plain::unary(op, inputs).into(),
        Op::Binary(op) => plain::binary(op, inputs).into(),
        Op::Scale(op) => plain::scale(op, inputs).into(),
        Op::Softmax(_) => plain::softmax(inputs).into(),
        Op::Reduce(op) => plain::reduce(op, inputs).into(),
        Op::Gather(_) => copies::gather(inputs).into(),
        Op::Concat(_) => copies::concat(inputs).into(),
        Op::Slice(op) => copies::slice(op, inputs).into(),
        Op::Reshape(_) => Expected::Bytes(inputs[0].bytes.clone()).into(),
        Op::Cast(_) => plain::cast(inputs, dtype).into(),
        Op::QuantizeBlock(op) => quant::quantize(op, inputs),
        Op::DequantizeBlock(op) => quant::dequantize(op, inputs).into(),
        Op::Argmax(_) => Expected::Ints(sample::argmax(inputs)).into(),
        Op::Sample(_) => sample::sample(inputs),
        other => panic!("there is no oracle of {}", other.name()),
    }
}

/// Which inputs have a row for each row of the outputs; none if rows are not separate.
#[must_use]
pub(crate) fn by_row(op: &Op, inputs: &[Input]) -> Vec<usize> {
    let positions: &[usize] = match op {
        Op::Embed(_)
        | Op::RmsNorm(_)
        | Op::LayerNorm(_)
        | Op::Linear(_)
        | Op::TopK(_)
        | Op::MlaAbsorb(_)
        | Op::MlaExpand(_)
        | Op::Router(_)
        | Op::Unary(_)
        | Op::Scale(_)
        | Op::Slice(_)
        | Op::Reshape(_)
        | Op::Cast(_)
        | Op::Argmax(_) => &[0],
        Op::Softmax(_) | Op::Reduce(_) if inputs[0].shape().len() > 1 => &[0],
        Op::Rope(_) | Op::SwiGlu(_) | Op::Concat(_) => &[0, 1],
        Op::Binary(_) if inputs[0].shape() == inputs[1].shape() => &[0, 1],
        Op::Binary(_) => &[0],
        Op::IndexerScores(_) => &[0, 1, 3, 4],
        Op::SparseMla(_) => &[0, 1, 2, 4, 5],
        Op::Gqa(_) => &[0, 3, 4],
        Op::Experts(_) => &[0, 1, 2],
        Op::Gather(_) => &[1],
        Op::QuantizeBlock(op) if op.block[0] == 1 => &[0],
        Op::DequantizeBlock(op) if op.block[0] == 1 => &[0, 1],
        Op::Sample(_) => &[0, 1, 2, 3, 4, 5],
        _ => &[],
    };
    positions.to_vec()
}
