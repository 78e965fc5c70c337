//! Progress on stderr: a bar on a terminal, a line every ten seconds elsewhere.

use std::io::{IsTerminal, stderr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rialto_engine::Progress;

use crate::interrupt;
use crate::output::{Output, bytes, printable};

/// How often a line is printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// What the engine tells, shown to a person.
#[derive(Debug)]
pub(crate) struct Bar<'a> {
    output: &'a Output,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    bar: ProgressBar,
    is_terminal: bool,
    last_line: Instant,
}

impl<'a> Bar<'a> {
    pub(crate) fn new(output: &'a Output) -> Bar<'a> {
        let is_terminal = stderr().is_terminal() && !output.is_quiet();
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Bar {
            output,
            state: Mutex::new(State {
                bar,
                is_terminal,
                last_line: Instant::now(),
            }),
        }
    }

    fn with(&self, act: impl FnOnce(&mut State)) {
        // A poisoned bar is still a bar.
        act(&mut self
            .state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner));
    }
}

impl Progress for Bar<'_> {
    fn begin(&self, what: &str, total_bytes: u64) {
        let style = "{msg} {bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} eta {eta}";
        self.with(|state| {
            // A run may follow another.
            state.bar.reset();
            state.bar.set_length(total_bytes);
            state.bar.set_message(printable(what));
            if let (true, Ok(style)) = (state.is_terminal, ProgressStyle::with_template(style)) {
                state.bar.set_style(style);
                state.bar.set_draw_target(ProgressDrawTarget::stderr());
            }
        });
    }

    fn advance(&self, more: u64) {
        self.with(|state| {
            state.bar.inc(more);
            if !state.is_terminal && state.last_line.elapsed() >= LINE_EVERY {
                state.last_line = Instant::now();
                let (done, total) = (state.bar.position(), state.bar.length().unwrap_or_default());
                self.output.note(&format!(
                    "{} {} of {}, {}/s, eta {}",
                    state.bar.message(),
                    bytes(done),
                    bytes(total),
                    bytes(state.bar.per_sec() as u64),
                    HumanDuration(state.bar.eta())
                ));
            }
        });
    }

    fn note(&self, text: &str) {
        // Not into the bar.
        self.with(|state| state.bar.suspend(|| self.output.note(text)));
    }

    fn end(&self) {
        self.with(|state| state.bar.finish_and_clear());
    }

    fn is_cancelled(&self) -> bool {
        interrupt::is_asked()
    }
}
