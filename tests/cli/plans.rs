//! `rialto plan`: stages, ranks, sizes that fit, and how long it would take.

use serde_json::{Value, json};

use crate::world::{contents, fixture, rialto, scratch, text};

fn plan(name: &str, options: &[&str]) -> crate::world::Run {
    let path = fixture(name);
    let arguments = ["plan", text(&path)]
        .into_iter()
        .chain(options.iter().copied());
    rialto(arguments)
}

#[test]
fn stages_and_ranks_are_told_with_their_bytes() {
    let options = ["--tp", "2", "--pp", "2", "--ep", "2", "--ranks"];
    let shown = plan("glm52-tiny", &options);
    assert_eq!(shown.code, 0, "{shown:?}");
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let lines: Vec<Vec<String>> = shown.stdout.lines().map(words).collect();
    let row = |wanted: &str| lines.iter().any(|line| line.join(" ") == wanted);
    // Params and bytes of each rank as the real HybridModel has them on this mesh.
    assert!(
        row("0 6 0-5 12 0 0-1 112 541.73 kB 138.24 kB 679.97 kB"),
        "{}",
        shown.stdout
    );
    assert!(
        row("1 2 6-7 4 1 2-3 80 305.73 kB 138.24 kB 443.97 kB"),
        "{}",
        shown.stdout
    );
    assert!(row("rank pp tp ep etp bytes"), "{}", shown.stdout);
    assert!(row("3 1 1 1 0 443.97 kB"), "{}", shown.stdout);

    let document = plan("glm52-tiny", &[&options[..], &["--json"]].concat()).result();
    let ranks = document["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 4);
    assert_eq!(
        ranks[2],
        json!({"rank": 2, "pp": 1, "tp": 0, "ep": 0, "etp": 0, "bytes": 443_968})
    );
    assert_eq!(document["stages"][1]["params"], 80);
    let without = plan("glm52-tiny", &["--json"]).result();
    assert!(without.get("ranks").is_none() && without.get("estimate").is_none());
}

#[test]
fn a_pipeline_says_how_many_stages_there_are() {
    let stages = |options: &[&str]| {
        let document = plan("glm52-tiny", &[options, &["--json"]].concat()).result();
        let stages = document["stages"].as_array().unwrap().iter();
        let layers: Vec<u64> = stages
            .map(|stage| stage["layers"].as_u64().unwrap())
            .collect();
        assert_eq!(document["mesh"]["pp"], layers.len());
        layers
    };
    assert_eq!(stages(&["--pipeline", "2,4,2"]), [2, 4, 2]);
    assert_eq!(stages(&["--pipeline", "2,4,2", "--pp", "3"]), [2, 4, 2]);
    assert_eq!(stages(&["--pipeline", "D-|D-D-DEDEDE|DEDE/DE"]), [1, 5, 2]);
    assert_eq!(stages(&[]), [8]);

    let refused = |options: &[&str], slug: &str, code: i32| {
        plan("glm52-tiny", &[options, &["--json"]].concat()).error(code, slug)["message"]
            .to_string()
    };
    let message = refused(&["--pipeline", "4,4"], "bridge/pipeline", 3);
    assert!(
        message.contains("begins at layer 4, which uses the indexer of layer 2"),
        "{message}"
    );
    let message = refused(&["--pipeline", "6,2", "--pp", "4"], "bridge/pipeline", 3);
    assert!(message.contains("names 2 stages, --pp is 4"), "{message}");
    let message = refused(&["--pp", "5"], "bridge/pipeline", 3);
    assert!(
        message.contains("valid for this model: 1 to 4"),
        "{message}"
    );
    let message = refused(&["--pipeline", "6;2"], "cli/usage", 2);
    assert!(message.contains("--pipeline"), "{message}");
}

#[test]
fn a_setting_is_told_and_a_wrong_one_is_refused_before_anything_is_written() {
    let shown = plan(
        "glm52-tiny",
        &[
            "--set",
            "seq_length=8192",
            "--set",
            "recompute_granularity=full",
        ],
    );
    for line in [
        "seq_length is set to 8192, it was 512",
        "recompute_granularity is set to \"full\"",
    ] {
        assert!(shown.stdout.contains(line), "{shown:?}");
    }
    let scratch = scratch();
    let (source, target) = (fixture("glm52-tiny"), scratch.path().join("run"));
    for (settings, said) in [
        (&["fp8=hybrid"][..], "not trained in FP8"),
        (
            &["recompute_granularity=selective"],
            "recompute_modules without core_attn",
        ),
        (
            &[
                "recompute_granularity=selective",
                "recompute_modules=[\"core_attn\"]",
            ],
            "without core_attn",
        ),
        (
            &["virtual_pipeline_model_parallel_size=2"],
            "no virtual stages",
        ),
        (
            &["pipeline_model_parallel_size=2"],
            "--tp, --pp, --ep, --etp and --pipeline",
        ),
        (&["hidden_size=7"], "supported: 96"),
        (&["seq_length=abc"], "a whole number from 1"),
        (&["attention_dropout=7"], "a number from 0 to below 1"),
        (&["window_size=[128, 0]"], "another attention"),
        (&["should_pad_vocab=true"], "--pad-vocab decides it"),
        (
            &["should_pad_vocab=false", "--pad-vocab"],
            "--pad-vocab decides it",
        ),
    ] {
        let flags = settings.iter().flat_map(|word| match *word {
            flag if flag.starts_with("--") => vec![flag],
            setting => vec!["--set", setting],
        });
        let arguments = ["import", text(&source), text(&target), "--json"].into_iter();
        let error = rialto(arguments.chain(flags)).error(3, "bridge/settings");
        assert!(error["message"].as_str().unwrap().contains(said), "{error}");
        assert!(!target.exists());
    }
    for wrong in [
        &["seq_length"][..],
        &["=3"],
        &["_target_=os.system"],
        &["seq length=3"],
        &["recompute_modules=[\"mlp\""],
        &["a={b: 1}"],
        &["a=\"b"],
        &["seq_length=8", "seq_length=9"],
        &["seq_length=8", "hidden_dropout=0.1", "seq_length=8"],
    ] {
        let flags = wrong.iter().flat_map(|setting| ["--set", setting]);
        let flags: Vec<&str> = flags.chain(["--json"]).collect();
        let (source, target) = (text(&source), text(&target));
        for command in [vec!["plan", source], vec!["import", source, target]] {
            let arguments = command.into_iter().chain(flags.iter().copied());
            let error = rialto(arguments).error(2, "cli/usage");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("--set"), "{wrong:?}: {message}");
        }
        assert!(!scratch.path().join("run").exists());
    }
}

