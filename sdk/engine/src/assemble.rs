//! One output tensor, band by band, from the pieces that make it.

use rialto_tensor::{Dtype, Region, cast};

use crate::Error;
use crate::array::{Array, corresponding, relative};
use crate::runs::bands;

/// Bytes of one band: what is held in memory of any tensor at a time, once as stored and once cast.
pub(crate) const BAND_BYTES: u64 = 8 << 20;

/// A rectangle of the output and the rectangle of an input that holds its elements.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub(crate) output: &'a Region,
    pub(crate) array: &'a Array<'a>,
    pub(crate) input: &'a Region,
}

/// Calls `emit` with the bytes of `region` in row-major order, cast from the inputs' dtype to `dtype`.
///
/// The parts tile the output tensor and share one dtype `stored`: the mapping has proven both.
pub(crate) fn assemble(
    region: &Region,
    stored: Dtype,
    dtype: Dtype,
    parts: &[Part<'_>],
    emit: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut band_bytes = Vec::new();
    let mut cast_bytes = Vec::new();
    for band in bands(region, BAND_BYTES / stored.size_bytes()) {
        let shape = band.shape();
        let length = usize::try_from(shape.size_bytes(stored)?).expect("a band fits in memory");
        band_bytes.resize(length, 0);
        for part in parts {
            let Some(common) = band.intersection(part.output) else {
                continue;
            };
            let input = corresponding(&common, part.output, part.input);
            part.array
                .read(&input, &relative(&common, &band), &shape, &mut band_bytes)?;
        }
        if stored == dtype {
            emit(&band_bytes)?;
        } else {
            cast_bytes.clear();
            cast::cast(stored, dtype, &band_bytes, &mut cast_bytes)?;
            emit(&cast_bytes)?;
        }
    }
    Ok(())
}
