//! Encodings of a stored tensor: a tensor, its companions, and the dense values they stand for.
//!
//! A tensor is encoded when it is stored in a codec's dtype and the companions lie beside it. That is decided tensor by
//! tensor from what is stored, never from a list in a config.

use rialto_tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};

/// One encoding that a family can decode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Codec {
    /// Its name, with a version: `block_fp8/1`.
    pub name: String,
    /// The stored dtype that marks an encoded tensor.
    #[serde(with = "dtype_name")]
    pub stored: Dtype,
    /// The dtype of the decoded values.
    #[serde(with = "dtype_name")]
    pub decoded: Dtype,
    /// Suffixes that make a companion's name from the tensor's (`_scale_inv`). Companions belong to the tensor: they are
    /// claimed with it and never mapped alone.
    pub companions: Vec<String>,
}

/// A tensor as stored, with its companions in the order of [`Codec::companions`].
#[derive(Clone, Debug)]
pub struct EncodedTensor<'a> {
    /// Name of the codec.
    pub codec: &'a str,
    /// The stored tensor, in the codec's stored dtype.
    pub tensor: TensorView<'a>,
    /// Its companions.
    pub companions: Vec<TensorView<'a>>,
}

mod dtype_name {
    use rialto_tensor::Dtype;
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    // serde calls this with a reference.
    #[allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "the signature is serde's"
    )]
    pub(super) fn serialize<S: Serializer>(
        dtype: &Dtype,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(dtype.safetensors_name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Dtype, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}
