//! Which layers a pipeline stage holds: equally many, or as the user deals them.

use rialto_plugin::prelude::*;

use crate::Qwen3;
use crate::config::Model;

impl PipelineMapping for Qwen3 {
    fn pipeline_layout(
        &self,
        spec: &ModelSpec,
        request: &PipelineRequest,
    ) -> Result<PipelineLayout, Error> {
        let (model, mesh): (Model, Mesh) = (spec.own()?, request.mesh);
        let all = model.num_hidden_layers;
        let layers = match &request.stages {
            StageChoice::Family => equal(all, mesh.pp)?,
            StageChoice::Layers(layers) => layers.clone(),
            StageChoice::Pattern(pattern) => {
                return Err(Error::Pipeline {
                    faults: vec![format!(
                        "--pipeline {pattern:?} is a pattern of a hybrid model"
                    )],
                    valid: format!(
                        "{} dealt to the stages, such as {all}",
                        counted(all, "layer")
                    ),
                });
            }
        };
        let faults = dealing_faults(mesh.pp, &layers, all);
        if !faults.is_empty() {
            let valid = format!("{} in {}", counted(all, "layer"), counted(mesh.pp, "stage"));
            return Err(Error::Pipeline { faults, valid });
        }
        let mut provider = fields(json!({
            "expert_model_parallel_size": mesh.ep,
            // There are no experts to divide; Megatron then fills in the tensor parallel size.
            "expert_tensor_parallel_size": mesh.tp,
            "pipeline_model_parallel_size": mesh.pp,
            "tensor_model_parallel_size": mesh.tp,
        }));
        // Equal stages need no word.
        if layers.iter().any(|&each| each != layers[0]) {
            let layout = json!(megatron_layout(&layers));
            provider.insert("pipeline_model_parallel_layout".to_owned(), layout);
        }
        Ok(PipelineLayout {
            stages: stages(&model, &layers),
            provider,
        })
    }
}

/// The layers of equal stages. Errors: [`Error::Pipeline`] for a number that does not divide them.
fn equal(all: u64, stages: u64) -> Result<Vec<u64>, Error> {
    if stages > 0 && all.is_multiple_of(stages) {
        return Ok((0..stages).map(|_| all / stages).collect());
    }
    let divisors = (1..=all).filter(|&stages| all.is_multiple_of(stages));
    let divisors: Vec<String> = divisors.map(|stages| stages.to_string()).collect();
    Err(Error::Pipeline {
        faults: vec![format!(
            "--pp {stages} does not divide {}",
            counted(all, "layer")
        )],
        valid: format!("{}, or any other with --pipeline", divisors.join(", ")),
    })
}

fn stages(model: &Model, layers: &[u64]) -> Vec<Stage> {
    let mut stages = stages_of(layers, 1, |layers| {
        layers.map(|i| format!("decoder.layers.{i}.*")).collect()
    });
    let is_split = stages.len() > 1;
    if let Some(first) = stages.first_mut() {
        first.params.push("embedding.*".to_owned());
    }
    if let Some(last) = stages.last_mut() {
        last.params.push("decoder.final_layernorm.*".to_owned());
        // The head of a tied model is the embedding, of which a last stage of its own holds a copy.
        match model.is_tied {
            true if is_split => last.params.push("embedding.*".to_owned()),
            true => {}
            false => last.params.push("output_layer.*".to_owned()),
        }
    }
    stages
}

/// Megatron's own word for the stages: `E` the embedding, `t` a layer, `L` the loss, as in `Ett|t*3|tL`.
fn megatron_layout(layers: &[u64]) -> String {
    let stages: Vec<String> = layers.iter().map(|layers| format!("t*{layers}")).collect();
    format!("E{}L", stages.join("|"))
}
