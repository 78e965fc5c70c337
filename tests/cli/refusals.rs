//! Bad input: one clear error, the exit code of its kind, no target, the source as it was.

use serde_json::json;

use crate::world::{contents, fixture, rialto, scratch, text};

#[test]
fn what_cannot_be_imported_leaves_nothing_behind() {
    let scratch = scratch();
    let target = scratch.path().join("run");
    let cases = [
        (
            vec![text(&fixture("configs/glm-5.2")).to_owned()],
            3,
            "engine/no-weights",
        ),
        (
            vec![
                text(&fixture("glm52-tiny")).to_owned(),
                "--tp".to_owned(),
                "3".to_owned(),
            ],
            3,
            "bridge/mesh",
        ),
        (
            vec![
                text(&fixture("glm52-tiny")).to_owned(),
                "--pp".to_owned(),
                "5".to_owned(),
            ],
            3,
            "bridge/pipeline",
        ),
        (
            vec![text(&scratch.path().join("nowhere")).to_owned()],
            3,
            "store/not-found",
        ),
        (
            vec![text(&fixture("glm52-tiny/config.json")).to_owned()],
            2,
            "store/not-a-directory",
        ),
        (
            vec![
                text(&fixture("glm53-tiny")).to_owned(),
                "--device".to_owned(),
                "abacus".to_owned(),
            ],
            2,
            "backend/unknown",
        ),
        (
            vec![
                text(&fixture("glm53-tiny")).to_owned(),
                "--device".to_owned(),
                "cpu:1".to_owned(),
            ],
            5,
            "backend/no-device",
        ),
    ];
    for (mut arguments, code, slug) in cases {
        arguments.insert(0, "import".to_owned());
        arguments.insert(2, text(&target).to_owned());
        arguments.push("--json".to_owned());
        rialto(&arguments).error(code, slug);
        assert_eq!(contents(scratch.path()), [], "{arguments:?}");
    }
}

#[test]
fn fc_33_a_damaged_source_is_refused_before_any_output() {
    let scratch = scratch();
    let (source, target) = (scratch.path().join("source"), scratch.path().join("run"));
    std::fs::create_dir(&source).unwrap();
    for (name, bytes) in contents(&fixture("glm52-tiny")) {
        std::fs::write(source.join(name), bytes).unwrap();
    }
    let shard = source.join("model-00002-of-00003.safetensors");
    let whole = std::fs::read(&shard).unwrap();
    for (length, slug) in [
        (0, "safetensors/truncated"),
        (100, "safetensors/truncated"),
        (whole.len() - 1, "safetensors/truncated"),
    ] {
        std::fs::write(&shard, &whole[..length]).unwrap();
        let error = rialto(["import", text(&source), text(&target), "--json"]).error(3, slug);
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .contains("model-00002-of-00003.safetensors"),
            "{error}"
        );
        assert!(!target.exists());
    }
    std::fs::remove_file(&shard).unwrap();
    let error =
        rialto(["import", text(&source), text(&target), "--json"]).error(3, "hf/missing-shards");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("model-00002-of-00003.safetensors"),
        "{error}"
    );
    assert!(!target.exists());
}

#[test]
fn every_finding_is_in_the_document() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    for (name, bytes) in contents(&fixture("glm52-tiny")) {
        let text = String::from_utf8(bytes.clone());
        let edited = text.map(|text| {
            text.replace(
                "\"moe_intermediate_size\": 20",
                "\"moe_intermediate_size\": 24",
            )
            .into_bytes()
        });
        std::fs::write(source.join(name), edited.unwrap_or(bytes)).unwrap();
    }
    let error = rialto(["plan", text(&source), "--json"]).error(3, "weight-map/not-total");
    // Three matrices for each of 8 routed experts and a shared one, in 5 layers and the prediction layer.
    assert_eq!(error["findings"].as_array().unwrap().len(), 3 * 9 * 6);
    assert!(
        error["message"].as_str().unwrap().contains("and 142 more"),
        "{error}"
    );
}

