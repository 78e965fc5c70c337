//! The plugin in C of `examples/plugin-c`: a whole conversion, what it refuses, and life beside another plugin.

use std::path::{Path, PathBuf};

use rialto_tests::compiler::{library, plugin_c};
use serde_json::json;

use crate::world::{Run, contents, fixture, rialto, scratch, text};

/// Builds it as its README says, with every warning an error.
fn built(folder: &Path) -> PathBuf {
    let made = folder.join("librialto_toy_dense.so");
    library(&plugin_c().join("plugin.c"), "c11", &made);
    made
}

fn source() -> PathBuf {
    plugin_c().join("toy-dense")
}

/// A command with this plugin and JSON.
fn with(plugin: &Path, arguments: &[&str]) -> Run {
    let given = ["--plugin", text(plugin), "--json"];
    rialto(arguments.iter().chain(&given))
}

/// The source's config after an edit, alone in a folder.
fn edited(folder: &Path, edit: impl Fn(&str) -> String) -> PathBuf {
    let config = std::fs::read_to_string(source().join("config.json")).unwrap();
    let made = edit(&config);
    assert_ne!(made, config);
    let folder = tempfile::tempdir_in(folder).unwrap().keep();
    std::fs::write(folder.join("config.json"), made).unwrap();
    folder
}

#[test]
fn a_plugin_in_c_brings_a_checkpoint_across_and_back() {
    let scratch = scratch();
    let plugin = built(scratch.path());
    let checked = rialto(["plugin", "check", text(&plugin), "--json"]).result();
    let steps = checked["steps"].as_array().unwrap();
    assert_eq!(steps.last().unwrap()["step"], "ready", "{checked}");
    assert!(steps.iter().all(|step| step["outcome"] == "passed"));
    let (run, exported) = (scratch.path().join("run"), scratch.path().join("exported"));
    let source = source();
    let meshes: [&[&str]; 6] = [
        &["--layer-axis", "per-layer"],
        &["--layer-axis", "per-layer", "--tp", "2"],
        &["--tp", "2", "--pp", "2"],
        &["--tp", "8", "--pp", "4"],
        &["--chunks", "whole"],
        &[],
    ];
    for mesh in meshes {
        let import = ["import", text(&source), text(&run), "--force"];
        let imported = with(&plugin, &[&import, mesh].concat()).result();
        let counts = (
            &imported["source"]["tensors"],
            &imported["target"]["tensors"],
        );
        // Four layers are a tensor for each of their two params, or each has its own.
        let is_per_layer = mesh.contains(&"per-layer");
        let params = if is_per_layer { 10 } else { 4 };
        assert_eq!(counts, (&json!(14), &json!(params)));
        let inspected = rialto(["inspect", text(&run), "--json"]).result();
        let names = inspected["tensors"].as_array().unwrap().iter();
        let names: Vec<&str> = names
            .map(|tensor| tensor["name"].as_str().unwrap())
            .collect();
        let key = if is_per_layer {
            "decoder.layers.3.mlp.linear_fc2.weight"
        } else {
            "decoder.layers.mlp.linear_fc2.weight"
        };
        assert!(names.len() == params && names.contains(&key), "{names:?}");
        let compared = with(&plugin, &["verify", text(&source), text(&run)]).result();
        assert_eq!(compared["is_equal"], true, "{compared}");
        let export = with(&plugin, &["export", text(&run), text(&exported), "--force"]).result();
        for file in ["model.safetensors", "config.json"] {
            let read = |folder: &Path| std::fs::read(folder.join(file)).unwrap();
            assert!(read(&exported) == read(&source), "{file} on {mesh:?}");
        }
        let notices = export["notices"].as_array().unwrap().iter();
        let changes = notices.filter(|line| line.as_str().unwrap().contains("changes"));
        assert_eq!(changes.count(), 0, "{export}");
    }
}

