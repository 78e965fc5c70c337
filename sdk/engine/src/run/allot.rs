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

/// What one lane holds at most, with each length of a band, of whole blocks or not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs([[u64; BAND_BYTES.len()]; 2]);

impl Needs {
    /// Counts in what one group needs: `need` says so for bands of so many bytes, of whole blocks or not.
    pub(crate) fn raise(&mut self, need: impl Fn(u64, bool) -> u64) {
        for (needs, is_whole) in self.0.iter_mut().zip([true, false]) {
            for (most, band) in needs.iter_mut().zip(BAND_BYTES) {
                *most = need(band, is_whole).max(*most);
            }
        }
    }
}

/// The most lanes, up to `wanted`, and the longest bands that fit `budget_bytes`, where each lane holds `beside_bytes` more.
///
/// Errors: [`Error::Budget`] if one lane with the shortest bands needs more.
pub(crate) fn allot(
    budget_bytes: u64,
    wanted: usize,
    needs: &Needs,
    beside_bytes: u64,
) -> Result<Allotment, Error> {
    let fits = |lanes: usize, need: u64| {
        let need = need.saturating_add(beside_bytes);
        need.saturating_mul(lanes as u64) <= budget_bytes
    };
    for (needs, has_whole_blocks) in needs.0.iter().zip([true, false]) {
        for lanes in (1..=wanted.max(1)).rev() {
            let mut bands = BAND_BYTES.into_iter().zip(needs);
            if let Some((band_bytes, _)) = bands.find(|(_, need)| fits(lanes, **need)) {
                return Ok(Allotment {
                    lanes,
                    band_bytes,
                    has_whole_blocks,
                });
            }
        }
    }
    let [_, [.., least]] = needs.0;
    Err(Error::Budget {
        budget: budget_bytes,
        needed: least.saturating_add(beside_bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fc_49_shorter_bands_come_before_fewer_lanes_and_cut_blocks_last() {
        let mib = |count: u64| count << 20;
        // Three bands and a block of 20 MiB, which is not there if it may be cut.
        let mut needs = Needs::default();
        needs.raise(|_, _| 1);
        needs.raise(|band, whole| 3 * band + if whole { mib(19) } else { 0 });
        let found = |budget: u64, wanted| allot(mib(budget), wanted, &needs, mib(1)).unwrap();
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
        let error = allot(mib(1), 4, &needs, mib(1)).unwrap_err();
        assert_eq!(error.slug(), "engine/budget");
    }
}
