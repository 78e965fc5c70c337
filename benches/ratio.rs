//! How many times as long one piece of work takes as another, on a machine that does other things too.
//!
//! Floor 1 of the house: stands on nothing of it. A machine is slow for seconds at a time, so two means taken one after the
//! other compare two moments, not two programs. Here both run in every round, right after each other and in turn first; a
//! round gives one ratio, and the median of the ratios is the answer.
//!
//! [`Ratio`] runs two pieces of work itself. [`Rounds`] holds the times of any number of contenders that somebody else ran,
//! in the [`order`] of each round, and gives the ratio of any two.
//!
//! ```
//! use std::time::Duration;
//! use rialto_benches::{Contender, Ratio};
//!
//! let mut import = || Duration::from_millis(30);
//! let mut copy = || Duration::from_millis(20);
//! let ratio = Ratio::measure(Contender::new("import", &mut import), Contender::new("copy", &mut copy), 5);
//! assert_eq!(ratio.median(), 1.5);
//! ```
#![forbid(unsafe_code)]

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

/// The fewest rounds whose median means anything.
pub const MIN_ROUNDS: usize = 5;

/// In which order contenders run in a round: each is in turn first, and each follows the same other one.
pub fn order(round: usize, contenders: usize) -> impl Iterator<Item = usize> {
    (0..contenders).map(move |place| (round + place) % contenders)
}

/// One side of a comparison.
pub struct Contender<'a> {
    name: &'a str,
    work: &'a mut dyn FnMut() -> Duration,
}

impl fmt::Debug for Contender<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Contender").field(&self.name).finish()
    }
}

impl<'a> Contender<'a> {
    /// Work that does its thing once and says how long it took, so that it can clean up outside of the time.
    pub fn new(name: &'a str, work: &'a mut dyn FnMut() -> Duration) -> Contender<'a> {
        Contender { name, work }
    }
}

/// Paired times of two contenders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ratio {
    names: [String; 2],
    /// Of each round, the times of the first and of the second contender.
    rounds: Vec<[Duration; 2]>,
}

impl Ratio {
    /// Runs both once unmeasured, then `rounds` times in pairs (at least [`MIN_ROUNDS`]), in turn first.
    pub fn measure(a: Contender<'_>, b: Contender<'_>, rounds: usize) -> Ratio {
        let names = [a.name.to_owned(), b.name.to_owned()];
        let mut sides: [&mut dyn FnMut() -> Duration; 2] = [&mut *a.work, &mut *b.work];
        for work in &mut sides {
            work();
        }
        let pair = |round: usize| {
            let mut times = [Duration::ZERO; 2];
            for side in order(round, 2) {
                times[side] = sides[side]();
            }
            times
        };
        let rounds = (0..rounds.max(MIN_ROUNDS)).map(pair).collect();
        Ratio { names, rounds }
    }

    /// The ratios of the rounds, time of the first by time of the second, smallest first.
    #[must_use]
    pub fn ratios(&self) -> Vec<f64> {
        let rounds = self.rounds.iter();
        sorted(rounds.map(|[a, b]| a.as_secs_f64() / b.as_secs_f64()))
    }

    /// The median of [`Ratio::ratios`]: below one, the first contender is the faster.
    #[must_use]
    pub fn median(&self) -> f64 {
        middle(&self.ratios())
    }

    /// The median time of one contender, in milliseconds.
    fn median_ms(&self, side: usize) -> f64 {
        let times = self.rounds.iter().map(|round| round[side].as_secs_f64());
        middle(&sorted(times)) * 1e3
    }

    /// Everything, the times of every round included, as one object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let ratios = self.ratios();
        let rounds = self.rounds.iter();
        let rounds_ns: Vec<_> = rounds
            .map(|[a, b]| [nanoseconds(a), nanoseconds(b)])
            .collect();
        json!({
            "schema": 1,
            "a": self.names[0],
            "b": self.names[1],
            "ratio": { "median": middle(&ratios), "min": ratios[0], "max": ratios[ratios.len() - 1] },
            "rounds_ns": rounds_ns,
        })
    }
}

/// One line: `import / copy: 1.50 (1.42..1.61 in 7 rounds; medians 30.0 ms and 20.0 ms)`.
impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ratios = self.ratios();
        write!(
            f,
            "{} / {}: {:.2} ({:.2}..{:.2} in {} rounds; medians {:.1} ms and {:.1} ms)",
            self.names[0],
            self.names[1],
            middle(&ratios),
            ratios[0],
            ratios[ratios.len() - 1],
            ratios.len(),
            self.median_ms(0),
            self.median_ms(1),
        )
    }
}

/// Times of some contenders, round by round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rounds {
    names: Vec<String>,
    /// Of each round, the times of the contenders.
    times: Vec<Vec<Duration>>,
}

