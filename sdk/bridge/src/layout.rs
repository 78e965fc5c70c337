//! Which pipeline stage holds which layers.

use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Mesh;

/// How the layers shall be dealt to the stages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageChoice {
    /// As the family deals them.
    #[default]
    Family,
    /// So many layers of the source model to each stage, in order.
    Layers(Vec<u64>),
    /// Megatron's layer pattern, a `|` before each stage but the first; which symbols it has is the family's to say.
    Pattern(String),
}

/// What a user may ask of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipelineRequest {
    /// The mesh; `pp` is the number of stages.
    pub mesh: Mesh,
    /// Which layers each stage holds.
    #[serde(default)]
    pub stages: StageChoice,
}

impl PipelineRequest {
    /// The stages as the family deals them.
    #[must_use]
    pub fn new(mesh: Mesh) -> PipelineRequest {
        PipelineRequest {
            mesh,
            stages: StageChoice::Family,
        }
    }
}

impl StageChoice {
    /// How many stages it names; none if the family deals them.
    #[must_use]
    pub fn count(&self) -> Option<u64> {
        match self {
            StageChoice::Family => None,
            StageChoice::Layers(layers) => Some(layers.len() as u64),
            StageChoice::Pattern(pattern) => Some(pattern.split('|').count() as u64),
        }
    }
}

impl FromStr for StageChoice {
    type Err = String;

    /// Reads layers for each stage (`6,8,8,4`, or `6,8x2,4` for the same) or, if it does not begin with a digit, a pattern.
    fn from_str(text: &str) -> Result<StageChoice, String> {
        let text = text.trim();
        if !text.starts_with(|first: char| first.is_ascii_digit()) {
            return match text {
                "" => Err("expected layers for each stage or a layer pattern".to_owned()),
                _ => Ok(StageChoice::Pattern(text.to_owned())),
            };
        }
        let number = |text: &str| {
            let digits = text.trim();
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
            let value = digits
                .parse::<u64>()
                .ok()
                .filter(|&value| is_number && value > 0);
            value.ok_or_else(|| format!("{digits:?} is no number of layers or stages"))
        };
        let mut layers = Vec::new();
        for run in text.split(',') {
            let (each, times) = run.split_once('x').unwrap_or((run, "1"));
            let (each, times) = (number(each)?, number(times)?);
            if times > MOST_STAGES - layers.len() as u64 {
                return Err(format!("more than {MOST_STAGES} stages"));
            }
            layers.extend((0..times).map(|_| each));
        }
        Ok(StageChoice::Layers(layers))
    }
}

/// Most stages of a list: more than any pipeline has, and few enough to be held against a model at once.
const MOST_STAGES: u64 = 10_000;

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
    /// Keys of the params it holds, in which `*` stands for any run of characters. A param may be held by several stages.
    pub params: Vec<String>,
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

/// Stages of so many layers each, in order. `physical` is how many physical layers a layer is, and `params` the keys of the params of
/// some layers; what stands before and after all layers is the family's to add.
#[must_use]
pub fn stages_of(
    layers: &[u64],
    physical: u64,
    params: impl Fn(Range<u64>) -> Vec<String>,
) -> Vec<Stage> {
    let mut first_layer = 0;
    let stage = |&layers: &u64| {
        let after = first_layer + layers;
        let stage = Stage {
            first_layer,
            layers,
            physical_layers: physical * layers,
            mtp_layers: 0,
            params: params(first_layer..after),
        };
        first_layer = after;
        stage
    };
    layers.iter().map(stage).collect()
}

/// What is wrong with so many layers for each stage, where a pipeline has `stages` and a model `all` layers; nothing, if they
/// are a partition.
#[must_use]
pub fn dealing_faults(stages: u64, layers: &[u64], all: u64) -> Vec<String> {
    let mut faults = Vec::new();
    if layers.len() as u64 != stages {
        let named = counted(layers.len() as u64, "stage");
        faults.push(format!("--pipeline names {named}, --pp is {stages}"));
    }
    let held = layers.iter().fold(0u64, |sum, &n| sum.saturating_add(n));
    if held != all {
        let held = counted(held, "layer");
        faults.push(format!("--pipeline deals {held}, the model has {all}"));
    }
    let empty = layers
        .iter()
        .enumerate()
        .filter(|(_, layers)| **layers == 0);
    faults.extend(empty.map(|(stage, _)| format!("stage {stage} holds no layer")));
    faults
}

/// A number of things, as it is said: `1 layer`, `2 layers`.
#[must_use]
pub fn counted(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
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
            params: Vec::new(),
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

    #[test]
    fn stages_follow_each_other() {
        let stages = stages_of(&[2, 1], 2, |layers| vec![format!("{layers:?}")]);
        let of = |stage: &Stage| (stage.first_layer, stage.layers, stage.physical_layers);
        assert_eq!([of(&stages[0]), of(&stages[1])], [(0, 2, 4), (2, 1, 2)]);
        assert_eq!(
            [&stages[0].params, &stages[1].params],
            [&["0..2"], &["2..3"]]
        );
    }

    #[test]
    fn layers_that_are_no_partition_are_told_apart() {
        assert!(dealing_faults(2, &[3, 5], 8).is_empty());
        for (stages, layers, all, expected) in [
            (
                3,
                &[3, 5][..],
                8,
                vec!["--pipeline names 2 stages, --pp is 3"],
            ),
            (
                2,
                &[3, 5],
                9,
                vec!["--pipeline deals 8 layers, the model has 9"],
            ),
            (2, &[0, 1], 1, vec!["stage 0 holds no layer"]),
            (
                1,
                &[u64::MAX, 2],
                1,
                vec![
                    "--pipeline names 2 stages, --pp is 1",
                    "--pipeline deals 18446744073709551615 layers, the model has 1",
                ],
            ),
        ] {
            assert_eq!(dealing_faults(stages, layers, all), expected);
        }
    }

    #[test]
    fn a_layout_is_read_as_layers_for_each_stage_or_as_a_pattern() {
        let read = |text: &str| text.parse::<StageChoice>();
        let layers = |layers: &[u64]| Ok(StageChoice::Layers(layers.to_vec()));
        assert_eq!(read("78"), layers(&[78]));
        assert_eq!(read("6,8,8,4"), layers(&[6, 8, 8, 4]));
        assert_eq!(read("6, 8x2 ,4"), read("6,8,8,4"));
        let pattern = read("D-|DE").unwrap();
        assert_eq!(pattern, StageChoice::Pattern("D-|DE".to_owned()));
        assert_eq!(pattern.count(), Some(2));
        assert_eq!(read("6,8x2").unwrap().count(), Some(3));
        assert_eq!(read(" 5x10000 "), layers(&[5; 10_000]));
        for wrong in [
            "5x10000,1",
            "1x10000,1x10000",
            "3,+5",
            "3;",
            "",
            "6,",
            "6,,8",
            "6x",
            "6x0",
            "0",
            "6,-8",
            "6x99999999",
            "6;8",
            "18446744073709551616",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