/// For another size than its checkpoint's: no number is a constant of the plugin.
#[test]
fn a_plugin_in_c_reads_its_numbers_from_the_config() {
    let scratch = scratch();
    let plugin = built(scratch.path());
    let other = edited(scratch.path(), |_| {
        // In one line, with an escape, and with the keys in places where they mean nothing.
        r#"{"architectures":["X","ToyDenseForCausalLM"],"note":"\"hidden_size\": 9 \\","nested":{"hidden_size":[{"a":7}]},"#
            .to_owned()
            + r#""vocab_size":50,"intermediate_size" : 12 ,"hidden_size":6,"num_hidden_layers":3}"#
    });
    let plan = with(&plugin, &["plan", text(&other), "--tp", "2", "--pp", "3"]).result();
    // 50 x 6, three times 3 x 12 x 6, and 6.
    assert_eq!(plan["source"]["elements"], 300 + 3 * 3 * 72 + 6);
    assert_eq!(plan["source"]["tensors"], 2 + 3 * 3);
    let notices = plan["notices"].as_array().unwrap().iter();
    let mut unread = notices.filter(|line| line.as_str().unwrap().contains("without being read"));
    let line = unread.next().unwrap().as_str().unwrap();
    assert!(line.ends_with(": note, nested"), "{line}");
}

#[test]
fn a_plugin_in_c_refuses_by_name_and_says_what_would_do() {
    let scratch = scratch();
    let plugin = built(scratch.path());
    let refused = |model: &Path, arguments: &[&str], slug: &str, words: &[&str]| {
        let run = with(&plugin, &[&["plan", text(model)], arguments].concat());
        let error = run.error(3, slug);
        let message = error["message"].as_str().unwrap();
        for word in words {
            assert!(message.contains(word), "{word:?} is not in {message:?}");
        }
    };
    let keys = [
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "vocab_size",
    ];
    for key in keys {
        let lacking = edited(scratch.path(), |config| config.replace(key, "another"));
        refused(&lacking, &[], "toy-dense/config", &[key, "is absent"]);
    }
    let values = [
        "8.0",
        "-8",
        "0",
        "null",
        "true",
        "1048577",
        "18446744073709551624",
    ];
    for value in values {
        let wrong = edited(scratch.path(), |config| {
            config.replace("\"hidden_size\": 8", &format!("\"hidden_size\": {value}"))
        });
        let words = [&format!("hidden_size is {value}, expected a whole number")];
        refused(&wrong, &[], "toy-dense/config", &words.map(String::as_str));
    }
    for value in [r#""8""#, r#"{"a": 8}"#, "[8]"] {
        let wrong = edited(scratch.path(), |config| {
            config.replace("\"hidden_size\": 8", &format!("\"hidden_size\": {value}"))
        });
        refused(&wrong, &[], "toy-dense/config", &["is no number"]);
    }
    let whole = source();
    let words = ["--tp 3", "16 channels", "1, 2, 4, 8, 16"];
    refused(&whole, &["--tp", "3"], "bridge/mesh", &words);
    let words = ["--pp 3 does not divide 4 layers", "1, 2, 4"];
    refused(&whole, &["--pp", "3"], "bridge/pipeline", &words);
    let by_hand = ["--pp", "2", "--pipeline", "1,3"];
    refused(&whole, &by_hand, "bridge/pipeline", &["equal stages"]);
    let other = edited(scratch.path(), |config| config.replace("ToyDense", "Other"));
    let error = with(&plugin, &["plan", text(&other)]).error(4, "plugin/unclaimed");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("ToyDenseForCausalLM"), "{message}");
}

/// Both are loaded and asked in every process above, too; here each takes its own while the other is there.
#[test]
fn a_plugin_in_c_and_one_in_rust_live_in_one_process() {
    let scratch = scratch();
    let plugin = built(scratch.path());
    let list = with(&plugin, &["plugin", "list"]).result();
    // Whatever the build has put beside the binary comes after those two.
    let lines = list.as_array().unwrap().iter().take(2);
    let names = lines.map(|line| &line["name"]);
    assert_eq!(names.collect::<Vec<_>>(), ["toy-dense", "glm5"]);
    let (run, before) = (scratch.path().join("run"), contents(&source()));
    let glm = fixture("glm52-tiny");
    let imported = with(&plugin, &["import", text(&glm), text(&run)]).result();
    assert_eq!(imported["source"]["tensors"], 296);
    let imported = with(&plugin, &["import", text(&source()), text(&run), "--force"]).result();
    assert_eq!(imported["source"]["tensors"], 14);
    assert_eq!(contents(&source()), before, "the source is only read");
}
