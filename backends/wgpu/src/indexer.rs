//! The dispatches that choose which positions sparse attention reads.

use std::ops::Range;
use std::sync::Arc;

use rialto_backend::{Error, OpCall};
use rialto_program::Op;
use rialto_program::op::IndexerScores;

use crate::cache::Pages;
use crate::launch::{Floats, GROUP, Launch};
use crate::recorder::{Recorder, times};
use crate::storage::Memory;

/// Names of the operations of this module.
pub(crate) const OPS: &[&str] = &["rialto.indexer_scores/1", "rialto.topk/1"];

/// Scores of a chunk of a wide row.
const CHUNK: u64 = 8192;

/// Where chunks begin in what is known of a wide row.
const CHUNKS: u64 = 260;

/// Rows that are gone through in chunks if they are wide: more are enough work for a device without.
const FEW_ROWS: u64 = 64;

/// Records a call of one of them. `None` for another. Errors: what it is given that no shader reads.
pub(crate) fn record(call: &OpCall, recorder: &mut Recorder) -> Option<Result<(), Error>> {
    Some(match call.op() {
        Op::IndexerScores(op) => indexer_scores(call, recorder, op),
        Op::TopK(op) => topk(call, recorder, op.k),
        _ => return None,
    })
}

fn indexer_scores(call: &OpCall, recorder: &mut Recorder, op: &IndexerScores) -> Result<(), Error> {
    let [q, weights, keys, row_seq, row_pos, page_table] = call.inputs() else {
        unreachable!("the signature has six inputs");
    };
    let (q, keys) = (recorder.floats(q)?, recorder.floats(keys)?);
    let weights = recorder.memory(&weights.values)?;
    let pages = Pages::new(&keys, [row_seq, row_pos, page_table], recorder)?;
    let [tokens, heads, width] = *q.shape.as_slice() else {
        unreachable!("queries have three axes");
    };
    let out = &call.outputs()[0];
    let context = out.tensor().shape.extents().last().copied().unwrap_or(1);
    let of_token = context.div_ceil(GROUP);
    let place = recorder.place(out)?;
    let mut operands = vec![
        (&*q.memory, heads * width),
        (&*weights, heads),
        (&*place, context),
    ];
    operands.extend(pages.of_token());
    let work = heads * width * GROUP;
    // For 16 heads and 64 columns the tile, and the columns with four heads each; then the heads.
    let loops = heads.div_ceil(16) * (17 + width.div_ceil(64) * (20 + 64 * 5 + 1));
    let most = recorder.most(work);
    for tokens in recorder.parts(tokens, (most / of_token.max(1)).max(1), &operands)? {
        // Of a single token with many positions, parts.
        let groups = times(&tokens, of_token);
        for begin in groups.clone().step_by(most as usize) {
            let units = begin..groups.end.min(begin + most);
            for of_cache in pages.rows(recorder, &[&keys])? {
                let launch = Launch::units("indexer_scores", &units, work)
                    .loops(loops)
                    .across(&of_cache)
                    .params([heads, width, context, of_token])
                    .params(pages.shape)
                    .params(
                        [op.scale, op.head_scale].map(|factor| (factor as f32).to_bits().into()),
                    )
                    .floats("q", &q, times(&tokens, heads * width))
                    .words(&weights, times(&tokens, heads))
                    .floats("keys", &keys, times(&of_cache, width));
                let launch = pages.bind(launch, &tokens);
                recorder.dispatch(launch.words(&place, times(&tokens, context)))?;
            }
        }
    }
    recorder.settle(&place, out)
}

