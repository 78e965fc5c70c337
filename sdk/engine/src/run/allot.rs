//! How many lanes work at once, and how much each holds, within a budget of memory.

use crate::Error;

/// The least budget that can be asked for.
pub const LEAST_MEMORY_BUDGET_BYTES: u64 = 64 << 20;

/// The budget if none is asked for.
pub const DEFAULT_MEMORY_BUDGET_BYTES: u64 = 256 << 20;

/// Bytes that a lane reads at a time, as they are stored; the first that fits is taken. Half of a core's cache is best where
/// nothing waits for a device, and a device wants no less than the least.
const BAND_BYTES: [u64; 4] = [2 << 20, 1 << 20, 512 << 10, 256 << 10];

/// What a run works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allotment {
    /// Units that are worked on at once.
    pub(crate) lanes: usize,
    /// Bytes of a unit that are read at a time.
    pub(crate) band_bytes: u64,
    /// Whether a band is never less than what is decoded together.
    pub(crate) has_whole_blocks: bool,
}

/// The most lanes, up to `wanted`, and the longest bands that fit `budget_bytes`. `need` says what one lane holds at most with
/// bands of so many bytes, of whole blocks or not.
///
/// Errors: [`Error::Budget`] if one lane with the shortest bands needs more.
pub(crate) fn allot(
    budget_bytes: u64,
    wanted: usize,
    need: impl Fn(u64, bool) -> u64,
) -> Result<Allotment, Error> {
    let fits = |lanes: usize, need: u64| need.saturating_mul(lanes as u64) <= budget_bytes;
    for has_whole_blocks in [true, false] {
        let needs = BAND_BYTES.map(|band| (band, need(band, has_whole_blocks)));
        for lanes in (1..=wanted.max(1)).rev() {
            if let Some((band_bytes, _)) = needs.iter().find(|(_, need)| fits(lanes, *need)) {
                return Ok(Allotment {
                    lanes,
                    band_bytes: *band_bytes,
                    has_whole_blocks,
                });
            }
        }
    }
    Err(Error::Budget {
        budget: budget_bytes,
        needed: need(BAND_BYTES[BAND_BYTES.len() - 1], false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_bands_come_before_fewer_lanes_and_cut_blocks_last() {
        let mib = |count: u64| count << 20;
        // Three bands and a block of 20 MiB, which is not there if it may be cut.
        let need = |band: u64, whole: bool| 3 * band + if whole { mib(20) } else { mib(1) };
        let found = |budget: u64, wanted| allot(mib(budget), wanted, need).unwrap();
        let allotment = |lanes, band_bytes, has_whole_blocks| Allotment {
            lanes,
            band_bytes,
            has_whole_blocks,
        };
        assert_eq!(found(256, 4), allotment(4, mib(2), true));
        assert_eq!(found(100, 4), allotment(4, mib(1), true));
        assert_eq!(found(64, 4), allotment(3, 256 << 10, true));
        assert_eq!(found(15, 4), allotment(4, 512 << 10, false));
        assert_eq!(found(2, 4), allotment(1, 256 << 10, false));
        let error = allot(mib(1), 4, need).unwrap_err();
        assert_eq!(error.slug(), "engine/budget");
    }
}
