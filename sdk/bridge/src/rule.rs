//! One rule of a weight map: which tensors make which param, for every value of the indices in scope.
//!
//! Rules speak of *global* tensors and never of ranks: in a torch_dist checkpoint every key is one global tensor, and a
//! mesh decides only how it is cut ([`Placement`](crate::Placement)).

use std::collections::BTreeSet;

use rialto_tensor::Dtype;
use serde::{Deserialize, Serialize};

use crate::Padding;
use crate::limits::MOST_PIECES;

/// A rule of any kind. The kind is the document's `rule` field; an unknown one is refused by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rule {
    /// `rule/map/1`: parts of tensors make a param.
    Map(MapRule),
}

impl Rule {
    /// What a document that holds this rule requires of its reader.
    pub fn requirements(&self) -> impl Iterator<Item = &'static str> {
        let Rule::Map(rule) = self;
        let has_forms = !rule.tensor_forms.is_empty() || !rule.param_forms.is_empty();
        let needs = [
            (true, "rule/map/1"),
            (has_forms, "rule/forms/1"),
            (rule.beside.is_some(), "rule/beside/1"),
            (rule.encoded.is_some(), "rule/encoded/1"),
            (rule.padding.is_some(), "rule/padding/1"),
            (rule.stack.is_some(), "rule/stack/1"),
            (!rule.copies.is_empty(), "rule/copies/1"),
        ];
        needs
            .into_iter()
            .filter_map(|(is_needed, name)| is_needed.then_some(name))
    }
}

impl From<MapRule> for Rule {
    fn from(rule: MapRule) -> Rule {
        Rule::Map(rule)
    }
}

/// Indices and the values they take, outermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scope(Vec<Index>);

/// One index of a scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// Its name in templates, letters only.
    pub name: String,
    /// The values it takes, in order.
    pub values: Vec<u64>,
}

impl Scope {
    /// No index: the rule holds once.
    #[must_use]
    pub fn new() -> Scope {
        Scope::default()
    }

    /// Adds an index inside the ones before it. Of more values than a map may have pieces it keeps one too many, so that the map is
    /// refused and not made: a config may name any number.
    #[must_use]
    pub fn index(mut self, name: &str, values: impl IntoIterator<Item = u64>) -> Scope {
        let values = values.into_iter();
        let kept = values.take(MOST_PIECES as usize + 1);
        self.0.push(Index {
            name: name.to_owned(),
            values: kept.collect(),
        });
        self
    }

    /// The indices, outermost first.
    #[must_use]
    pub fn indices(&self) -> &[Index] {
        &self.0
    }
}

/// Which stored dtypes a rule accepts, and whether a dtype option may change them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DtypeRule {
    /// Accepted dtypes by their safetensors names.
    #[serde(with = "dtype_names")]
    pub accepts: Vec<Dtype>,
    /// Whether the param keeps its stored dtype whatever the user asks for.
    #[serde(default)]
    pub is_pinned: bool,
}

impl DtypeRule {
    /// Any of these, and a cast may be asked for.
    pub fn any_of(accepts: impl Into<Vec<Dtype>>) -> DtypeRule {
        DtypeRule {
            accepts: accepts.into(),
            is_pinned: false,
        }
    }

    /// Exactly this one, never cast.
    #[must_use]
    pub fn pinned(dtype: Dtype) -> DtypeRule {
        DtypeRule {
            accepts: vec![dtype],
            is_pinned: true,
        }
    }
}

/// The object that Megatron demands beside a param: the extra state of the module that holds it.
///
/// It stands with the param rather than in a rule of its own, so that no param can be mapped and its module forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleState {
    /// The module's key: objects are `{key}._extra_state/shard_{offset}_{count}`.
    pub module: String,
    /// What the object holds.
    pub value: StateValue,
    /// The param axis along which there is one object per index (stacked experts, stacked layers); else there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub axis: Option<usize>,
}

impl ModuleState {
    /// One object of a module.
    #[must_use]
    pub fn new(module: &str, value: StateValue) -> ModuleState {
        ModuleState {
            module: module.to_owned(),
            value,
            axis: None,
        }
    }

    /// With an object for each index of an axis of the param.
    #[must_use]
    pub fn along(mut self, axis: usize) -> ModuleState {
        self.axis = Some(axis);
        self
    }
}

/// What an extra-state object holds when nothing is trained in FP8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StateValue {
    /// `[tensor([], dtype=uint8)]`: a Transformer Engine module.
    EmptyTensor,
    /// `[None]`: a module of Megatron-Core itself.
    None,
}

