//! What a user may ask of a conversion.

use rialto_bridge::{Mesh, MtpPolicy, RuleInfo};
use rialto_tensor::{Dtype, cast};
use serde::Serialize;

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
    /// A dtype from which no cast is defined is kept only by [`DtypeChoice::Keep`]; else the cast's error is returned.
    pub(crate) fn target(
        self,
        stored: Dtype,
        rule: &RuleInfo,
    ) -> Result<Dtype, rialto_tensor::Error> {
        match self {
            DtypeChoice::Bf16 if !rule.dtype.is_pinned => {
                match cast::is_defined(stored, Dtype::Bf16) {
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

/// What a user may ask of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The mesh whose chunks are written.
    pub mesh: Mesh,
    /// What becomes of multi-token prediction.
    pub mtp: MtpPolicy,
    /// Dtype of the weights written.
    pub dtype: DtypeChoice,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mesh: Mesh::SINGLE,
            mtp: MtpPolicy::Keep,
            dtype: DtypeChoice::Keep,
        }
    }
}

/// What a user may ask of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportOptions {
    /// Dtype of the weights written.
    pub dtype: DtypeChoice,
    /// Largest shard, in bytes of tensors; a larger tensor gets a shard of its own.
    pub max_shard_bytes: u64,
    /// Whether the checksums that the checkpoint's writer recorded are compared before its bytes are used.
    pub verifies_checksums: bool,
}

impl Default for ExportOptions {
    fn default() -> ExportOptions {
        ExportOptions {
            dtype: DtypeChoice::Keep,
            max_shard_bytes: 5 << 30,
            verifies_checksums: true,
        }
    }
}
