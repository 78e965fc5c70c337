//! Caches: where their rows are, and the dispatch that writes them.

use rialto_backend::{Error, OpCall, Operand};
use rialto_program::Op;

use crate::recording::{Floats, GROUP, Launch, Recorder};

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
    buffers: [wgpu::Buffer; 3],
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
            buffers: [
                recorder.buffer(&row_seq.values)?,
                recorder.buffer(&row_pos.values)?,
                recorder.buffer(&page_table.values)?,
            ],
            shape: [pool, page, sequences, columns],
        })
    }

    /// Binds `row_seq`, `row_pos` and `page_table`, in this order.
    pub(crate) fn bind(&self, launch: Launch) -> Launch {
        self.buffers.iter().fold(launch, Launch::buffer)
    }
}

fn append(call: &OpCall, recorder: &mut Recorder) -> Result<(), Error> {
    let [rows, cache, row_seq, row_pos, page_table] = call.inputs() else {
        unreachable!("the signature has five inputs");
    };
    let (rows, cache) = (recorder.floats(rows)?, recorder.floats(cache)?);
    let pages = Pages::new(&cache, [row_seq, row_pos, page_table], recorder)?;
    let tokens = rows.shape.first().copied().unwrap_or_default();
    let launch = Launch::new("append", rows.elements().div_ceil(GROUP))
        .params([tokens, cache.last(), 0, 0])
        .params(pages.shape)
        .floats("rows", &rows)
        .floats("cache", &cache);
    recorder.dispatch(pages.bind(launch))
}
