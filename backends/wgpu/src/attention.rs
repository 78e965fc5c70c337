//! The dispatches of attention over caches.

use std::ops::Range;

use rialto_backend::{Error, OpCall};
use rialto_program::Op;

use crate::cache::Pages;
use crate::launch::{Floats, Launch};
use crate::recorder::{Recorder, times};
use crate::storage::Memory;

/// Names of the operations of this module.
pub(crate) const OPS: &[&str] = &["rialto.sparse_mla/1", "rialto.gqa/1"];

/// Columns of a result that are a workgroup's.
const COLUMNS: u64 = 512;

/// Positions that a workgroup goes through at a time.
const LANES: u64 = 128;

/// Words that a workgroup leaves for the next dispatch.
const STATE: u64 = 516;

/// Records a call of one of them. `None` for another. Errors: what it is given that no shader reads.
pub(crate) fn record(call: &OpCall, recorder: &mut Recorder) -> Option<Result<(), Error>> {
    Some(match call.op() {
        Op::SparseMla(op) => sparse_mla(call, recorder, op.scale),
        Op::Gqa(op) => gqa(call, recorder, op.groups, op.scale),
        _ => return None,
    })
}

/// Heads that attend to positions, whatever these are.
struct Attention<'a> {
    shader: &'static str,
    tokens: u64,
    heads: u64,
    /// Columns of a query.
    width: u64,
    /// Columns of a head's result.
    value: u64,
    /// Most positions of a token.
    positions: u64,
    /// Multiplications for each of them, of a head.
    each: u64,
    caches: &'a [&'a Floats],
    pages: &'a Pages,
    /// What each token has, and how many elements of it.
    operands: &'a [(&'a Memory, u64)],
}

impl Attention<'_> {
    /// One dispatch, if it can be; else one for some positions and a part of the caches after the other, each going on with what the one
    /// before it left. `launch` binds all but the result, for tokens and for rows of the caches.
    fn record(
        &self,
        call: &OpCall,
        recorder: &mut Recorder,
        launch: impl Fn(Launch, &Range<u64>, &Range<u64>) -> Launch,
    ) -> Result<(), Error> {
        let out = &call.outputs()[0];
        let place = recorder.place(out)?;
        let of_head = self.value.div_ceil(COLUMNS);
        let groups = self.heads * of_head;
        let mut operands = self.operands.to_vec();
        operands.extend(self.pages.of_token());
        operands.push((&place, self.heads * self.value));
        let of_caches = self.pages.rows(recorder, self.caches)?;
        // Positions of a workgroup, in whole steps of the shader: nothing depends on where one dispatch ends and the next begins.
        // Rounds of loops for so many: the query, its products, two times along the positions, the second with four columns each.
        let loops = 2 * self.width + 6 * LANES + 8;
        let most = recorder
            .most(self.each)
            .min((recorder.loops() - 8) / loops * LANES);
        let at_once = (most / LANES * LANES).max(LANES);
        let positions = match self.positions > at_once {
            true => (0..self.positions).step_by(at_once as usize),
            // What the shader finds.
            false => (0..1).step_by(1),
        };
        let positions = positions.map(|begin| match self.positions > at_once {
            true => begin..self.positions.min(begin + at_once),
            false => 0..u64::from(u32::MAX),
        });
        let passes: Vec<(Range<u64>, Range<u64>)> = positions
            .flat_map(|at| of_caches.iter().map(move |rows| (at.clone(), rows.clone())))
            .collect();
        let is_split = passes.len() > 1;
        let work = self.each * self.positions.min(at_once);
        let mut most = recorder.most(work);
        if is_split {
            most = most.min((recorder.binding_bytes() / (4 * STATE)).max(1));
        }
        let state = match is_split {
            true => Some(recorder.scratch(most.min(self.tokens * groups), STATE)?),
            false => None,
        };
        for tokens in recorder.parts(self.tokens, (most / groups.max(1)).max(1), &operands)? {
            let of_tokens = times(&tokens, self.heads * self.value);
            let all = times(&tokens, groups);
            // Of a single token, parts of its heads.
            let steps = self.positions.min(at_once).div_ceil(LANES);
            for begin in all.clone().step_by(most as usize) {
                let units = begin..all.end.min(begin + most);
                for (number, (at, rows)) in (0..).zip(&passes) {
                    let is_first = number == 0;
                    let of_pass = Launch::units(self.shader, &units, work)
                        .loops(8 + loops * steps)
                        .across(rows);
                    let of_pass = launch(of_pass, &tokens, rows)
                        .params_at(3, [at.start, at.end, is_first.into(), is_split.into()]);
                    recorder.dispatch(match &state {
                        Some(state) => of_pass.whole(state),
                        None => of_pass.words(&place, of_tokens.clone()),
                    })?;
                }
                if let Some(state) = &state {
                    let launch = Launch::units("attended", &units, 4 * STATE)
                        .loops(COLUMNS / 64)
                        .params([self.value, of_head])
                        .whole(state)
                        .words(&place, of_tokens.clone());
                    recorder.dispatch(launch)?;
                }
            }
        }
        recorder.settle(&place, out)
    }
}