/// Parts of Hugging Face tensors make one Megatron param, for every value of the scope.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapRule {
    /// What a person calls it; violations name it.
    pub name: String,
    /// The part of the model it belongs to (`attention`, `moe`, `mtp`): reports count by it.
    pub group: String,
    /// The indices of the param.
    #[serde(default)]
    pub scope: Scope,
    /// Template of the param's key.
    pub param: String,
    /// Shape of the param in elements.
    pub shape: Vec<u64>,
    /// Dtypes of the tensors, and with them of the param.
    pub dtype: DtypeRule,
    /// The object beside the param, if its module keeps one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<ModuleState>,
    /// The tensors, which together tile the param; where it is padded, all of it but the padding.
    pub parts: Vec<Part>,
    /// Templates of names under which the Hugging Face side may hold the rule's only tensor once more, as some writers do with
    /// a head that is the embedding. What is there must be of the same bits; it is neither carried nor written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<String>,
    /// The index of the scope whose params Megatron stores as one tensor with a leading axis, because the layers that it counts
    /// are alike. The names of param and module then hold it as a part of its own between dots, which the stored ones lack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// Where the param may be longer than its tensors fill. What lies beyond is zeros on import and cut away on export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding: Option<Padding>,
    /// Other spellings of the tensors that checkpoints are found in, such as experts fused into one tensor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tensor_forms: Vec<Form>,
    /// Other spellings of the param, such as the keys of an older Megatron. The parts name keys, each taken whole. That a
    /// stacked param may have a key of its own need not be said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub param_forms: Vec<Form>,
    /// The codec that the published checkpoint stores the tensors with, by its name. It is for plans that have no checkpoint:
    /// where there is one, each tensor's stored dtype decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoded: Option<String>,
    /// Why Megatron has no place for the param; then the tensors may be absent, and if they are there the param is kept in a
    /// file beside Megatron's own, for the way back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<String>,
    /// Why the tensors are left out; then no param is made and the tensors may be absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip: Option<String>,
}

impl MapRule {
    /// A rule with no parts yet, accepting no dtype yet.
    pub fn new(name: &str, group: &str, param: &str, shape: impl Into<Vec<u64>>) -> MapRule {
        MapRule {
            name: name.to_owned(),
            group: group.to_owned(),
            scope: Scope::new(),
            param: param.to_owned(),
            shape: shape.into(),
            dtype: DtypeRule::any_of([]),
            state: None,
            parts: Vec::new(),
            copies: Vec::new(),
            stack: None,
            padding: None,
            tensor_forms: Vec::new(),
            param_forms: Vec::new(),
            encoded: None,
            beside: None,
            skip: None,
        }
    }

    /// Sets the indices of the param.
    #[must_use]
    pub fn over(mut self, scope: Scope) -> MapRule {
        self.scope = scope;
        self
    }

    /// Sets the accepted dtypes.
    #[must_use]
    pub fn dtype(mut self, dtype: DtypeRule) -> MapRule {
        self.dtype = dtype;
        self
    }

    /// Sets the object beside the param.
    #[must_use]
    pub fn state(mut self, state: ModuleState) -> MapRule {
        self.state = Some(state);
        self
    }

    /// Adds a part.
    #[must_use]
    pub fn part(mut self, part: Part) -> MapRule {
        self.parts.push(part);
        self
    }

    /// Adds a name under which the only tensor may be there once more.
    #[must_use]
    pub fn copied_as(mut self, tensor: &str) -> MapRule {
        self.copies.push(tensor.to_owned());
        self
    }

    /// Says that Megatron stores the params of all values of an index as one tensor. The part of the name that is the index counts from
    /// 0 on without a gap: all layers of a model are alike, or none is stacked.
    #[must_use]
    pub fn stacked(mut self, index: &str) -> MapRule {
        self.stack = Some(index.to_owned());
        self
    }

    /// Lets the param be longer on an axis than its tensors fill.
    #[must_use]
    pub fn padded(mut self, axis: usize, multiple: u64) -> MapRule {
        self.padding = Some(Padding { axis, multiple });
        self
    }

    /// Adds another spelling of the tensors.
    #[must_use]
    pub fn tensors_also(mut self, form: Form) -> MapRule {
        self.tensor_forms.push(form);
        self
    }

