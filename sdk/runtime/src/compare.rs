//! How far two models are apart, layer by layer: along the residual stream, and in the logits.

use serde::Serialize;

use crate::{Error, Rows, SequenceId, Session, Tensor, Work};

/// How far two values are apart, over all tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamDifference {
    /// Name of the value in the first model.
    pub name: String,
    /// Largest difference of two elements; NaN if one is NaN and the other is not. In JSON, NaN and infinity are `null`.
    pub max_abs: f64,
    /// Largest over tokens of the largest difference in a row, divided by the largest element of the row in the first model.
    pub max_relative: f64,
    /// Smallest over tokens of the cosine between the two rows.
    pub min_cosine: f64,
    /// Whether all values agree bit for bit; a BF16 value is that of F32.
    pub is_identical: bool,
}

/// How far two models are apart on some tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The residual stream: embeddings, each layer, and what the head reads.
    pub stream: Vec<StreamDifference>,
    /// The logits.
    pub logits: StreamDifference,
    /// Tokens.
    pub tokens: u64,
    /// Tokens for which both have the same likeliest next one.
    pub top1_agreements: u64,
}

/// Runs both models on the tokens and compares them. Each session gets a sequence of its own, which is ended. `goes_on` is asked after
/// each step.
///
/// Errors: [`Error::Incomparable`] for models of different depth, width or vocabulary; a token outside of the vocabulary; those of
/// [`Session::step`]; [`Error::Cancelled`].
pub fn compare(
    [ours, theirs]: [&mut Session; 2],
    tokens: &[u32],
    chunk_tokens: usize,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Comparison, Error> {
    let sequences = [ours.begin(), theirs.begin()];
    let compared = compare_sequences([ours, theirs], sequences, (tokens, chunk_tokens), goes_on);
    ours.end(sequences[0]);
    theirs.end(sequences[1]);
    compared
}

fn compare_sequences(
    [ours, theirs]: [&mut Session; 2],
    sequences: [SequenceId; 2],
    (tokens, chunk_tokens): (&[u32], usize),
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Comparison, Error> {
    for session in [&ours, &theirs] {
        session.model().check_tokens(0, tokens)?;
    }
    let names = [stream_of(ours)?, stream_of(theirs)?];
    if names[0].len() != names[1].len() {
        let [a, b] = names.each_ref().map(|names| names.len() - 1);
        return Err(Error::Incomparable {
            what: format!("one has {a} values of its residual stream, the other {b}"),
        });
    }
    let mut differences: Vec<Difference> = names[0].iter().map(|_| Difference::default()).collect();
    let mut agreements = 0;
    for chunk in tokens.chunks(chunk_tokens.max(1)) {
        let mut sides = [Vec::new(), Vec::new()];
        let sessions = [&mut *ours, &mut *theirs].into_iter().zip(sequences);
        for ((session, sequence), (values, names)) in sessions.zip(sides.iter_mut().zip(&names)) {
            let work = Work {
                sequence,
                tokens: chunk,
                rows: Rows::All,
            };
            let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
            let mut outputs = session.step(&[work], &[], &wanted)?;
            for name in &wanted {
                values.push(outputs.take(name)?);
            }
        }
        let [a, b] = sides;
        for ((difference, name), (a, b)) in
            differences.iter_mut().zip(&names[0]).zip(a.iter().zip(&b))
        {
            difference.count(name, a, b)?;
        }
        // The logits come last.
        if let (Some(a), Some(b)) = (a.last(), b.last()) {
            agreements += top1_agreements(a, b);
        }
        if !goes_on() {
            return Err(Error::Cancelled);
        }
    }
    let mut stream: Vec<StreamDifference> = differences
        .iter()
        .zip(&names[0])
        .map(|(difference, name)| difference.named(name))
        .collect();
    let logits = stream.pop().ok_or_else(|| Error::Incomparable {
        what: "a model without logits".to_owned(),
    })?;
    Ok(Comparison {
        stream,
        logits,
        tokens: tokens.len() as u64,
        top1_agreements: agreements,
    })
}

/// The residual stream of a session's phase, and last its logits.
fn stream_of(session: &Session) -> Result<Vec<String>, Error> {
    let model = session.model();
    let phase = model.program().require(session.phase())?;
    let logits = model
        .logits(session.phase())?
        .ok_or_else(|| Error::Incomparable {
            what: format!("phase {} has no logits", session.phase()),
        })?;
    let mut names = phase.stream.clone();
    names.push(logits.to_owned());
    Ok(names)
}

/// What was seen so far.
#[derive(Debug)]
struct Difference {
    max_abs: f64,
    max_relative: f64,
    min_cosine: f64,
    is_identical: bool,
}

impl Default for Difference {
    fn default() -> Difference {
        Difference {
            max_abs: 0.0,
            max_relative: 0.0,
            min_cosine: 1.0,
            is_identical: true,
        }
    }
}

impl Difference {
    fn count(&mut self, name: &str, a: &Tensor, b: &Tensor) -> Result<(), Error> {
        if a.shape() != b.shape() {
            return Err(Error::Incomparable {
                what: format!(
                    "{name} is {} in one and {} in the other",
                    a.shape(),
                    b.shape()
                ),
            });
        }
        let width = a.shape().extents().last().copied().unwrap_or(1).max(1) as usize;
        // Of two dtypes the shorter is widened, which is exact.
        let (a, b) = (a.to_f32(), b.to_f32());
        for (a, b) in a.chunks(width).zip(b.chunks(width)) {
            let (mut worst, mut largest, mut dot, mut of_a, mut of_b) =
                (0.0f64, 0.0f64, 0.0, 0.0, 0.0);
            for (&a, &b) in a.iter().zip(b) {
                if a.to_bits() == b.to_bits() {
                    // Also two NaNs of the same bits, and two infinities, whose difference is no number.
                    let square = f64::from(a) * f64::from(a);
                    (dot, of_a, of_b) = (dot + square, of_a + square, of_b + square);
                    largest = larger(largest, f64::from(a).abs());
                    continue;
                }
                self.is_identical = false;
                let (a, b) = (f64::from(a), f64::from(b));
                worst = larger(worst, (a - b).abs());
                largest = larger(largest, a.abs());
                (dot, of_a, of_b) = (dot + a * b, of_a + a * a, of_b + b * b);
            }
            self.max_abs = larger(self.max_abs, worst);
            let relative = if worst == 0.0 { 0.0 } else { worst / largest };
            self.max_relative = larger(self.max_relative, relative);
            let norms = (of_a * of_b).sqrt();
            let cosine = if worst == 0.0 { 1.0 } else { dot / norms };
            self.min_cosine = -larger(-self.min_cosine, -cosine);
        }
        Ok(())
    }

    fn named(&self, name: &str) -> StreamDifference {
        StreamDifference {
            name: name.to_owned(),
            max_abs: self.max_abs,
            max_relative: self.max_relative,
            min_cosine: self.min_cosine,
            is_identical: self.is_identical,
        }
    }
}

/// The larger, or NaN if one is: what is no number is no agreement.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.max(b)
    }
}

