//! Weights that look like those of a trained model, and are the same in every run: what full-size conversions are tried on.
//!
//! Matrices are normal-like around zero with the published `initializer_range` of 0.02 as standard deviation, norms the same
//! around one. An FP8 matrix has codes that are normal-like over the whole range of E4M3, none a NaN, and scales as odd as
//! the largest weights of real blocks. Every tensor is a stream of its own, drawn by its name: no two are equal, and one is
//! the same whatever stands beside it.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use half::bf16;

use crate::published::{Dtype, Tensor};
use crate::random::{LARGEST_NORMAL, Random};
use crate::shards::{self, Written};

/// Standard deviation of weights. Source: `initializer_range`.
const DEVIATION: f32 = 0.02;

/// The largest E4M3 number.
const LARGEST_CODE: f32 = 448.0;

/// Entries of a table: 16 bits choose one.
const ENTRIES: usize = 1 << 16;

/// Bytes that are made before they are written.
const BLOCK_BYTES: usize = 1 << 20;

/// Where values are drawn from: a table of each kind, so that four elements take one random number.
#[derive(Debug)]
pub struct Weights {
    seed: u64,
    matrix: Vec<[u8; 2]>,
    norm: Vec<[u8; 2]>,
    codes: Vec<[u8; 1]>,
    scales: Vec<[u8; 4]>,
    single: Vec<[u8; 4]>,
}

impl Weights {
    /// Those of a seed. Another seed gives other values to every tensor.
    #[must_use]
    pub fn new(seed: u64) -> Weights {
        let mut random = Random(seed);
        let mut normals = |mean: f32, deviation: f32| -> Vec<f32> {
            (0..ENTRIES)
                .map(|_| mean + deviation * random.normal())
                .collect()
        };
        let narrow = |values: Vec<f32>| -> Vec<[u8; 2]> {
            values
                .into_iter()
                .map(|value| bf16::from_f32(value).to_le_bytes())
                .collect()
        };
        let wide = |values: Vec<f32>| -> Vec<[u8; 4]> {
            values.into_iter().map(f32::to_le_bytes).collect()
        };
        let codes = normals(0.0, LARGEST_CODE / LARGEST_NORMAL);
        // What the largest weight of a block comes to, divided by the largest code.
        let scale = DEVIATION * LARGEST_NORMAL / LARGEST_CODE;
        Weights {
            seed,
            matrix: narrow(normals(0.0, DEVIATION)),
            norm: narrow(normals(1.0, DEVIATION)),
            codes: codes
                .into_iter()
                .map(|value| [nearest_code(value)])
                .collect(),
            scales: wide(normals(scale, 0.05 * scale)),
            single: wide(normals(0.0, DEVIATION)),
        }
    }

    /// Writes a checkpoint of these tensors into `target`, which it creates, and syncs its shards. Errors: those of
    /// [`shards::write`].
    pub fn write_checkpoint(
        &self,
        config: &[u8],
        tensors: &[Tensor],
        target: &Path,
    ) -> io::Result<Written> {
        shards::write(config, tensors, target, &mut |tensors, file| {
            let mut out = BufWriter::new(&mut *file);
            for tensor in tensors {
                self.write(tensor, &mut out)?;
            }
            out.flush()?;
            drop(out);
            file.sync_all()
        })
    }

    /// Writes the elements of a tensor. Errors: the writer's.
    fn write(&self, tensor: &Tensor, out: &mut impl Write) -> io::Result<()> {
        let is_norm = tensor.name.ends_with("norm.weight");
        let random = Random(self.seed ^ hash(&tensor.name));
        let elements = tensor.elements();
        match tensor.dtype {
            Dtype::Bf16 if is_norm => write(&self.norm, random, elements, out),
            Dtype::Bf16 => write(&self.matrix, random, elements, out),
            Dtype::F8E4m3 => write(&self.codes, random, elements, out),
            Dtype::F32 if tensor.is_scale => write(&self.scales, random, elements, out),
            Dtype::F32 => write(&self.single, random, elements, out),
        }
    }
}

fn write<const N: usize>(
    table: &[[u8; N]],
    mut random: Random,
    mut elements: u64,
    out: &mut impl Write,
) -> io::Result<()> {
    let table: &[[u8; N]; ENTRIES] = table.try_into().expect("a table has an entry for 16 bits");
    let mut block = vec![[0; N]; BLOCK_BYTES / N];
    while elements > 0 {
        let count = usize::try_from(elements).map_or(block.len(), |left| left.min(block.len()));
        let filled = &mut block[..count];
        for four in filled.chunks_mut(4) {
            let bits = random.bits().to_le_bytes();
            for (element, index) in four.iter_mut().zip(bits.as_chunks::<2>().0) {
                *element = table[usize::from(u16::from_le_bytes(*index))];
            }
        }
        out.write_all(filled.as_flattened())?;
        elements -= count as u64;
    }
    Ok(())
}

