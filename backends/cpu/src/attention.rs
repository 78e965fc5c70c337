//! Heads that attend to positions.
//!
//! For some heads of one token: logits of all positions, block by block; then exponentials; then values, block by block:
//!
//! ```text
//! for each block of positions, each head h, each position s:  logit[h, s] = scale * (query[h] . key[s])
//! for each head h:                                            p[h, s] = exp(logit[h, s] - max), total[h] = sum_s p[h, s]
//! for each block of positions, each head h:                   out[h] += sum_s p[h, s] * value[s]
//! for each head h:                                            out[h] /= total[h]
//! ```
//!
//! A block of keys or values becomes F32 once for all the heads, and stays in the caches while they use it. All logits are kept rather
//! than a running maximum, which would round what was summed again and again.

use crate::rows;

/// Positions of a block: a multiple of what is added in pairs, so that blocks change no sum.
const BLOCK: usize = 4 * rows::FOLD;

/// What some heads of a token attend to.
pub(crate) struct Attention<K, V> {
    /// Elements of a query and of a key.
    pub(crate) width: usize,
    /// Elements of a value and of a result.
    pub(crate) value_width: usize,
    /// Factor of the logits.
    pub(crate) scale: f32,
    /// How many positions.
    pub(crate) positions: usize,
    /// Writes the key of one of them.
    pub(crate) key: K,
    /// Writes the value of one of them.
    pub(crate) value: V,
}

impl<K: Fn(usize, &mut [f32]), V: Fn(usize, &mut [f32])> Attention<K, V> {
    /// Results of heads `[heads, value_width]` for their queries `[heads, width]`; zeros without any position.
    pub(crate) fn attend(&self, queries: &[f32], out: &mut [f32]) {
        out.fill(0.0);
        if self.positions == 0 || self.value_width == 0 {
            return;
        }
        let heads = out.len() / self.value_width;
        let mut scratch = vec![0.0; BLOCK * self.width.max(self.value_width)];
        let mut logits = vec![0.0; heads * self.positions];
        for begin in (0..self.positions).step_by(BLOCK) {
            let block = begin..self.positions.min(begin + BLOCK);
            let keys = fill(&mut scratch, self.width, block.clone(), &self.key);
            for (head, logits) in logits.chunks_exact_mut(self.positions).enumerate() {
                let query = &queries[head * self.width..][..self.width];
                for (at, logit) in logits[block.clone()].iter_mut().enumerate() {
                    let key = &keys[at * self.width..][..self.width];
                    *logit = self.scale * rows::dot(query, key);
                }
            }
        }
        let rows = logits.chunks_exact_mut(self.positions);
        let totals: Vec<f32> = rows.map(rows::exponentials).collect();
        for begin in (0..self.positions).step_by(BLOCK) {
            let block = begin..self.positions.min(begin + BLOCK);
            let values = fill(&mut scratch, self.value_width, block.clone(), &self.value);
            let heads = out.chunks_exact_mut(self.value_width);
            for (out, factors) in heads.zip(logits.chunks_exact(self.positions)) {
                rows::accumulate(out, &factors[block.clone()], values);
            }
        }
        for (out, total) in out.chunks_exact_mut(self.value_width).zip(totals) {
            for number in out {
                *number /= total;
            }
        }
    }
}

/// Rows of a block of positions, one behind the other.
fn fill(
    scratch: &mut [f32],
    width: usize,
    block: std::ops::Range<usize>,
    row: impl Fn(usize, &mut [f32]),
) -> &[f32] {
    let rows = &mut scratch[..block.len() * width];
    for (at, position) in block.enumerate() {
        row(position, &mut rows[at * width..][..width]);
    }
    rows
}
