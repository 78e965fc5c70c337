//! How an author writes a program: params and caches as they come up, calls in the order of the forward pass.
//!
//! Handles keep the three kinds of names apart. A call is written down as it is given; what does not fit is found by
//! [`Builder::finish`], all of it at once.

use crate::op::{
    Append, Argmax, Binary, BinaryFunction, Cast, Concat, Embed, Experts, Gather, Gqa,
    IndexerScores, LayerNorm, Linear, LinearOut, MlaAbsorb, MlaExpand, Op, Reshape, RmsNorm, Rope,
    Router, Scale, Slice, SparseMla, SwiGlu, TopK,
};
use crate::{
    CacheDecl, Call, Carried, Element, Error, ParamDecl, Phase, Program, Stored, ValueDecl,
    ValueType, step,
};

macro_rules! handles {
    ($($(#[$doc:meta])* $handle:ident;)*) => {
        $($(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct $handle(String);

        impl $handle {
            /// The name.
            #[must_use]
            pub fn name(&self) -> &str {
                &self.0
            }
        })*
    };
}

handles! {
    /// A param of the program.
    Param;
    /// A cache of the program.
    Cache;
    /// A value of a phase.
    Value;
}

impl Value {
    /// A value that every step brings, by its name in [`step`].
    #[must_use]
    pub fn step(name: &'static str) -> Value {
        Value(name.to_owned())
    }
}

/// A program that is being written.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    program: Program,
}

impl Builder {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Builder {
        Builder::default()
    }

    /// A param of activations that is one tensor, whose name it takes. The same again is the same.
    pub fn param(&mut self, tensor: &str, shape: impl Into<Vec<u64>>) -> Param {
        self.declare(ParamDecl {
            name: tensor.to_owned(),
            shape: shape.into(),
            element: Element::Activation,
            stored: Stored::Whole(tensor.to_owned()),
        })
    }

    /// A param that is never rounded.
    pub fn param_f32(&mut self, tensor: &str, shape: impl Into<Vec<u64>>) -> Param {
        self.declare(ParamDecl {
            name: tensor.to_owned(),
            shape: shape.into(),
            element: Element::F32,
            stored: Stored::Whole(tensor.to_owned()),
        })
    }

    /// A param whose leading axis goes over tensors: `{}` in their name is the number.
    pub fn stack(&mut self, tensors: &str, shape: impl Into<Vec<u64>>) -> Param {
        self.declare(ParamDecl {
            name: tensors.to_owned(),
            shape: shape.into(),
            element: Element::Activation,
            stored: Stored::Each(tensors.to_owned()),
        })
    }

    /// A param as it is declared. The same again is the same; another of the name is found by [`Builder::finish`].
    pub fn declare(&mut self, param: ParamDecl) -> Param {
        let handle = Param(param.name.clone());
        // A program has some thousand params, and names them layer by layer: the last ones first.
        if !self
            .program
            .params
            .iter()
            .rev()
            .any(|known| *known == param)
        {
            self.program.params.push(param);
        }
        handle
    }

    /// A cache whose rows have so many elements.
    pub fn cache(&mut self, name: &str, width: u64) -> Cache {
        self.program.caches.push(CacheDecl {
            name: name.to_owned(),
            width,
        });
        Cache(name.to_owned())
    }

    /// Token ids that end a text.
    pub fn stop_tokens(&mut self, tokens: impl Into<Vec<u32>>) {
        self.program.stop_tokens = tokens.into();
    }

    /// A codec whose value is `bf16(f32(code) * scale)`.
    pub fn block_codec(&mut self, name: &str) {
        self.program.block_codecs.push(name.to_owned());
    }

    /// Begins a phase.
    pub fn phase(&mut self, name: &str) -> PhaseBuilder<'_> {
        self.program.phases.push(Phase {
            name: name.to_owned(),
            inputs: Vec::new(),
            calls: Vec::new(),
            outputs: Vec::new(),
            stream: Vec::new(),
        });
        PhaseBuilder { builder: self }
    }

    /// The program, if it is sound. Errors: those of [`Program::check`].
    pub fn finish(self) -> Result<Program, Error> {
        self.program.check()?;
        Ok(self.program)
    }

    /// The program as it is, for whoever sends it to somebody who checks it.
    #[must_use]
    pub fn finish_unchecked(self) -> Program {
        self.program
    }
}

/// A phase that is being written. Names of values are new each time.
#[derive(Debug)]
pub struct PhaseBuilder<'a> {
    builder: &'a mut Builder,
}