/// FNV-1a.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The nearest E4M3 code, ties to even, of a number not past 448.
#[must_use]
pub fn nearest_code(value: f32) -> u8 {
    // A power of two takes the exponent to E4M3's range; what is subnormal there is so here.
    let bits = (value * f32::from_bits(7 << 23)).to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let rounded = (magnitude + 0x7_ffff + (magnitude >> 20 & 1)) >> 20;
    (bits >> 24) as u8 & 0x80 | rounded.min(0x7e) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::Part;

    fn tensor(name: &str, dtype: Dtype, elements: u64) -> Tensor {
        Tensor {
            name: name.to_owned(),
            dtype,
            shape: vec![elements],
            part: Part::Main,
            is_scale: name.ends_with("_scale_inv"),
        }
    }

    fn bytes(weights: &Weights, name: &str, dtype: Dtype, elements: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        weights
            .write(&tensor(name, dtype, elements), &mut bytes)
            .unwrap();
        assert_eq!(bytes.len() as u64, elements * dtype.width_bytes());
        bytes
    }

    /// Mean and standard deviation.
    fn moments(values: &[f32]) -> [f64; 2] {
        let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>();
        let count = values.len() as f64;
        let average = mean(&mut values.iter().map(|&value| f64::from(value))) / count;
        let squares = mean(
            &mut values
                .iter()
                .map(|&value| (f64::from(value) - average).powi(2)),
        );
        [average, (squares / count).sqrt()]
    }

    fn assert_near(found: f64, expected: f64, tolerance: f64) {
        assert!(
            (found - expected).abs() < tolerance,
            "{found}, expected {expected}"
        );
    }

    fn narrow(bytes: &[u8]) -> Vec<f32> {
        let elements = bytes.as_chunks::<2>().0;
        elements
            .iter()
            .map(|&element| bf16::from_le_bytes(element).to_f32())
            .collect()
    }

    fn wide(bytes: &[u8]) -> Vec<f32> {
        let elements = bytes.as_chunks::<4>().0;
        elements
            .iter()
            .map(|&element| f32::from_le_bytes(element))
            .collect()
    }

    // A million draws from a table of 65,536: the mean of the table is what remains, 0.02 / 256 in standard deviation.
    const COUNT: u64 = 1_000_000;

    #[test]
    fn matrices_and_norms_are_normal_like_and_never_zero() {
        let weights = Weights::new(5);
        for (name, expected) in [
            ("a.q_a_proj.weight", 0.0),
            ("a.q_a_layernorm.weight", 1.0),
            ("a.enorm.weight", 1.0),
        ] {
            let values = narrow(&bytes(&weights, name, Dtype::Bf16, COUNT));
            let [mean, deviation] = moments(&values);
            assert_near(mean, expected, 5.0 * 0.02 / 256.0);
            assert_near(deviation, 0.02, 0.001);
            assert!(values.iter().all(|&value| value != 0.0), "{name}");
        }
        let bias = wide(&bytes(
            &weights,
            "gate.e_score_correction_bias",
            Dtype::F32,
            COUNT,
        ));
        assert_near(moments(&bias)[1], 0.02, 0.001);
    }

    #[test]
    fn codes_reach_over_the_range_without_a_nan_and_scales_make_weights_of_them() {
        let weights = Weights::new(5);
        let codes = bytes(&weights, "a.weight", Dtype::F8E4m3, COUNT);
        assert!(codes.iter().all(|code| code & 0x7f != 0x7f));
        let mut seen = [false; 256];
        codes
            .iter()
            .for_each(|&code| seen[usize::from(code)] = true);
        // All but the NaNs, and the codes next to zero that a normal distribution hardly has.
        assert!(seen.iter().filter(|seen| **seen).count() > 200);
        let scales = wide(&bytes(&weights, "a.weight_scale_inv", Dtype::F32, COUNT));
        assert!(scales.iter().all(|scale| (1.0e-4..2.0e-4).contains(scale)));
        // Decoded by the definition of the format: sign, four bits of exponent with bias 7, three of mantissa.
        let decoded: Vec<f32> = codes
            .iter()
            .zip(&scales)
            .map(|(code, scale)| {
                let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
                let magnitude = match exponent {
                    0 => mantissa * 2f32.powi(-6),
                    _ => (1.0 + mantissa) * 2f32.powi(exponent - 7),
                };
                magnitude * scale * if code & 0x80 == 0 { 1.0 } else { -1.0 }
            })
            .collect();
        let [mean, deviation] = moments(&decoded);
        assert_near(mean, 0.0, 5.0 * 0.02 / 256.0);
        assert_near(deviation, 0.02, 0.001);
    }

    #[test]
    fn a_tensor_is_decided_by_seed_and_name_alone_and_equals_no_other() {
        let [one, same, other] = [5, 5, 6].map(Weights::new);
        let of = |weights: &Weights, name: &str| bytes(weights, name, Dtype::Bf16, 4099);
        assert!(of(&one, "a") == of(&same, "a"));
        assert!(of(&one, "a") != of(&one, "b"));
        assert!(of(&one, "a") != of(&other, "a"));
        // A longer one begins alike: nothing depends on where a block ends.
        let long = bytes(&one, "a", Dtype::Bf16, BLOCK_BYTES as u64);
        assert!(long.starts_with(&of(&one, "a")[..4096]));
    }

    #[test]
    fn the_nearest_code_is_exact_for_every_code_and_even_between_two() {
        for (value, code) in [
            (0.0, 0),
            (448.0, 0x7e),
            (-448.0, 0xfe),
            (1.0, 0x38),
            (1.0625, 0x38),
            (1.1875, 0x3a),
            (0.001_953_125, 1),
        ] {
            assert_eq!(nearest_code(value), code, "{value}");
        }
    }
}
