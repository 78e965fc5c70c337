//! A program: params, caches, and phases of calls.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Element, Error, Op, ValueType};

/// Where the elements of a param come from: tensors of the checkpoint, or params of Megatron's, by name. Either side's
/// names serve for either form of a checkpoint: the weight map joins them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Stored {
    /// One tensor of the param's shape.
    Whole(String),
    /// A tensor for each index of the leading axis, whose number stands where the name has `{}`.
    Each(String),
}

/// A param of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParamDecl {
    /// The name that calls use.
    pub name: String,
    /// Its extents, outermost first.
    pub shape: Vec<u64>,
    /// [`Element::Activation`]: rounded to BF16 if the model runs in BF16, and otherwise kept as it is stored.
    /// [`Element::F32`]: never rounded.
    pub element: Element,
    /// Where it comes from.
    pub stored: Stored,
}

impl ParamDecl {
    /// Names of what it comes from, in order.
    #[must_use]
    pub fn sources(&self) -> Vec<String> {
        match &self.stored {
            Stored::Whole(name) => vec![name.clone()],
            Stored::Each(name) => {
                let count = self.shape.first().copied().unwrap_or_default();
                (0..count)
                    .map(|index| name.replacen("{}", &index.to_string(), 1))
                    .collect()
            }
        }
    }
}

/// What is kept of each position of a sequence: one row of `width` activations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheDecl {
    /// The name that calls use.
    pub name: String,
    /// Elements of a row.
    pub width: u64,
}

/// A value that a phase is given besides those of every step, such as another phase's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueDecl {
    /// The name that calls use.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub value: ValueType,
    /// The output of a phase that it is, of the same tokens or of those of a step before. Whoever runs the phases hands it on; without
    /// it, the value comes from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<Carried>,
}

/// An output of a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Carried {
    /// Name of the phase.
    pub phase: String,
    /// Name of its output.
    pub value: String,
}

/// One call of an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The operation, with its namespace and version: `rialto.linear/1`. One that a reader does not know is
    /// [`Error::UnknownOp`] when the program is checked, and no fault of the document.
    pub op: String,
    /// Its attributes.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub with: Map<String, Value>,
    /// Names of params, caches and values, in the order of its signature.
    #[serde(rename = "in")]
    pub inputs: Vec<String>,
    /// Names of the values it makes, each of them new.
    #[serde(default, rename = "out", skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
}

impl Call {
    /// The operation with its attributes. Errors: [`Error::UnknownOp`], [`Error::Attributes`].
    pub fn operation(&self) -> Result<Op, Error> {
        Op::parse(&self.op, &self.with)
    }
}

/// A list of calls that is run as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Its name: `forward` is the model, for prompts and single tokens alike; `mtp` is its multi-token prediction.
    pub name: String,
    /// Values it is given besides those of every step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<ValueDecl>,
    /// The calls, in order.
    pub calls: Vec<Call>,
    /// Values that it leaves.
    pub outputs: Vec<String>,
    /// The residual stream: the embeddings, what each layer leaves of them, and last what the head reads. Two models are
    /// compared along it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stream: Vec<String>,
}

/// A forward pass: what a family's plugin makes of a model, and what a runtime runs. It is one of a single device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// The params.
    pub params: Vec<ParamDecl>,
    /// The caches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<CacheDecl>,
    /// The phases.
    pub phases: Vec<Phase>,
    /// Token ids that end a text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop_tokens: Vec<u32>,
    /// Names of codecs whose value is `bf16(f32(code) * scale)` with one F32 scale for each block: a tensor that is stored in one
    /// may be kept as it is, since that is what operations make of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub block_codecs: Vec<String>,
}

impl Program {
    /// A phase by its name.
    #[must_use]
    pub fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    /// A phase by its name. Errors: [`Error::Absent`].
    pub fn require(&self, name: &str) -> Result<&Phase, Error> {
        self.phase(name).ok_or_else(|| Error::Absent {
            what: "phase",
            name: name.to_owned(),
            known: self.phases.iter().map(|phase| phase.name.clone()).collect(),
        })
    }

    /// Rows of the table that the tokens of a step are looked up in: token ids are below. `None` if no phase looks them up.
    #[must_use]
    pub fn vocabulary(&self) -> Option<u64> {
        let calls = self.phases.iter().flat_map(|phase| &phase.calls);
        let tables = calls.filter_map(|call| match call.inputs.as_slice() {
            [ids, table] if call.op == "rialto.embed/1" && ids == crate::step::TOKENS => {
                Some(table)
            }
            _ => None,
        });
        let rows = tables.filter_map(|table| {
            let param = self.params.iter().find(|param| param.name == *table)?;
            param.shape.first().copied()
        });
        rows.min()
    }

    /// The same with these phases alone, and the params and caches that they name. What they are given of others comes from outside.
    /// Errors: [`Error::Absent`].
    pub fn only(mut self, phases: &[&str]) -> Result<Program, Error> {
        for name in phases {
            self.require(name)?;
        }
        self.phases
            .retain(|phase| phases.contains(&phase.name.as_str()));
        let calls = self.phases.iter().flat_map(|phase| &phase.calls);
        let named: std::collections::HashSet<&String> =
            calls.flat_map(|call| &call.inputs).collect();
        let is_named = |name: &String| named.contains(name);
        let (params, caches) = (
            std::mem::take(&mut self.params),
            std::mem::take(&mut self.caches),
        );
        let params = params
            .into_iter()
            .filter(|param| is_named(&param.name))
            .collect();
        let caches = caches
            .into_iter()
            .filter(|cache| is_named(&cache.name))
            .collect();
        (self.params, self.caches) = (params, caches);
        for input in self.phases.iter_mut().flat_map(|phase| &mut phase.inputs) {
            if let Some(carried) = &input.carried
                && !phases.contains(&carried.phase.as_str())
            {
                input.carried = None;
            }
        }
        Ok(self)
    }

    /// What a reader must know to run it: `op/NAME` for each operation called, in order of name.
    #[must_use]
    pub fn requirements(&self) -> Vec<String> {
        let calls = self.phases.iter().flat_map(|phase| &phase.calls);
        let ops: std::collections::BTreeSet<String> =
            calls.map(|call| format!("op/{}", call.op)).collect();
        ops.into_iter().collect()
    }
}