    /// Adds another spelling of the param.
    #[must_use]
    pub fn params_also(mut self, form: Form) -> MapRule {
        self.param_forms.push(form);
        self
    }

    /// Says which codec the published checkpoint stores the tensors with, if any.
    #[must_use]
    pub fn encoded(mut self, codec: Option<&str>) -> MapRule {
        self.encoded = codec.map(str::to_owned);
        self
    }

    /// Keeps the param beside Megatron's own if its tensors are there at all, and says why.
    #[must_use]
    pub fn kept_beside(mut self, reason: &str) -> MapRule {
        self.beside = Some(reason.to_owned());
        self
    }

    /// Leaves the tensors out, and says why.
    #[must_use]
    pub fn skipped(mut self, reason: Option<&str>) -> MapRule {
        self.skip = reason.map(str::to_owned);
        self
    }
}

/// Another spelling of one side of a rule: other names, fused or split otherwise, the same elements.
///
/// A checkpoint is read in whichever spelling it holds: that of which the larger share of names is there, an earlier one
/// before a later one; the rule's own parts stand before all forms. On Megatron's side the rules agree first on the habits
/// that their forms' names join. What the choice leaves missing or unclaimed is an error as ever, so a mixture of spellings
/// never passes for a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Form {
    /// What a person calls it (`fused`), or several habits that it joins (`gpt+fused-norm`).
    pub name: String,
    /// The tensors or keys, which together tile the param.
    pub parts: Vec<Part>,
}

impl Form {
    /// A spelling of these parts.
    pub fn new(name: &str, parts: impl IntoIterator<Item = Part>) -> Form {
        Form {
            name: name.to_owned(),
            parts: parts.into_iter().collect(),
        }
    }

    /// The habits that its name joins.
    pub(crate) fn habits(&self) -> BTreeSet<&str> {
        self.name.split('+').collect()
    }
}

/// A rectangle of a tensor goes to a rectangle of the param, for every value of its own indices.
///
/// The two rectangles hold the same elements in the same row-major order: their extents are equal once extents of 1 are
/// dropped. There is no transpose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Indices of this part alone, inside the rule's scope (experts, heads, groups).
    #[serde(default)]
    pub scope: Scope,
    /// Template of the tensor's name.
    pub tensor: String,
    /// Shape of the whole tensor.
    pub shape: Vec<u64>,
    /// First index of the rectangle in the tensor, as expressions; zeros if absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<String>,
    /// Extents of the rectangle in the tensor; the whole tensor if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take: Option<Vec<u64>>,
    /// First index of the rectangle in the param, as expressions; zeros if absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<String>,
}

impl Part {
    /// The whole tensor, at the beginning of the param.
    pub fn new(tensor: &str, shape: impl Into<Vec<u64>>) -> Part {
        let scope = Scope::new();
        Part {
            scope,
            tensor: tensor.to_owned(),
            shape: shape.into(),
            from: Vec::new(),
            take: None,
            at: Vec::new(),
        }
    }

    /// Sets the part's own indices.
    #[must_use]
    pub fn over(mut self, scope: Scope) -> Part {
        self.scope = scope;
        self
    }

    /// Sets where in the param the rectangle begins.
    #[must_use]
    pub fn at<const N: usize>(mut self, offsets: [&str; N]) -> Part {
        self.at = offsets.map(str::to_owned).to_vec();
        self
    }

    /// Takes only a rectangle of the tensor.
    #[must_use]
    pub fn slice<const N: usize>(mut self, from: [&str; N], take: [u64; N]) -> Part {
        self.from = from.map(str::to_owned).to_vec();
        self.take = Some(take.to_vec());
        self
    }
}

/// A dtype in a document is its safetensors name.
pub(crate) mod dtype_name {
    use rialto_tensor::Dtype;
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    // serde calls this with a reference.
    #[allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "the signature is serde's"
    )]
    pub(crate) fn serialize<S: Serializer>(
        dtype: &Dtype,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(dtype.safetensors_name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Dtype, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

/// Dtypes in documents are their safetensors names.
pub(crate) mod dtype_names {
    use rialto_tensor::Dtype;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

    pub(crate) fn serialize<S: Serializer>(
        dtypes: &[Dtype],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let names: Vec<&str> = dtypes
            .iter()
            .map(|dtype| dtype.safetensors_name())
            .collect();
        names.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Dtype>, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        names
            .iter()
            .map(|name| name.parse().map_err(D::Error::custom))
            .collect()
    }
}
