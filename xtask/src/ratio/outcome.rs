//! What was measured round by round, and what follows: ratios, whether the machine was at rest, and whether a bar is met.

use std::time::Duration;

use rialto_benches::{Ratio, Rounds, middle, sorted};

use super::subject::{Bar, COPY, COPY_AND_HASH, OURS, Quantity};
use crate::measured::Measured;

/// The share of the machine from which others disturb a run.
pub(super) const DISTURBING: f64 = 0.10;

/// The share of disturbed rounds above which nothing is judged.
pub(super) const MOST_DISTURBED: f64 = 0.20;

/// Cores that hash at the same time, in the bar that counts hashing.
const HASHING_CORES: f64 = 2.0;

/// One run of a contender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) measured: Measured,
    /// What is compared: of the process, or what the contender says.
    pub(super) seconds: f64,
    /// The share of all cores that others had meanwhile.
    pub(super) others: f64,
    pub(super) target_bytes: u64,
}

/// One round: a run of every contender.
#[derive(Clone, Debug)]
pub(super) struct Round {
    /// In the order of the contenders, not that of running.
    pub(super) runs: Vec<Run>,
    /// Of the last minute, at the beginning.
    pub(super) load: f64,
    /// Memory that programs could have had at the beginning.
    pub(super) available_bytes: u64,
    /// Bytes hashed in a second by one core, where a bar needs it.
    pub(super) hash_rate: Option<f64>,
}

impl Round {
    /// What others had of the machine during the run that they disturbed most.
    pub(super) fn others(&self) -> f64 {
        self.runs.iter().map(|run| run.others).fold(0.0, f64::max)
    }
}

/// All rounds.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) names: Vec<&'static str>,
    pub(super) rounds: Vec<Round>,
}

/// A bar, and what was measured of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Verdict {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) is_met: bool,
}

impl Outcome {
    /// No rounds yet, of contenders by these names.
    pub(super) fn new(names: impl IntoIterator<Item = &'static str>) -> Outcome {
        Outcome {
            names: names.into_iter().collect(),
            rounds: Vec::new(),
        }
    }

    /// Adds a round.
    pub(super) fn push(&mut self, round: Round) {
        self.rounds.push(round);
    }

