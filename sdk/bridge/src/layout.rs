//! Which pipeline stage holds which layers.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One pipeline stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// First layer of the source model, counted from 0.
    pub first_layer: u64,
    /// How many consecutive layers of the source model it holds.
    pub layers: u64,
    /// How many physical Megatron layers these are (a hybrid model splits a layer into attention and MLP).
    pub physical_layers: u64,
    /// How many multi-token-prediction layers it holds; only the last stage has any.
    pub mtp_layers: u64,
}

/// All stages of a pipeline, in order, and what they change in the provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipelineLayout {
    /// The stages; together they hold every layer once, in order.
    pub stages: Vec<Stage>,
    /// Provider fields that follow from the layout, in Megatron's names (`hybrid_layer_pattern`).
    pub provider: Map<String, Value>,
}

impl PipelineLayout {
    /// Whether the stages hold layers `0..layers` once, in order, none of them empty.
    #[must_use]
    pub fn is_partition_of(&self, layers: u64) -> bool {
        let mut next = 0;
        for stage in &self.stages {
            if stage.first_layer != next || stage.layers == 0 {
                return false;
            }
            next += stage.layers;
        }
        next == layers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_has_no_gap_no_overlap_and_no_empty_stage() {
        let stage = |first_layer, layers| Stage {
            first_layer,
            layers,
            physical_layers: 2 * layers,
            mtp_layers: 0,
        };
        let of = |stages: &[Stage]| PipelineLayout {
            stages: stages.to_vec(),
            provider: Map::new(),
        };
        assert!(of(&[stage(0, 3), stage(3, 5)]).is_partition_of(8));
        assert!(!of(&[stage(0, 3), stage(4, 4)]).is_partition_of(8));
        assert!(!of(&[stage(0, 3), stage(2, 6)]).is_partition_of(8));
        assert!(!of(&[stage(0, 8), stage(8, 0)]).is_partition_of(8));
        assert!(!of(&[stage(0, 7)]).is_partition_of(8));
    }
}