#[test]
fn fc_47_a_target_in_around_or_at_the_source_is_refused() {
    let scratch = scratch();
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    for (name, bytes) in contents(&fixture("glm52-tiny")) {
        std::fs::write(source.join(name), bytes).unwrap();
    }
    let link = scratch.path().join("link");
    std::os::unix::fs::symlink(&source, &link).unwrap();
    for target in [
        source.clone(),
        source.join("inside"),
        scratch.path().to_owned(),
        link.join("inside"),
    ] {
        rialto(["import", text(&source), text(&target), "--force", "--json"])
            .error(2, "store/overlap");
    }
    assert_eq!(contents(&source), contents(&fixture("glm52-tiny")));
}

#[test]
fn fc_02_an_export_without_a_config_says_what_to_give() {
    let scratch = scratch();
    let run = fixture("megatron/glm52-tiny-mtp-tp1/ckpt");
    let target = scratch.path().join("out");
    let error =
        rialto(["export", text(&run), text(&target), "--json"]).error(3, "engine/no-config");
    assert!(
        error["help"].as_str().unwrap().contains("--reference"),
        "{error}"
    );
    assert!(!target.exists());
    assert_eq!(
        rialto([
            "export",
            text(&run),
            text(&target),
            "--reference",
            text(&fixture("glm52-tiny"))
        ])
        .code,
        0
    );
}

#[test]
fn fc_54_a_dangling_tracker_is_an_error_that_names_what_exists() {
    let scratch = scratch();
    let run = scratch.path().join("run");
    assert_eq!(
        rialto(["import", text(&fixture("glm52-tiny")), text(&run)]).code,
        0
    );
    std::fs::write(run.join("latest_checkpointed_iteration.txt"), "7").unwrap();
    let error = rialto(["inspect", text(&run), "--json"]).error(3, "torch_dist/tracker-dangling");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("iter_0000007") && message.contains("iter_0000000"),
        "{message}"
    );
}

#[test]
fn a_config_that_the_family_cannot_use_is_bad_input_and_no_fault_of_the_plugin() {
    let scratch = scratch();
    let text_of = std::fs::read(fixture("glm52-tiny/config.json")).unwrap();
    // Keys that tell whose model it is, those that tell the release, and one that is read later: no one can tell which is which.
    for (key, value) in [
        ("architectures", json!([1])),
        ("architectures", json!("GlmMoeDsaForCausalLM")),
        ("architectures", json!({"GlmMoeDsaForCausalLM": 1})),
        ("model_type", json!(["glm_moe_dsa"])),
        ("model_type", json!(7)),
        ("model_type", json!(true)),
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!("8")),
        ("num_hidden_layers", json!(1_001)),
        ("indexer_types", json!(8)),
        ("indexer_types", json!(["full", "half"])),
        ("index_topk_pattern", json!([1])),
        ("index_topk_freq", json!(-4)),
        ("index_skip_topk_offset", json!("3")),
        ("hidden_size", json!("96")),
        ("layer_types", json!(["full_attention"])),
    ] {
        let mut config: serde_json::Value = serde_json::from_slice(&text_of).unwrap();
        config[key] = value.clone();
        std::fs::write(scratch.path().join("config.json"), config.to_string()).unwrap();
        let error = rialto(["plan", text(scratch.path()), "--json"]).error(3, "config/value");
        assert_eq!(error["code"], 4, "{key}: {error}");
        let message = error["message"].as_str().unwrap();
        let expected = format!("config.json: {key} is ");
        assert!(message.starts_with(&expected), "{key}={value}: {message}");
    }
    for absent in ["num_hidden_layers", "vocab_size"] {
        let mut config: serde_json::Value = serde_json::from_slice(&text_of).unwrap();
        config.as_object_mut().unwrap().remove(absent);
        std::fs::write(scratch.path().join("config.json"), config.to_string()).unwrap();
        let error = rialto(["plan", text(scratch.path()), "--json"]).error(3, "config/value");
        let expected = format!("config.json: {absent} is absent, expected a whole number");
        assert_eq!(error["message"], expected);
    }
}

