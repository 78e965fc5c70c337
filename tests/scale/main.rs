//! The published models at full size, through the real binary: how much memory planning and inspecting take, and whether what is
//! printed is what a second path derives from the config.
//!
//! The checkpoints are sparse: headers and index are those of the published ones, weights are holes.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by failing"
)]
#![allow(
    clippy::print_stderr,
    reason = "what was measured is shown beside its budget"
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::resource::{UsageWho, getrusage};
use rialto_tests::published::{self, Tensor};
use rialto_tests::{built_library, fixture, sparse};
use serde_json::{Value, json};

/// Most memory in bytes for listing a checkpoint of 282 shards, or of 118,629 tensors, also as JSON.
const OF_LIST: u64 = 150_000_000;

/// Most memory in bytes for the plan of a model from its config.
const OF_CONFIG: u64 = 200_000_000;

/// Most memory in bytes for the plan of such a checkpoint.
const OF_CHECKPOINT: u64 = 300_000_000;

/// Most memory in bytes for the plan with the most chunks.
const OF_MOST_CHUNKS: u64 = 500_000_000;

/// What a run left.
struct Ran {
    output: PathBuf,
    /// Most memory in bytes of any run so far.
    peak: u64,
}

/// Runs the binary below a budget.
///
/// What the kernel tells is the most that any child so far has had, and a child begins with what its parent had when it was
/// made. Both only add, so a run that is over its budget never looks under it. That none looks over it without being so, small
/// budgets come first and no output is read before the last run.
fn run(budget: u64, room: &Path, arguments: &[&str]) -> Ran {
    run_to(0, budget, room, arguments)
}

/// The same of a run that ends with this code.
fn run_to(code: i32, budget: u64, room: &Path, arguments: &[&str]) -> Ran {
    let shown = arguments.join(" ");
    let output = room.join(format!("{}.out", shown.replace(['/', ' '], "-")));
    let status = Command::new(env!("CARGO_BIN_EXE_rialto"))
        .args(arguments)
        .env("RIALTO_PLUGIN_PATH", built_library("rialto_glm5"))
        .env_remove("XDG_DATA_HOME")
        .env_remove("HOME")
        .current_dir(room)
        .stdout(Stdio::from(File::create_new(&output).unwrap()))
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(code), "rialto {shown}: {status}");
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let peak = u64::try_from(usage.max_rss()).unwrap() * 1024;
    eprintln!(
        "rialto {shown}: {} of {} MB",
        peak / 1_000_000,
        budget / 1_000_000
    );
    assert!(peak > 1_000_000, "nothing was measured: {peak} bytes");
    assert!(
        peak < budget,
        "rialto {shown} took {peak} bytes, over {budget}"
    );
    Ran { output, peak }
}

/// The memory that a plan says it takes against that which it took.
///
/// They agree within tenths here. It cannot be held tighter: the plan does not count the program, its plugin, what is needed for moments only and what the allocator leaves lying; and what
/// was measured may be an earlier run's, if that took more.
fn assert_honest(plan: &Value, peak: u64) {
    let said = plan["index_bytes"].as_f64().unwrap();
    let ratio = said / peak as f64;
    eprintln!("said {:.0} MB, ratio {ratio:.2}", said / 1e6);
    assert!((0.6..=1.3).contains(&ratio), "said {said}, took {peak}");
}

/// What the second path derives of a config, and where the sparse checkpoint of it lies.
struct Release {
    tensors: Vec<Tensor>,
    shards: usize,
    directory: PathBuf,
}

fn write(room: &Path, name: &str) -> PathBuf {
    let directory = room.join(name);
    sparse::write(&fixture(&format!("configs/{name}")), &directory).unwrap();
    directory
}

impl Release {
    fn new(name: &str, shards: usize, directory: PathBuf) -> Release {
        let config = std::fs::read(fixture(&format!("configs/{name}")).join("config.json"));
        Release {
            tensors: published::tensors(&serde_json::from_slice(&config.unwrap()).unwrap()),
            shards,
            directory,
        }
    }

    fn weights(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter().filter(|tensor| !tensor.is_scale)
    }

    fn bytes(&self) -> u64 {
        self.tensors.iter().map(Tensor::size_bytes).sum()
    }

    /// The side of a plan that is read.
    fn assert_source(&self, plan: &Value, files: usize) {
        let elements: u64 = self.weights().map(Tensor::elements).sum();
        let expected = json!({
            "tensors": self.weights().count(),
            "elements": elements,
            "bytes": self.bytes(),
            "objects": 0,
            "files": files,
        });
        assert_eq!(plan["source"], expected);
    }

