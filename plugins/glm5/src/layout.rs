//! Which layers a pipeline stage holds.
//!
//! A stage must hold the layer whose indexer its layers use, so it begins at a full layer. The layers between two such
//! beginnings are a group; groups are dealt to the stages in order, so that the largest stage is as small as can be. A user
//! may deal them otherwise, as layers for each stage or as Megatron's own layer pattern.

use rialto_plugin::prelude::*;

use crate::Glm5;
use crate::spec::{Indexer, Model};

impl PipelineMapping for Glm5 {
    fn pipeline_layout(
        &self,
        spec: &ModelSpec,
        request: &PipelineRequest,
    ) -> Result<PipelineLayout, Error> {
        let (model, mesh) = (Model::of(spec)?, request.mesh);
        let layers = match &request.stages {
            StageChoice::Family => dealt(&model, mesh.pp)?,
            StageChoice::Layers(layers) => layers.clone(),
            StageChoice::Pattern(pattern) => of_pattern(&model, pattern)?,
        };
        check(&model, mesh.pp, &layers)?;
        let mut stages = stages_of(&layers, 2, physical);
        if let Some(first) = stages.first_mut() {
            first.params.push("embedding.*".to_owned());
        }
        if let Some(last) = stages.last_mut() {
            last.mtp_layers = model.mtp_layers;
            let of_last = ["decoder.final_norm.*", "output_layer.*"];
            last.params.extend(of_last.map(str::to_owned));
            if model.mtp_layers > 0 {
                last.params.push("mtp.*".to_owned());
            }
            // Prediction reads the embedding of the next token: its stage has a copy, which is not written again.
            if model.mtp_layers > 0 && mesh.pp > 1 {
                last.params.push("embedding.*".to_owned());
            }
        }
        let pattern: Vec<String> = stages
            .iter()
            .map(|stage| model.pattern(stage.first_layer..stage.first_layer + stage.layers))
            .collect();
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
            provider: fields(provider),
        })
    }
}

/// Keys of the params of some layers.
fn physical(layers: std::ops::Range<u64>) -> Vec<String> {
    let physical = 2 * layers.start..2 * layers.end;
    physical.map(|n| format!("decoder.layers.{n}.*")).collect()
}

/// The layers of each stage as Megatron-Bridge deals them.
fn dealt(model: &Model, stages: u64) -> Result<Vec<u64>, Error> {
    let groups = sharing_groups(model);
    let most = groups.len() as u64;
    if !(1..=most).contains(&stages) {
        return Err(Error::Pipeline {
            faults: vec![format!(
                "--pp {stages} does not fit {} of layers that share an indexer",
                counted(most, "group")
            )],
            valid: format!("1 to {most}"),
        });
    }
    Ok(partition(&groups, stages))
}

/// Refuses layers for each stage that do not add up, or that part a layer from the one whose indexer it uses.
fn check(model: &Model, stages: u64, layers: &[u64]) -> Result<(), Error> {
    let all = model.layers.len() as u64;
    let mut faults = dealing_faults(stages, layers, all);
    let full = model.layers_where(|layer| layer.indexer == Indexer::Full);
    let mut first = 0u64;
    for (stage, &layers) in layers.iter().enumerate() {
        if layers > 0 && first < all && !full.contains(&first) {
            let source = full
                .iter()
                .rfind(|&&full| full < first)
                .copied()
                .unwrap_or_default();
            faults.push(format!(
                "stage {stage} begins at layer {first}, which uses the indexer of layer {source}"
            ));
        }
        first = first.saturating_add(layers);
    }
    if faults.is_empty() {
        return Ok(());
    }
    let full: Vec<String> = full.iter().map(u64::to_string).collect();
    Err(Error::Pipeline {
        faults,
        valid: format!(
            "{} in stages that begin at {} {}",
            counted(all, "layer"),
            if full.len() == 1 { "layer" } else { "layers" },
            full.join(", ")
        ),
    })
}

/// The layers of each stage of a pattern, which must be the model's own but for its `|`. How many there are is not held
/// against the model yet.
fn of_pattern(model: &Model, pattern: &str) -> Result<Vec<u64>, Error> {
    let (main, mtp) = pattern.split_at(pattern.find('/').unwrap_or(pattern.len()));
    let own = model.pattern(0..model.layers.len() as u64);
    let mut faults = Vec::new();
    if !mtp.is_empty() && mtp != model.mtp_pattern() {
        let depths = counted(model.mtp_layers, "prediction layer");
        faults.push(format!("the pattern ends in {mtp:?} for {depths}"));
    }
    // One symbol too many or too few, and all after it are wrong: the first says it.
    let symbols = main
        .chars()
        .filter(|&symbol| symbol != '|')
        .zip(own.chars());
    let mut wrong = symbols
        .enumerate()
        .filter(|(_, (found, expected))| found != expected);
    if let Some((at, (found, expected))) = wrong.next() {
        faults.push(format!(
            "physical layer {at} of the pattern is {found:?}, the model has {expected:?}"
        ));
    }
    let mut layers = Vec::new();
    for (stage, segment) in main.split('|').enumerate() {
        let held = segment.chars().count() as u64;
        if !held.is_multiple_of(2) {
            faults.push(format!(
                "stage {stage} of the pattern has {}, half of one is left over",
                counted(held, "physical layer")
            ));
        }
        layers.push(held / 2);
    }
    if faults.is_empty() {
        return Ok(layers);
    }
    let whole = own + &model.mtp_pattern();
    Err(Error::Pipeline {
        faults,
        valid: format!("{whole} with | before stages"),
    })
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

    /// Layers of each stage as published, for groups of 1, 1 and nineteen times 4, and for layers that share nothing.
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
