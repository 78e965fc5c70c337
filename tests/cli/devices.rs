//! Which device is taken, what is said of it, and what is said where there is none.

use rialto_tests::device::HIDE_DRIVERS;
use serde_json::{Value, json};

use crate::world::{command, fixture, rialto, run, text};

const RUN: [&str; 8] = [
    "--tokens",
    "1,2,3,4,5",
    "--max-new-tokens",
    "2",
    "--greedy",
    "--ignore-eos",
    "--dtype",
    "f32",
];

/// `rialto run` on a device.
fn run_on(device: &str) -> Vec<String> {
    let source = fixture("glm52-tiny");
    let begin = ["run", text(&source), "--backend", device];
    begin
        .iter()
        .chain(&RUN)
        .map(|&part| part.to_owned())
        .collect()
}

#[test]
fn backend_list_names_the_devices_of_this_machine() {
    let found = rialto(["backend", "list", "--json"]).result();
    assert_eq!(found[0]["backend"], json!("cpu"));
    let device = &found[0]["devices"][0];
    assert_eq!(
        (&device["index"], &device["kind"]),
        (&json!(0), &json!("processor"))
    );
    assert_eq!(
        (&found[0]["rejected"], &found[0]["absent"]),
        (&json!([]), &Value::Null)
    );
    let listed = rialto(["backend", "list"]).stdout;
    assert!(listed.starts_with("cpu:0  "), "{listed}");
    assert!(listed.contains(", processor"), "{listed}");
}

#[test]
fn fc_63_what_was_measured_says_on_which_device() {
    let mut arguments = run_on("cpu");
    let printed = rialto(&arguments);
    arguments.push("--json".to_owned());
    let found = rialto(&arguments).result();
    assert_eq!(found["device"], json!("cpu:0"));
    let info = &found["device_info"];
    assert_eq!(info["kind"], json!("processor"));
    let name = info["name"].as_str().unwrap();
    let line = format!("device: cpu:0 {name}, processor");
    assert!(
        printed.stderr.lines().any(|found| found == line),
        "{printed:?}"
    );
}

#[test]
fn a_processor_is_chosen_by_its_name_as_any_device() {
    let devices = rialto(["backend", "list", "--json"]).result();
    let name = devices[0]["devices"][0]["name"]
        .as_str()
        .unwrap()
        .to_uppercase();
    assert_eq!(rialto(run_on(&format!("cpu:{name}"))).code, 0);
    let mut other = run_on("cpu:abacus");
    other.push("--json".to_owned());
    let error = rialto(&other).error(5, "backend/no-device");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.starts_with("cpu has no device \"abacus\": there are cpu:0 "),
        "{message}"
    );
}

#[test]
fn auto_takes_the_processor_where_there_is_no_hardware() {
    let mut command = command();
    let found = run(command.envs(HIDE_DRIVERS).args(run_on("auto")));
    assert_eq!(found.code, 0, "{found:?}");
    assert!(found.stderr.contains("device: cpu:0 "), "{found:?}");
}

/// Without the feature, as `cargo test` builds the program.
#[cfg(not(feature = "wgpu"))]
#[test]
fn a_program_that_was_built_without_wgpu_says_so_and_what_builds_it_with() {
    let command = "cargo build --release --package rialto --features rialto/wgpu";
    let mut arguments = run_on("wgpu");
    arguments.push("--json".to_owned());
    let error = rialto(&arguments).error(5, "backend/not-built");
    assert!(error["help"].as_str().unwrap().contains(command), "{error}");
    let found = rialto(["backend", "list", "--json"]).result();
    assert_eq!(found[1]["backend"], json!("wgpu"));
    assert!(found[1]["absent"].as_str().unwrap().contains(command));
    let mut arguments = run_on("auto");
    let printed = rialto(&arguments).stderr;
    assert!(printed.contains("(wgpu: this program was built without wgpu"));
    arguments.push("--json".to_owned());
    let found = rialto(&arguments).result();
    assert_eq!(found["device_passed"][0]["backend"], json!("wgpu"));
}

#[test]
fn what_is_no_device_is_told_what_one_would_be() {
    for device in ["", "wgpu:", "wgpu: "] {
        let mut arguments = run_on(device);
        arguments.push("--json".to_owned());
        let error = rialto(&arguments).error(2, "cli/usage");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("wgpu:NAME would be, and so would auto"),
            "{message}"
        );
    }
}

/// With the feature, which `cargo xtask test` builds after all else.
#[cfg(feature = "wgpu")]
mod with_wgpu {
    use super::*;
    use crate::world::Run;

    /// As on a machine that has no driver.
    fn without_drivers(arguments: Vec<String>) -> Run {
        let mut command = command();
        run(command.envs(HIDE_DRIVERS).args(arguments))
    }

    #[test]
    fn fc_59_an_explicit_choice_fails_with_the_reason() {
        for device in ["wgpu", "wgpu:1", "wgpu:radeon"] {
            let mut arguments = run_on(device);
            arguments.push("--json".to_owned());
            let error = without_drivers(arguments).error(5, "backend/no-device");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("no adapter was found"), "{message}");
            assert!(message.contains("VK_DRIVER_FILES"), "{message}");
        }
    }

    #[test]
    fn fc_59_an_automatic_choice_falls_back_and_says_so() {
        let found = without_drivers(run_on("auto"));
        assert_eq!(found.code, 0, "{found:?}");
        assert!(found.stderr.contains("device: cpu:0 "), "{found:?}");
        assert!(
            found.stderr.contains("(wgpu: no adapter was found"),
            "{found:?}"
        );
    }

    #[test]
    fn fc_64_a_list_without_devices_has_the_reason() {
        let arguments = ["backend", "list", "--json"].map(str::to_owned);
        let found = without_drivers(arguments.to_vec()).result();
        assert_eq!(
            (&found[1]["backend"], &found[1]["devices"]),
            (&json!("wgpu"), &json!([]))
        );
        let reason = found[1]["absent"].as_str().unwrap();
        assert!(reason.starts_with("no adapter was found"), "{reason}");
    }

    /// Where this machine has one.
    #[test]
    fn fc_63_an_adapter_is_chosen_by_its_name_and_said_with_its_driver() {
        let found = rialto(["backend", "list", "--json"]).result();
        let Some(device) = found[1]["devices"].get(0) else {
            rialto_tests::device::skip("wgpu", &found[1]["absent"].to_string());
            return;
        };
        let name = device["name"].as_str().unwrap();
        let mut arguments = run_on(&format!("wgpu:{name}"));
        let printed = rialto(&arguments);
        let driver = device["details"]["driver"].as_str().unwrap_or_default();
        let kind = device["kind"].as_str().unwrap();
        let line = printed
            .stderr
            .lines()
            .find(|line| line.starts_with("device: "));
        let line = line.unwrap_or_else(|| panic!("{printed:?}"));
        for part in ["wgpu:0", name, kind, driver] {
            assert!(line.contains(part), "{line}");
        }
        arguments.push("--json".to_owned());
        let result = rialto(&arguments).result();
        assert_eq!(&result["device_info"], device);
        // A software adapter is never taken where nobody asks for it.
        if kind == "software" && found[1]["devices"].as_array().unwrap().len() == 1 {
            let found = rialto(run_on("auto"));
            assert!(
                found.stderr.contains("device: cpu:0 ")
                    && found.stderr.contains("(wgpu: only software adapters)"),
                "{found:?}"
            );
        }
    }
}