    /// The tensors that are stored encoded, by codec.
    fn assert_encoded(&self, plan: &Value) {
        let scales: Vec<&Tensor> = self.tensors.iter().filter(|t| t.is_scale).collect();
        let bytes: u64 = scales.iter().map(|tensor| tensor.size_bytes()).sum();
        let expected = match scales.len() {
            0 => json!([]),
            count => json!([{
                "codec": "block_fp8/128x128",
                "tensors": count,
                "companions": count,
                "companion_bytes": bytes,
            }]),
        };
        assert_eq!(plan["encoded"], expected);
    }

    /// Every tensor that is listed, and the index that names as many.
    fn assert_contents(&self, contents: &Value) {
        assert_eq!(contents["files"].as_array().unwrap().len(), self.shards);
        let listed = contents["tensors"].as_array().unwrap().iter();
        let listed = listed.map(|tensor| {
            let name = tensor["name"].as_str().unwrap();
            (name, [&tensor["dtype"], &tensor["shape"], &tensor["bytes"]])
        });
        let listed: BTreeMap<&str, [&Value; 3]> = listed.collect();
        for tensor in &self.tensors {
            let expected = [
                json!(tensor.dtype.name()),
                json!(tensor.shape),
                json!(tensor.size_bytes()),
            ];
            assert_eq!(
                listed.get(tensor.name.as_str()),
                Some(&expected.each_ref()),
                "{}",
                tensor.name
            );
        }
        let index = document(&self.directory.join("model.safetensors.index.json"));
        let keys = index["weight_map"].as_object().unwrap().len();
        assert_eq!([listed.len(), keys], [self.tensors.len(); 2]);
    }
}

fn document(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// The document of a success.
fn result(file: &Path) -> Value {
    let mut document = document(file);
    assert_eq!(
        (&document["schema"], &document["ok"]),
        (&json!(1), &json!(true))
    );
    document["result"].take()
}

/// The kernel counts for the process, so this is the only test in it.
#[test]
fn full_models_are_planned_and_inspected_within_their_budgets_and_as_they_were_published() {
    let room = tempfile::tempdir().unwrap();
    let room = room.path();
    let names = ["glm-5.2", "glm-5.3"];
    let config = fixture("configs/glm-5.2");
    let of_config = |options: &[&'static str]| {
        [&["plan", config.to_str().unwrap(), "--json"][..], options].concat()
    };
    // 120 million chunks, which are counted and not made.
    let refused = run_to(3, OF_LIST, room, &of_config(&["--etp", "2048"]));
    let whole = ["--etp", "2048", "--chunks", "whole"];
    let whole = run(OF_LIST, room, &of_config(&whole));
    let [glm_52, glm_53] = names.map(|name| write(room, name));
    let contents = names.map(|name| {
        run(OF_LIST, room, &["inspect", name]);
        run(OF_LIST, room, &["inspect", name, "--json"]).output
    });
    let mesh = ["--tp", "1", "--pp", "2", "--ep", "8", "--etp", "2"];
    let cut = run(OF_CONFIG, room, &of_config(&mesh));
    let plans = names.map(|name| run(OF_CHECKPOINT, room, &["plan", name, "--json"]));
    // As many chunks as are written of this model.
    let most = run(OF_MOST_CHUNKS, room, &of_config(&["--etp", "16"]));

    let releases = [
        Release::new("glm-5.2", 282, glm_52),
        Release::new("glm-5.3", 141, glm_53),
    ];
    let keys = releases.each_ref().map(|release| release.tensors.len());
    assert_eq!(keys, [59_585, 118_629]);
    let error = document(&refused.output)["error"].take();
    assert_eq!(error["slug"], "bridge/chunks", "{error}");
    for (ran, mesh) in [
        (whole, json!({"tp": 1, "pp": 1, "ep": 1, "etp": 2048})),
        (cut, json!({"tp": 1, "pp": 2, "ep": 8, "etp": 2})),
        (most, json!({"tp": 1, "pp": 1, "ep": 1, "etp": 16})),
    ] {
        let plan = result(&ran.output);
        releases[0].assert_source(&plan, 0);
        assert_eq!(plan["mesh"], mesh);
        assert_honest(&plan, ran.peak);
    }
    for ((release, contents), ran) in releases.iter().zip(contents).zip(plans) {
        release.assert_contents(&result(&contents));
        let plan = result(&ran.output);
        release.assert_source(&plan, release.shards);
        release.assert_encoded(&plan);
        assert_honest(&plan, ran.peak);
    }
}
