//! Writing of caches.

use crate::operand::{Tensor, TensorMut};
use crate::pages::Pages;

/// `rialto.append/1`: the cache is what it writes.
pub(crate) fn append(inputs: &[Tensor<'_>], outputs: &mut [TensorMut<'_>]) {
    let ([rows, row_seq, row_pos, page_table], [cache]) = (inputs, outputs) else {
        unreachable!("the signature has five inputs, one of them a cache");
    };
    let tokens = row_seq.ints().len();
    let pages = Pages::new(cache.shape, *row_seq, *row_pos, *page_table);
    let width = cache.last();
    let rows = rows.floats();
    // As fast as memory already, and in the order of tokens even where two have one position.
    for token in 0..tokens {
        let sequence = pages.of(token);
        let Some(row) = sequence.and_then(|sequence| sequence.row(sequence.position)) else {
            continue;
        };
        let mut cache = cache.floats();
        let row = cache.part(row * width, width);
        row.copy(rows.part(token * width, width));
    }
}
