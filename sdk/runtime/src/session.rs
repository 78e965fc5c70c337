//! Sequences, their caches, and steps of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rialto_backend::{Buffer, PagePool, SequencePages};
use rialto_program::value::Extents;
use rialto_program::{Dim, step};
use rialto_tensor::{Dtype, Shape};

use crate::recorded::{self, Key, Recorded};
use crate::{Error, Model, Sampling, Tensor};

/// Recordings that are kept: each has the buffers of its values.
const KEPT_RECORDINGS: usize = 4;

/// How much a session holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Positions of all sequences together, rounded up to pages.
    pub positions: u64,
    /// Positions of a page.
    pub page_positions: u64,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            positions: 4096,
            page_positions: 64,
        }
    }
}

/// A sequence of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(u64);

/// Which tokens of a piece of work logits are wanted of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// None: part of a prompt.
    None,
    /// The last.
    Last,
    /// All of them.
    All,
}

/// Tokens that follow what a sequence has so far.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The sequence, at most once in a step.
    pub sequence: SequenceId,
    /// The tokens, at least one.
    pub tokens: &'a [u32],
    /// What is wanted of them.
    pub rows: Rows,
}

/// What a step left, without its padding.
#[derive(Debug)]
pub struct Outputs {
    values: BTreeMap<String, Tensor>,
    /// The tokens chosen, for each row that was wanted, in the order of the work.
    pub tokens: Vec<u32>,
}

impl Outputs {
    /// Takes a value that was wanted. Errors: [`Error::Step`] for another.
    pub fn take(&mut self, name: &str) -> Result<Tensor, Error> {
        self.values.remove(name).ok_or_else(|| Error::Step {
            what: format!("{name:?} was not asked for"),
        })
    }
}

/// What is asked of a step besides its tokens.
struct Asked<'a> {
    inputs: &'a [(&'a str, &'a Tensor)],
    wanted: &'a [&'a str],
    sampling: Option<&'a [(Sampling, u64)]>,
}

/// Sequences that one phase of a model is run for, any mixture of them at a step.
pub struct Session {
    model: Arc<Model>,
    phase: String,
    caches: HashMap<String, Buffer>,
    pool: PagePool,
    sequences: HashMap<SequenceId, SequencePages>,
    begun: u64,
    /// The latest used last.
    recordings: Vec<(Key, Recorded)>,
}

