//! Import, export, plan and inspect of the checkpoint in the tree.

use serde_json::json;

use crate::world::{contents, fixture, rialto, scratch, text};

#[test]
fn import_and_export_give_the_source_back() {
    let scratch = scratch();
    let (source, run, exported) = (
        fixture("glm52-tiny"),
        scratch.path().join("run"),
        scratch.path().join("exported"),
    );
    let before = contents(&source);
    let result = rialto(["import", text(&source), text(&run), "--json"]).result();
    assert_eq!(
        (&result["source"]["tensors"], &result["target"]["tensors"]),
        (&json!(296), &json!(155))
    );
    assert_eq!(
        std::fs::read(run.join("latest_checkpointed_iteration.txt")).unwrap(),
        b"0"
    );
    let result = rialto(["export", text(&run), text(&exported), "--json"]).result();
    assert_eq!(result["target"]["tensors"], 296);
    assert_eq!(
        std::fs::read(exported.join("config.json")).unwrap(),
        std::fs::read(source.join("config.json")).unwrap()
    );
    assert_eq!(contents(&source), before, "the source is only read");
    // The same run again gives the same bytes.
    let again = scratch.path().join("again");
    assert_eq!(rialto(["import", text(&exported), text(&again)]).code, 0);
    let data = "iter_0000000/__0_0.distcp";
    assert_eq!(
        std::fs::read(run.join(data)).unwrap(),
        std::fs::read(again.join(data)).unwrap()
    );
    let names: Vec<String> = std::fs::read_dir(scratch.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(
        names.iter().all(|name| !name.contains("partial")),
        "{names:?}"
    );
}

#[test]
fn a_person_reads_counts_notes_and_the_place() {
    let scratch = scratch();
    let run = scratch.path().join("run");
    let import = rialto([
        "import",
        text(&fixture("glm52-tiny")),
        text(&run),
        "--mtp",
        "drop",
    ]);
    assert_eq!(import.code, 0, "{import:?}");
    for expected in [
        "import of glm-5.2",
        "left out: 47 tensors",
        "MTP dropped",
        "note: the source has no side files",
        text(&run),
    ] {
        assert!(
            import.stdout.contains(expected),
            "{expected:?} is not in {}",
            import.stdout
        );
    }
    let exported = scratch.path().join("exported");
    let export = rialto(["export", text(&run), text(&exported)]);
    let line = "note: config.json: num_nextn_predict_layers changes from 1 to 0";
    assert!(
        export.stdout.lines().any(|found| found == line),
        "{}",
        export.stdout
    );
}

#[test]
fn the_memory_that_is_told_is_that_of_the_budget_asked_for() {
    let scratch = scratch();
    let source = fixture("glm52-tiny");
    let told = |found: &str| {
        let line = found
            .lines()
            .find(|line| line.starts_with("peak memory: at most "));
        line.unwrap().to_owned()
    };
    for (budget, bytes, said) in [
        ("64MiB", 64u64 << 20, "67.11 MB"),
        ("1GB", 1_000_000_000, "1.00 GB"),
    ] {
        let run = scratch.path().join(format!("run-{budget}"));
        let exported = scratch.path().join(format!("exported-{budget}"));
        for arguments in [
            ["import", text(&source), text(&run)],
            ["export", text(&run), text(&exported)],
        ] {
            let with = ["--memory-budget", budget];
            let line = told(&rialto(arguments.iter().chain(&with)).stdout);
            let ending = format!(", of which {said} data (--memory-budget)");
            assert!(line.ends_with(&ending), "{line}");
            let again = format!("{}-again", arguments[2]);
            let arguments = [arguments[0], arguments[1], &again, "--json"];
            let result = rialto(arguments.iter().chain(&with)).result();
            let count = |name: &str| result[name].as_u64().unwrap();
            assert_eq!(count("peak_host_bytes"), count("index_bytes") + bytes);
            let report = std::fs::read(std::path::Path::new(&again).join("rialto-report.json"));
            let report: serde_json::Value = serde_json::from_slice(&report.unwrap()).unwrap();
            assert_eq!(
                report["summary"]["peak_host_bytes"],
                result["peak_host_bytes"]
            );
        }
    }
    let plan = told(&rialto(["plan", text(&source)]).stdout);
    assert!(plan.ends_with(", of which 268.44 MB data (--memory-budget)"));
}

#[test]
fn fc_22_a_padded_vocabulary_is_asked_for_told_of_and_cut_again() {
    let scratch = scratch();
    let (source, run, exported) = (
        fixture("glm52-tiny"),
        scratch.path().join("run"),
        scratch.path().join("exported"),
    );
    let padded = ["--tp", "2", "--pad-vocab"];
    let import = ["import", text(&source), text(&run)];
    let import = rialto(import.iter().chain(&padded));
    let line = "note: vocabulary padded from 256 to 2560 rows";
    assert!(
        import.stdout.lines().any(|found| found == line),
        "{import:?}"
    );
    let cut = "has 2560 rows, of which 256 are kept: the rest pads the vocabulary";
    let verified = rialto(["verify", text(&source), text(&run), "--json"]).result();
    assert_eq!(verified["is_equal"], true);
    let notices = verified["notices"].as_array().unwrap().iter();
    let told = notices.filter(|line| line.as_str().unwrap().ends_with(cut));
    assert_eq!(told.count(), 2);
    let result = rialto(["export", text(&run), text(&exported), "--json"]).result();
    let notices = result["notices"].as_array().unwrap().iter();
    let told = notices.filter(|line| line.as_str().unwrap().ends_with(cut));
    assert_eq!(told.count(), 2);
    let verified = rialto(["verify", text(&source), text(&exported), "--json"]).result();
    assert_eq!(verified["is_equal"], true);
    // A mesh that only the vocabulary hinders: the refusal names the option, and the option lifts it.
    let config = std::fs::read_to_string(source.join("config.json")).unwrap();
    let odd = scratch.path().join("odd");
    std::fs::create_dir(&odd).unwrap();
    let config = config.replace("\"vocab_size\": 256", "\"vocab_size\": 255");
    std::fs::write(odd.join("config.json"), config).unwrap();
    let refused = rialto(["plan", text(&odd), "--tp", "2", "--json"]).error(3, "bridge/mesh");
    assert!(
        refused["help"].as_str().unwrap().contains("--pad-vocab"),
        "{refused}"
    );
    rialto(["plan", text(&odd), "--json"].iter().chain(&padded)).result();
    // An export has nothing to pad.
    let misplaced = rialto(["plan", text(&run), "--pad-vocab", "--json"]).error(2, "cli/usage");
    assert!(
        misplaced["message"]
            .as_str()
            .unwrap()
            .contains("--pad-vocab")
    );
}

#[test]
fn the_plan_of_the_full_model_needs_its_config_alone() {
    let plan = rialto(["plan", text(&fixture("configs/glm-5.2")), "--json"]).result();
    assert_eq!(plan["source"]["tensors"], 59_585);
    assert_eq!(plan["source"]["elements"], 753_329_940_480u64);
    let plan = rialto([
        "plan",
        text(&fixture("configs/glm-5.2")),
        "--mtp",
        "drop",
        "--json",
    ])
    .result();
    assert_eq!(
        (&plan["source"]["tensors"], &plan["skipped"][0]["tensors"]),
        (&json!(58_794), &json!(791))
    );
    assert!(plan["index_bytes"].as_u64().unwrap() < 200_000_000);
}

#[test]
fn a_plan_is_the_import_without_the_writing() {
    let scratch = scratch();
    let source = fixture("glm52-tiny");
    let plan = rialto(["plan", text(&source), "--json"]).result();
    let mut import = rialto([
        "import",
        text(&source),
        text(&scratch.path().join("run")),
        "--json",
    ])
    .result();
    let done = import.as_object_mut().unwrap();
    for of_the_run in [
        "place",
        "seconds",
        "threads",
        "rank",
        "world_size",
        "bytes_found_done",
        "manifest_blake3",
    ] {
        assert!(done.remove(of_the_run).is_some(), "{of_the_run}");
    }
    assert_eq!(plan, import);
}

#[test]
fn a_megatron_checkpoint_is_planned_for_export() {
    let run = fixture("megatron/glm52-tiny-mtp-tp1/ckpt");
    let plan = rialto([
        "plan",
        text(&run),
        "--reference",
        text(&fixture("glm52-tiny")),
        "--json",
    ])
    .result();
    assert_eq!(
        (&plan["direction"], &plan["target"]["tensors"]),
        (&json!("export"), &json!(296))
    );
}

#[test]
fn inspect_lists_what_either_format_holds() {
    let source = rialto(["inspect", text(&fixture("glm52-tiny")), "--json"]).result();
    assert_eq!(
        (
            source["format"].as_str(),
            source["tensors"].as_array().unwrap().len()
        ),
        (Some("hugging face"), 296)
    );
    assert_eq!(source["architectures"], json!(["GlmMoeDsaForCausalLM"]));
    let run = rialto([
        "inspect",
        text(&fixture("megatron/glm52-tiny-mtp-tp1/ckpt")),
        "--json",
    ])
    .result();
    assert_eq!(run["tensors"].as_array().unwrap().len(), 155);
    assert_eq!(run["objects"].as_array().unwrap().len(), 219);
    let iteration = fixture("megatron/glm52-tiny-mtp-tp1/ckpt/iter_0000000");
    assert_eq!(rialto(["inspect", text(&iteration)]).code, 0);
    let config = rialto(["inspect", text(&fixture("configs/glm-5.3"))]);
    assert!(
        config.stdout.contains("a config without weights"),
        "{config:?}"
    );
}

#[test]
fn fc_47_force_replaces_the_target_as_a_whole() {
    let scratch = scratch();
    let (source, run) = (fixture("glm52-tiny"), scratch.path().join("run"));
    std::fs::create_dir(&run).unwrap();
    std::fs::write(run.join("precious"), b"kept until replaced").unwrap();
    rialto(["import", text(&source), text(&run), "--json"]).error(2, "store/target-exists");
    assert_eq!(
        std::fs::read(run.join("precious")).unwrap(),
        b"kept until replaced"
    );
    assert_eq!(
        rialto(["import", text(&source), text(&run), "--force"]).code,
        0
    );
    assert!(!run.join("precious").exists() && run.join("iter_0000000/.metadata").exists());
}

/// The only values that an export changes are printed, and everything else is the reference's, byte for byte.
#[test]
fn fc_01_an_export_prints_what_it_changes_of_the_reference_and_changes_no_more() {
    let scratch = scratch();
    let (run, reference, exported) = (
        scratch.path().join("run"),
        scratch.path().join("reference"),
        scratch.path().join("exported"),
    );
    rialto([
        "import",
        text(&fixture("glm53-tiny")),
        text(&run),
        "--mtp",
        "drop",
    ]);
    std::fs::create_dir(&reference).unwrap();
    let own = std::fs::read_to_string(fixture("glm53-tiny/config.json")).unwrap();
    let (before, _) = own.split_once(",\n  \"quantization_config\"").unwrap();
    // A context of another length and a key that nobody knows, in front and in a style of its own.
    let odd = before.replacen('{', "{\"zz\" :{ \"a\":1.0e0 },", 1);
    let context = odd.find("\"max_position_embeddings\": ").unwrap();
    let end = context + odd[context..].find(',').unwrap();
    let odd = format!(
        "{}\"max_position_embeddings\":\t1048576{}",
        &odd[..context],
        &odd[end..]
    );
    std::fs::write(reference.join("config.json"), own.replacen(before, &odd, 1)).unwrap();
    let arguments = [
        "export",
        text(&run),
        text(&exported),
        "--reference",
        text(&reference),
    ];
    let result = rialto(arguments.into_iter().chain(["--json"])).result();
    let notices = result["notices"].as_array().unwrap().iter();
    let edits: Vec<&str> = notices
        .map(|line| line.as_str().unwrap())
        .filter(|line| line.starts_with("config.json: ") && !line.contains("kept without"))
        .collect();
    let expected = [
        "config.json: num_nextn_predict_layers changes from 1 to 0",
        "config.json: quantization_config is removed",
    ];
    assert_eq!(edits, expected);
    let expected = odd.replace(
        "\"num_nextn_predict_layers\": 1",
        "\"num_nextn_predict_layers\": 0",
    );
    assert_ne!(expected, odd);
    let found = std::fs::read_to_string(exported.join("config.json")).unwrap();
    assert_eq!(found, format!("{expected}\n}}"));
    // A person reads the same.
    let again = scratch.path().join("again");
    let person = rialto([
        "export",
        text(&run),
        text(&again),
        "--reference",
        text(&reference),
    ]);
    for line in edits {
        let printed = person.stdout.contains(line) || person.stderr.contains(line);
        assert!(printed, "{line}: {person:?}");
    }
}

/// Files that are no JSON, no text and of no kind: nothing looks into them on either way.
#[test]
fn fc_07_side_files_of_any_content_travel_through_the_binary() {
    let scratch = scratch();
    let (source, run, exported) = (
        scratch.path().join("source"),
        scratch.path().join("run"),
        scratch.path().join("exported"),
    );
    std::fs::create_dir(&source).unwrap();
    for (name, bytes) in contents(&fixture("glm52-tiny")) {
        std::fs::write(source.join(name), bytes).unwrap();
    }
    let side: [(&str, &[u8]); 6] = [
        ("chat_template.jinja", b"{% break %}\r\n\xff\x00"),
        ("generation_config.json", b"{\"a\": 1, \"a\": 2"),
        ("merges.txt", b""),
        ("special_tokens_map.json", b"[]]"),
        ("tokenizer.json", b"\x80\x04."),
        ("tokenizer_config.json", b"{\"model_max_length\": 1e400}"),
    ];
    for (name, bytes) in side {
        std::fs::write(source.join(name), bytes).unwrap();
    }
    let imported = rialto(["import", text(&source), text(&run), "--json"]).result();
    assert_eq!(imported["side_files"], 6);
    assert_eq!(rialto(["export", text(&run), text(&exported)]).code, 0);
    for (name, bytes) in side {
        assert_eq!(std::fs::read(exported.join(name)).unwrap(), bytes, "{name}");
    }
}
