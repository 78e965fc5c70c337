//! The outcome for people, for programs, and for the records of benches/record.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use rialto_benches::{middle, sorted};
use serde_json::{Value, json};

use super::outcome::{DISTURBING, MOST_DISTURBED, Outcome};
use super::subject::{Bar, Subject};
use crate::machine::{Cold, Machine};
use crate::table::table;

/// Everything that a record says.
pub(super) struct Report<'a> {
    pub(super) subject: Subject,
    pub(super) command: String,
    pub(super) commit: String,
    pub(super) date: String,
    pub(super) machine: Machine,
    pub(super) source: String,
    pub(super) cold: Cold,
    /// Names, and what each does.
    pub(super) contenders: Vec<(&'static str, String)>,
    pub(super) outcome: &'a Outcome,
}

/// What stands over a report that others disturbed too much.
const MARK: &str = "**NOT JUDGED**";

impl Report<'_> {
    /// For people: one section of Markdown.
    pub(super) fn text(&self) -> String {
        let mut text = format!("\n## {}, {}\n\n", self.subject, self.date);
        if let Some(reason) = self.outcome.refusal() {
            text += &format!(
                "{MARK}: {reason}. What follows was printed on request and proves nothing.\n\n"
            );
        }
        let machine = &self.machine;
        let rounds = self.outcome.rounds.len();
        for line in [
            format!("commit `{}`", self.commit),
            format!(
                "{}, {} cores, {:.0} GiB of memory, Linux {}, {}",
                machine.cpu,
                machine.cores,
                machine.memory_bytes as f64 / f64::from(1 << 30),
                machine.kernel,
                machine.file_system
            ),
            format!("source: {}", self.source),
            self.cold.says().to_owned(),
            format!(
                "{} of {rounds} rounds disturbed: others had more than {:.0} % of all cores during a run; judged if at most {:.0} % \
                 of the rounds are",
                self.outcome.disturbed(),
                DISTURBING * 100.0,
                MOST_DISTURBED * 100.0
            ),
        ] {
            text += &format!("* {line}\n");
        }
        text += &format!("\n`{}`\n\n", self.command);
        text += &self.times();
        text += "\n";
        for (name, says) in &self.contenders {
            text += &format!("* {name}: {says}\n");
        }
        text += "\n";
        text += &self.bars();
        text += "\n";
        text += &self.rounds();
        text
    }

    fn times(&self) -> String {
        let mut rows = vec![
            [
                "contender",
                "seconds",
                "times ours",
                "peak memory",
                "CPU seconds",
                "written",
            ]
            .map(str::to_owned)
            .to_vec(),
        ];
        for (place, (name, _)) in self.contenders.iter().enumerate() {
            let of = |value: fn(&super::Run) -> f64| sorted(self.outcome.runs(place).map(value));
            let seconds = of(|run| run.seconds);
            let ratio = self
                .outcome
                .speed(name)
                .map(|ratio| ratio.ratios())
                .unwrap_or_default();
            rows.push(vec![
                (*name).to_owned(),
                spread(&seconds),
                spread(&ratio),
                format!(
                    "{:.1} MB",
                    middle(&of(|run| run.measured.peak_bytes as f64)) / 1e6
                ),
                format!("{:.2}", middle(&of(|run| run.measured.cpu_seconds))),
                format!("{:.3} GB", middle(&of(|run| run.target_bytes as f64)) / 1e9),
            ]);
        }
        table(&rows)
    }

    fn bars(&self) -> String {
        let mut rows = vec![
            ["bar", "at least", "measured", ""]
                .map(str::to_owned)
                .to_vec(),
        ];
        for bar in self.subject.bars() {
            let (measured, verdict) = match self.outcome.verdict(bar) {
                None => ("-".to_owned(), "not measured"),
                Some(found) => {
                    let measured =
                        format!("{:.2} ({:.2}..{:.2})", found.median, found.min, found.max);
                    let verdict = match (self.outcome.refusal(), found.is_met) {
                        (Some(_), _) => "not judged",
                        (None, true) => "met",
                        (None, false) => "MISSED",
                    };
                    (measured, verdict)
                }
            };
            rows.push(vec![
                bar.to_string(),
                format!("{:.1}", bar.at_least),
                measured,
                verdict.to_owned(),
            ]);
        }
        table(&rows)
    }

    fn rounds(&self) -> String {
        let mut header = vec!["round".to_owned()];
        header.extend(self.contenders.iter().map(|(name, _)| (*name).to_owned()));
        header.extend(["load", "free", "others"].map(str::to_owned));
        let rates = self
            .outcome
            .rounds
            .iter()
            .any(|round| round.hash_rate.is_some());
        if rates {
            header.push("BLAKE3 on one core".to_owned());
        }
        let mut rows = vec![header];
        for (number, round) in (1..).zip(&self.outcome.rounds) {
            let mut row = vec![i32::to_string(&number)];
            row.extend(round.runs.iter().map(|run| format!("{:.2} s", run.seconds)));
            row.push(format!("{:.2}", round.load));
            row.push(format!("{:.1} GB", round.available_bytes as f64 / 1e9));
            row.push(format!("{:.0} %", round.others() * 100.0));
            if rates {
                row.push(format!(
                    "{:.2} GB/s",
                    round.hash_rate.unwrap_or_default() / 1e9
                ));
            }
            rows.push(row);
        }
        table(&rows)
    }

    /// For programs.
    pub(super) fn to_json(&self) -> Value {
        let outcome = self.outcome;
        let contenders = self
            .contenders
            .iter()
            .map(|(name, says)| json!({"name": name, "does": says}));
        let rounds = outcome.rounds.iter().map(|round| {
            let runs = round.runs.iter().map(|run| {
                let mut entry = run.measured.to_json();
                entry["judged_seconds"] = json!(run.seconds);
                entry["others"] = json!(run.others);
                entry["target_bytes"] = json!(run.target_bytes);
                entry
            });
            json!({
                "runs": runs.collect::<Vec<_>>(),
                "load": round.load,
                "available_bytes": round.available_bytes,
                "hash_bytes_per_second": round.hash_rate,
            })
        });
        let bars = self.subject.bars().iter().map(|bar| self.bar_json(bar));
        json!({
            "schema": 1,
            "subject": self.subject.to_string(),
            "date": self.date,
            "commit": self.commit,
            "command": self.command,
            "machine": self.machine.to_json(),
            "source": self.source,
            "cold": self.cold.says(),
            "refusal": outcome.refusal(),
            "contenders": contenders.collect::<Vec<_>>(),
            "rounds": rounds.collect::<Vec<_>>(),
            "bars": bars.collect::<Vec<_>>(),
        })
    }

    fn bar_json(&self, bar: &Bar) -> Value {
        let found = self.outcome.verdict(bar);
        let is_judged = self.outcome.refusal().is_none();
        json!({
            "bar": bar.to_string(),
            "at_least": bar.at_least,
            "measured": found.map(|found| json!({"median": found.median, "min": found.min, "max": found.max})),
            "is_met": found.filter(|_| is_judged).map(|found| found.is_met),
        })
    }

    /// How many bars were measured, judged, and not met.
    pub(super) fn missed(&self) -> usize {
        if self.outcome.refusal().is_some() {
            return 0;
        }
        let verdicts = self
            .subject
            .bars()
            .iter()
            .filter_map(|bar| self.outcome.verdict(bar));
        verdicts.filter(|found| !found.is_met).count()
    }

    /// Adds the section to a record.
    pub(super) fn append(&self, file: &Path) -> Result<()> {
        let mut record = OpenOptions::new()
            .append(true)
            .create(true)
            .open(file)
            .with_context(|| file.display().to_string())?;
        Ok(record.write_all(self.text().as_bytes())?)
    }
}

