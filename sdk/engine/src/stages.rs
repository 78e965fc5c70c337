//! What each rank of a mesh holds of a model, stage by stage.

use std::collections::{BTreeSet, HashMap};

use rialto_bridge::placement::matches;
use rialto_bridge::{
    Bridge, Mapping, Mesh, MeshAxis, ModelSpec, PipelineRequest, Placement, Stage,
};
use rialto_tensor::{Dtype, Shape};
use serde::Serialize;

use crate::total::add;
use crate::{ChunkChoice, Error, Options, beside, padding};

/// The code of an error that says what would do instead; see `docs/errors.md`.
const UNSUPPORTED: u32 = 3;

/// A pipeline stage, and what each of its ranks holds. All of them hold equally much: whatever is cut is cut evenly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StageShare {
    /// First layer of the source model, counted from 0.
    pub first_layer: u64,
    /// How many consecutive layers of the source model it holds.
    pub layers: u64,
    /// How many physical Megatron layers these are.
    pub physical_layers: u64,
    /// How many multi-token-prediction layers it holds.
    pub mtp_layers: u64,
    /// Its first rank: tensor ranks count fastest, stages slowest, and there are no more than the mesh needs.
    pub first_rank: u64,
    /// How many ranks it has: the tensor ranks and the expert ranks are the same ranks, dealt in two ways.
    pub ranks: u64,
    /// Params that the model of a rank has; a stack of experts is one for each of its experts.
    pub params: u64,
    /// Bytes of a rank that tensor ranks share out or hold whole.
    pub dense_bytes: u64,
    /// Bytes of a rank that expert ranks share out.
    pub expert_bytes: u64,
    /// Bytes of weights on a rank.
    pub rank_bytes: u64,
}

/// What one rank holds of a param, the same on every rank that holds any of it.
pub(crate) struct Part<'a> {
    param: &'a str,
    /// How many params the rank's model has for it.
    params: u64,
    bytes: u64,
    is_expert: bool,
}

/// What one rank holds of each param. `dtypes` are those of the params as written.
///
/// Errors: what the placement says; [`Error::TooLarge`].
pub(crate) fn parts<'a>(
    mapping: &'a Mapping,
    dtypes: &[Dtype],
    placement: &Placement,
    mesh: &Mesh,
) -> Result<Vec<Part<'a>>, Error> {
    let part = |position: usize| {
        let (param, dtype) = (&mapping.params()[position], dtypes[position]);
        let share = placement.share(&param.name, &param.shape, mesh)?;
        Ok(Part {
            param: &param.name,
            params: share.stacked,
            bytes: Shape::new(share.extents).size_bytes(dtype)?,
            is_expert: share.is_expert,
        })
    };
    beside::others(mapping).into_iter().map(part).collect()
}

/// Which stages hold a param, found without asking every pattern of every stage: most are all that begins alike.
struct Holders<'a> {
    by_prefix: HashMap<&'a str, Vec<usize>>,
    /// The lengths of the prefixes.
    lengths: BTreeSet<usize>,
    /// Patterns of another form.
    others: Vec<(&'a str, usize)>,
}

