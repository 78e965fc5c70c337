//! A rectangle of an output, band by band, from the pieces that make it.

use rialto_checkpoint::store::PageBuffer;
use rialto_tensor::{Dtype, Region, cast};

use crate::Error;
use crate::array::{Scratch, Values, usize_range};
use crate::runs::bands;

/// A rectangle of the output and the rectangle of an input that holds its elements.
pub(crate) struct Part<'a> {
    pub(crate) output: Region,
    pub(crate) input: Region,
    pub(crate) values: Box<dyn Values + Sync + 'a>,
}

/// The dtype that the parts share; that of the output if there are none.
fn stored_dtype(dtype: Dtype, parts: &[Part<'_>]) -> Dtype {
    parts.first().map_or(dtype, |part| part.values.dtype())
}

/// The bands in which a region is read best: of at most `limit` bytes as they are stored, at least one element each, in its
/// row-major order.
pub(crate) fn bands_of(
    limit: u64,
    region: &Region,
    dtype: Dtype,
    parts: &[Part<'_>],
) -> Vec<Region> {
    let granule = parts.iter().map(|part| part.values.granule()).max();
    let width = stored_dtype(dtype, parts).size_bytes();
    bands(region, limit / width, granule.unwrap_or(1))
}

/// The bytes of a band, once as stored and once cast, and what reading them takes. Kept from one band to the next.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    stored: PageBuffer,
    cast: PageBuffer,
    scratch: Scratch,
}

impl Buffers {
    /// Reads one band of the output, cast from the inputs' dtype to `dtype`. `place` is where the band goes in its file: memory
    /// that lies alike is written without a copy.
    ///
    /// The parts share one dtype and tile the output tensor but for its padding, which becomes zeros: the mapping has proven
    /// both.
    pub(crate) fn fill(
        &mut self,
        band: &Region,
        dtype: Dtype,
        parts: &[Part<'_>],
        place: u64,
    ) -> Result<&[u8], Error> {
        let stored = stored_dtype(dtype, parts);
        let shape = band.shape();
        let length =
            |dtype| -> Result<usize, Error> { Ok(usize_range(0, shape.size_bytes(dtype)?).end) };
        let bytes = self.stored.at(place, length(stored)?);
        let common = parts.iter().filter_map(|part| {
            let common = band.intersection(&part.output)?;
            Some((part, common))
        });
        let common: Vec<(&Part<'_>, Region)> = common.collect();
        let mut filled = 0;
        for (_, common) in &common {
            filled += common.elements()?;
        }
        if filled < band.elements()? {
            // The buffer holds the band before, and no part lies where the output is padded.
            bytes.fill(0);
        }
        for (part, common) in common {
            let input = Region::corresponding(&common, &part.output, &part.input);
            let place = common.relative_to(band);
            let values = &part.values;
            values.read(&input, &place, &shape, bytes, &mut self.scratch)?;
        }
        if stored == dtype {
            return Ok(self.stored.bytes());
        }
        let target = self.cast.at(place, length(dtype)?);
        cast::cast_into(stored, dtype, self.stored.bytes(), target)?;
        Ok(self.cast.bytes())
    }

    /// The band as it was stored, before it was cast.
    pub(crate) fn stored(&self) -> &[u8] {
        self.stored.bytes()
    }
}

#[cfg(test)]
mod tests {
    use rialto_tensor::Shape;

    use super::*;
    use crate::array::{Array, Bytes, Extent};

    /// The bytes of a region, band by band, and the length of the longest.
    fn assembled(limit: u64, region: &Region, dtype: Dtype, parts: &[Part<'_>]) -> (Vec<u8>, u64) {
        let (mut buffers, mut found, mut longest) = (Buffers::default(), Vec::new(), 0);
        for band in bands_of(limit, region, dtype, parts) {
            let place = 77 + found.len() as u64;
            let bytes = buffers.fill(&band, dtype, parts, place).unwrap();
            found.extend_from_slice(bytes);
            longest = longest.max(bytes.len() as u64);
        }
        (found, longest)
    }

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
        let part = |row, input, array| Part {
            output: Region::new([1, row, 0], [1, 3, 5]),
            input,
            values: Box::new(array),
        };
        let parts = [
            part(0, Region::whole(&gate), counting(0, &gate)),
            part(3, Region::new([0, 2], [3, 5]), counting(100, &wide)),
        ];
        let region = Region::new([1, 0, 0], [1, 6, 5]);
        let upper =
            (0..3u16).flat_map(|row| (0..5u16).map(move |column| 100 + 9 * row + 2 + column));
        let expected: Vec<f32> = (0..15).chain(upper).map(f32::from).collect();
        for limit in [1, 4, 7, 12, 20, 24, 44, 60, 119, 120, 1 << 20] {
            for dtype in [Dtype::F32, Dtype::Bf16] {
                let (found, largest) = assembled(limit, &region, dtype, &parts);
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
        let parts = [Part {
            output: Region::whole(&filled),
            input: Region::whole(&filled),
            values: Box::new(counting(1, &filled)),
        }];
        let region = Region::new([0, 0], [6, 5]);
        let expected: Vec<f32> = (1..=15u8).map(f32::from).chain([0.0; 15]).collect();
        for limit in [1, 4, 12, 20, 24, 40, 80, 1 << 20] {
            let (found, _) = assembled(limit, &region, Dtype::F32, &parts);
            let bytes: Vec<u8> = expected
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            assert_eq!(found, bytes, "limit {limit}");
        }
        // A chunk of padding alone has no part to take its dtype from.
        let below = Region::new([3, 0], [3, 5]);
        assert_eq!(assembled(8, &below, Dtype::Bf16, &[]).0, [0; 30]);
    }
}
