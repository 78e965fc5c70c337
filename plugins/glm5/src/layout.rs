//! Which layers a pipeline stage holds.
//!
//! A stage must hold the layer whose indexer its layers use, so it begins at a full layer. The layers between two such
//! beginnings are a group; groups are dealt to the stages in order, so that the largest stage is as small as can be.

use rialto_plugin::prelude::*;

use crate::Glm5;
use crate::spec::{Indexer, Model, object};

impl PipelineMapping for Glm5 {
    fn pipeline_layout(&self, spec: &ModelSpec, mesh: &Mesh) -> Result<PipelineLayout, Error> {
        let model = Model::of(spec)?;
        let groups = sharing_groups(&model);
        let most = groups.len() as u64;
        if !(1..=most).contains(&mesh.pp) {
            return Err(Error::Unsupported {
                what: format!("--pp for {most} groups of layers that share an indexer"),
                found: mesh.pp.to_string(),
                supported: format!("1 to {most}"),
            });
        }
        let mut stages = Vec::new();
        let mut first_layer = 0;
        for layers in partition(&groups, mesh.pp) {
            stages.push(Stage {
                first_layer,
                layers,
                physical_layers: 2 * layers,
                mtp_layers: 0,
            });
            first_layer += layers;
        }
        if let Some(last) = stages.last_mut() {
            last.mtp_layers = model.mtp_layers;
        }
        let pattern: Vec<String> = stages.iter().map(|stage| model.pattern(stage)).collect();
        let provider = json!({
            "expert_model_parallel_size": mesh.ep,
            "expert_tensor_parallel_size": mesh.etp,
            "hybrid_layer_pattern": pattern.join("|") + &model.mtp_pattern(),
            "pipeline_model_parallel_size": mesh.pp,
            // Absorbed latent attention runs on several ranks only with the sequence cut as well.
            "sequence_parallel": mesh.tp > 1,
            "tensor_model_parallel_size": mesh.tp,
        });
        Ok(PipelineLayout {
            stages,
            provider: object(provider),
        })
    }
}

/// How many layers each group has: a full layer and the shared ones after it.
fn sharing_groups(model: &Model) -> Vec<u64> {
    let mut groups: Vec<u64> = Vec::new();
    for layer in &model.layers {
        match groups.last_mut() {
            Some(last) if layer.indexer == Indexer::Shared => *last += 1,
            _ => groups.push(1),
        }
    }
    groups
}

/// Deals groups to `stages` stages (at least 1, at most one a group) and gives the layers of each.
///
/// The capacity is the smallest that suffices when every stage takes groups while they fit. The stages are then filled in
/// order up to it, as long as every later one is left a group. Source: Megatron-Bridge's provider for this family.
fn partition(groups: &[u64], stages: u64) -> Vec<u64> {
    let mut capacity = groups.iter().copied().max().unwrap_or_default();
    while stages_needed(groups, capacity) > stages {
        capacity += 1;
    }
    let mut rest = groups;
    let mut loads = Vec::new();
    for later in (0..stages).rev() {
        let mut load = 0;
        while let [next, after @ ..] = rest {
            let leaves_enough = after.len() as u64 >= later;
            if load > 0 && (load + next > capacity || !leaves_enough) {
                break;
            }
            load += next;
            rest = after;
        }
        loads.push(load);
    }
    loads
}

fn stages_needed(groups: &[u64], capacity: u64) -> u64 {
    let (mut needed, mut load) = (1, 0);
    for &group in groups {
        if load + group > capacity {
            needed += 1;
            load = 0;
        }
        load += group;
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layers of each stage as published for GLM-5.2, whose groups are 1, 1 and nineteen times 4, and for GLM-5.
    #[test]
    fn stages_are_those_of_megatron_bridge() {
        let shared: Vec<u64> = [1, 1].into_iter().chain([4; 19]).collect();
        let run = |parts: &[(u64, usize)]| -> Vec<u64> {
            let parts = parts.iter();
            parts.flat_map(|&(size, count)| vec![size; count]).collect()
        };
        for (stages, expected) in [
            (1, run(&[(78, 1)])),
            (2, vec![38, 40]),
            (3, vec![26, 28, 24]),
            (4, vec![18, 20, 20, 20]),
            (6, vec![14, 16, 16, 16, 12, 4]),
            (8, run(&[(10, 1), (12, 5), (4, 2)])),
            (10, run(&[(6, 1), (8, 9)])),
            (12, run(&[(6, 1), (8, 7), (4, 4)])),
            (13, run(&[(6, 1), (8, 6), (4, 6)])),
            (16, run(&[(6, 1), (8, 3), (4, 12)])),
            (19, run(&[(6, 1), (4, 18)])),
            (21, run(&[(1, 2), (4, 19)])),
        ] {
            assert_eq!(partition(&shared, stages), expected, "{stages} stages");
        }
        let single = vec![1; 78];
        for (stages, expected) in [
            (2, run(&[(39, 2)])),
            (4, run(&[(20, 3), (18, 1)])),
            (8, run(&[(10, 7), (8, 1)])),
            (13, run(&[(6, 13)])),
        ] {
            assert_eq!(partition(&single, stages), expected, "{stages} stages");
        }
    }

    #[test]
    fn every_number_of_stages_up_to_the_groups_gives_each_stage_some_of_all_layers() {
        for groups in [
            vec![1, 1, 4, 4, 2],
            vec![7],
            vec![1; 9],
            vec![5, 1, 1, 1, 9, 2],
        ] {
            for stages in 1..=groups.len() as u64 {
                let loads = partition(&groups, stages);
                assert_eq!(loads.len() as u64, stages);
                assert_eq!(loads.iter().sum::<u64>(), groups.iter().sum::<u64>());
                assert!(loads.iter().all(|&load| load > 0), "{groups:?} {loads:?}");
            }
        }
    }
}
