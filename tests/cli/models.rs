//! `rialto run`, `rialto compare` and `rialto backend`: models of the fixtures, through the plugin's library.

use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::world::{fixture, rialto, scratch, text};

/// Tokens of a golden, as `--tokens` takes them.
fn golden(name: &str, tensor: &str) -> Vec<u64> {
    let bytes = std::fs::read(rialto_tests::golden(name)).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let view = file.tensor(tensor).unwrap();
    let ids = view.data().as_chunks().0.iter();
    ids.map(|&id| u64::from_le_bytes(id)).collect()
}

fn joined(tokens: &[u64]) -> String {
    let words: Vec<String> = tokens.iter().map(u64::to_string).collect();
    words.join(",")
}

#[test]
fn run_continues_token_ids_as_transformers_does_from_either_format() {
    let scratch = scratch();
    let (source, imported) = (fixture("glm53-tiny"), scratch.path().join("run"));
    assert_eq!(
        rialto(["import", text(&source), text(&imported), "--dtype", "bf16"]).code,
        0
    );
    let prompt = joined(&golden("glm53-tiny", "input_ids")[..20]);
    let expected = golden("glm53-tiny", "fp32.decode.tokens");
    for checkpoint in [&source, &imported] {
        let arguments = [
            "run",
            text(checkpoint),
            "--tokens",
            &prompt,
            "--max-new-tokens",
            "24",
        ];
        let more = ["--greedy", "--ignore-eos", "--dtype", "f32"];
        let all: Vec<&str> = arguments.iter().chain(&more).copied().collect();
        let found = rialto(all.iter().chain(&["--json"])).result();
        assert_eq!(found["tokens"], json!(expected), "{checkpoint:?}");
        assert_eq!(found["texts"][0]["stop"], json!("length"));
        assert_eq!(
            (&found["dtype"], &found["device"]),
            (&json!("F32"), &json!("cpu:0"))
        );
        assert_eq!(found["device_info"]["kind"], json!("processor"));
        let printed = rialto(&all);
        assert_eq!(printed.stdout.trim(), joined(&expected));
    }
}

