//! One output tensor, band by band, from the pieces that make it.

use rialto_tensor::{Dtype, Region, cast};

use crate::Error;
use crate::array::Values;
use crate::runs::bands;

/// Bytes of one band: what is held in memory of any tensor at a time, once as stored and once cast.
pub(crate) const BAND_BYTES: u64 = 8 << 20;

/// A rectangle of the output and the rectangle of an input that holds its elements.
pub(crate) struct Part<'a> {
    pub(crate) output: &'a Region,
    pub(crate) array: &'a dyn Values,
    pub(crate) input: &'a Region,
}

/// Calls `emit` with the bytes of `region` in row-major order, cast from the inputs' dtype to `dtype`.
///
/// The parts share one dtype and tile the output tensor but for its padding, which becomes zeros: the mapping has proven both.
pub(crate) fn assemble(
    region: &Region,
    dtype: Dtype,
    parts: &[Part<'_>],
    emit: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    assemble_bands(BAND_BYTES, region, dtype, parts, emit)
}

/// The same with bands of at most `limit` bytes, at least one element each; the limit changes no byte of the whole.
fn assemble_bands(
    limit: u64,
    region: &Region,
    dtype: Dtype,
    parts: &[Part<'_>],
    emit: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut buffers = Buffers::default();
    for band in bands_of(limit, region, dtype, parts) {
        emit(buffers.fill(&band, dtype, parts)?)?;
    }
    Ok(())
}

/// The dtype that the parts share; that of the output if there are none.
fn stored_dtype(dtype: Dtype, parts: &[Part<'_>]) -> Dtype {
    parts.first().map_or(dtype, |part| part.array.dtype())
}

/// The bands in which a region is read best.
pub(crate) fn bands_of(
    limit: u64,
    region: &Region,
    dtype: Dtype,
    parts: &[Part<'_>],
) -> Vec<Region> {
    let granule = parts.iter().map(|part| part.array.granule()).max();
    let width = stored_dtype(dtype, parts).size_bytes();
    bands(region, limit / width, granule.unwrap_or(1))
}

/// The bytes of a band, once as stored and once cast.
#[derive(Default)]
pub(crate) struct Buffers {
    stored: Vec<u8>,
    cast: Vec<u8>,
}

impl Buffers {
    /// Reads one band of the output.
    pub(crate) fn fill(
        &mut self,
        band: &Region,
        dtype: Dtype,
        parts: &[Part<'_>],
    ) -> Result<&[u8], Error> {
        let stored = self.fill_stored(band, dtype, parts)?;
        if stored == dtype {
            return Ok(&self.stored);
        }
        let length =
            usize::try_from(band.shape().size_bytes(dtype)?).expect("a band fits in memory");
        self.cast.resize(length, 0);
        cast::cast_into(stored, dtype, &self.stored, &mut self.cast)?;
        Ok(&self.cast)
    }

    /// Reads one band in the dtype that the parts share, and says which that is.
    fn fill_stored(
        &mut self,
        band: &Region,
        dtype: Dtype,
        parts: &[Part<'_>],
    ) -> Result<Dtype, Error> {
        let stored = stored_dtype(dtype, parts);
        let shape = band.shape();
        let length = usize::try_from(shape.size_bytes(stored)?).expect("a band fits in memory");
        let common = parts.iter().filter_map(|part| {
            let common = band.intersection(part.output)?;
            Some((part, common))
        });
        let common: Vec<(&Part<'_>, Region)> = common.collect();
        let mut filled = 0;
        for (_, common) in &common {
            filled += common.elements()?;
        }
        if filled < band.elements()? {
            // The buffer holds the band before, and no part lies where the output is padded.
            self.stored.clear();
        }
        self.stored.resize(length, 0);
        for (part, common) in common {
            let input = Region::corresponding(&common, part.output, part.input);
            let place = common.relative_to(band);
            part.array.read(&input, &place, &shape, &mut self.stored)?;
        }
        Ok(stored)
    }

    /// The band as it was stored, before it was cast.
    pub(crate) fn stored(&self) -> &[u8] {
        &self.stored
    }
}

#[cfg(test)]
mod tests {
    use rialto_tensor::Shape;

    use super::*;
    use crate::array::{Array, Bytes, Extent};

    /// A dense F32 tensor whose elements are `first`, `first + 1`, and so on.
    fn counting(first: u16, shape: &Shape) -> Array<'static> {
        let elements = shape.elements().unwrap();
        let values = (0..elements).map(|at| f32::from(first) + at as f32);
        Array {
            dtype: Dtype::F32,
            extents: vec![Extent {
                region: Region::whole(shape),
                bytes: Bytes::Memory(values.flat_map(f32::to_le_bytes).collect()),
            }],
        }
    }

    /// Expert 1 of a stack `[2, 6, 5]`, rows 0 to 2 from one tensor and rows 3 to 5 from the columns of a wider one.
    #[test]
    fn bands_of_any_size_make_the_same_bytes_cast_or_not() {
        let (gate, wide) = (Shape::new([3, 5]), Shape::new([3, 9]));
        let arrays = [counting(0, &gate), counting(100, &wide)];
        let outputs = [0, 3].map(|row| Region::new([1, row, 0], [1, 3, 5]));
        let inputs = [Region::whole(&gate), Region::new([0, 2], [3, 5])];
        let parts = [0, 1].map(|at| Part {
            output: &outputs[at],
            array: &arrays[at],
            input: &inputs[at],
        });
        let region = Region::new([1, 0, 0], [1, 6, 5]);
        let upper =
            (0..3u16).flat_map(|row| (0..5u16).map(move |column| 100 + 9 * row + 2 + column));
        let expected: Vec<f32> = (0..15).chain(upper).map(f32::from).collect();
        for limit in [1, 4, 7, 12, 20, 24, 44, 60, 119, 120, 1 << 20] {
            for dtype in [Dtype::F32, Dtype::Bf16] {
                let (mut found, mut largest) = (Vec::new(), 0);
                let mut emit = |band: &[u8]| {
                    found.extend_from_slice(band);
                    largest = largest.max(band.len() as u64);
                    Ok(())
                };
                assemble_bands(limit, &region, dtype, &parts, &mut emit).unwrap();
                // Whole numbers below 256 are exact in BF16: the upper half of their F32.
                let bytes = expected.iter().flat_map(|value| {
                    let bytes = value.to_le_bytes();
                    bytes[4 - dtype.size_bytes() as usize..].to_vec()
                });
                assert_eq!(found, bytes.collect::<Vec<u8>>(), "limit {limit}, {dtype}");
                assert!(
                    largest <= limit.max(4),
                    "a band of {largest} bytes over {limit}"
                );
            }
        }
    }

    /// Rows 0 to 2 of six have a tensor; before the last three there is always a band whose bytes are no zeros.
    #[test]
    fn where_no_part_lies_there_are_zeros_whatever_was_in_the_buffer() {
        let filled = Shape::new([3, 5]);
        let array = counting(1, &filled);
        let whole = Region::whole(&filled);
        let parts = [Part {
            output: &whole,
            array: &array,
            input: &whole,
        }];
        let region = Region::new([0, 0], [6, 5]);
        let expected: Vec<f32> = (1..=15u8).map(f32::from).chain([0.0; 15]).collect();
        for limit in [1, 4, 12, 20, 24, 40, 80, 1 << 20] {
            let mut found = Vec::new();
            let mut emit = |band: &[u8]| {
                found.extend_from_slice(band);
                Ok(())
            };
            assemble_bands(limit, &region, Dtype::F32, &parts, &mut emit).unwrap();
            let bytes: Vec<u8> = expected
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            assert_eq!(found, bytes, "limit {limit}");
        }
        // A chunk of padding alone has no part to take its dtype from.
        let mut found = Vec::new();
        let mut emit = |band: &[u8]| {
            found.extend_from_slice(band);
            Ok(())
        };
        let below = Region::new([3, 0], [3, 5]);
        assemble_bands(8, &below, Dtype::Bf16, &[], &mut emit).unwrap();
        assert_eq!(found, [0; 30]);
    }
}