impl Session {
    /// No sequence yet, and caches for so many positions. Errors: [`rialto_program::Error::Absent`] for a phase that there is
    /// not, memory that is not there.
    pub fn new(model: Arc<Model>, phase: &str, options: &SessionOptions) -> Result<Session, Error> {
        let page_positions = options.page_positions.max(1);
        let pages = options.positions.div_ceil(page_positions).max(1);
        // Device values are I32: no number of a page or of a position is beyond.
        let pages = match pages.checked_mul(page_positions) {
            Some(all) if i32::try_from(all).is_ok() => pages as u32,
            _ => {
                let what = format!(
                    "{} positions are more than a session can number",
                    options.positions
                );
                return Err(Error::Step { what });
            }
        };
        let calls = model.program().require(phase)?;
        let caches = recorded::caches(&model, calls, pages.into(), page_positions)?;
        Ok(Session {
            phase: phase.to_owned(),
            caches,
            pool: PagePool::new(pages, page_positions),
            sequences: HashMap::new(),
            begun: 0,
            recordings: Vec::new(),
            model,
        })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The phase that is run.
    #[must_use]
    pub fn phase(&self) -> &str {
        &self.phase
    }

    /// A new sequence, without a token.
    pub fn begin(&mut self) -> SequenceId {
        let id = SequenceId(self.begun);
        self.begun += 1;
        self.sequences.insert(id, SequencePages::default());
        id
    }

    /// Ends a sequence; what it had is free.
    pub fn end(&mut self, sequence: SequenceId) {
        if let Some(pages) = self.sequences.remove(&sequence) {
            self.pool.release(pages);
        }
    }

    /// Tokens that a sequence has. Errors: [`Error::Step`] for one that has ended.
    pub fn positions(&self, sequence: SequenceId) -> Result<u64, Error> {
        match self.sequences.get(&sequence) {
            Some(pages) => Ok(pages.positions()),
            None => Err(unknown(sequence)),
        }
    }

    /// Forgets the tokens of a sequence from `positions` on. Errors: [`Error::Step`] for one that has ended.
    pub fn truncate(&mut self, sequence: SequenceId, positions: u64) -> Result<(), Error> {
        let pages = self.sequences.get_mut(&sequence);
        let pages = pages.ok_or_else(|| unknown(sequence))?;
        self.pool.truncate(pages, positions);
        Ok(())
    }

    /// Computes the tokens of the work, and returns the values wanted. `inputs` are those of the phase, with a row for each token in
    /// the order of the work.
    ///
    /// Errors: work that makes no sense, a token outside of the vocabulary, caches that are full, and what the device says. The
    /// sequences then have what they had.
    pub fn step(
        &mut self,
        work: &[Work<'_>],
        inputs: &[(&str, &Tensor)],
        wanted: &[&str],
    ) -> Result<Outputs, Error> {
        self.run(work, inputs, wanted, None)
    }

    /// [`Session::step`], and chooses the next token for each row wanted. `sampling` is for each piece of work, with the number by
    /// which its chance is told from others'.
    pub fn step_and_sample(
        &mut self,
        work: &[Work<'_>],
        sampling: &[(Sampling, u64)],
    ) -> Result<Vec<u32>, Error> {
        if sampling.len() != work.len() {
            let what = format!(
                "{} pieces of work have {} ways to choose",
                work.len(),
                sampling.len()
            );
            return Err(Error::Step { what });
        }
        if let Some(what) = sampling.iter().find_map(|(sampling, _)| sampling.fault()) {
            return Err(Error::Sampling { what });
        }
        self.model.require_logits(&self.phase)?;
        Ok(self.run(work, &[], &[], Some(sampling))?.tokens)
    }

    fn run(
        &mut self,
        work: &[Work<'_>],
        inputs: &[(&str, &Tensor)],
        wanted: &[&str],
        sampling: Option<&[(Sampling, u64)]>,
    ) -> Result<Outputs, Error> {
        self.check(work)?;
        let before: Vec<u64> = work
            .iter()
            .map(|work| self.positions(work.sequence))
            .collect::<Result<_, _>>()?;
        let asked = Asked {
            inputs,
            wanted,
            sampling,
        };
        let result = self.run_appended(work, &before, &asked);
        if result.is_err() {
            for (work, &positions) in work.iter().zip(&before) {
                self.truncate(work.sequence, positions)?;
            }
        }
        result
    }

    fn check(&self, work: &[Work<'_>]) -> Result<(), Error> {
        let refused = |what: String| Err(Error::Step { what });
        if work.is_empty() {
            return refused("a step without work".to_owned());
        }
        for (position, piece) in work.iter().enumerate() {
            self.positions(piece.sequence)?;
            if piece.tokens.is_empty() {
                return refused("work without a token".to_owned());
            }
            let others = &work[..position];
            if others.iter().any(|other| other.sequence == piece.sequence) {
                return refused("two pieces of work for one sequence".to_owned());
            }
            self.model.check_tokens(position, piece.tokens)?;
        }
        Ok(())
    }

    /// The step itself, after which positions may have been appended whether it succeeded or not.
    fn run_appended(
        &mut self,
        work: &[Work<'_>],
        before: &[u64],
        asked: &Asked<'_>,
    ) -> Result<Outputs, Error> {
        let Asked {
            inputs,
            wanted,
            sampling,
        } = *asked;
        for piece in work {
            let pages = self.sequences.get_mut(&piece.sequence);
            let pages = pages.ok_or_else(|| unknown(piece.sequence))?;
            self.pool.append(pages, piece.tokens.len() as u64)?;
        }
        let batch = Batch::new(work, before, &self.sequences);
        let key = Key {
            extents: batch.extents(&self.pool),
            wanted: wanted.iter().map(|&name| name.to_owned()).collect(),
            samples: sampling.is_some(),
        };
        let position = self.record(&key)?;
        let (_, recorded) = &mut self.recordings[position];
        let backend = self.model.backend();
        for (name, values) in batch.step_values(&key.extents) {
            backend.write(recorded.buffer(name)?, 0, &i32_bytes(&values))?;
        }
        let phase = self.model.program().require(&self.phase)?;
        for input in &phase.inputs {
            let given = inputs.iter().find(|(name, _)| *name == input.name);
            let (_, tensor) = given.ok_or_else(|| Error::Step {
                what: format!(
                    "input {:?} of phase {} is not given",
                    input.name, self.phase
                ),
            })?;
            let buffer = recorded.buffer(&input.name)?;
            let padded = padded(&input.name, tensor, buffer, batch.tokens.len() as u64)?;
            backend.write(buffer, 0, &padded)?;
        }
        if let Some(sampling) = sampling {
            let choice = recorded.choice.as_ref().ok_or_else(|| Error::NoLogits {
                phase: self.phase.clone(),
            })?;
            let written = batch.choices(work, sampling, key.extents.rows);
            for (buffer, bytes) in choice.inputs.iter().zip(written) {
                backend.write(buffer, 0, &bytes)?;
            }
        }
        recorded.replay(&self.model, &|first| batch.count(first))?;
        let types = self.model.types(&self.phase)?;
        let mut outputs = Outputs {
            values: BTreeMap::new(),
            tokens: Vec::new(),
        };
        for &name in wanted {
            let first = types
                .get(name)
                .and_then(|value| value.shape.first().copied());
            let tensor = read(backend.as_ref(), recorded.buffer(name)?, batch.count(first))?;
            outputs.values.insert(name.to_owned(), tensor);
        }
        if let Some(choice) = recorded.choice.as_ref() {
            let rows = Some(batch.rows.len() as u64);
            let chosen = read(backend.as_ref(), &choice.tokens, rows)?.to_i32();
            let chosen = chosen.into_iter().zip(&batch.chosen);
            let tokens = chosen.map(|(token, &(text, positions))| {
                u32::try_from(token).map_err(|_| Error::NotANumber { text, positions })
            });
            outputs.tokens = tokens.collect::<Result<_, _>>()?;
        }
        Ok(outputs)
    }

    /// Where the recording of a key is, which is made if there is none.
    fn record(&mut self, key: &Key) -> Result<usize, Error> {
        let known = self.recordings.iter().position(|(known, _)| known == key);
        let entry = match known {
            Some(position) => self.recordings.remove(position),
            None => {
                if self.recordings.len() >= KEPT_RECORDINGS {
                    self.recordings.remove(0);
                }
                let phase = self.model.program().require(&self.phase)?;
                let types = self.model.types(&self.phase)?;
                if let Some(name) = key.wanted.iter().find(|name| !types.contains_key(*name)) {
                    return Err(rialto_program::Error::Absent {
                        what: "value",
                        name: name.clone(),
                        known: phase.outputs.clone(),
                    }
                    .into());
                }
                let recorded = Recorded::new(&self.model, phase, &self.caches, key)?;
                tracing::debug!(target: "rialto::runtime", phase = self.phase, extents = ?key.extents, "recorded");
                (key.clone(), recorded)
            }
        };
        self.recordings.push(entry);
        Ok(self.recordings.len() - 1)
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (phase, sequences) = (&self.phase, self.sequences.len());
        write!(f, "Session({phase}, {sequences} sequences)")
    }
}

fn unknown(sequence: SequenceId) -> Error {
    Error::Step {
        what: format!("sequence {} has ended", sequence.0),
    }
}

/// The tokens of a step, laid out.
struct Batch {
    tokens: Vec<i32>,
    row_seq: Vec<i32>,
    row_pos: Vec<i32>,
    /// Pages of each sequence.
    pages: Vec<Vec<u32>>,
    /// Tokens that logits are wanted of.
    rows: Vec<i32>,
    /// For each of them its piece of work, and the position of the token after it.
    chosen: Vec<(usize, u64)>,
}

impl Batch {
    fn new(
        work: &[Work<'_>],
        before: &[u64],
        sequences: &HashMap<SequenceId, SequencePages>,
    ) -> Batch {
        let mut batch = Batch {
            tokens: Vec::new(),
            row_seq: Vec::new(),
            row_pos: Vec::new(),
            pages: Vec::new(),
            rows: Vec::new(),
            chosen: Vec::new(),
        };
        for (number, (piece, &first)) in work.iter().zip(before).enumerate() {
            let last = piece.tokens.len() - 1;
            for (at, &token) in piece.tokens.iter().enumerate() {
                let position = first + at as u64;
                if piece.rows == Rows::All || piece.rows == Rows::Last && at == last {
                    batch.rows.push(batch.tokens.len() as i32);
                    batch.chosen.push((number, position + 1));
                }
                batch.tokens.push(token as i32);
                batch.row_seq.push(number as i32);
                batch.row_pos.push(position as i32);
            }
            let pages = sequences.get(&piece.sequence);
            batch.pages.push(
                pages
                    .map(|pages| pages.pages().to_vec())
                    .unwrap_or_default(),
            );
        }
        batch
    }

    /// How many of each there are, rounded up: few different numbers mean few recordings.
    fn extents(&self, pool: &PagePool) -> Extents {
        let longest = self.pages.iter().map(Vec::len).max().unwrap_or_default();
        Extents {
            tokens: bucket(self.tokens.len()),
            // None are none: of a piece of a prompt no head is computed.
            rows: match self.rows.len() {
                0 => 0,
                rows => bucket(rows),
            },
            sequences: bucket(self.pages.len()),
            pages: longest.next_power_of_two() as u64,
            pool: pool.pages().into(),
            page: pool.page_positions(),
        }
    }

    /// The values that every step brings, padded.
    fn step_values(&self, extents: &Extents) -> [(&'static str, Vec<i32>); 5] {
        let padded = |values: &[i32], padding: i32, count: u64| {
            let mut values = values.to_vec();
            values.resize(count as usize, padding);
            values
        };
        let columns = extents.pages as usize;
        let mut table = vec![-1; extents.sequences as usize * columns];
        for (row, pages) in table.chunks_mut(columns).zip(&self.pages) {
            for (entry, &page) in row.iter_mut().zip(pages) {
                *entry = page as i32;
            }
        }
        [
            (step::TOKENS, padded(&self.tokens, -1, extents.tokens)),
            (step::ROW_SEQ, padded(&self.row_seq, -1, extents.tokens)),
            (step::ROW_POS, padded(&self.row_pos, 0, extents.tokens)),
            (step::PAGE_TABLE, table),
            (step::ROWS, padded(&self.rows, -1, extents.rows)),
        ]
    }

    /// How each row's next token is chosen, padded: in the order of [`recorded::Choice::inputs`].
    fn choices(&self, work: &[Work<'_>], sampling: &[(Sampling, u64)], rows: u64) -> [Vec<u8>; 5] {
        debug_assert_eq!(work.len(), sampling.len());
        let mut bytes: [Vec<u8>; 5] = Default::default();
        for &(piece, position) in &self.chosen {
            let (how, stream) = sampling[piece];
            bytes[0].extend(how.temperature.to_le_bytes());
            // More than there are tokens is all of them.
            bytes[1].extend(i32::try_from(how.top_k).unwrap_or(i32::MAX).to_le_bytes());
            bytes[2].extend(how.top_p.to_le_bytes());
            bytes[3].extend(how.min_p.to_le_bytes());
            bytes[4].extend(how.draw(stream, position).to_le_bytes());
        }
        bytes.map(|mut bytes| {
            // Zeros take the likeliest token of a row that nobody reads.
            bytes.resize(rows as usize * 4, 0);
            bytes
        })
    }

    /// How many rows of a value are no padding.
    fn count(&self, first: Option<Dim>) -> Option<u64> {
        match first? {
            Dim::Tokens => Some(self.tokens.len() as u64),
            Dim::Rows => Some(self.rows.len() as u64),
            Dim::Sequences => Some(self.pages.len() as u64),
            _ => None,
        }
    }
}

/// A number not below `count`: exact for few, then in steps that waste a quarter at most.
fn bucket(count: usize) -> u64 {
    let count = count.max(1);
    let step = (count.next_power_of_two() / 8).max(1);
    count.next_multiple_of(step) as u64
}

fn i32_bytes(values: &[i32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// The first rows of a buffer.
fn read(
    backend: &dyn rialto_backend::Backend,
    buffer: &Buffer,
    rows: Option<u64>,
) -> Result<Tensor, Error> {
    let tensor = buffer.tensor();
    let mut extents = tensor.shape.extents().to_vec();
    if let (Some(first), Some(rows)) = (extents.first_mut(), rows) {
        *first = rows.min(*first);
    }
    let shape = Shape::new(extents);
    let length = shape.size_bytes(tensor.dtype)?;
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    backend.read(buffer, 0, &mut bytes)?;
    Tensor::new(tensor.dtype, shape, bytes)
}

/// An input's rows, cast to the buffer's elements and padded with zeros.
fn padded(name: &str, tensor: &Tensor, buffer: &Buffer, tokens: u64) -> Result<Vec<u8>, Error> {
    let expected = buffer.tensor();
    let [found, wanted] = [tensor.shape(), &expected.shape].map(Shape::extents);
    let fits = found.len() == wanted.len()
        && found.first() == Some(&tokens)
        && found.get(1..) == wanted.get(1..)
        && (expected.dtype == tensor.dtype()
            || expected.dtype != Dtype::I32 && tensor.dtype() != Dtype::I32);
    if !fits {
        let what = format!(
            "input {name:?} is {} {}, expected {expected} for {tokens} tokens",
            tensor.dtype(),
            tensor.shape()
        );
        return Err(Error::Step { what });
    }
    let mut bytes = tensor.cast(expected.dtype)?.bytes().to_vec();
    bytes.resize(
        usize::try_from(expected.size_bytes()?).unwrap_or(usize::MAX),
        0,
    );
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_few_and_waste_a_quarter_at_most() {
        assert_eq!(
            [0, 1, 2, 7, 8, 9, 17, 33, 4097].map(bucket),
            [1, 1, 2, 7, 8, 10, 20, 40, 5120]
        );
        for count in 1..5000usize {
            let bucket = bucket(count);
            assert!(
                bucket >= count as u64 && bucket as f64 <= count as f64 * 1.25,
                "{count}: {bucket}"
            );
        }
        let distinct: std::collections::BTreeSet<u64> = (1..=4096).map(bucket).collect();
        assert!(distinct.len() < 60, "{}", distinct.len());
    }
}