#[test]
fn a_plan_refuses_the_options_of_the_other_direction() {
    let (source, run) = (
        fixture("glm52-tiny"),
        fixture("megatron/glm52-tiny-mtp-tp1/ckpt"),
    );
    let refused = |arguments: &[&str], names: &[&str]| {
        let error = rialto(["plan", "--json"].iter().chain(arguments)).error(2, "cli/usage");
        let message = error["message"].as_str().unwrap();
        for name in names {
            assert!(message.contains(name), "{name} is not in {message}");
        }
    };
    refused(
        &[text(&run), "--tp", "8", "--pad-vocab"],
        &["--tp", "--pad-vocab"],
    );
    for name in ["--pp", "--ep", "--etp"] {
        refused(&[text(&run), name, "2"], &[name]);
    }
    for name in ["--suggest", "--ranks"] {
        refused(&[text(&run), name], &[name]);
    }
    refused(
        &[text(&source), "--reference", text(&source)],
        &["--reference"],
    );
    // A path that is no checkpoint is told so, whatever the options.
    let nothing = scratch();
    for options in [&[][..], &["--suggest"], &["--ranks"], &["--tp", "2"]] {
        let arguments = ["plan", "--json", text(nothing.path())];
        let run = rialto(arguments.iter().chain(options));
        let error = run.error(3, "engine/no-checkpoint");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("config.json") && message.contains(".metadata"),
            "{message}"
        );
    }
}

#[test]
fn text_from_files_cannot_steer_the_terminal() {
    let scratch = scratch();
    let name = "a\u{1b}[2Jb\nerror: c";
    std::fs::write(
        scratch.path().join("config.json"),
        serde_json::json!({"architectures": [name]}).to_string(),
    )
    .unwrap();
    let inspect = rialto(["inspect", text(scratch.path()), "--color", "always"]);
    let plan = rialto(["plan", text(scratch.path()), "--color", "always"]);
    for printed in [&inspect.stdout, &plan.stderr] {
        assert!(
            printed.contains(r"a\u{1b}[2Jb\nerror: c") && !printed.contains(name),
            "{printed:?}"
        );
    }
    let document = rialto(["inspect", text(scratch.path()), "--json"]).result();
    assert_eq!(document["architectures"][0], name);
}

#[test]
fn a_message_as_long_as_a_file_is_cut_for_people_and_whole_for_machines() {
    let scratch = scratch();
    let name = "x".repeat(10_000);
    let config = serde_json::json!({"architectures": [name]});
    std::fs::write(scratch.path().join("config.json"), config.to_string()).unwrap();
    let error = rialto(["plan", text(scratch.path()), "--json"]);
    assert!(error.stderr.contains("more characters)"), "{error:?}");
    assert!(error.stderr.chars().count() < 5_000, "{error:?}");
    let message = error.document()["error"]["message"].clone();
    assert!(message.as_str().unwrap().contains(&name));
}

