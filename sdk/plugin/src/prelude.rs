//! Every name a plugin needs: the traits and their data, element types and views, and JSON.

pub use rialto_bridge::config::{MOST_SIZE, READ_KEYS, contradiction};
pub use rialto_bridge::layout::{counted, dealing_faults, stages_of};
pub use rialto_bridge::settings::{FieldKind, SettingRules, is_same_value};
pub use rialto_bridge::spec::{fields, torch};
pub use rialto_bridge::{
    Bridge, Claim, Codec, Companion, ConfigEdit, ConfigMapping, Cut, Dequantizer, Description,
    Dims, DtypeRule, EncodedTensor, Error, Form, ForwardPass, MapOptions, MapRule, Mesh, MeshAxis,
    ModelSpec, ModuleState, MtpPolicy, Part, PipelineLayout, PipelineMapping, PipelineRequest,
    Placement, PlacementRule, ProgramOptions, RawConfig, Rule, Scope, SettingFault, Stage,
    StageChoice, StateValue, WeightMap, WeightMapping,
};
pub use rialto_program::{self as program, Program};
pub use rialto_tensor::{Dtype, Region, Shape, TensorView, quant};
pub use serde_json::{Map, Value, json};

pub use crate::host::{self, Level, log};