#[test]
fn the_sizes_that_fit_are_listed_also_beside_a_size_that_does_not() {
    let document = plan("glm53-tiny", &["--suggest", "--ep", "5", "--json"]).result();
    assert_eq!(
        (&document["tp"], &document["ep"]),
        (&json!([1]), &json!([1, 5]))
    );
    let pipelines: Vec<&Value> = document["pipelines"].as_array().unwrap().iter().collect();
    assert_eq!(pipelines.len(), 2);
    assert_eq!(
        (&pipelines[1]["layers"], &pipelines[1]["ranks"]),
        (&json!([3, 1]), &json!(10))
    );
    let shown = plan("glm53-tiny", &["--suggest"]);
    assert!(shown.stdout.contains("--ep  1, 5\n"), "{shown:?}");
    let error = plan("glm53-tiny", &["--suggest", "--tp", "2", "--json"]).error(3, "bridge/mesh");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("valid for this model: 1"),
        "{error}"
    );
    let error = plan("glm53-tiny", &["--suggest", "--pp", "2", "--json"]).error(2, "cli/usage");
    assert!(
        error["message"].as_str().unwrap().contains("--pp"),
        "{error}"
    );
}

#[test]
fn a_probe_measures_both_directions_and_leaves_nothing() {
    let scratch = scratch();
    let old = scratch.path().join("old");
    std::fs::create_dir(&old).unwrap();
    std::fs::write(old.join("kept"), "as it was").unwrap();
    let new = scratch.path().join("new");
    let run = scratch.path().join("run");
    let source = fixture("glm52-tiny");
    assert_eq!(rialto(["import", text(&source), text(&run)]).code, 0);
    let before = contents(scratch.path());
    for target in [&old, &new] {
        for source in [&source, &run] {
            let document =
                rialto(["plan", text(source), "--probe", text(target), "--json"]).result();
            let estimate = &document["estimate"];
            for rate in ["read_bytes_per_second", "write_bytes_per_second", "seconds"] {
                assert!(estimate[rate].as_f64().unwrap() > 0.0, "{estimate}");
            }
        }
    }
    // A config has nothing to read; what would be written is known all the same.
    let config = fixture("configs/glm-5.2");
    let document = rialto(["plan", text(&config), "--probe", text(&new), "--json"]).result();
    assert_eq!(document["estimate"]["read_bytes_per_second"], Value::Null);
    let seconds = document["estimate"]["seconds"].as_f64().unwrap();
    let rate = document["estimate"]["write_bytes_per_second"]
        .as_f64()
        .unwrap();
    assert!(
        (seconds * rate / 1_506_659_919_872.0 - 1.0).abs() < 1e-6,
        "{document}"
    );
    let error = rialto([
        "plan",
        text(&run),
        "--probe",
        text(&run.join("x")),
        "--json",
    ]);
    assert_eq!(error.code, 2, "{error:?}");
    assert_eq!(contents(scratch.path()), before);
}
