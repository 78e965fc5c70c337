//! Operations: names, attributes, shapes and numerics. They are data and touch no buffer; a backend implements them.
//!
//! Each operation is a struct of its attributes, whose page says shapes, numerics, determinism, what a backward pass would need
//! (none is promised), and the source. What holds for all of them:
//!
//! * **Arithmetic is in F32** whatever the elements are, and a result is rounded once, to the element type of the output:
//!   to nearest, ties to even. Where an operation rounds in between, its page says so.
//! * **A row does not see its neighbors**: the result for a token is the same bits whatever other tokens the step has, if the
//!   backend's capabilities say so. The order of additions is the backend's; the CPU's is fixed.
//! * **Padding**: a token whose sequence is -1 reads and writes no cache, and its results mean nothing. An index of -1 selects
//!   nothing.
//! * **Weights** may be F32, BF16, or E4M3 codes with an F32 scale for each block; a code's value is `bf16(f32(code) * scale)`
//!   also where it is decoded on the fly: a scale on the accumulator is another model, and would be an operation of another
//!   name.
//!
//! Names are open: `NAMESPACE.NAME/VERSION`. A meaning never changes under a name.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{Error, ValueType};

mod cache;
mod embed;
mod gqa;
mod indexer;
mod linear;
mod mla;
mod moe;
mod norm;
mod plain;
mod quant;
mod rope;
mod sample;
mod shapes;

pub use cache::Append;
pub use embed::Embed;
pub use gqa::Gqa;
pub use indexer::{IndexerScores, TopK};
pub use linear::{Linear, LinearOut};
pub use mla::{MlaAbsorb, MlaExpand, SparseMla};
pub use moe::{Experts, Router, Scoring, SwiGlu};
pub use norm::{LayerNorm, RmsNorm};
pub use plain::{
    Binary, BinaryFunction, Cast, Concat, Gather, Reduce, ReduceFunction, Reshape, Scale, Slice,
    Softmax, Unary, UnaryFunction,
};
pub use quant::{DequantizeBlock, QuantizeBlock};
pub use rope::{Pairing, Rope};
pub use sample::{Argmax, Sample};

/// What an operation takes and makes, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Its inputs, in order.
    pub inputs: &'static [&'static str],
    /// How many of the last inputs may be left out.
    pub optional: usize,
    /// Its outputs, in order.
    pub outputs: &'static [&'static str],
    /// Which inputs and outputs a backward pass would need.
    pub saved: &'static [&'static str],
}

impl Signature {
    /// The input of this name, as its position.
    #[must_use]
    pub fn input(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|&input| input == name)
    }
}

/// What every operation says of itself.
trait Contract: Serialize + DeserializeOwned {
    /// What it takes and makes.
    const SIGNATURE: Signature;

    /// What is wrong with the attributes, whatever the inputs.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Types of the outputs. Called with as many inputs as the signature allows.
    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String>;
}

macro_rules! ops {
    ($($variant:ident $name:literal;)*) => {
        /// An operation with its attributes.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Op {
            $(#[doc = concat!("`", $name, "`; see [`", stringify!($variant), "`](struct@", stringify!($variant), ").")]
            $variant($variant),)*
        }

        impl Op {
            /// Every name this version knows.
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            /// Its name.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Op::$variant(_) => $name,)* }
            }

            /// What it takes and makes.
            #[must_use]
            pub fn signature(&self) -> Signature {
                match self { $(Op::$variant(_) => <$variant as Contract>::SIGNATURE,)* }
            }

            /// What the operation of a name takes and makes.
            #[must_use]
            pub fn signature_of(name: &str) -> Option<Signature> {
                match name { $($name => Some(<$variant as Contract>::SIGNATURE),)* _ => None }
            }

            /// The operation of a name, with its attributes. Errors: [`Error::UnknownOp`]; [`Error::Attributes`] for some that
            /// are missing, not its own, or out of range.
            pub fn parse(name: &str, with: &Map<String, Value>) -> Result<Op, Error> {
                match name {
                    $($name => attributes::<$variant>(name, with).map(Op::$variant),)*
                    _ => Err(Error::UnknownOp { op: name.to_owned() }),
                }
            }

            /// Its attributes, as a call has them.
            #[must_use]
            pub fn attributes(&self) -> Map<String, Value> {
                match self { $(Op::$variant(op) => written(op),)* }
            }

            fn infer_checked(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
                match self { $(Op::$variant(op) => op.check().and_then(|()| op.infer(inputs)),)* }
            }
        }

        $(impl From<$variant> for Op {
            fn from(op: $variant) -> Op {
                Op::$variant(op)
            }
        })*
    };
}

ops! {
    Embed "rialto.embed/1";
    RmsNorm "rialto.rms_norm/1";
    LayerNorm "rialto.layer_norm/1";
    Linear "rialto.linear/1";
    Rope "rialto.rope/1";
    Append "rialto.append/1";
    IndexerScores "rialto.indexer_scores/1";
    TopK "rialto.topk/1";
    MlaAbsorb "rialto.mla_absorb/1";
    SparseMla "rialto.sparse_mla/1";
    MlaExpand "rialto.mla_expand/1";
    Gqa "rialto.gqa/1";
    Router "rialto.router/1";
    Experts "rialto.experts/1";
    SwiGlu "rialto.swiglu/1";
    Unary "rialto.unary/1";
    Binary "rialto.binary/1";
    Scale "rialto.scale/1";
    Softmax "rialto.softmax/1";
    Reduce "rialto.reduce/1";
    Gather "rialto.gather/1";
    Concat "rialto.concat/1";
    Slice "rialto.slice/1";
    Reshape "rialto.reshape/1";
    Cast "rialto.cast/1";
    QuantizeBlock "rialto.quantize_block/1";
    DequantizeBlock "rialto.dequantize_block/1";
    Argmax "rialto.argmax/1";
    Sample "rialto.sample/1";
}

impl Op {
    /// Types of the outputs for inputs of these types. Errors: [`Error::Operands`] for inputs that it does not take,
    /// [`Error::Attributes`] if attributes contradict them.
    pub fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, Error> {
        let refused = |reason| Error::Operands {
            op: self.name().to_owned(),
            reason,
        };
        let signature = self.signature();
        let most = signature.inputs.len();
        let least = most - signature.optional;
        if !(least..=most).contains(&inputs.len()) {
            let expected = match least == most {
                true => format!("{most}"),
                false => format!("{least} to {most}"),
            };
            let found = inputs.len();
            return Err(refused(format!(
                "{expected} inputs expected, {found} found"
            )));
        }
        self.infer_checked(inputs).map_err(refused)
    }
}

/// Attributes that are an operation's own.
fn attributes<T: Contract>(name: &str, with: &Map<String, Value>) -> Result<T, Error> {
    let refused = |reason| Error::Attributes {
        op: name.to_owned(),
        reason,
    };
    let op = T::deserialize(Value::Object(with.clone()));
    let op = op.map_err(|error| refused(error.to_string()))?;
    op.check().map_err(refused)?;
    Ok(op)
}

fn written<T: Contract>(op: &T) -> Map<String, Value> {
    match serde_json::to_value(op) {
        Ok(Value::Object(with)) => with,
        // Attributes are structs of numbers and names: they have a form, and it is an object.
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests;