#[test]
fn a_text_ends_at_a_stop_token_unless_that_is_ignored() {
    let source = fixture("glm52-tiny");
    let scratch = scratch();
    let copy = scratch.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(&source).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let tokens = golden("glm52-tiny", "fp32.decode.tokens");
    let config = std::fs::read_to_string(copy.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    // The fourth token that transformers chose ends texts now.
    config["eos_token_id"] = json!([tokens[3], 999]);
    std::fs::write(copy.join("config.json"), config.to_string()).unwrap();
    let prompt = joined(&golden("glm52-tiny", "input_ids")[..20]);
    let arguments = [
        "run",
        text(&copy),
        "--tokens",
        &prompt,
        "--greedy",
        "--dtype",
        "f32",
        "--json",
    ];
    let found = rialto(arguments).result();
    let end = tokens.iter().position(|&token| token == tokens[3]).unwrap();
    assert_eq!(found["tokens"], json!(tokens[..=end]));
    assert_eq!(found["texts"][0]["stop"], json!("stop_token"));
    let found = rialto(arguments.iter().chain(&["--ignore-eos"])).result();
    assert_eq!(found["tokens"], json!(tokens[..16]));
}

#[test]
fn the_same_seed_gives_the_same_tokens_whatever_the_threads_and_the_steps() {
    let source = fixture("glm52-tiny");
    let run = |more: &[&str]| {
        let arguments = [
            "run",
            text(&source),
            "--tokens",
            "1,2,3,4,5,6,7",
            "--tokens",
            "9",
            "--json",
        ];
        rialto(arguments.iter().chain(more)).result()["texts"].clone()
    };
    let first = run(&["--seed", "5"]);
    assert_eq!(run(&["--seed", "5", "--threads", "1"]), first);
    assert_eq!(run(&["--seed", "5", "--chunk-tokens", "2"]), first);
    assert_ne!(run(&["--seed", "6"]), first);
    assert_eq!(
        run(&["--temperature", "0", "--seed", "6"]),
        run(&["--greedy"])
    );
}

#[test]
fn compare_says_where_two_models_part_and_its_exit_code_is_the_verdict() {
    let scratch = scratch();
    let (source, imported) = (fixture("glm52-tiny"), scratch.path().join("run"));
    assert_eq!(rialto(["import", text(&source), text(&imported)]).code, 0);
    let tokens = joined(&golden("glm52-tiny", "input_ids"));
    let compare = [
        "compare",
        text(&source),
        text(&imported),
        "--tokens",
        &tokens,
        "--json",
    ];
    let same = rialto(compare).result();
    for device in same["devices"].as_array().unwrap() {
        assert_eq!(device["backend"], json!("cpu"));
    }
    assert_eq!(same["devices"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&same["agrees"], &same["top1"]),
        (&json!(true), &json!(1.0))
    );
    assert_eq!(same["stream"].as_array().unwrap().len(), 10);
    assert_eq!(same["logits"]["max_abs"], json!(0.0));
    // BF16 against F32: the embeddings are the same numbers, each layer adds its roundings.
    let apart = rialto(compare.iter().chain(&["--their-dtype", "f32"]));
    let error = apart.error(1, "cli/models-differ");
    assert!(
        error["help"]
            .as_str()
            .unwrap()
            .starts_with("hidden.1 is the first to differ")
    );
    assert_eq!(error["report"]["stream"][0]["is_identical"], json!(true));
    assert_eq!(error["report"]["stream"][1]["is_identical"], json!(false));
    let allowed = ["--their-dtype", "f32", "--tolerance", "1", "--top1", "0"];
    assert_eq!(rialto(compare.iter().chain(&allowed)).code, 0);
    // Two models of different depth have nothing to compare.
    let other = fixture("glm53-tiny");
    let found = rialto([
        "compare",
        text(&source),
        text(&other),
        "--tokens",
        "1,2",
        "--json",
    ]);
    found.error(2, "runtime/incomparable");
}

/// Experts that the device has no room for: told before a weight is read, counted afterwards, and the same tokens.
#[test]
fn experts_in_host_memory_change_what_is_told_and_no_token() {
    let source = fixture("glm52-tiny");
    let run = |more: &[&str]| {
        let arguments = ["run", text(&source), "--tokens", "1,2,3,4,5,6,7", "--json"];
        rialto(arguments.iter().chain(more))
    };
    let whole = run(&[]).result();
    let all = &whole["experts"];
    assert_eq!(
        [&all["layers"], &all["host_layers"], &all["cuts"]],
        [&json!(5), &json!(0), &json!(0)]
    );
    // Five layers of eight experts, of which a token has three.
    let each = all["device_bytes"].as_u64().unwrap() / 40;
    let memory = (each * 10).to_string();
    let bounded = run(&["--expert-memory", &memory]);
    let found = bounded.result();
    assert_eq!(found["texts"], whole["texts"]);
    let experts = &found["experts"];
    assert_eq!(
        [&experts["host_layers"], &experts["cuts"], &experts["slots"]],
        [&json!(5), &json!(5), &json!(10)]
    );
    assert_eq!(experts["device_bytes"], json!(each * 10));
    assert_eq!(experts["host_bytes"], all["device_bytes"]);
    assert!(experts["hits"].as_u64().unwrap() > 0 && experts["misses"].as_u64().unwrap() > 0);
    let told = "experts of 5 of 5 layers are in host memory, ";
    let slots = ": a step is cut 5 times, and the device has slots for 10 of 40 experts";
    assert!(bounded.stderr.contains(told) && bounded.stderr.contains(slots));
    assert!(bounded.stderr.contains("were brought to it "));
    // What would be, without a weight.
    let plan = ["run", text(&source), "--plan", "--expert-memory", &memory];
    let planned = rialto(plan.iter().chain(&["--json"])).result();
    assert_eq!(planned["param_bytes"], found["param_bytes"]);
    assert_eq!(planned["experts"]["cuts"], json!(5));
    assert_eq!(planned["experts"]["hits"], Value::Null);
    assert!(rialto(plan).stdout.contains(slots));
    let plan = rialto(["run", text(&source), "--plan"]).stdout;
    assert!(plan.contains("a step is not cut"), "{plan}");
    for bytes in ["0", &(each * 3 - 1).to_string()] {
        let error = run(&["--expert-memory", bytes]).error(6, "runtime/expert-memory");
        let help = error["help"].as_str().unwrap();
        assert!(help.contains(&(each * 3).to_string()), "{help}");
        assert!(help.contains("leave `--expert-memory` out"), "{help}");
    }
    // The largest number there is holds them all.
    let most = u64::MAX.to_string();
    let found = run(&["--expert-memory", &most]).result();
    assert_eq!(found["experts"], *all);
    run(&["--expert-memory", "much"]).error(2, "cli/usage");
    let compare = ["compare", text(&source), text(&source), "--tokens", "1,2,3"];
    let bounded = ["--expert-memory", &memory, "--json"];
    let found = rialto(compare.iter().chain(&bounded)).result();
    assert_eq!(found["agrees"], json!(true));
    assert_eq!(found["experts"][1]["cuts"], json!(5));
}

/// Each of the six layers has a row of latent and rotated part, and one of the indexer.
#[test]
fn a_plan_has_the_memory_of_the_caches() {
    let source = fixture("glm5-tiny");
    let asked = [
        "--tokens",
        "1,2",
        "--max-new-tokens",
        "100",
        "--dtype",
        "f32",
    ];
    let plan = [&["run", text(&source), "--plan"][..], &asked].concat();
    let planned = rialto(plan.iter().chain(&["--json"])).result();
    // Of 102 positions two pages.
    assert_eq!(planned["positions"], json!(128));
    assert_eq!(planned["cache_bytes"], json!(6 * (32 + 16 + 32) * 4 * 128));
    let printed = rialto(plan).stdout;
    assert!(
        printed.contains("245.76 kB of caches there, for 128 positions"),
        "{printed}"
    );
}

#[test]
fn what_cannot_be_run_is_refused_in_one_line_with_what_to_do() {
    let source = fixture("glm52-tiny");
    let config = fixture("configs/glm-5.2");
    let (source, config) = (text(&source), text(&config));
    let refused: [(&str, &[&str], i32, &str); 11] = [
        (source, &["--prompt", "hello"], 3, "cli/no-tokenizer"),
        (source, &[], 2, "cli/usage"),
        (source, &["--tokens", "1,x"], 2, "cli/usage"),
        (source, &["--tokens", "1,256"], 2, "runtime/token"),
        (
            source,
            &["--tokens", "1", "--top-p", "0"],
            2,
            "runtime/sampling",
        ),
        (
            source,
            &["--tokens", "1", "--greedy", "--seed", "1"],
            2,
            "cli/usage",
        ),
        (
            source,
            &["--tokens", "1", "--backend", "cuda"],
            2,
            "backend/unknown",
        ),
        (
            source,
            &["--tokens", "1", "--backend", "cpu:1"],
            5,
            "backend/no-device",
        ),
        (
            source,
            &["--tokens", "1", "--set", "latent_ep=1"],
            3,
            "bridge/settings",
        ),
        (
            source,
            &["--tokens", "1", "--set", "latent_eps=-1"],
            3,
            "bridge/settings",
        ),
        (config, &["--tokens", "1"], 3, "hf/no-weights"),
    ];
    for (path, more, code, slug) in refused {
        let error = rialto(["run", path, "--json"].iter().chain(more)).error(code, slug);
        assert!(
            !error["message"].as_str().unwrap().contains('\n'),
            "{more:?}"
        );
    }
}