impl<'a> Holders<'a> {
    fn new(stages: &'a [Stage]) -> Holders<'a> {
        let mut holders = Holders {
            by_prefix: HashMap::new(),
            lengths: BTreeSet::new(),
            others: Vec::new(),
        };
        for (number, stage) in stages.iter().enumerate() {
            for pattern in &stage.params {
                match pattern
                    .strip_suffix('*')
                    .filter(|prefix| !prefix.contains('*'))
                {
                    Some(prefix) => {
                        holders.lengths.insert(prefix.len());
                        holders.by_prefix.entry(prefix).or_default().push(number);
                    }
                    None => holders.others.push((pattern, number)),
                }
            }
        }
        holders
    }

    /// The numbers of the stages, each once.
    fn of(&self, param: &str) -> BTreeSet<usize> {
        let prefixes = self
            .lengths
            .iter()
            .filter_map(|&length| param.get(..length));
        let by_prefix = prefixes
            .filter_map(|prefix| self.by_prefix.get(prefix))
            .flatten();
        let others = self
            .others
            .iter()
            .filter(|(pattern, _)| matches(pattern, param));
        by_prefix
            .copied()
            .chain(others.map(|&(_, number)| number))
            .collect()
    }
}

/// What the ranks of each stage hold.
///
/// Errors: [`Error::Stageless`] for a param that no stage holds; [`Error::TooLarge`].
pub(crate) fn shares(
    stages: &[Stage],
    parts: &[Part<'_>],
    mesh: &Mesh,
) -> Result<Vec<StageShare>, Error> {
    let ranks = mesh.ranks_of_a_stage();
    let of_stage = |(number, stage): (u64, &Stage)| StageShare {
        first_layer: stage.first_layer,
        layers: stage.layers,
        physical_layers: stage.physical_layers,
        mtp_layers: stage.mtp_layers,
        first_rank: number * ranks,
        ranks,
        params: 0,
        dense_bytes: 0,
        expert_bytes: 0,
        rank_bytes: 0,
    };
    let mut shares: Vec<StageShare> = (0..).zip(stages).map(of_stage).collect();
    let holders = Holders::new(stages);
    for part in parts {
        let held_by = holders.of(part.param);
        if held_by.is_empty() {
            return Err(Error::Stageless {
                param: part.param.to_owned(),
            });
        }
        for number in held_by {
            let held = &mut shares[number];
            add(&mut held.params, part.params)?;
            add(&mut held.rank_bytes, part.bytes)?;
            // No part of a sum that fits overflows.
            match part.is_expert {
                true => held.expert_bytes += part.bytes,
                false => held.dense_bytes += part.bytes,
            }
        }
    }
    Ok(shares)
}

/// Sizes that fit a model, one dimension at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suggestions {
    /// The mesh that the bytes are for; its `pp` is not used.
    pub mesh: Mesh,
    /// Tensor parallel sizes.
    pub tp: Vec<u64>,
    /// Expert parallel sizes.
    pub ep: Vec<u64>,
    /// Tensor parallel sizes inside an expert.
    pub etp: Vec<u64>,
    /// Pipelines, one for each number of stages that fits.
    pub pipelines: Vec<Pipeline>,
}

/// A number of stages that fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pipeline {
    /// The number of stages.
    pub pp: u64,
    /// Layers of each stage.
    pub layers: Vec<u64>,
    /// Ranks of the whole mesh.
    pub ranks: u64,
    /// Bytes of weights on a rank of the stage that holds most.
    pub largest_rank_bytes: u64,
}

/// Every size of each dimension that fits, and what the largest rank holds at each number of stages.
///
/// Errors: [`rialto_bridge::Error::Mesh`] if the other sizes of the mesh do not divide the model,
/// [`rialto_bridge::Error::Chunks`] if they cut it too small; what the family says.
pub(crate) fn suggest(
    family: &dyn Bridge,
    spec: &ModelSpec,
    mapping: &Mapping,
    dtypes: &[Dtype],
    placement: &Placement,
    options: &Options,
) -> Result<Suggestions, Error> {
    let mesh = &options.mesh;
    let padded = match options.pads_vocabulary {
        true => Some(mapping.clone().padded(mesh)?),
        false => None,
    };
    let mapping = padded.as_ref().unwrap_or(mapping);
    let written = beside::others(mapping);
    padding::check_mesh(placement, mapping, &written, options)?;
    let divided = padding::divided(mapping, &written, options.pads_vocabulary);
    let divided = placement.divided(divided);
    let parts = parts(mapping, dtypes, placement, mesh)?;
    // How many chunks a mesh makes does not hang on how long the vocabulary is.
    let count = |mesh: &Mesh| placement.check_count(padding::named(mapping, &written), mesh);
    let is_written = |mesh: Mesh| options.chunks == ChunkChoice::Whole || count(&mesh).is_ok();
    if options.chunks == ChunkChoice::Megatron {
        count(mesh)?;
    }
    let sizes = |over, on: &dyn Fn(u64) -> Mesh| -> Vec<u64> {
        let sizes = divided.sizes(over).into_iter();
        sizes.filter(|&size| is_written(on(size))).collect()
    };
    let mut pipelines = Vec::new();
    for pp in 1..=spec.dims.layers {
        let mesh = Mesh { pp, ..*mesh };
        let layout = match family.pipeline_layout(spec, &PipelineRequest::new(mesh)) {
            Ok(layout) => layout,
            // Which numbers of stages do not fit is what is asked here.
            Err(error) if error.code() == UNSUPPORTED => continue,
            Err(error) => return Err(error.into()),
        };
        let shares = shares(&layout.stages, &parts, &mesh)?;
        pipelines.push(Pipeline {
            pp,
            layers: shares.iter().map(|share| share.layers).collect(),
            ranks: pp * mesh.ranks_of_a_stage(),
            largest_rank_bytes: shares
                .iter()
                .map(|share| share.rank_bytes)
                .max()
                .unwrap_or_default(),
        });
    }
    Ok(Suggestions {
        mesh: *mesh,
        tp: sizes(MeshAxis::Tp, &|tp| Mesh { tp, ..*mesh }),
        ep: sizes(MeshAxis::Ep, &|ep| Mesh { ep, ..*mesh }),
        etp: sizes(MeshAxis::Etp, &|etp| Mesh { etp, ..*mesh }),
        pipelines,
    })
}