/// The median of sorted values, and the smallest and the largest.
fn spread(values: &[f64]) -> String {
    match values {
        [] => "-".to_owned(),
        [.., last] => format!("{:.2} ({:.2}..{last:.2})", middle(values), values[0]),
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::outcome;
    use super::super::subject::{COPY, OURS, RIVAL};
    use super::*;

    fn report(outcome: &Outcome) -> Report<'_> {
        Report {
            subject: Subject::ImportTmpfs,
            command: "cargo xtask ratio import-tmpfs".to_owned(),
            commit: "abc1234".to_owned(),
            date: "2026-12-01".to_owned(),
            machine: Machine {
                cpu: "A CPU".to_owned(),
                cores: 2,
                memory_bytes: 24 << 30,
                kernel: "6.18".to_owned(),
                file_system: "tmpfs".to_owned(),
            },
            source: "a source".to_owned(),
            cold: Cold::Memory,
            contenders: [OURS, COPY, RIVAL]
                .map(|name| (name, format!("does {name}")))
                .to_vec(),
            outcome,
        }
    }

    const TIMES: [f64; 3] = [4.0, 2.0, 16.0];

    #[test]
    fn every_bar_is_printed_with_what_was_measured_and_whether_it_is_met() {
        let outcome = outcome(&[(TIMES, 0.0); 5]);
        let report = report(&outcome);
        let text = report.text();
        // (2 s + 8 GB at twice 4 GB/s) by 4 s; 16 s by 4 s; 1.1 GB by 100 MB.
        for line in [
            "| speed, against copy + hash   | 0.9      | 0.75 (0.75..0.75)    | MISSED |",
            "| speed, against rival         | 3.0      | 4.00 (4.00..4.00)    | met    |",
            "| peak memory of rival by ours | 10.0     | 11.00 (11.00..11.00) | met    |",
            "| rival     | 16.00 (16.00..16.00) | 4.00 (4.00..4.00) | 1100.0 MB   | 8.00        | 8.000 GB |",
            "* A CPU, 2 cores, 24 GiB of memory, Linux 6.18, tmpfs",
            "* 0 of 5 rounds disturbed: others had more than 10 %",
            "| 5     | 4.00 s | 2.00 s | 16.00 s | 0.10 | 17.2 GB | 1 %    | 4.00 GB/s          |",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert_eq!(report.missed(), 1);
        let document = report.to_json();
        assert_eq!(document["bars"][0]["is_met"], false);
        assert_eq!(document["bars"][1]["measured"]["median"], 4.0);
        assert_eq!(document["rounds"][4]["runs"][2]["seconds"], 17.0);
        assert_eq!(document["rounds"][4]["runs"][2]["judged_seconds"], 16.0);
        assert!(!text.contains(MARK) && document["refusal"].is_null());
    }

    #[test]
    fn what_others_disturbed_is_marked_and_no_bar_is_judged() {
        let outcome = outcome(&[(TIMES, 0.5); 5]);
        let report = report(&outcome);
        let text = report.text();
        assert!(
            text.contains(MARK) && text.contains("| not judged |"),
            "{text}"
        );
        assert!(!text.contains("met") && !text.contains("MISSED"), "{text}");
        assert_eq!(report.missed(), 0);
        let document = report.to_json();
        assert!(document["refusal"].is_string() && document["bars"][1]["is_met"].is_null());
    }

    #[test]
    fn records_are_appended_to() {
        let room = tempfile::tempdir().unwrap();
        let file = room.path().join("record.md");
        std::fs::write(&file, "# A machine\n").unwrap();
        let outcome = outcome(&[(TIMES, 0.0); 5]);
        report(&outcome).append(&file).unwrap();
        let record = std::fs::read_to_string(&file).unwrap();
        assert!(
            record
                .starts_with("# A machine\n\n## import-tmpfs, 2026-12-01\n\n* commit `abc1234`\n")
        );
    }
}
