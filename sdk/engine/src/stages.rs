//! What each rank of a mesh holds of a model, stage by stage.

use rialto_bridge::{
    Bridge, Mapping, Mesh, MeshAxis, ModelSpec, PipelineRequest, Placement, Stage,
};
use rialto_tensor::Dtype;
use serde::Serialize;

use crate::{Error, Options, beside, padding};

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
}

impl StageShare {
    /// Bytes of weights on each of its ranks.
    #[must_use]
    pub fn rank_bytes(&self) -> u64 {
        self.dense_bytes + self.expert_bytes
    }
}

/// A rank by its place in every dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rank {
    /// Its number.
    pub rank: u64,
    /// Its pipeline stage.
    pub pp: u64,
    /// Its tensor rank.
    pub tp: u64,
    /// Its expert rank.
    pub ep: u64,
    /// Its tensor rank inside an expert.
    pub etp: u64,
}

/// The ranks of a mesh, in order: tensor ranks count fastest, then expert ranks on the same numbers, stages slowest.
#[must_use]
pub fn ranks(mesh: &Mesh) -> Vec<Rank> {
    let each = ranks_of_a_stage(mesh);
    let rank = |rank: u64| {
        let inside = rank % each;
        Rank {
            rank,
            pp: rank / each,
            tp: inside % mesh.tp,
            ep: inside / mesh.etp % mesh.ep,
            etp: inside % mesh.etp,
        }
    };
    (0..each * mesh.pp).map(rank).collect()
}

/// The fewest ranks that both ways of dealing them fill: the least common multiple of `tp` and `ep * etp`.
fn ranks_of_a_stage(mesh: &Mesh) -> u64 {
    let (dense, expert) = (mesh.tp, mesh.ep * mesh.etp);
    let (mut a, mut b) = (dense, expert);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    dense / a * expert
}

/// What the ranks of each stage hold. `dtypes` are those of the params as written.
///
/// Errors: [`Error::Stageless`] for a param that no stage holds; what the placement says.
pub(crate) fn shares(
    stages: &[Stage],
    mapping: &Mapping,
    dtypes: &[Dtype],
    placement: &Placement,
    mesh: &Mesh,
) -> Result<Vec<StageShare>, Error> {
    let ranks = ranks_of_a_stage(mesh);
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
    };
    let mut shares: Vec<StageShare> = (0..).zip(stages).map(of_stage).collect();
    for (position, param) in mapping.params().iter().enumerate() {
        if beside::is_beside(mapping, position) {
            continue;
        }
        let share = placement.share(&param.name, &param.shape, mesh)?;
        let bytes = share.extents.iter().product::<u64>() * dtypes[position].size_bytes();
        let mut is_held = false;
        for (stage, held) in stages.iter().zip(&mut shares) {
            if stage.holds(&param.name) {
                is_held = true;
                held.params += share.stacked;
                match share.is_expert {
                    true => held.expert_bytes += bytes,
                    false => held.dense_bytes += bytes,
                }
            }
        }
        if !is_held {
            return Err(Error::Stageless {
                param: param.name.clone(),
            });
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
/// Errors: [`rialto_bridge::Error::Mesh`] if the other sizes of the mesh do not divide the model; what the family says.
pub(crate) fn suggest(
    family: &dyn Bridge,
    spec: &ModelSpec,
    mapping: &Mapping,
    dtypes: &[Dtype],
    options: &Options,
) -> Result<Suggestions, Error> {
    let mesh = &options.mesh;
    let padded = match options.pads_vocabulary {
        true => Some(mapping.clone().padded(mesh)?),
        false => None,
    };
    let mapping = padded.as_ref().unwrap_or(mapping);
    let placement = family.placement(spec)?;
    let written: Vec<usize> = (0..mapping.params().len())
        .filter(|&param| !beside::is_beside(mapping, param))
        .collect();
    padding::check_mesh(&placement, mapping, &written, options)?;
    let divided = padding::divided(mapping, &written, options.pads_vocabulary);
    let divided = placement.divided(divided);
    let mut pipelines = Vec::new();
    for pp in 1..=spec.dims.layers {
        let mesh = Mesh { pp, ..*mesh };
        // What does not fit is what is asked here.
        let Ok(layout) = family.pipeline_layout(spec, &PipelineRequest::new(mesh)) else {
            continue;
        };
        let shares = shares(&layout.stages, mapping, dtypes, &placement, &mesh)?;
        pipelines.push(Pipeline {
            pp,
            layers: shares.iter().map(|share| share.layers).collect(),
            ranks: pp * ranks_of_a_stage(&mesh),
            largest_rank_bytes: shares
                .iter()
                .map(StageShare::rank_bytes)
                .max()
                .unwrap_or_default(),
        });
    }
    Ok(Suggestions {
        mesh: *mesh,
        tp: divided.sizes(MeshAxis::Tp),
        ep: divided.sizes(MeshAxis::Ep),
        etp: divided.sizes(MeshAxis::Etp),
        pipelines,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_ranks_and_expert_ranks_are_the_same_ranks() {
        for (tp, ep, etp, expected) in [
            (1, 8, 2, 16),
            (2, 1, 1, 2),
            (4, 3, 2, 12),
            (1, 1, 1, 1),
            (2, 2, 2, 4),
        ] {
            let mesh = Mesh { tp, pp: 3, ep, etp };
            assert_eq!(ranks_of_a_stage(&mesh), expected, "{mesh}");
            let ranks = ranks(&mesh);
            assert_eq!(ranks.len() as u64, 3 * expected);
            // Every place of either way is filled equally often in every stage.
            for pp in 0..3 {
                let of_stage = || ranks.iter().filter(|rank| rank.pp == pp);
                for t in 0..tp {
                    assert_eq!(
                        of_stage().filter(|rank| rank.tp == t).count() as u64,
                        expected / tp
                    );
                }
                for e in 0..ep {
                    for k in 0..etp {
                        let there = of_stage().filter(|rank| (rank.ep, rank.etp) == (e, k));
                        assert_eq!(there.count() as u64, expected / ep / etp);
                    }
                }
            }
        }
    }
}
