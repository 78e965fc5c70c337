//! The traits a model family implements.
//!
//! There are five, one for each thing a family knows, so that a plugin's files read like a model card: the config in one,
//! the weights in another. [`Bridge`] is all of them together and what the SDK holds; a plugin that is loaded from a
//! library and one that is linked are the same `dyn Bridge`.
//!
//! Calls may come from any thread, and an implementation keeps no state between them.

use rialto_program::Program;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Codec, ConfigEdit, EncodedTensor, Error, ModelSpec, PipelineLayout, PipelineRequest, Placement,
    RawConfig, WeightMap,
};

/// Who a plugin is and what it serves.
///
/// Nothing is done by it, so a reader passes over fields that it does not know: a plugin may say more than its host understands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Name of the plugin, such as `glm5`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// One sentence for `plugin list`.
    pub summary: String,
    /// Architecture ids it may claim, as they stand in a config's `architectures`.
    pub architectures: Vec<String>,
    /// Releases it maps today.
    pub releases: Vec<String>,
}

/// Whether a family takes a config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case", tag = "claim")]
pub enum Claim {
    /// It does not, and why not.
    No {
        /// One line for the user.
        reason: String,
    },
    /// It does.
    Yes {
        /// The release it takes it for.
        release: String,
        /// What in the config says so.
        reason: String,
    },
}

/// What becomes of multi-token-prediction layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MtpPolicy {
    /// They are mapped like the rest.
    #[default]
    Keep,
    /// The Hugging Face side may hold them, the Megatron side shall not.
    Drop,
    /// Neither side holds them, whatever the config says.
    Absent,
}

/// What a user may ask of the config mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapOptions {
    /// What becomes of multi-token-prediction layers.
    pub mtp: MtpPolicy,
    /// Provider fields that the user gives another value. The SDK writes them over the family's; the family refuses those
    /// that it knows to make another model of the weights, and those it does not train with.
    #[serde(default)]
    pub settings: Map<String, Value>,
    /// Whether the SDK pads the vocabulary, as the weight map says how. The family tells Megatron so in the provider's words;
    /// [`Dims::vocab`](crate::Dims::vocab) stays the size without padding.
    #[serde(default)]
    pub pads_vocabulary: bool,
}

/// `config.json` to a [`ModelSpec`], and back.
pub trait ConfigMapping {
    /// Whether this family takes the config. Never an error for a config that merely belongs to somebody else.
    fn claim(&self, config: &RawConfig) -> Result<Claim, Error>;

    /// Reads the config. Unsupported values are [`Error::Unsupported`] by name; keys that mean nothing are listed. Settings
    /// that the family refuses are [`Error::Settings`].
    fn map_config(&self, config: &RawConfig, options: &MapOptions) -> Result<ModelSpec, Error>;

    /// What must change in `reference` so that it describes `spec`; nothing, if it does already.
    fn unmap_config(
        &self,
        spec: &ModelSpec,
        reference: &RawConfig,
    ) -> Result<Vec<ConfigEdit>, Error>;
}

/// Which rectangle of which tensor is which rectangle of which param.
pub trait WeightMapping {
    /// The rules, in the order of the forward pass. Both directions are read from them.
    fn weight_map(&self, spec: &ModelSpec) -> Result<WeightMap, Error>;

    /// How each param is cut over a mesh.
    fn placement(&self, spec: &ModelSpec) -> Result<Placement, Error>;
}

/// Which pipeline stage holds which layers.
pub trait PipelineMapping {
    /// The stages for a mesh. Errors: [`Error::Pipeline`] with all that does not fit and the values that would do.
    fn pipeline_layout(
        &self,
        spec: &ModelSpec,
        request: &PipelineRequest,
    ) -> Result<PipelineLayout, Error>;
}

/// The dequant hook: decodes tensors that the Hugging Face side stores encoded. A family without any implements nothing.
pub trait Dequantizer {
    /// The codecs of this model.
    fn codecs(&self, spec: &ModelSpec) -> Result<Vec<Codec>, Error> {
        let _ = spec;
        Ok(Vec::new())
    }

    /// Decodes one tensor, or a rectangle of whole blocks of one, into `out`: dense and row-major, of the shape of the stored
    /// elements and the codec's decoded dtype.
    ///
    /// Errors: [`Error::UnknownCodec`], [`Error::Codec`] if the companions do not fit the tensor.
    fn dequantize(&self, encoded: &EncodedTensor<'_>, out: &mut [u8]) -> Result<(), Error> {
        let _ = out;
        Err(Error::UnknownCodec {
            codec: encoded.codec.to_owned(),
        })
    }
}

/// What a user may ask of the forward pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramOptions {
    /// Numbers of the forward pass that the user gives another value, where releases or programs disagree. The family refuses
    /// names that it does not know, and values that no program computes with.
    #[serde(default)]
    pub settings: Map<String, Value>,
}

/// The model's forward pass, as data. A family without one implements nothing: its checkpoints are converted and not run.
pub trait ForwardPass {
    /// The program of the model, for one device. Its params are named by tensors or by params of the weight map. Errors:
    /// [`Error::NoForwardPass`]; [`Error::Settings`] with every setting that is refused.
    fn program(&self, spec: &ModelSpec, options: &ProgramOptions) -> Result<Program, Error> {
        let _ = options;
        Err(Error::NoForwardPass {
            release: spec.release.clone(),
        })
    }
}

/// A model family: all it knows, behind one pointer.
pub trait Bridge:
    ConfigMapping + WeightMapping + PipelineMapping + Dequantizer + ForwardPass + Send + Sync
{
    /// Who it is and what it serves.
    fn describe(&self) -> Description;
}