#[test]
fn a_directory_of_neither_format_is_told_what_either_would_have() {
    let (scratch, nothing) = (scratch(), fixture("glm52-tiny"));
    let (empty, source) = (text(scratch.path()), text(&nothing));
    for arguments in [
        vec!["inspect", empty],
        vec!["plan", empty],
        vec!["verify", empty, source],
        vec!["verify", source, empty],
    ] {
        let run = rialto(arguments.iter().chain(&["--json"]));
        let error = run.error(3, "engine/no-checkpoint");
        let message = error["message"].as_str().unwrap();
        for part in [empty, "config.json", ".metadata"] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}

#[test]
fn a_checkpoint_that_goes_the_other_way_is_told_the_command() {
    let scratch = scratch();
    let (hf, megatron) = (
        fixture("glm52-tiny"),
        fixture("megatron/glm52-tiny-mtp-tp1/ckpt"),
    );
    let target = scratch.path().join("out");
    for (command, source, advice) in [
        ("import", &megatron, "rialto export"),
        ("export", &hf, "rialto import"),
    ] {
        let run = rialto([command, text(source), text(&target), "--json"]);
        let error = run.error(2, "engine/other-format");
        assert!(error["help"].as_str().unwrap().contains(advice), "{error}");
        assert_eq!(contents(scratch.path()), []);
    }
}

#[test]
fn a_result_without_a_manifest_says_why_it_may_have_none() {
    let source = fixture("glm52-tiny");
    let error = rialto(["verify", text(&source), "--manifest", "--json"]);
    let error = error.error(3, "engine/no-manifest");
    let help = error["help"].as_str().unwrap();
    assert!(help.contains("--hash none"), "{help}");
    let error = rialto([
        "verify",
        text(&source),
        "--manifest",
        text(&source),
        "--json",
    ]);
    let error = error.error(3, "store/not-regular");
    assert!(
        error["help"].as_str().unwrap().contains("directory"),
        "{error}"
    );
}

#[test]
fn of_two_configs_the_bad_one_is_named() {
    let scratch = scratch();
    let good = fixture("glm52-tiny");
    let whole = std::fs::read_to_string(good.join("config.json")).unwrap();
    let bad = scratch.path().join("bad");
    std::fs::create_dir(&bad).unwrap();
    for (name, bytes) in contents(&good) {
        std::fs::write(bad.join(name), bytes).unwrap();
    }
    let half = whole.replace("\"num_hidden_layers\": 8", "\"num_hidden_layers\": \"8\"");
    for (config, slug) in [
        (&whole[..whole.len() / 2], "config/syntax"),
        (half.as_str(), "config/value"),
    ] {
        std::fs::write(bad.join("config.json"), config).unwrap();
        for sides in [[&good, &bad], [&bad, &good]] {
            let run = rialto(["verify", text(sides[0]), text(sides[1]), "--json"]);
            let error = run.error(3, slug);
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(text(&bad)), "{message}");
            assert!(error["help"].is_string(), "{error}");
        }
    }
    std::fs::write(bad.join("config.json"), "{").unwrap();
    for command in ["inspect", "plan"] {
        let error = rialto([command, text(&bad), "--json"]).error(3, "config/syntax");
        assert!(
            error["message"].as_str().unwrap().contains(text(&bad)),
            "{error}"
        );
    }
}

#[test]
fn a_file_above_the_target_is_no_directory() {
    let scratch = scratch();
    let file = scratch.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let source = fixture("glm52-tiny");
    for below in ["x", "x/y"] {
        let target = file.join(below);
        let run = rialto(["import", text(&source), text(&target), "--json"]);
        let error = run.error(2, "store/not-a-directory");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.ends_with(&format!("({})", text(&file))),
            "{message}"
        );
    }
}

#[test]
fn a_size_that_is_none_is_told_the_forms_that_are() {
    let source = fixture("glm52-tiny");
    for size in ["abc", "64XiB", "99999999999EiB"] {
        let run = rialto([
            "import",
            text(&source),
            "/nowhere",
            "--memory-budget",
            size,
            "--json",
        ]);
        let error = run.error(2, "cli/usage");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("256MiB") && !message.contains("ByteSize"),
            "{message}"
        );
    }
}

#[test]
fn a_filter_that_matches_nothing_is_wrong_usage() {
    let scratch = scratch();
    let (source, target) = (fixture("glm52-tiny"), scratch.path().join("run"));
    for filter in [["--layers", "99"], ["--exclude", "model.layer.3.*"]] {
        let arguments = ["import", text(&source), text(&target), "--json"];
        let run = rialto(arguments.iter().chain(&filter));
        let error = run.error(2, "engine/filter");
        assert!(
            error["message"].as_str().unwrap().contains(filter[1]),
            "{error}"
        );
        assert_eq!(contents(scratch.path()), []);
    }
}