impl PhaseBuilder<'_> {
    /// The program, for params and caches.
    pub fn program(&mut self) -> &mut Builder {
        self.builder
    }

    fn phase(&mut self) -> &mut Phase {
        let phase = self.builder.program.phases.last_mut();
        phase.expect("a phase builder is made with its phase")
    }

    /// A value that the phase is given from outside.
    pub fn input(&mut self, name: &str, value: ValueType) -> Value {
        self.given(name, value, None)
    }

    /// A value that is the output of a phase: this one, at a step before, or another.
    pub fn carried(
        &mut self,
        name: &str,
        value: ValueType,
        (phase, output): (&str, &str),
    ) -> Value {
        let carried = Carried {
            phase: phase.to_owned(),
            value: output.to_owned(),
        };
        self.given(name, value, Some(carried))
    }

    fn given(&mut self, name: &str, value: ValueType, carried: Option<Carried>) -> Value {
        self.phase().inputs.push(ValueDecl {
            name: name.to_owned(),
            value,
            carried,
        });
        Value(name.to_owned())
    }

    /// Leaves a value.
    pub fn output(&mut self, value: &Value) {
        self.phase().outputs.push(value.0.clone());
    }

    /// Puts a value onto the residual stream, along which models are compared.
    pub fn stream(&mut self, value: &Value) {
        self.phase().stream.push(value.0.clone());
    }

    /// Any call.
    pub fn call(&mut self, op: impl Into<Op>, inputs: &[&str], outputs: &[&str]) -> Vec<Value> {
        let op = op.into();
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        self.phase().calls.push(Call {
            op: op.name().to_owned(),
            with: op.attributes(),
            inputs: owned(inputs),
            outputs: owned(outputs),
        });
        outputs.iter().map(|&name| Value(name.to_owned())).collect()
    }

    fn make(&mut self, op: impl Into<Op>, inputs: &[&str], name: &str) -> Value {
        self.call(op, inputs, &[name]);
        Value(name.to_owned())
    }

    /// Rows of the embedding for the tokens of the step; see [`Embed`].
    pub fn embed(&mut self, name: &str, table: &Param) -> Value {
        self.make(Embed {}, &[step::TOKENS, &table.0], name)
    }

    /// See [`RmsNorm`].
    pub fn rms_norm(&mut self, name: &str, x: &Value, weight: &Param, eps: f64) -> Value {
        self.make(RmsNorm { eps }, &[&x.0, &weight.0], name)
    }

    /// See [`LayerNorm`].
    pub fn layer_norm(
        &mut self,
        name: &str,
        x: &Value,
        (weight, bias): (&Param, &Param),
        eps: f64,
    ) -> Value {
        self.make(LayerNorm { eps }, &[&x.0, &weight.0, &bias.0], name)
    }

    /// See [`Linear`].
    pub fn linear(&mut self, name: &str, x: &Value, weight: &Param) -> Value {
        self.make(Linear::default(), &[&x.0, &weight.0], name)
    }

    /// [`Linear`] whose result is F32.
    pub fn linear_f32(&mut self, name: &str, x: &Value, weight: &Param) -> Value {
        let out = LinearOut::F32;
        self.make(Linear { out }, &[&x.0, &weight.0], name)
    }

    /// Rotates by the positions of the step; see [`Rope`].
    pub fn rope(&mut self, name: &str, x: &Value, rope: Rope) -> Value {
        self.make(rope, &[&x.0, step::ROW_POS], name)
    }

    /// Writes rows of a cache; see [`Append`].
    pub fn append(&mut self, rows: &Value, cache: &Cache) {
        let inputs = [
            &rows.0,
            &cache.0,
            step::ROW_SEQ,
            step::ROW_POS,
            step::PAGE_TABLE,
        ];
        self.call(Append {}, &inputs, &[]);
    }

    /// See [`IndexerScores`].
    pub fn indexer_scores(
        &mut self,
        name: &str,
        (q, weights): (&Value, &Value),
        keys: &Cache,
        op: IndexerScores,
    ) -> Value {
        let inputs = [
            &q.0,
            &weights.0,
            &keys.0,
            step::ROW_SEQ,
            step::ROW_POS,
            step::PAGE_TABLE,
        ];
        self.make(op, &inputs, name)
    }

    /// See [`TopK`].
    pub fn topk(&mut self, name: &str, scores: &Value, k: u64) -> Value {
        self.make(TopK { k }, &[&scores.0], name)
    }

    /// See [`MlaAbsorb`].
    pub fn mla_absorb(&mut self, name: &str, q: &Value, kv_b: &Param, value: u64) -> Value {
        self.make(MlaAbsorb { value }, &[&q.0, &kv_b.0], name)
    }

    /// See [`SparseMla`].
    pub fn sparse_mla(
        &mut self,
        name: &str,
        (q, q_rope): (&Value, &Value),
        indices: &Value,
        cache: &Cache,
        scale: f64,
    ) -> Value {
        let inputs = [
            &q.0,
            &q_rope.0,
            &indices.0,
            &cache.0,
            step::ROW_SEQ,
            step::ROW_POS,
            step::PAGE_TABLE,
        ];
        self.make(SparseMla { scale }, &inputs, name)
    }

    /// See [`MlaExpand`].
    pub fn mla_expand(&mut self, name: &str, x: &Value, kv_b: &Param, value: u64) -> Value {
        self.make(MlaExpand { value }, &[&x.0, &kv_b.0], name)
    }

    /// See [`Gqa`].
    pub fn gqa(
        &mut self,
        name: &str,
        q: &Value,
        (keys, values): (&Cache, &Cache),
        op: Gqa,
    ) -> Value {
        let inputs = [
            &q.0,
            &keys.0,
            &values.0,
            step::ROW_SEQ,
            step::ROW_POS,
            step::PAGE_TABLE,
        ];
        self.make(op, &inputs, name)
    }

    /// Ids and weights of experts, called `NAME.ids` and `NAME.weights`; see [`Router`].
    pub fn router(
        &mut self,
        name: &str,
        logits: &Value,
        bias: Option<&Param>,
        op: Router,
    ) -> (Value, Value) {
        let mut inputs = vec![logits.0.as_str()];
        inputs.extend(bias.map(Param::name));
        let (ids, weights) = (format!("{name}.ids"), format!("{name}.weights"));
        self.call(op, &inputs, &[&ids, &weights]);
        (Value(ids), Value(weights))
    }

    /// See [`Experts`]; the params are gate, up and down.
    pub fn experts(
        &mut self,
        name: &str,
        x: &Value,
        (ids, weights): (&Value, &Value),
        [gate, up, down]: [&Param; 3],
    ) -> Value {
        let inputs = [&x.0, &ids.0, &weights.0, &gate.0, &up.0, &down.0].map(String::as_str);
        self.make(Experts {}, &inputs, name)
    }

    /// See [`SwiGlu`].
    pub fn swiglu(&mut self, name: &str, gate: &Value, up: &Value) -> Value {
        self.make(SwiGlu {}, &[&gate.0, &up.0], name)
    }

    /// A sum; see [`Binary`].
    pub fn add(&mut self, name: &str, x: &Value, y: &Value) -> Value {
        let function = BinaryFunction::Add;
        self.make(Binary { function }, &[&x.0, &y.0], name)
    }

    /// See [`Scale`].
    pub fn scale(&mut self, name: &str, x: &Value, factor: f64) -> Value {
        self.make(Scale { factor }, &[&x.0], name)
    }

    /// See [`Concat`].
    pub fn concat(&mut self, name: &str, x: &Value, y: &Value) -> Value {
        self.make(Concat {}, &[&x.0, &y.0], name)
    }

    /// See [`Slice`].
    pub fn slice(&mut self, name: &str, x: &Value, start: u64, length: u64) -> Value {
        self.make(Slice { start, length }, &[&x.0], name)
    }

    /// See [`Reshape`].
    pub fn reshape(&mut self, name: &str, x: &Value, shape: impl Into<Vec<u64>>) -> Value {
        let shape = shape.into();
        self.make(Reshape { shape }, &[&x.0], name)
    }

    /// Rows by the value of an index list, such as [`step::ROWS`]; see [`Gather`].
    pub fn gather(&mut self, name: &str, x: &Value, indices: &str) -> Value {
        self.make(Gather {}, &[&x.0, indices], name)
    }

    /// See [`Cast`].
    pub fn cast(&mut self, name: &str, x: &Value, to: LinearOut) -> Value {
        self.make(Cast { to }, &[&x.0], name)
    }

    /// See [`Argmax`].
    pub fn argmax(&mut self, name: &str, logits: &Value) -> Value {
        self.make(Argmax {}, &[&logits.0], name)
    }
}