/// Rows in which both have their largest element in the same place, the first of equal ones; or the same bits, whatever these are.
fn top1_agreements(a: &Tensor, b: &Tensor) -> u64 {
    let width = a.shape().extents().last().copied().unwrap_or(1).max(1) as usize;
    let largest = |row: &[f32]| {
        let mut best: Option<usize> = None;
        for (at, value) in row.iter().enumerate() {
            if !value.is_nan() && best.is_none_or(|best| *value > row[best]) {
                best = Some(at);
            }
        }
        best
    };
    let (a, b) = (a.to_f32(), b.to_f32());
    let rows = a.chunks(width).zip(b.chunks(width));
    let is_same = |a: &[f32], b: &[f32]| {
        a.iter()
            .map(|a| a.to_bits())
            .eq(b.iter().map(|b| b.to_bits()))
    };
    rows.filter(|(a, b)| is_same(a, b) || largest(a).is_some() && largest(a) == largest(b))
        .count() as u64
}

#[cfg(test)]
mod tests {
    use rialto_tensor::{Dtype, Shape};

    use super::*;

    fn rows(values: &[f32], width: u64) -> Tensor {
        let shape = Shape::new([values.len() as u64 / width, width]);
        let bytes = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        Tensor::new(Dtype::F32, shape, bytes).unwrap()
    }

    fn difference(a: &[f32], b: &[f32]) -> StreamDifference {
        let mut difference = Difference::default();
        difference.count("x", &rows(a, 2), &rows(b, 2)).unwrap();
        difference.named("x")
    }

    #[test]
    fn differences_are_those_of_the_worst_row() {
        let same = difference(&[1.0, -2.0, 0.0, 0.0], &[1.0, -2.0, 0.0, 0.0]);
        assert!(same.is_identical);
        assert_eq!(
            (same.max_abs, same.max_relative, same.min_cosine),
            (0.0, 0.0, 1.0)
        );
        let apart = difference(&[100.0, 0.0, 1.0, 0.0], &[101.0, 0.0, 0.5, 0.0]);
        assert!(!apart.is_identical);
        assert_eq!((apart.max_abs, apart.max_relative), (1.0, 0.5));
        assert_eq!(difference(&[1.0, 0.0], &[0.0, 1.0]).min_cosine, 0.0);
    }

    #[test]
    fn what_is_no_number_is_no_agreement() {
        let apart = difference(&[1.0, f32::NAN], &[1.0, 2.0]);
        assert!(apart.max_abs.is_nan() && apart.max_relative.is_nan());
        assert_eq!(
            top1_agreements(
                &rows(&[f32::NAN, f32::NAN], 2),
                &rows(&[f32::NAN, -f32::NAN], 2)
            ),
            0
        );
        // But the same bits are.
        let nan = rows(&[f32::NAN, 1.0], 2);
        assert_eq!(top1_agreements(&nan, &nan), 1);
        assert!(difference(&[f32::NAN, 1.0], &[f32::NAN, 1.0]).is_identical);
        assert_eq!(
            top1_agreements(
                &rows(&[3.0, 3.0, 1.0, 2.0], 2),
                &rows(&[5.0, 4.0, 2.0, 1.0], 2)
            ),
            1
        );
    }

    #[test]
    fn another_shape_is_refused() {
        let error = Difference::default()
            .count("x", &rows(&[1.0, 2.0], 2), &rows(&[1.0], 1))
            .unwrap_err();
        assert_eq!(error.slug(), "runtime/incomparable");
    }
}
