//! Caches: where their rows are, and the dispatch that writes them.

use std::ops::Range;
use std::sync::Arc;

use rialto_backend::{Error, OpCall, Operand};
use rialto_program::Op;

use crate::launch::{Floats, Launch};
use crate::recorder::{Recorder, times};
use crate::storage::Memory;

/// Names of the operations of this module.
pub(crate) const OPS: &[&str] = &["rialto.append/1"];

/// Records a call of one of them. `None` for another. Errors: what it is given that no shader reads.
pub(crate) fn record(call: &OpCall, recorder: &mut Recorder) -> Option<Result<(), Error>> {
    Some(match call.op() {
        Op::Append(_) => append(call, recorder),
        _ => return None,
    })
}

/// Where the rows of a cache are for each token of a step: what `pages.wgsl` reads.
pub(crate) struct Pages {
    row_seq: Arc<Memory>,
    row_pos: Arc<Memory>,
    page_table: Arc<Memory>,
    /// Pages of the cache, positions of a page, rows and columns of the page table: what a shader's `page_shape` gives.
    pub(crate) shape: [u64; 4],
}

impl Pages {
    /// Those of a cache `[pool, page, width]`, by `row_seq`, `row_pos` and `page_table`.
    pub(crate) fn new(
        cache: &Floats,
        places: [&Operand; 3],
        recorder: &Recorder,
    ) -> Result<Pages, Error> {
        let [row_seq, row_pos, page_table] = places;
        let [pool, page, _] = *cache.shape.as_slice() else {
            unreachable!("a cache has three axes");
        };
        let [sequences, columns] = *page_table.values.tensor().shape.extents() else {
            unreachable!("a page table has two axes");
        };
        Ok(Pages {
            row_seq: recorder.memory(&row_seq.values)?,
            row_pos: recorder.memory(&row_pos.values)?,
            page_table: recorder.memory(&page_table.values)?,
            shape: [pool, page, sequences, columns],
        })
    }

    /// What each token has of it.
    pub(crate) fn of_token(&self) -> [(&Memory, u64); 2] {
        [(&self.row_seq, 1), (&self.row_pos, 1)]
    }

    /// Binds `row_seq`, `row_pos` and `page_table`, in this order.
    pub(crate) fn bind(&self, launch: Launch, tokens: &Range<u64>) -> Launch {
        launch
            .words(&self.row_seq, tokens.clone())
            .words(&self.row_pos, tokens.clone())
            .whole(&self.page_table)
    }

    /// Parts of the rows of caches that can be bound: one at least. Errors: [`Error::BufferSize`].
    pub(crate) fn rows(
        &self,
        recorder: &Recorder,
        caches: &[&Floats],
    ) -> Result<Vec<Range<u64>>, Error> {
        let [pool, page, ..] = self.shape;
        let operands = caches.iter().map(|cache| (&*cache.memory, cache.last()));
        let operands: Vec<(&Memory, u64)> = operands.collect();
        recorder.windows(pool * page, &operands)
    }
}

fn append(call: &OpCall, recorder: &mut Recorder) -> Result<(), Error> {
    let [rows, cache, row_seq, row_pos, page_table] = call.inputs() else {
        unreachable!("the signature has five inputs");
    };
    let (rows, cache) = (recorder.floats(rows)?, recorder.floats(cache)?);
    let pages = Pages::new(&cache, [row_seq, row_pos, page_table], recorder)?;
    let tokens = rows.shape.first().copied().unwrap_or_default();
    let width = cache.last();
    let mut operands = vec![(&*rows.memory, width)];
    operands.extend(pages.of_token());
    for part in recorder.parts(tokens, recorder.most(4 * width), &operands)? {
        for of_cache in pages.rows(recorder, &[&cache])? {
            let launch = Launch::elements("append", &times(&part, width), 4)
                .across(&of_cache)
                .params([tokens, width, 0, 0])
                .params(pages.shape)
                .floats("rows", &rows, times(&part, width))
                .floats("cache", &cache, times(&of_cache, width));
            recorder.dispatch(pages.bind(launch, &part))?;
        }
    }
    Ok(())
}
