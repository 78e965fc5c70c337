//! Which pipeline stage holds which layers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, Mesh};

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

    /// Refuses settings of fields that follow from the layout. Errors: [`Error::Settings`].
    pub fn check_settings(&self, settings: &Map<String, Value>) -> Result<(), Error> {
        let decided = settings
            .iter()
            .filter(|(key, _)| self.provider.contains_key(*key));
        let faults = decided.map(|(key, value)| SettingFault {
            setting: setting(key, value),
            reason: "it follows from the mesh and the pipeline".to_owned(),
            supported: "--tp, --pp, --ep, --etp and --pipeline".to_owned(),
        });
        SettingFault::refuse(faults.collect())
    }
}

/// A provider field that a user may not set to what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingFault {
    /// The field and the value asked for, as `field=value`.
    pub setting: String,
    /// Why not.
    pub reason: String,
    /// What would do instead.
    pub supported: String,
}

impl SettingFault {
    /// An error if there is any. Errors: [`Error::Settings`].
    pub fn refuse(faults: Vec<SettingFault>) -> Result<(), Error> {
        match faults.is_empty() {
            true => Ok(()),
            false => Err(Error::Settings { faults }),
        }
    }
}

impl fmt::Display for SettingFault {
    /// Prints `--set fp8=hybrid is refused: why; supported: null`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SettingFault {
            setting,
            reason,
            supported,
        } = self;
        write!(
            f,
            "--set {setting} is refused: {reason}; supported: {supported}"
        )
    }
}

/// A setting as a user writes it: text without quotes.
#[must_use]
pub fn setting(key: &str, value: &Value) -> String {
    match value.as_str() {
        Some(text) => format!("{key}={text}"),
        None => format!("{key}={value}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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

    #[test]
    fn a_setting_of_what_the_layout_decides_is_refused() {
        let provider = |fields: Value| fields.as_object().unwrap().clone();
        let layout = PipelineLayout {
            stages: Vec::new(),
            provider: provider(json!({"tensor_model_parallel_size": 2})),
        };
        assert_eq!(
            layout.check_settings(&provider(json!({"seq_length": 8}))),
            Ok(())
        );
        let error = layout.check_settings(&provider(json!({"tensor_model_parallel_size": 4})));
        assert_eq!(
            error.unwrap_err().to_string(),
            "--set tensor_model_parallel_size=4 is refused: it follows from the mesh and the pipeline; \
             supported: --tp, --pp, --ep, --etp and --pipeline"
        );
    }
}
