//! What is checked of each operation. A check takes a device and says what is wrong, so that it runs on devices and on spoiled ones.

use rialto_backend::Backend;
use rialto_tensor::Dtype;

use crate::harness::{Case, Verdict};
use crate::input::Input;

/// Element types of activations.
const ACTIVATIONS: [Dtype; 2] = [Dtype::F32, Dtype::Bf16];

/// Defines `check`, which runs all of these, and a test of each.
macro_rules! checks {
    ($($name:ident),+ $(,)?) => {
        /// All that is checked here.
        pub(crate) fn check(backend: &dyn rialto_backend::Backend) -> crate::harness::Verdict {
            $($name(backend)?;)+
            Ok(())
        }

        mod tests {
            $(#[test]
            fn $name() {
                crate::devices::each(super::$name);
            })+
        }
    };
}

pub(crate) mod append;
pub(crate) mod copies;
pub(crate) mod experts;
pub(crate) mod gqa;
pub(crate) mod indexer;
pub(crate) mod linear;
pub(crate) mod mla;
pub(crate) mod norm;
pub(crate) mod plain;
pub(crate) mod quant;
pub(crate) mod rope;
pub(crate) mod router;
pub(crate) mod sample;
pub(crate) mod sparse_mla;
pub(crate) mod topk;

/// A check of a device.
pub(crate) type Check = fn(&dyn Backend) -> Verdict;

/// The check of each operation.
pub(crate) const ALL: &[(&str, Check)] = &[
    ("rialto.embed/1", copies::embed::check),
    ("rialto.rms_norm/1", norm::rms::check),
    ("rialto.layer_norm/1", norm::layer::check),
    ("rialto.linear/1", linear::check),
    ("rialto.rope/1", rope::check),
    ("rialto.append/1", append::check),
    ("rialto.indexer_scores/1", indexer::check),
    ("rialto.topk/1", topk::check),
    ("rialto.mla_absorb/1", mla::absorb::check),
    ("rialto.sparse_mla/1", sparse_mla::check),
    ("rialto.mla_expand/1", mla::expand::check),
    ("rialto.gqa/1", gqa::check),
    ("rialto.router/1", router::check),
    ("rialto.experts/1", experts::check),
    ("rialto.swiglu/1", plain::swiglu::check),
    ("rialto.unary/1", plain::unary::check),
    ("rialto.binary/1", plain::binary::check),
    ("rialto.scale/1", plain::scale::check),
    ("rialto.softmax/1", plain::softmax::check),
    ("rialto.reduce/1", plain::reduce::check),
    ("rialto.gather/1", copies::gather::check),
    ("rialto.concat/1", copies::concat::check),
    ("rialto.slice/1", copies::slice::check),
    ("rialto.reshape/1", copies::reshape::check),
    ("rialto.cast/1", copies::cast::check),
    ("rialto.quantize_block/1", quant::quantize::check),
    ("rialto.dequantize_block/1", quant::dequantize::check),
    ("rialto.argmax/1", sample::argmax::check),
    ("rialto.sample/1", sample::draw::check),
];

/// Against the oracle, and each row alone.
fn both(case: &Case, backend: &dyn Backend) -> Verdict {
    case.check(backend)?;
    case.rows_alone(backend)
}

/// F32 of a shape.
fn f32s(shape: &[u64], values: &[f64]) -> Input {
    Input::floats(Dtype::F32, shape, values)
}

#[test]
fn every_operation_is_checked() {
    let names: Vec<&str> = ALL.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, rialto_program::Op::NAMES);
}
