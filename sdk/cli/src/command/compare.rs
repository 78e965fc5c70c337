//! `rialto compare`: two checkpoints on the same tokens, layer by layer.

use rialto_backend::DeviceInfo;
use rialto_runtime::{Comparison, StreamDifference, compare};
use rialto_tensor::Dtype;
use serde::Serialize;

use crate::arguments::{Common, Compare};
use crate::experts::Experts;
use crate::failure::{Failure, MODELS_DIFFER};
use crate::interrupt;
use crate::model::{self, Asked};
use crate::output::{Output, Report, count, counted, table};

pub(crate) fn run(asked: &Compare, common: &Common, output: &Output) -> Result<(), Failure> {
    interrupt::listen()?;
    let flags = &asked.model;
    let ours = model::open(&flags.backend, flags, output)?.device;
    let theirs = match &asked.their_backend {
        Some(choice) => model::open(choice, flags, output)?.device,
        None => ours.clone(),
    };
    let dtype = flags.dtype;
    let their_dtype = asked.their_dtype.unwrap_or(dtype);
    let load = |path, device, dtype: Dtype| {
        let on = Asked {
            device,
            activation: dtype,
            texts: &[asked.tokens.0.as_slice()],
        };
        model::load(path, flags, on, common, output)
    };
    let ours = load(asked.ours.as_path(), ours, dtype.dtype())?;
    let theirs = load(asked.theirs.as_path(), theirs, their_dtype.dtype())?;
    let tokens = &asked.tokens.0;
    let length = || std::iter::once(tokens.len() as u64);
    let mut sessions = [
        model::session(&ours.model, length())?,
        model::session(&theirs.model, length())?,
    ];
    let [a, b] = &mut sessions;
    let chunk_tokens = usize::try_from(flags.chunk_tokens).unwrap_or(usize::MAX);
    let mut goes_on = || !interrupt::is_asked();
    let comparison = compare([a, b], tokens, chunk_tokens, &mut goes_on)?;
    let devices = [&ours, &theirs].map(|loaded| loaded.model.backend().device().clone());
    let experts = [&ours, &theirs].map(|loaded| Experts::of(&loaded.model));
    let compared = Compared::new(comparison, (devices, experts), asked);
    let failure = compared.failure();
    output.checked(&compared, failure)
}

/// The comparison, and what was allowed.
#[derive(Serialize)]
struct Compared {
    agrees: bool,
    #[serde(flatten)]
    comparison: Comparison,
    /// Share of tokens with the same likeliest next one.
    top1: f64,
    tolerance: f64,
    least_top1: f64,
    /// Those of the first and of the second.
    devices: [DeviceInfo; 2],
    experts: [Experts; 2],
}

impl Compared {
    fn new(
        comparison: Comparison,
        (devices, experts): ([DeviceInfo; 2], [Experts; 2]),
        asked: &Compare,
    ) -> Compared {
        let top1 = comparison.top1_agreements as f64 / comparison.tokens.max(1) as f64;
        let logits = &comparison.logits;
        let within = match asked.tolerance {
            0.0 => logits.is_identical,
            // NaN is within nothing.
            tolerance => logits.max_relative <= tolerance,
        };
        Compared {
            agrees: within && top1 >= asked.top1,
            comparison,
            top1,
            tolerance: asked.tolerance,
            least_top1: asked.top1,
            devices,
            experts,
        }
    }

    fn failure(&self) -> Option<Failure> {
        if self.agrees {
            return None;
        }
        let message = format!(
            "the models differ: logits by {:.3e} of the largest, {}",
            self.comparison.logits.max_relative,
            self.top1_text()
        );
        let mut failure = Failure::own(MODELS_DIFFER, message);
        let first = self.values().find(|value| !value.is_identical);
        failure.help = first.map(|first| {
            format!(
                "{} is the first to differ; --tolerance and --top1 say how much is allowed",
                first.name
            )
        });
        Some(failure)
    }

    /// What is compared, in the order in which a model makes it.
    fn values(&self) -> impl Iterator<Item = &StreamDifference> {
        let Comparison { stream, logits, .. } = &self.comparison;
        stream.iter().chain([logits])
    }

    fn top1_text(&self) -> String {
        format!(
            "the likeliest next token agrees for {} of {}",
            count(self.comparison.top1_agreements),
            counted(self.comparison.tokens, "token")
        )
    }
}

impl Report for Compared {
    fn lines(&self) -> Vec<String> {
        let titles = ["", "max |a-b|", "of the largest", "cosine"]
            .map(str::to_owned)
            .to_vec();
        let row = |difference: &StreamDifference| match difference.is_identical {
            true => vec![difference.name.clone(), "same bits".to_owned()],
            false => vec![
                difference.name.clone(),
                format!("{:.3e}", difference.max_abs),
                format!("{:.3e}", difference.max_relative),
                format!("{:.9}", difference.min_cosine),
            ],
        };
        let rows = self.values().map(row);
        let mut lines = table(&std::iter::once(titles).chain(rows).collect::<Vec<_>>());
        lines.push(self.top1_text());
        lines.push(
            if self.agrees {
                "the models agree"
            } else {
                "the models differ"
            }
            .to_owned(),
        );
        lines
    }
}

#[cfg(test)]
mod tests {
    use rialto_backend::Driver as _;
    use rialto_cpu::CpuDriver;

    use super::*;

    /// Two models, of whose values those named differ, on so many tokens.
    fn compared(apart: &[&str], tokens: u64) -> Compared {
        let named = |name: &str| {
            let is_identical = !apart.contains(&name);
            let of = if is_identical { 0.0 } else { 0.5 };
            StreamDifference {
                name: name.to_owned(),
                max_abs: of,
                max_relative: of,
                min_cosine: 1.0,
                is_identical,
            }
        };
        Compared {
            agrees: false,
            comparison: Comparison {
                stream: ["hidden.0", "hidden.1"].map(named).to_vec(),
                logits: named("logits"),
                tokens,
                top1_agreements: tokens,
            },
            top1: 1.0,
            tolerance: 0.0,
            least_top1: 1.0,
            devices: [(), ()].map(|()| CpuDriver.probe().devices.remove(0)),
            experts: [Experts::default(), Experts::default()],
        }
    }

    #[test]
    fn the_first_value_that_differs_is_named_be_it_the_logits() {
        for (apart, first) in [
            (&["hidden.1", "logits"] as &[_], "hidden.1"),
            (&["logits"], "logits"),
        ] {
            let failure = compared(apart, 3).failure().unwrap();
            assert_eq!(
                failure.help.unwrap(),
                format!(
                    "{first} is the first to differ; --tolerance and --top1 say how much is allowed"
                )
            );
        }
    }

    #[test]
    fn tokens_are_counted_as_they_are_spoken_of() {
        for (tokens, said) in [(1, "1 of 1 token"), (3, "3 of 3 tokens")] {
            let compared = compared(&["logits"], tokens);
            let failure = compared.failure().unwrap();
            assert_eq!(
                failure.message,
                format!(
                    "the models differ: logits by 5.000e-1 of the largest, the likeliest next token agrees for {said}"
                )
            );
            let line = format!("the likeliest next token agrees for {said}");
            assert!(compared.lines().contains(&line), "{:?}", compared.lines());
        }
    }
}
