//! What a plan will do, as data: printed by `plan`, compared by tests, stored in reports.

use std::collections::BTreeMap;

use rialto_bridge::{Mapping, Mesh, ModelSpec, ParamDecl};
use rialto_tensor::{Dtype, Shape};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::stages::StageShare;
use crate::total::add;
use crate::{ChunkChoice, DtypeChoice, Error};

/// Which way a conversion goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Hugging Face to Megatron.
    Import,
    /// Megatron to Hugging Face.
    Export,
}

impl Direction {
    /// What doing it is called.
    #[must_use]
    pub fn verb(self) -> &'static str {
        match self {
            Direction::Import => "import",
            Direction::Export => "export",
        }
    }
}

/// One side of a conversion in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Side {
    /// Tensors (Hugging Face) or params (Megatron) that are mapped.
    pub tensors: u64,
    /// Their elements.
    pub elements: u64,
    /// Their bytes as stored, with those of the companions of encoded tensors: what is read or written of weights.
    pub bytes: u64,
    /// Objects beside them; only Megatron has any.
    pub objects: u64,
    /// Files that hold them.
    pub files: u64,
}

impl Side {
    /// Counts a tensor or param. Errors: [`Error::TooLarge`].
    pub(crate) fn count(&mut self, shape: &Shape, dtype: Dtype) -> Result<(), Error> {
        self.tensors += 1;
        add(&mut self.elements, shape.elements()?)?;
        add(&mut self.bytes, shape.size_bytes(dtype)?)
    }
}

/// Tensors that are stored encoded and read decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Encoded {
    /// The codec's name.
    pub codec: String,
    /// How many; they are among the tensors of their side.
    pub tensors: u64,
    /// The companions beside them, which are not.
    pub companions: u64,
    /// The companions' bytes, which are among the bytes of their side.
    pub companion_bytes: u64,
}

impl Encoded {
    /// Counts a tensor that a codec decodes. Errors: [`Error::TooLarge`].
    pub(crate) fn count(
        all: &mut Vec<Encoded>,
        codec: &str,
        companions: u64,
        bytes: u64,
    ) -> Result<(), Error> {
        let position = all.iter().position(|encoded| encoded.codec == codec);
        let position = position.unwrap_or_else(|| {
            all.push(Encoded {
                codec: codec.to_owned(),
                ..Encoded::default()
            });
            all.len() - 1
        });
        let encoded = &mut all[position];
        encoded.tensors += 1;
        encoded.companions += companions;
        add(&mut encoded.companion_bytes, bytes)
    }
}

/// One part of the model in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Its name, such as `moe`.
    pub name: String,
    /// Hugging Face tensors.
    pub tensors: u64,
    /// Megatron params.
    pub params: u64,
    /// Elements.
    pub elements: u64,
}

/// Tensors that a rule leaves out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Why.
    pub reason: String,
    /// How many.
    pub tensors: u64,
    /// Their elements.
    pub elements: u64,
}

impl Skipped {
    /// Counts a tensor among those that are left out for this reason. Errors: [`Error::TooLarge`].
    pub(crate) fn count(all: &mut Vec<Skipped>, reason: &str, elements: u64) -> Result<(), Error> {
        match all.iter_mut().find(|skipped| skipped.reason == reason) {
            Some(skipped) => {
                skipped.tensors += 1;
                add(&mut skipped.elements, elements)?;
            }
            None => all.push(Skipped {
                reason: reason.to_owned(),
                tensors: 1,
                elements,
            }),
        }
        Ok(())
    }
}

/// Everything a plan will do, in numbers and notices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Which way.
    pub direction: Direction,
    /// The release, as the family calls it.
    pub release: String,
    /// What in the config says so.
    pub reason: String,
    /// The architecture id.
    pub architecture: String,
    /// The mesh whose chunks are written; absent for an export.
    pub mesh: Option<Mesh>,
    /// The chunks that are written; absent for an export.
    pub chunks: Option<ChunkChoice>,
    /// Dtype of the weights written.
    pub dtype: DtypeChoice,
    /// Layers without multi-token prediction.
    pub layers: u64,
    /// Multi-token-prediction layers that are converted.
    pub mtp_layers: u64,
    /// The side that is read.
    pub source: Side,
    /// The side that is written.
    pub target: Side,
    /// What of the source is stored encoded, by codec.
    pub encoded: Vec<Encoded>,
    /// The parts of the model.
    pub groups: Vec<Group>,
    /// What is left out.
    pub skipped: Vec<Skipped>,
    /// Pipeline stages and what each of their ranks holds; none for an export.
    pub stages: Vec<StageShare>,
    /// Side files that travel along.
    pub side_files: u64,
    /// Most memory that the plan, the buffers and a device take, in bytes; the program itself and the device's driver come on top.
    /// A plan says it for the default budget and no device, a report for those of the run.
    pub peak_host_bytes: u64,
    /// Of these, what the plan takes: names, shapes, pieces, items, metadata.
    pub index_bytes: u64,
    /// Of these, what decoding on a device takes: its buffers, which may lie in the memory of the device, and copies on the way to it
    /// and back. 0 if none decodes.
    pub device_bytes: u64,
    /// What the user should know, one line each.
    pub notices: Vec<String>,
}

