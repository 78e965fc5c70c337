//! Which layers a pipeline stage holds.

use rialto_plugin::prelude::*;

use crate::Glm5;
use crate::spec::{Model, object};

impl PipelineMapping for Glm5 {
    fn pipeline_layout(&self, spec: &ModelSpec, mesh: &Mesh) -> Result<PipelineLayout, Error> {
        for (name, size) in [
            ("tp", mesh.tp),
            ("pp", mesh.pp),
            ("ep", mesh.ep),
            ("etp", mesh.etp),
        ] {
            if size != 1 {
                let what = format!("--{name} for {}", spec.release);
                return Err(Error::Unsupported {
                    what,
                    found: size.to_string(),
                    supported: "1".to_owned(),
                });
            }
        }
        let model = Model::of(spec)?;
        let layers = model.layers.len() as u64;
        let provider = json!({
            "expert_model_parallel_size": mesh.ep,
            "expert_tensor_parallel_size": mesh.etp,
            "hybrid_layer_pattern": model.pattern() + &model.mtp_pattern(),
            "pipeline_model_parallel_size": mesh.pp,
            "tensor_model_parallel_size": mesh.tp,
        });
        let stage = Stage {
            first_layer: 0,
            layers,
            physical_layers: 2 * layers,
            mtp_layers: model.mtp_layers,
        };
        Ok(PipelineLayout {
            stages: vec![stage],
            provider: object(provider),
        })
    }
}
