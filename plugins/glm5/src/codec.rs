//! How matrices are stored in FP8: E4M3 codes, and an F32 scale for each block of 128 x 128.

use rialto_plugin::prelude::*;

use crate::Glm5;

/// Name of the codec.
pub(crate) const BLOCK_FP8: &str = "block_fp8/128x128";

/// Rows and columns of a block. Source: `weight_block_size` of the published `quantization_config`.
pub(crate) const BLOCK: [u64; 2] = [128, 128];

impl Dequantizer for Glm5 {
    /// One codec, whatever the config says: its list of modules left out names some that do not exist, and what is stored
    /// decides.
    fn codecs(&self, _: &ModelSpec) -> Result<Vec<Codec>, Error> {
        Ok(vec![Codec {
            name: BLOCK_FP8.to_owned(),
            stored: vec![Dtype::F8E4m3, Dtype::F8E5m2],
            decoded: Dtype::Bf16,
            block: BLOCK.to_vec(),
            companions: vec![Companion {
                // The second is what other quantizers call the same grid.
                suffixes: vec!["_scale_inv".to_owned(), "_scale".to_owned()],
                dtype: Dtype::F32,
                block: BLOCK.to_vec(),
            }],
        }])
    }

    /// `out = bf16(f32(code) * scale)`, the product in F32, rounded once. Shapes: codes `[.., n, k]`, scales
    /// `[.., ceil(n/128), ceil(k/128)]`, out `[.., n, k]`.
    fn dequantize(&self, encoded: &EncodedTensor<'_>, out: &mut [u8]) -> Result<(), Error> {
        let codec = encoded.codec.to_owned();
        if codec != BLOCK_FP8 {
            return Err(Error::UnknownCodec { codec });
        }
        let [scale] = encoded.companions.as_slice() else {
            let reason = format!("one scale is needed, {} given", encoded.companions.len());
            return Err(Error::Codec { codec, reason });
        };
        quant::block::dequantize(&encoded.tensor, scale, BLOCK, out).map_err(|error| Error::Codec {
            codec,
            reason: error.to_string(),
        })
    }
}