impl Summary {
    /// Says how much memory is taken at most under a budget and by a device on top, beside the plan.
    pub(crate) fn set_memory(&mut self, budget_bytes: u64, device_bytes: u64) {
        let besides = budget_bytes.saturating_add(device_bytes);
        self.peak_host_bytes = self.index_bytes.saturating_add(besides);
        self.device_bytes = device_bytes;
    }
}

/// Counts tensors, params and elements by group, in the order of the rules; of those that are converted.
pub(crate) fn groups(
    mapping: &Mapping,
    tensors: &[bool],
    params: &[bool],
) -> Result<Vec<Group>, Error> {
    let mut names: Vec<&str> = Vec::new();
    let mut groups: BTreeMap<&str, Group> = BTreeMap::new();
    let mapped = mapping.rules().iter().filter(|rule| rule.skip.is_none());
    for rule in mapped {
        if !names.contains(&rule.group.as_str()) {
            names.push(&rule.group);
            groups.insert(
                &rule.group,
                Group {
                    name: rule.group.clone(),
                    ..Group::default()
                },
            );
        }
    }
    for (tensor, _) in mapping
        .tensors()
        .iter()
        .zip(tensors)
        .filter(|(_, is_kept)| **is_kept)
    {
        if let Some(group) = groups.get_mut(mapping.rule(tensor.rule).group.as_str()) {
            group.tensors += 1;
            add(&mut group.elements, tensor.shape.elements()?)?;
        }
    }
    for (param, _) in mapping
        .params()
        .iter()
        .zip(params)
        .filter(|(_, is_kept)| **is_kept)
    {
        if let Some(group) = groups.get_mut(mapping.rule(param.rule).group.as_str()) {
            group.params += 1;
        }
    }
    Ok(names
        .iter()
        .filter_map(|name| groups.remove(name))
        .collect())
}

/// A line if Megatron will compute in another dtype than most of the weights are written in: the provider has it from the config,
/// whatever the weights are.
pub(crate) fn dtype_notice<'a>(
    spec: &ModelSpec,
    params: impl Iterator<Item = (&'a ParamDecl, &'a Dtype)>,
) -> Option<String> {
    let named = spec
        .provider
        .get("params_dtype")?
        .get("_target_")?
        .as_str()?;
    let mut elements: BTreeMap<Dtype, u128> = BTreeMap::new();
    for (param, &dtype) in params {
        let more = param.shape.elements().unwrap_or(u64::MAX);
        *elements.entry(dtype).or_default() += u128::from(more);
    }
    let (most, _) = elements.into_iter().max_by_key(|(_, elements)| *elements)?;
    let written = most.torch_name();
    (named.strip_prefix("torch.") != Some(written)).then(|| {
        format!(
            "run_config.yaml: params_dtype is {named}, as the config says; most weights are written as {most}"
        )
    })
}

/// A line for each provider field that the user gave another value.
pub(crate) fn set_notices(
    provider: &Map<String, Value>,
    settings: &Map<String, Value>,
) -> Vec<String> {
    let changed = settings
        .iter()
        .filter(|(key, value)| provider.get(*key) != Some(*value));
    let line = |(key, value): (&String, &Value)| {
        let before = provider
            .get(key)
            .map_or_else(|| "absent".to_owned(), Value::to_string);
        format!("run_config.yaml: {key} is set to {value}, it was {before}")
    };
    changed.map(line).collect()
}

/// What a spec says to the user: its notices, and the keys it does not read.
pub(crate) fn spec_notices(spec: &ModelSpec) -> Vec<String> {
    let mut notices = spec.notices.clone();
    if !spec.unread_keys.is_empty() {
        let keys = spec.unread_keys.join(", ");
        notices.push(format!("config.json: kept without being read: {keys}"));
    }
    notices
}