    /// A round on one line.
    pub(super) fn line(&self, round: &Round) -> String {
        let runs = self.names.iter().zip(&round.runs);
        let times: Vec<_> = runs
            .map(|(name, run)| format!("{name} {:.2} s", run.seconds))
            .collect();
        let others = round.others() * 100.0;
        format!(
            "{}; others had up to {others:.0} % of the machine",
            times.join(", ")
        )
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|found| *found == name)
    }

    /// The runs of one contender.
    pub(super) fn runs(&self, place: usize) -> impl Iterator<Item = &Run> {
        self.rounds.iter().map(move |round| &round.runs[place])
    }

    /// Times of all contenders, and of a copy that hashes too where the rate is known.
    fn times(&self) -> Rounds {
        let seconds = |seconds: f64| Duration::from_secs_f64(seconds);
        let copy = self.place(COPY);
        let with_hash = |round: &Round| -> Option<Duration> {
            let (ours, rate) = (round.runs[self.place(OURS)?], round.hash_rate?);
            let hashing = ours.target_bytes as f64 / (HASHING_CORES * rate);
            Some(seconds(round.runs[copy?].seconds + hashing))
        };
        let hashes =
            !self.rounds.is_empty() && self.rounds.iter().all(|round| with_hash(round).is_some());
        let names = self
            .names
            .iter()
            .copied()
            .chain(hashes.then_some(COPY_AND_HASH));
        let mut times = Rounds::new(names);
        for round in &self.rounds {
            let runs = round.runs.iter().map(|run| seconds(run.seconds));
            times.push(runs.chain(with_hash(round).filter(|_| hashes)).collect());
        }
        times
    }

    /// How many times as long another takes as rialto. `None` if it did not run.
    pub(super) fn speed(&self, other: &str) -> Option<Ratio> {
        self.times().ratio(other, OURS)
    }

    /// A bar against what was measured: the median decides. `None` if the other did not run.
    pub(super) fn verdict(&self, bar: &Bar) -> Option<Verdict> {
        let ratios = match bar.quantity {
            Quantity::Speed => self.speed(bar.against)?.ratios(),
            Quantity::Memory => {
                let (ours, other) = (self.place(OURS)?, self.place(bar.against)?);
                let peaks = |place| self.runs(place).map(|run| run.measured.peak_bytes as f64);
                sorted(
                    peaks(other)
                        .zip(peaks(ours))
                        .map(|(other, ours)| other / ours),
                )
            }
        };
        let median = middle(&ratios);
        Some(Verdict {
            median,
            min: ratios[0],
            max: ratios[ratios.len() - 1],
            is_met: median >= bar.at_least,
        })
    }

    /// How many rounds others disturbed.
    pub(super) fn disturbed(&self) -> usize {
        let is_disturbed = |round: &&Round| round.others() > DISTURBING;
        self.rounds.iter().filter(is_disturbed).count()
    }

    /// Why nothing can be judged, if it cannot.
    pub(super) fn refusal(&self) -> Option<String> {
        let (disturbed, all) = (self.disturbed(), self.rounds.len());
        (disturbed as f64 > MOST_DISTURBED * all as f64).then(|| {
            format!(
                "in {disturbed} of {all} rounds others had more than {:.0} % of the machine, which may be so in {:.0} % of them",
                DISTURBING * 100.0,
                MOST_DISTURBED * 100.0
            )
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::subject::{CP, RIVAL};
    use super::*;

    pub(crate) fn run(seconds: f64, peak_bytes: u64, others: f64) -> Run {
        Run {
            measured: Measured {
                seconds: seconds + 1.0,
                cpu_seconds: seconds / 2.0,
                peak_bytes,
            },
            seconds,
            others,
            target_bytes: 8_000_000_000,
        }
    }

    /// Rounds of rialto, a copy and the rival, with what others had in each.
    pub(crate) fn outcome(rounds: &[([f64; 3], f64)]) -> Outcome {
        let mut outcome = Outcome::new([OURS, COPY, RIVAL]);
        for &([ours, copy, rival], others) in rounds {
            outcome.push(Round {
                runs: vec![
                    run(ours, 100_000_000, 0.01),
                    run(copy, 20_000_000, others),
                    run(rival, 1_100_000_000, 0.0),
                ],
                load: 0.1,
                available_bytes: 1 << 34,
                hash_rate: Some(4e9),
            });
        }
        outcome
    }

    fn bar(quantity: Quantity, against: &'static str, at_least: f64) -> Bar {
        Bar {
            quantity,
            against,
            at_least,
        }
    }

    #[test]
    fn a_bar_is_met_by_the_median_of_ratios_within_rounds() {
        // The third round was slow for all, the last for the copy alone.
        let outcome = outcome(&[
            ([4.0, 4.0, 16.0], 0.0),
            ([4.0, 3.0, 16.0], 0.0),
            ([40.0, 36.0, 160.0], 0.0),
            ([4.0, 3.6, 16.0], 0.0),
            ([4.0, 40.0, 16.0], 0.0),
        ]);
        let speed = |at_least| {
            outcome
                .verdict(&bar(Quantity::Speed, COPY, at_least))
                .unwrap()
        };
        let verdict = speed(0.89);
        assert_eq!(
            (verdict.median, verdict.min, verdict.max),
            (0.9, 0.75, 10.0)
        );
        assert!(verdict.is_met && !speed(0.91).is_met);
        assert_eq!(outcome.verdict(&bar(Quantity::Speed, CP, 1.0)), None);
    }

    #[test]
    fn hashing_adds_what_two_cores_take_for_what_is_written() {
        // 8 GB at twice 4 GB/s: one second beside the three of the copy.
        let outcome = outcome(&[([4.0, 3.0, 16.0], 0.0); 5]);
        let verdict = outcome
            .verdict(&bar(Quantity::Speed, COPY_AND_HASH, 0.9))
            .unwrap();
        assert_eq!(verdict.median, 1.0);
        let mut unknown = outcome;
        unknown.rounds[2].hash_rate = None;
        assert_eq!(
            unknown.verdict(&bar(Quantity::Speed, COPY_AND_HASH, 0.9)),
            None
        );
    }

    #[test]
    fn memory_is_the_others_by_ours() {
        let outcome = outcome(&[([4.0, 3.0, 16.0], 0.0); 5]);
        let verdict = outcome
            .verdict(&bar(Quantity::Memory, RIVAL, 10.0))
            .unwrap();
        assert!(verdict.is_met);
        assert_eq!(verdict.median, 11.0);
        assert!(
            !outcome
                .verdict(&bar(Quantity::Memory, RIVAL, 11.5))
                .unwrap()
                .is_met
        );
    }

    #[test]
    fn nothing_is_judged_when_others_disturbed_too_many_rounds() {
        let times = [4.0, 3.0, 16.0];
        let disturbed = |others: [f64; 5]| outcome(&others.map(|others| (times, others)));
        // One of five is allowed, and what is just a tenth disturbs nobody.
        let at_rest = disturbed([0.10, 0.9, 0.0, 0.02, 0.10]);
        assert_eq!((at_rest.disturbed(), at_rest.refusal()), (1, None));
        let refusal = disturbed([0.11, 0.9, 0.0, 0.02, 0.1]).refusal().unwrap();
        assert!(
            refusal.starts_with("in 2 of 5 rounds others had more than 10 %"),
            "{refusal}"
        );
    }
}
