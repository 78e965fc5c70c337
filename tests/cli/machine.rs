//! What scripts rely on: one document on stdout, exit codes, colors, a reader that goes away.

use std::io::Read;
use std::process::Stdio;

use crate::world::{command, fixture, rialto, run, text};

#[test]
fn wrong_usage_is_two_and_has_its_document() {
    let wrong = rialto(["import", "--json"]);
    let error = wrong.document()["error"].clone();
    assert_eq!(
        (wrong.code, error["slug"].as_str()),
        (2, Some("cli/usage")),
        "{wrong:?}"
    );
    assert_eq!(
        error["message"],
        "the following required arguments were not provided: <SOURCE>, <TARGET>"
    );
    let help = error["help"].as_str().unwrap();
    assert!(help.starts_with("Usage: rialto import"), "{help}");
    let wrong = rialto(["import", "a", "b", "--mtp", "maybe", "--json"]);
    let message = wrong.error(2, "cli/usage")["message"].clone();
    assert!(
        message
            .as_str()
            .unwrap()
            .ends_with("[possible values: keep, drop]"),
        "{message}"
    );
    let wrong = rialto(["import", "a", "b", "--forse", "--json"]);
    let help = wrong.error(2, "cli/usage")["help"].clone();
    let help = help.as_str().unwrap();
    assert!(
        help.contains("'--force'") && help.contains("Usage: "),
        "{help}"
    );
    let message = rialto(["--json", "plugin"]).error(2, "cli/usage")["message"].clone();
    assert_eq!(message, "a command is missing");
    let wrong = rialto(["import"]);
    assert_eq!((wrong.code, wrong.stdout.as_str()), (2, ""), "{wrong:?}");
    assert_eq!(rialto(["import", "a", "b", "--tp", "0"]).code, 2);
    assert_eq!(rialto(["import", "a", "b", "--mtp", "maybe"]).code, 2);
}

#[test]
fn help_and_version_are_results() {
    let help = rialto(["import", "--help"]);
    assert!(
        help.code == 0 && help.stdout.contains("Example: rialto import"),
        "{help:?}"
    );
    let version = rialto(["--version"]);
    assert!(
        version.stdout.starts_with("rialto ") && version.stdout.contains("plugin abi"),
        "{version:?}"
    );
}

#[test]
fn stdout_is_the_document_and_nothing_else() {
    let plan = rialto(["plan", text(&fixture("glm52-tiny")), "--json", "-vv"]);
    assert_eq!(plan.code, 0);
    plan.document();
    assert!(plan.stderr.contains("glm-5.2 by"), "{plan:?}");
    let quiet = rialto(["plan", text(&fixture("glm52-tiny")), "--json", "--quiet"]);
    assert_eq!(quiet.stderr, "");
}

#[test]
fn colors_are_for_terminals_or_when_asked_for() {
    let plain = rialto(["plan", "nowhere"]);
    assert!(plain.stderr.starts_with("error: "), "{plain:?}");
    let colored = rialto(["plan", "nowhere", "--color", "always"]);
    assert!(colored.stderr.starts_with('\u{1b}'), "{colored:?}");
    let mut forced = command();
    let forced = run(forced.env("CLICOLOR_FORCE", "1").args(["plan", "nowhere"]));
    assert!(forced.stderr.starts_with('\u{1b}'), "{forced:?}");
}

#[test]
fn a_reader_that_goes_away_is_a_quiet_success() {
    let mut child = command()
        .args(["inspect", text(&fixture("glm52-tiny")), "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 1]).unwrap();
    drop(stdout);
    let mut stderr = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    assert!(
        child.wait().unwrap().success() && !stderr.contains("error"),
        "{stderr}"
    );
}