fn topk(call: &OpCall, recorder: &mut Recorder, k: u64) -> Result<(), Error> {
    let scores = recorder.floats(&call.inputs()[0])?;
    let indices = recorder.memory(&call.outputs()[0])?;
    let (rows, n) = (
        scores.shape.first().copied().unwrap_or_default(),
        scores.last(),
    );
    let is_bound = 4 * n <= recorder.binding_bytes() - 256;
    let lanes = u64::from(recorder.lanes());
    let loops = 6 * n.div_ceil(lanes) + k.div_ceil(lanes) + 4 * (256 + 32) + 16;
    let is_long = loops > recorder.loops() || (n > 4 * CHUNK && rows < FEW_ROWS);
    if !is_bound || is_long {
        return wide_topk(recorder, &scores, &indices, k);
    }
    let work = 8 * n;
    let operands = [(&*scores.memory, n), (&*indices, k)];
    for part in recorder.parts(rows, recorder.most(work), &operands)? {
        let launch = Launch::units("topk", &part, work)
            .loops(loops)
            .constant("LANES", recorder.lanes())
            .params([rows, n, k])
            .words(&scores.memory, times(&part, n))
            .words(&indices, times(&part, k));
        recorder.dispatch(launch)?;
    }
    Ok(())
}

/// Rows in chunks: counts of chunks in turn with what they say, byte by byte.
fn wide_topk(
    recorder: &mut Recorder,
    scores: &Floats,
    indices: &Arc<Memory>,
    k: u64,
) -> Result<(), Error> {
    let (rows, n) = (
        scores.shape.first().copied().unwrap_or_default(),
        scores.last(),
    );
    let chunks = n.div_ceil(CHUNK).max(1);
    let known = CHUNKS + 2 * chunks;
    let most = (recorder.binding_bytes() / (4 * known)).max(1);
    let most = most.min(recorder.most(4 * n));
    let state = recorder.scratch(rows.min(most), known)?;
    let lanes = recorder.lanes();
    for rows in recorder.parts(rows, most, &[(&**indices, k)])? {
        let pick = |phase: u64| {
            Launch::units("topk_pick", &rows, known)
                .loops(chunks.max(516))
                .params([n, CHUNK, k, chunks])
                .params([phase, rows.start])
                .whole(&state)
        };
        let spans = spans(scores, &rows, chunks)?;
        let pass = |shader: &'static str, phase: u64| {
            let launches = spans.iter().map(move |(of, across)| {
                let groups = (of.end - of.start) * (across.end - across.start);
                let elements = of.start * n + across.start * CHUNK;
                let end = (of.end - 1) * n + (across.end * CHUNK).min(n);
                let of_lane = CHUNK.div_ceil(lanes.into());
                Launch::new(shader, groups, groups * CHUNK * 4)
                    .loops(2 * of_lane + 16 + k.div_ceil(lanes.into()))
                    .span(of)
                    .across(across)
                    .constant("LANES", lanes)
                    .params([n, CHUNK, k, chunks])
                    .params([phase, rows.start])
                    .words(&scores.memory, elements..end)
            });
            launches.collect::<Vec<_>>()
        };
        recorder.dispatch(pick(0))?;
        for phase in 0..5 {
            for launch in pass("topk_count", phase) {
                recorder.dispatch(launch.whole(&state))?;
            }
            recorder.dispatch(pick(phase + 1))?;
        }
        for launch in pass("topk_place", 0) {
            let launch = launch.whole(&state);
            recorder.dispatch(launch.words(indices, times(&rows, k)))?;
        }
    }
    Ok(())
}

/// Rows that can be bound together with all of their chunks; and else chunks of one row, as many as can be. Errors:
/// [`Error::BufferSize`] if a chunk cannot.
fn spans(scores: &Floats, rows: &Range<u64>, chunks: u64) -> Result<Vec<Span>, Error> {
    let n = scores.last();
    let all = times(rows, n);
    if all.is_empty() || scores.memory.reach(all.start) >= all.end {
        return Ok(vec![(rows.clone(), 0..chunks)]);
    }
    let mut spans = Vec::new();
    for row in rows.clone() {
        let mut chunk = 0;
        while chunk < chunks {
            let begin = row * n + chunk * CHUNK;
            let reach = scores.memory.reach(begin);
            let end = match reach >= (row + 1) * n {
                true => chunks,
                false => chunk + (reach - begin) / CHUNK,
            };
            if end == chunk {
                return Err(scores.memory.too_large());
            }
            spans.push((row..row + 1, chunk..end));
            chunk = end;
        }
    }
    Ok(spans)
}

/// Rows, and chunks of each.
type Span = (Range<u64>, Range<u64>);
