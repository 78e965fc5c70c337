//! The traits a model family implements, and the data they speak in.
//!
//! Floor 3 of the house: stands on `rialto-tensor` and `rialto-program`. A family says four things, each a value that can be read,
//! printed and compared: what its config means ([`ModelSpec`]), which rectangle of which Hugging Face tensor is which rectangle of
//! which Megatron param ([`WeightMap`]), how layers fall into pipeline stages ([`PipelineLayout`]), and what its
//! forward pass is ([`Program`](rialto_program::Program)). The SDK does the rest; nothing here opens a file, and nothing here knows a family.
//!
//! ```
//! use rialto_bridge::{DtypeRule, MapRule, Part, Scope, WeightMap};
//! use rialto_tensor::Dtype;
//!
//! // gate and up projections of two blocks become the two halves of one fused matrix each.
//! let fused = MapRule::new("mlp.linear_fc1.weight", "mlp", "decoder.layers.{2*i+1}.mlp.linear_fc1.weight", [16, 4])
//!     .over(Scope::new().index("i", 0..2))
//!     .dtype(DtypeRule::any_of([Dtype::Bf16]))
//!     .part(Part::new("model.layers.{i}.mlp.gate_proj.weight", [8, 4]))
//!     .part(Part::new("model.layers.{i}.mlp.up_proj.weight", [8, 4]).at(["8", "0"]));
//! let mapping = WeightMap::new([fused]).resolve()?;
//! assert_eq!((mapping.tensors().len(), mapping.params().len(), mapping.pieces().len()), (4, 2, 4));
//! # Ok::<(), rialto_bridge::Error>(())
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`family`] | the traits: config mapping, weight mapping, pipeline layout, dequantizer, forward pass, and `Bridge`, which is all of them |
//! | [`config`] | `config.json` as it was written, and edits that touch nothing else |
//! | [`spec`] | the model in Megatron's words |
//! | [`template`] | names and offsets with indices in them |
//! | [`rule`] | one rule of a weight map |
//! | [`forms`] | which spelling of each rule is used |
//! | `limits` | what a rule may be at most, and the values of its indices |
//! | [`weight_map`] | all rules, and their expansion |
//! | [`stack`] | params of layers that are alike, stored as one tensor |
//! | [`padding`] | params that are longer than their tensors fill |
//! | [`mapping`] | tensors, params and pieces, and what can be wrong with them |
//! | [`binding`] | a mapping held against what a checkpoint really holds |
//! | [`codec`] | encodings of a stored tensor |
//! | [`mesh`] | sizes of the parallel dimensions |
//! | [`placement`] | how params are cut over a mesh |
//! | [`layout`] | which stage holds which layers |
//! | [`settings`] | provider fields that a user sets |
//! | [`document`] | the JSON in which all of it crosses the ABI |
//! | [`weights`] | weights by name, for whoever runs a model |
//! | [`request`] | what is asked in it, and how an error is told |
#![forbid(unsafe_code)]

pub mod binding;
pub mod codec;
pub mod config;
pub mod document;
pub mod error;
pub mod family;
pub mod forms;
pub mod layout;
mod limits;
pub mod mapping;
pub mod mesh;
pub mod padding;
pub mod placement;
pub mod request;
pub mod rule;
pub mod settings;
pub mod spec;
pub mod stack;
pub mod template;
pub mod weight_map;
pub mod weights;

pub use codec::{Codec, Companion, EncodedTensor};
pub use config::{ConfigEdit, RawConfig};
pub use error::Error;
pub use family::{
    Bridge, Claim, ConfigMapping, Dequantizer, Description, ForwardPass, MapOptions, MtpPolicy,
    PipelineMapping, ProgramOptions, WeightMapping,
};
pub use forms::Forms;
pub use layout::{PipelineLayout, PipelineRequest, Stage, StageChoice};
pub use mapping::{
    CopyDecl, KeyDecl, Mapping, ObjectDecl, ParamDecl, Piece, RuleInfo, StoredTensor, TensorDecl,
    Violation,
};
pub use mesh::{Mesh, MeshAxis, Rank};
pub use padding::Padding;
pub use placement::{Cut, Divided, MeshRefusal, Placement, PlacementRule, Share};
pub use rule::{DtypeRule, Form, MapRule, ModuleState, Part, Rule, Scope, StateValue};
pub use settings::SettingFault;
pub use spec::{Dims, ModelSpec};
pub use stack::LayerAxis;
pub use weight_map::WeightMap;
pub use weights::{Codes, EncodedInfo, WeightInfo, WeightSource};
