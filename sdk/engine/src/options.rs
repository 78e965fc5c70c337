//! What a user may ask of a conversion.

use rialto_bridge::{LayerAxis, Mesh, MtpPolicy, RuleInfo, StageChoice};
use rialto_tensor::{Dtype, cast};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::filter::Filter;

/// Which dtype the written weights have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DtypeChoice {
    /// Each tensor keeps the dtype it is stored in; encoded ones get the dtype their codec decodes to.
    #[default]
    Keep,
    /// Weights become BF16, as Megatron narrows them; params whose rule pins the dtype keep it.
    Bf16,
}

impl DtypeChoice {
    /// The dtype to write for a param of this rule whose values are read as `stored`.
    ///
    /// A dtype from which no cast is defined is kept only by [`DtypeChoice::Keep`]; else the cast's error is returned. So is it
    /// for codes of FP8 that no codec decodes: without their scales they would become other weights.
    pub(crate) fn target(
        self,
        stored: Dtype,
        rule: &RuleInfo,
    ) -> Result<Dtype, rialto_tensor::Error> {
        match self {
            DtypeChoice::Bf16 if !rule.dtype.is_pinned => {
                let is_code = matches!(stored, Dtype::F8E4m3 | Dtype::F8E5m2 | Dtype::F8E8m0);
                match !is_code && cast::is_defined(stored, Dtype::Bf16) {
                    true => Ok(Dtype::Bf16),
                    false => Err(rialto_tensor::Error::NoCast {
                        from: stored,
                        to: Dtype::Bf16,
                    }),
                }
            }
            _ => Ok(stored),
        }
    }
}

/// In which chunks params are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChunkChoice {
    /// Those that Megatron itself would write on the mesh.
    #[default]
    Megatron,
    /// One a param.
    Whole,
}

/// What a user may ask of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The mesh whose chunks are written.
    pub mesh: Mesh,
    /// Which layers each pipeline stage holds.
    pub stages: StageChoice,
    /// Provider fields that get another value than the family's in `run_config.yaml`.
    pub settings: Map<String, Value>,
    /// What becomes of multi-token prediction.
    pub mtp: MtpPolicy,
    /// Dtype of the weights written.
    pub dtype: DtypeChoice,
    /// The chunks.
    pub chunks: ChunkChoice,
    /// Whether layers that are alike are stored as one tensor.
    pub layer_axis: LayerAxis,
    /// Whether the vocabulary is padded with zeros to what Megatron would make it on the mesh; else the mesh must divide it.
    pub pads_vocabulary: bool,
    /// Tensors that may be left out though no rule claims them: names in which `*` stands for any run of characters.
    pub allow_unmapped: Vec<String>,
    /// How many files hold the tensors, if there are as many; none for files of up to 16 GiB. Never a question of who writes
    /// them.
    pub files: Option<u64>,
    /// Which tensors are converted.
    pub filter: Filter,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mesh: Mesh::SINGLE,
            stages: StageChoice::Family,
            settings: Map::new(),
            mtp: MtpPolicy::Keep,
            dtype: DtypeChoice::Keep,
            chunks: ChunkChoice::Megatron,
            layer_axis: LayerAxis::Stacked,
            pads_vocabulary: false,
            allow_unmapped: Vec::new(),
            files: None,
            filter: Filter::default(),
        }
    }
}

/// What a user may ask of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportOptions {
    /// Dtype of the weights written.
    pub dtype: DtypeChoice,
    /// Largest shard, in bytes of tensors; a larger tensor gets a shard of its own.
    pub max_shard_bytes: u64,
    /// Whether the checksums that the checkpoint's writer recorded are compared before its bytes are used.
    pub verifies_checksums: bool,
    /// Names of the forms in which tensors are written, where the family has them; else its own spelling.
    pub forms: Vec<String>,
    /// Params that may be left out though no rule claims them, as in [`Options::allow_unmapped`].
    pub allow_unmapped: Vec<String>,
    /// How many shards hold the tensors, if there are as many, whatever their size; none for shards of
    /// [`ExportOptions::max_shard_bytes`].
    pub files: Option<u64>,
    /// What becomes of multi-token prediction.
    pub mtp: MtpPolicy,
    /// Which tensors are converted.
    pub filter: Filter,
}

impl Default for ExportOptions {
    fn default() -> ExportOptions {
        ExportOptions {
            dtype: DtypeChoice::Keep,
            max_shard_bytes: 5 << 30,
            verifies_checksums: true,
            forms: Vec::new(),
            allow_unmapped: Vec::new(),
            files: None,
            mtp: MtpPolicy::Keep,
            filter: Filter::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use rialto_bridge::DtypeRule;

    use super::*;

    #[test]
    fn codes_without_their_scales_are_never_cast() {
        let rule = |dtype| RuleInfo {
            name: "w".to_owned(),
            group: "test".to_owned(),
            dtype,
            encoded: None,
            padding: None,
            beside: None,
            skip: None,
        };
        let any = rule(DtypeRule::any_of(Dtype::ALL));
        for &stored in Dtype::ALL {
            let is_float = matches!(stored, Dtype::Bf16 | Dtype::F16 | Dtype::F32 | Dtype::F64);
            let narrowed = DtypeChoice::Bf16.target(stored, &any);
            assert_eq!(narrowed == Ok(Dtype::Bf16), is_float, "{stored}");
            assert_eq!(narrowed.is_err(), !is_float, "{stored}");
            assert_eq!(DtypeChoice::Keep.target(stored, &any), Ok(stored));
        }
        let pinned = rule(DtypeRule::pinned(Dtype::F32));
        assert_eq!(
            DtypeChoice::Bf16.target(Dtype::F32, &pinned),
            Ok(Dtype::F32)
        );
    }
}
