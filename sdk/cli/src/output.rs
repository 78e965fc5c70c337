//! Results on stdout, notes and failures on stderr.

use std::io::{self, Write};
use std::process::ExitCode;

use indicatif::HumanCount;
use serde::Serialize;
use serde_json::json;

use crate::arguments::Common;
use crate::failure::{Failure, INTERNAL, STDOUT};

/// A result that a person can read and a machine can parse.
pub(crate) trait Report: Serialize {
    /// The lines for a person.
    fn lines(&self) -> Vec<String>;
}

/// Where results go and in which form.
#[derive(Debug)]
pub(crate) struct Output {
    is_json: bool,
    is_quiet: bool,
}

impl Output {
    pub(crate) fn new(common: &Common) -> Output {
        Output {
            is_json: common.json,
            is_quiet: common.quiet,
        }
    }

    pub(crate) fn json() -> Output {
        Output {
            is_json: true,
            is_quiet: false,
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// The result of a command that has succeeded.
    pub(crate) fn result(&self, report: &impl Report) -> Result<(), Failure> {
        if !self.is_json {
            return write_lines(report);
        }
        write_document(&Success {
            schema: 1,
            ok: true,
            result: report,
        })
    }

    /// The result of a check: its report is the result also when the answer is no. One document either way.
    pub(crate) fn checked(
        &self,
        report: &impl Report,
        failure: Option<Failure>,
    ) -> Result<(), Failure> {
        let Some(mut failure) = failure else {
            return self.result(report);
        };
        if self.is_json {
            failure.report = Some(
                serde_json::to_value(report)
                    .map_err(|error| Failure::own(INTERNAL, error.to_string()))?,
            );
        } else {
            write_lines(report)?;
        }
        Err(failure)
    }

    /// A line for a person, not part of the result.
    pub(crate) fn note(&self, text: &str) {
        if !self.is_quiet {
            // Nothing can be done about a closed stderr.
            let _ = writeln!(anstream::stderr(), "{}", brief(text));
        }
    }

    /// Prints a failure and turns the outcome into the exit code.
    pub(crate) fn finish(&self, result: Result<(), Failure>) -> ExitCode {
        let Err(failure) = result else {
            return ExitCode::SUCCESS;
        };
        if self.is_json {
            // A reader that has gone needs no document; the exit code still says it.
            let _ = write_document(&json!({"schema": 1, "ok": false, "error": json!(failure)}));
        }
        let bold_red = "\u{1b}[1;31m";
        let mut stderr = anstream::stderr();
        let _ = writeln!(
            stderr,
            "{bold_red}error:\u{1b}[0m {}",
            brief(&failure.message)
        );
        if let Some(help) = &failure.help {
            let _ = writeln!(stderr, "  help: {}", brief(help));
        }
        ExitCode::from(failure.exit_code())
    }
}

/// How many characters of a message are printed; a document has all of them.
const PRINTED: usize = 4_000;

/// One line of text for a terminal. What comes from a file must neither end the line nor steer the terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            line.extend(character.escape_debug());
        } else {
            line.push(character);
        }
    }
    line
}

/// A message as it is printed: one line, and cut where nobody reads on.
fn brief(text: &str) -> String {
    let mut text = printable(text);
    let more = text.chars().count().saturating_sub(PRINTED);
    if let (1.., Some((end, _))) = (more, text.char_indices().nth(PRINTED)) {
        text.truncate(end);
        text.push_str(&format!("… ({more} more characters)"));
    }
    text
}

fn write_lines(report: &impl Report) -> Result<(), Failure> {
    let lines: Vec<String> = report.lines().iter().map(|line| printable(line)).collect();
    write_out(&lines.join("\n"))
}

/// The document of a success. Never a tree of JSON values: of a list of all tensors that would be many times the text.
#[derive(Serialize)]
struct Success<'a, R> {
    schema: u32,
    ok: bool,
    result: &'a R,
}

fn write_document(document: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(document)
        .map_err(|error| Failure::own(INTERNAL, error.to_string()))?;
    write_out(&text)
}

/// Writes to stdout; a reader that has gone is a quiet success.
fn write_out(text: &str) -> Result<(), Failure> {
    let mut stdout = anstream::stdout();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::own(
            STDOUT,
            format!("cannot write to stdout: {error}"),
        )),
        _ => Ok(()),
    }
}

/// Rows of text with columns as wide as their widest cell: the first to the left, the others to the right.
pub(crate) fn table(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(String::len)
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells =
            row.iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, &width))| match column {
                    0 => format!("{cell:<width$}"),
                    _ => format!("{cell:>width$}"),
                });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// `1,506,659,919,872`.
pub(crate) fn count(value: u64) -> String {
    HumanCount(value).to_string()
}

/// `1 tensor`, `1,506 tensors`.
pub(crate) fn counted(value: u64, thing: &str) -> String {
    let plural = if value == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", count(value))
}

/// `1.51 TB`, in powers of ten as disks are sold.
pub(crate) fn bytes(value: u64) -> String {
    indicatif::DecimalBytes(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_other_text_is_as_it_was() {
        assert_eq!(
            printable("a\u{1b}[2J\nb\t\u{9b}\\ \"é\" '"),
            "a\\u{1b}[2J\\nb\\t\\u{9b}\\ \"é\" '"
        );
    }

    #[test]
    fn a_long_message_is_cut_and_says_how_much_is_left() {
        let whole = "é".repeat(PRINTED);
        assert_eq!(brief(&whole), whole);
        let cut = brief(&"é".repeat(PRINTED + 7));
        assert_eq!(cut, format!("{whole}… (7 more characters)"));
    }

    #[test]
    fn a_table_aligns_names_left_and_numbers_right() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let lines = table(&[
            row(["", "tensors", "x"]),
            row(["moe", "12", "1"]),
            row(["attention", "3", "22"]),
        ]);
        assert_eq!(
            lines,
            [
                "           tensors   x",
                "moe             12   1",
                "attention        3  22"
            ]
        );
    }
}
