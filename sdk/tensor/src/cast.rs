//! Changes of element type: exact where the target is wider, rounded once to nearest even where it is narrower.
//!
//! Only the casts that a conversion asks for are here; every other pair is [`Error::NoCast`], never an approximation.

use half::bf16;

use crate::{Dtype, Error};

/// Whether [`cast`] is defined for this pair. A dtype always casts to itself.
#[must_use]
pub fn is_defined(from: Dtype, to: Dtype) -> bool {
    from == to || matches!((from, to), (Dtype::F32, Dtype::Bf16))
}

/// Casts dense elements and appends them to `target`.
///
/// `F32 -> BF16` rounds to nearest, ties to even, keeps subnormals and signed zeros, and overflows to infinity, as
/// `torch.Tensor.to(torch.bfloat16)` does; a NaN stays a NaN.
///
/// Errors: [`Error::NoCast`] for a pair that is not defined. `source` must hold whole elements; a caller that cuts
/// inside one is wrong, and the remainder is refused as [`Error::ViewLength`].
pub fn cast(from: Dtype, to: Dtype, source: &[u8], target: &mut Vec<u8>) -> Result<(), Error> {
    let width = from.size_bytes();
    let found = source.len() as u64;
    if !found.is_multiple_of(width) {
        let elements = found / width;
        let shape = crate::Shape::new([elements]);
        return Err(Error::ViewLength {
            dtype: from,
            shape,
            expected: elements * width,
            found,
        });
    }
    match (from, to) {
        _ if from == to => target.extend_from_slice(source),
        (Dtype::F32, Dtype::Bf16) => {
            let (elements, _) = source.as_chunks::<4>();
            target.reserve(elements.len() * 2);
            for &element in elements {
                target
                    .extend_from_slice(&bf16::from_f32(f32::from_le_bytes(element)).to_le_bytes());
            }
        }
        _ => return Err(Error::NoCast { from, to }),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Round to nearest even on the bits, written without any float library.
    fn bf16_by_bits(bits: u32) -> u16 {
        if bits & 0x7f80_0000 == 0x7f80_0000 && bits & 0x007f_ffff != 0 {
            return (bits >> 16) as u16 | 0x0040;
        }
        let lowest_kept = (bits >> 16) & 1;
        (bits.wrapping_add(0x7fff + lowest_kept) >> 16) as u16
    }

    #[test]
    fn narrowing_rounds_to_nearest_even_for_every_upper_half_and_awkward_lower_half() {
        for upper in 0..=u32::from(u16::MAX) {
            for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let bits = upper << 16 | lower;
                let mut out = Vec::new();
                cast(Dtype::F32, Dtype::Bf16, &bits.to_le_bytes(), &mut out).unwrap();
                let found = u16::from_le_bytes([out[0], out[1]]);
                let expected = bf16_by_bits(bits);
                let is_nan = |b: u16| b & 0x7f80 == 0x7f80 && b & 0x7f != 0;
                assert!(
                    found == expected || (is_nan(found) && is_nan(expected)),
                    "{bits:08x}: {found:04x} {expected:04x}"
                );
            }
        }
    }

    #[test]
    fn a_pair_without_a_definition_is_refused_and_a_torn_element_too() {
        let mut out = Vec::new();
        assert_eq!(
            cast(Dtype::F8E4m3, Dtype::Bf16, &[0], &mut out),
            Err(Error::NoCast {
                from: Dtype::F8E4m3,
                to: Dtype::Bf16
            })
        );
        assert!(cast(Dtype::F32, Dtype::Bf16, &[0; 5], &mut out).is_err());
        assert!(out.is_empty());
    }
}