fn sparse_mla(call: &OpCall, recorder: &mut Recorder, scale: f64) -> Result<(), Error> {
    let [q, q_rope, indices, cache, row_seq, row_pos, page_table] = call.inputs() else {
        unreachable!("the signature has seven inputs");
    };
    let (q, q_rope) = (recorder.floats(q)?, recorder.floats(q_rope)?);
    let (indices, cache) = (recorder.words(indices)?, recorder.floats(cache)?);
    let pages = Pages::new(&cache, [row_seq, row_pos, page_table], recorder)?;
    let [tokens, heads, latent] = *q.shape.as_slice() else {
        unreachable!("queries have three axes");
    };
    let (rope, width) = (q_rope.last(), cache.last());
    let attention = Attention {
        shader: "sparse_mla",
        tokens,
        heads,
        width,
        value: latent,
        positions: indices.last(),
        each: width + latent,
        caches: &[&cache],
        pages: &pages,
        operands: &[
            (&q.memory, heads * latent),
            (&q_rope.memory, heads * rope),
            (&indices.memory, indices.last()),
        ],
    };
    attention.record(call, recorder, |launch, tokens, rows| {
        let launch = launch
            .params([heads, latent, rope, indices.last()])
            .params(pages.shape)
            .params([(scale as f32).to_bits().into(), latent.div_ceil(COLUMNS)])
            .floats("q", &q, times(tokens, heads * latent))
            .floats("q_rope", &q_rope, times(tokens, heads * rope))
            .words(&indices.memory, times(tokens, indices.last()))
            .floats("cache", &cache, times(rows, width));
        pages.bind(launch, tokens)
    })
}

fn gqa(call: &OpCall, recorder: &mut Recorder, groups: u64, scale: f64) -> Result<(), Error> {
    let [q, keys, values, row_seq, row_pos, page_table] = call.inputs() else {
        unreachable!("the signature has six inputs");
    };
    let (keys, values) = (recorder.floats(keys)?, recorder.floats(values)?);
    let q = recorder.floats(q)?;
    let pages = Pages::new(&keys, [row_seq, row_pos, page_table], recorder)?;
    let [tokens, heads, width] = *q.shape.as_slice() else {
        unreachable!("queries have three axes");
    };
    let [_, page, _, columns] = pages.shape;
    let attention = Attention {
        shader: "gqa",
        tokens,
        heads,
        width,
        value: width,
        positions: page * columns,
        each: 2 * width,
        caches: &[&keys, &values],
        pages: &pages,
        operands: &[(&q.memory, heads * width)],
    };
    attention.record(call, recorder, |launch, tokens, rows| {
        let launch = launch
            .params([heads, width, groups, 0])
            .params(pages.shape)
            .params([(scale as f32).to_bits().into(), width.div_ceil(COLUMNS)])
            .floats("q", &q, times(tokens, heads * width))
            .floats("keys", &keys, times(rows, keys.last()))
            .floats("values", &values, times(rows, values.last()));
        pages.bind(launch, tokens)
    })
}
