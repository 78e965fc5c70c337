//! Writing of caches.

use serde::{Deserialize, Serialize};

use super::{Contract, Signature, shapes};
use crate::ValueType;

/// Writes a row of a cache for each token, at its position in its sequence.
///
/// **Shapes**: `rows` `[t, ..]`, whose elements but for the first axis are the `width` of the cache; `cache`
/// `[pool, page, width]`; `row_seq` and `row_pos` I32 `[t]`; `page_table` I32 `[sequences, pages]`; no output.
/// **Numerics**: a copy; rounded once if the cache has fewer bits.
/// **Determinism**: exact. No two tokens of a step have one sequence and one position, which the runtime sees to; a position
/// without a page is not written.
/// **Backward**: nothing.
/// **Source**: paged attention, Kwon et al. 2023.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Append {}

impl Contract for Append {
    const SIGNATURE: Signature = Signature {
        inputs: &["rows", "cache", "row_seq", "row_pos", "page_table"],
        optional: 0,
        outputs: &[],
        saved: &[],
    };

    fn infer(&self, inputs: &[ValueType]) -> Result<Vec<ValueType>, String> {
        let [rows, cache, row_seq, row_pos, page_table] = inputs else {
            unreachable!("the signature has five inputs");
        };
        shapes::float("rows", rows)?;
        let [t, of_row @ ..] = rows.shape.as_slice() else {
            return Err(format!("rows is {rows}, expected [t, ..]"));
        };
        let (width, _) = shapes::cached(cache, [row_seq, row_pos, page_table], *t)?;
        let mut found = 1u64;
        for dim in of_row {
            found = found.saturating_mul(shapes::size("an extent of a row", *dim)?);
        }
        match found == width {
            true => Ok(Vec::new()),
            false => Err(format!("rows have {found} elements, the cache {width}")),
        }
    }
}
