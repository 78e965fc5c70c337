//! Prompts and what follows them.

use std::collections::HashSet;

use crate::{Error, Rows, Sampling, SequenceId, Session, Work};

/// How texts are continued.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// Most tokens that are appended to a prompt.
    pub max_new_tokens: u64,
    /// Tokens that end a text. They are the last of it.
    pub stop_tokens: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens of a step, over all prompts.
    pub chunk_tokens: usize,
}

impl Default for GenerateOptions {
    fn default() -> GenerateOptions {
        GenerateOptions {
            max_new_tokens: 16,
            stop_tokens: Vec::new(),
            sampling: Sampling::GREEDY,
            chunk_tokens: 512,
        }
    }
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// It is as long as was asked for.
    Length,
    /// A token that ends texts.
    StopToken,
}

/// What follows a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// The tokens, without the prompt.
    pub tokens: Vec<u32>,
    /// Why there are no more.
    pub stop: Stop,
}

/// What is told while texts are continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A step was taken, of so many tokens of prompts and texts.
    Step {
        /// The tokens.
        tokens: usize,
    },
    /// A token was chosen.
    Token {
        /// The number of its prompt.
        text: usize,
        /// The token.
        token: u32,
    },
}

/// A text that is being continued.
struct Text {
    sequence: SequenceId,
    /// Tokens that the sequence does not have yet: the rest of the prompt, or the token chosen last.
    pending: Vec<u32>,
    made: Vec<u32>,
    stop: Option<Stop>,
}

/// Continues prompts, all at once: each step takes what is left of prompts and one token of each text, `chunk_tokens` at most.
/// `on_event` is told of steps and tokens, and says whether to go on. The session's sequences of before are left alone, and those of the
/// prompts are ended.
///
/// A text depends on its prompt, its number and the options alone, whatever other prompts there are.
///
/// Errors: a prompt without a token, or with one outside of the vocabulary; those of [`Session::step`]; [`Error::NotANumber`];
/// [`Error::Cancelled`].
pub fn generate(
    session: &mut Session,
    prompts: &[Vec<u32>],
    options: &GenerateOptions,
    on_event: &mut dyn FnMut(Event) -> bool,
) -> Result<Vec<Generated>, Error> {
    if let Some(number) = prompts.iter().position(Vec::is_empty) {
        return Err(Error::Step {
            what: format!("prompt {number} has no token"),
        });
    }
    for (number, prompt) in prompts.iter().enumerate() {
        session.model().check_tokens(number, prompt)?;
    }
    let mut texts: Vec<Text> = prompts
        .iter()
        .map(|prompt| Text {
            sequence: session.begin(),
            pending: prompt.clone(),
            made: Vec::new(),
            stop: (options.max_new_tokens == 0).then_some(Stop::Length),
        })
        .collect();
    let result = continue_all(session, &mut texts, options, on_event);
    for text in &texts {
        session.end(text.sequence);
    }
    result?;
    let generated = texts.into_iter().map(|text| Generated {
        tokens: text.made,
        stop: text.stop.unwrap_or(Stop::Length),
    });
    Ok(generated.collect())
}

fn continue_all(
    session: &mut Session,
    texts: &mut [Text],
    options: &GenerateOptions,
    on_event: &mut dyn FnMut(Event) -> bool,
) -> Result<(), Error> {
    let stop_tokens: HashSet<u32> = options.stop_tokens.iter().copied().collect();
    let chunk_tokens = options.chunk_tokens.max(1);
    // Whose turn is first: nobody waits for ever where texts are more than a step takes.
    let mut first = 0;
    while texts.iter().any(|text| text.stop.is_none()) {
        let mut left = chunk_tokens;
        let mut taken: Vec<(usize, usize)> = Vec::new();
        for number in (first..texts.len()).chain(0..first) {
            let text = &texts[number];
            let count = text.pending.len().min(left);
            if text.stop.is_none() && count > 0 {
                taken.push((number, count));
                left -= count;
            }
        }
        let work = taken.iter().map(|&(number, count)| Work {
            sequence: texts[number].sequence,
            tokens: &texts[number].pending[..count],
            rows: match count == texts[number].pending.len() {
                true => Rows::Last,
                false => Rows::None,
            },
        });
        let work: Vec<Work<'_>> = work.collect();
        let sampling: Vec<(Sampling, u64)> = taken
            .iter()
            .map(|&(number, _)| (options.sampling, number as u64))
            .collect();
        let tokens = chunk_tokens - left;
        let chosen = session.step_and_sample(&work, &sampling);
        let mut chosen = chosen.map_err(|error| of_text(error, &taken))?.into_iter();
        if !on_event(Event::Step { tokens }) {
            return Err(Error::Cancelled);
        }
        for (number, count) in taken {
            let text = &mut texts[number];
            text.pending.drain(..count);
            if !text.pending.is_empty() {
                continue;
            }
            let token = chosen.next().ok_or_else(|| Error::Step {
                what: "a row without a token".to_owned(),
            })?;
            text.made.push(token);
            text.pending.push(token);
            if stop_tokens.contains(&token) {
                text.stop = Some(Stop::StopToken);
            } else if text.made.len() as u64 >= options.max_new_tokens {
                text.stop = Some(Stop::Length);
            }
            if !on_event(Event::Token {
                text: number,
                token,
            }) {
                return Err(Error::Cancelled);
            }
        }
        first = (first + 1) % texts.len();
    }
    Ok(())
}

/// An error of a piece of work is one of its text.
fn of_text(error: Error, taken: &[(usize, usize)]) -> Error {
    match error {
        Error::NotANumber { text, positions } => Error::NotANumber {
            text: taken.get(text).map_or(text, |&(number, _)| number),
            positions,
        },
        other => other,
    }
}