impl Rounds {
    /// No rounds yet, of contenders by these names.
    pub fn new<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Rounds {
        Rounds {
            names: names.into_iter().map(Into::into).collect(),
            times: Vec::new(),
        }
    }

    /// Adds a round.
    ///
    /// # Panics
    ///
    /// If it has not one time for each contender.
    pub fn push(&mut self, times: Vec<Duration>) {
        assert_eq!(times.len(), self.names.len(), "a time for each contender");
        self.times.push(times);
    }

    /// Times of the first contender by those of the second, round by round. `None` without rounds, or for a name that is no
    /// contender's.
    #[must_use]
    pub fn ratio(&self, name: &str, base: &str) -> Option<Ratio> {
        let place = |name: &str| self.names.iter().position(|found| found == name);
        let (a, b) = (place(name)?, place(base)?);
        let rounds: Vec<_> = self
            .times
            .iter()
            .map(|times| [times[a], times[b]])
            .collect();
        (!rounds.is_empty()).then(|| Ratio {
            names: [name.to_owned(), base.to_owned()],
            rounds,
        })
    }
}

/// Values, smallest first.
pub fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The median of sorted values; of an even number, the mean of the two in the middle.
///
/// # Panics
///
/// Without any value.
#[must_use]
pub fn middle(sorted: &[f64]) -> f64 {
    let (low, high) = ((sorted.len() - 1) / 2, sorted.len() / 2);
    f64::midpoint(sorted[low], sorted[high])
}

fn nanoseconds(time: &Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn of(milliseconds: &[[u64; 2]]) -> Ratio {
        let rounds = milliseconds.iter();
        Ratio {
            names: ["import".to_owned(), "copy".to_owned()],
            rounds: rounds
                .map(|round| round.map(Duration::from_millis))
                .collect(),
        }
    }

    #[test]
    fn a_slow_moment_of_the_machine_does_not_move_the_median() {
        let ratio = of(&[[30, 20], [3000, 2000], [30, 20], [28, 20], [90, 20]]);
        assert_eq!(ratio.median(), 1.5);
        assert_eq!(ratio.ratios(), [1.4, 1.5, 1.5, 1.5, 4.5]);
    }

    #[test]
    fn an_even_number_of_rounds_has_its_median_between_two() {
        assert_eq!(of(&[[1, 1], [2, 1], [4, 1], [9, 1]]).median(), 3.0);
    }

    #[test]
    fn contenders_take_turns_in_going_first_after_one_unmeasured_run_each() {
        let order = RefCell::new(String::new());
        let runs = |name| {
            let order = &order;
            move || {
                order.borrow_mut().push(name);
                Duration::from_millis(1)
            }
        };
        let (mut a, mut b) = (runs('a'), runs('b'));
        let ratio = Ratio::measure(Contender::new("a", &mut a), Contender::new("b", &mut b), 1);
        assert_eq!(ratio.rounds.len(), MIN_ROUNDS);
        assert_eq!(
            *order.borrow(),
            "ab".to_owned() + "ab" + "ba" + "ab" + "ba" + "ab"
        );
    }

    #[test]
    fn every_contender_is_in_turn_first_and_none_is_left_out() {
        let orders: Vec<Vec<usize>> = (0..4).map(|round| order(round, 3).collect()).collect();
        assert_eq!(orders, [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
    }

    #[test]
    fn any_two_contenders_have_a_ratio_of_the_times_of_one_round() {
        let mut rounds = Rounds::new(["ours", "copy", "rival"]);
        assert_eq!(rounds.ratio("ours", "copy"), None);
        // In the second round everything was slow, in the third only ours.
        for times in [[32, 16, 96], [256, 128, 768], [64, 16, 96]] {
            rounds.push(times.map(Duration::from_millis).to_vec());
        }
        assert_eq!(
            rounds.ratio("ours", "copy").unwrap().ratios(),
            [2.0, 2.0, 4.0]
        );
        assert_eq!(rounds.ratio("rival", "ours").unwrap().median(), 3.0);
        assert_eq!(rounds.ratio("ours", "none"), None);
    }

    #[test]
    fn the_line_and_the_document_say_the_same() {
        let ratio = of(&[[30, 20], [28, 20], [32, 20]]);
        let line = "import / copy: 1.50 (1.40..1.60 in 3 rounds; medians 30.0 ms and 20.0 ms)";
        assert_eq!(ratio.to_string(), line);
        let document = ratio.to_json();
        assert_eq!(
            document["ratio"],
            json!({ "median": 1.5, "min": 1.4, "max": 1.6 })
        );
        assert_eq!(document["rounds_ns"][1], json!([28_000_000, 20_000_000]));
    }
}
