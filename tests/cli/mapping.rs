//! Mapping and sharding through the binary: every finding is in the document, by name, and nothing is written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rialto_checkpoint::torch_dist::Metadata;
use rialto_tensor::{Location, Region};
use rialto_tests::{published, sparse};
use serde_json::{Map, Value, json};

use crate::world::{Run, contents, fixture, rialto, scratch, text};

/// A tensor by its name: dtype, shape and bytes.
type Tensors = BTreeMap<String, (String, Value, Vec<u8>)>;

/// Every tensor of a fixture, by what its headers say.
fn tensors(directory: &Path) -> Tensors {
    let mut found = Tensors::new();
    for (name, bytes) in contents(directory) {
        if name
            .extension()
            .is_none_or(|ending| ending != "safetensors")
        {
            continue;
        }
        let (length, rest) = bytes.split_first_chunk().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        let header: Map<String, Value> = serde_json::from_slice(header).unwrap();
        for (name, entry) in header
            .into_iter()
            .filter(|(name, _)| name != "__metadata__")
        {
            let range = [0, 1].map(|end| entry["data_offsets"][end].as_u64().unwrap() as usize);
            let dtype = entry["dtype"].as_str().unwrap().to_owned();
            let bytes = data[range[0]..range[1]].to_vec();
            found.insert(name, (dtype, entry["shape"].clone(), bytes));
        }
    }
    found
}

/// Writes a Hugging Face directory of one shard.
fn write(directory: PathBuf, config: &Path, tensors: &Tensors) -> PathBuf {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, (dtype, shape, bytes)) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert(name.clone(), entry);
        data.extend_from_slice(bytes);
    }
    let header = Value::Object(header).to_string();
    let mut shard = (header.len() as u64).to_le_bytes().to_vec();
    shard.extend_from_slice(header.as_bytes());
    shard.extend_from_slice(&data);
    std::fs::create_dir(&directory).unwrap();
    std::fs::copy(config.join("config.json"), directory.join("config.json")).unwrap();
    std::fs::write(directory.join("model.safetensors"), shard).unwrap();
    directory
}

/// A run directory of the real Megatron, copied to be spoiled.
struct Spoiled {
    directory: PathBuf,
    metadata: Metadata,
}

impl Spoiled {
    fn new(directory: PathBuf, checkpoint: &str) -> Spoiled {
        for (name, bytes) in contents(&rialto_tests::megatron(checkpoint).join("ckpt")) {
            let file = directory.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, bytes).unwrap();
        }
        let bytes = std::fs::read(directory.join("iter_0000000/.metadata")).unwrap();
        let metadata = Metadata::decode(&bytes, &Location::file("copied")).unwrap();
        Spoiled {
            directory,
            metadata,
        }
    }

    /// The directory with its list of chunks as `spoil` leaves it.
    fn with(&self, spoil: impl FnOnce(&mut Metadata)) -> &str {
        let mut metadata = self.metadata.clone();
        spoil(&mut metadata);
        let file = self.directory.join("iter_0000000/.metadata");
        std::fs::write(file, metadata.encode()).unwrap();
        text(&self.directory)
    }
}

/// The names that the findings of an error begin with, each once.
fn names(error: &Value) -> BTreeSet<String> {
    let findings = error["findings"].as_array().unwrap();
    let first = |finding: &Value| {
        finding
            .as_str()
            .unwrap()
            .split(' ')
            .next()
            .unwrap()
            .to_owned()
    };
    let names: BTreeSet<String> = findings.iter().map(first).collect();
    assert_eq!(names.len(), findings.len(), "{error}");
    names
}

/// The one difference that a comparison found.
fn only_difference(compared: &Run) -> Value {
    let error = compared.error(1, "cli/differs");
    let differences = error["report"]["differences"].as_array().unwrap();
    assert_eq!(differences.len(), 1, "{error}");
    differences[0].clone()
}

/// GLM-5.3 at full size, headers and index only: every tensor of every indexer is on a layer that uses another's.
#[test]
fn fc_10_the_plan_of_the_full_release_names_every_indexer_tensor_that_is_on_a_wrong_layer() {
    let config = std::fs::read(fixture("configs/glm-5.3/config.json")).unwrap();
    let document: Value = serde_json::from_slice(&config).unwrap();
    let kinds = document["indexer_types"].as_array().unwrap();
    let layers = |kind: &str| {
        let of_kind = kinds
            .iter()
            .enumerate()
            .filter(|(_, found)| **found == kind);
        of_kind.map(|(layer, _)| layer).collect::<Vec<_>>()
    };
    let mut full = layers("full");
    full.push(kinds.len());
    assert_eq!((kinds.len(), full.len()), (78, 22));
    let moved: BTreeMap<usize, usize> = full.into_iter().zip(layers("shared")).collect();
    let mut tensors = published::tensors(&document);
    let mut expected = BTreeSet::new();
    for tensor in &mut tensors {
        let Some((prefix, suffix)) = tensor.name.split_once(".self_attn.indexer.") else {
            continue;
        };
        let layer: usize = prefix.rsplit('.').next().unwrap().parse().unwrap();
        let to = format!("model.layers.{}.self_attn.indexer.{suffix}", moved[&layer]);
        // A scale is needed by the weight that it stands for, and by that alone.
        if !tensor.is_scale {
            expected.insert(tensor.name.clone());
        }
        expected.insert(to.clone());
        tensor.name = to;
    }
    assert_eq!(expected.len(), 22 * (5 + 7));
    let scratch = scratch();
    let (source, target) = (scratch.path().join("source"), scratch.path().join("run"));
    sparse::write_tensors(&config, &tensors, &source).unwrap();
    let error = rialto(["plan", text(&source), "--json"]).error(3, "weight-map/not-total");
    assert!(names(&error) == expected, "{error}");
    let import = ["import", text(&source), text(&target), "--json"];
    let again = rialto(import).error(3, "weight-map/not-total");
    assert_eq!(again["findings"], error["findings"]);
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
}

#[test]
fn fc_10_an_export_names_every_indexer_key_that_is_on_a_wrong_layer() {
    let scratch = scratch();
    let spoiled = Spoiled::new(scratch.path().join("run"), "glm52-tiny-mtp-tp2pp2ep2");
    // From each layer with an indexer to one that uses another's, or to one that is no layer of the model.
    let moved = [
        ("decoder.layers.0.", "decoder.layers.6."),
        ("decoder.layers.2.", "decoder.layers.8."),
        ("decoder.layers.4.", "decoder.layers.10."),
        ("decoder.layers.12.", "decoder.layers.14."),
        (
            "mtp.layers.0.mtp_model_layer.layers.0.",
            "mtp.layers.0.mtp_model_layer.layers.2.",
        ),
    ];
    let mut expected = BTreeSet::new();
    let run = spoiled.with(|metadata| {
        let entries = std::mem::take(&mut metadata.tensors).into_iter();
        metadata.tensors = entries
            .map(|(key, entry)| {
                let Some((prefix, rest)) = key.split_once("self_attention.core_attention.indexer.")
                else {
                    return (key, entry);
                };
                let (_, to) = moved.iter().find(|(from, _)| *from == prefix).unwrap();
                let to = format!("{to}self_attention.core_attention.indexer.{rest}");
                expected.extend([key, to.clone()]);
                (to, entry)
            })
            .collect();
    });
    assert_eq!(expected.len(), 2 * 5 * 5);
    refused_as_untotal(run, scratch.path(), &expected);
}

/// Plan, export and verify of a run directory say the same names, and write nothing.
fn refused_as_untotal(run: &str, scratch: &Path, expected: &BTreeSet<String>) {
    let reference = fixture("glm52-tiny");
    let given = ["--reference", text(&reference), "--json"];
    let target = scratch.join("out");
    let before = contents(Path::new(run));
    for command in [vec!["plan", run], vec!["export", run, text(&target)]] {
        let error = rialto(command.iter().chain(&given)).error(3, "weight-map/not-total");
        assert!(names(&error) == *expected, "{command:?}: {error}");
    }
    // Verify compares what both sides have and says of each name that one side lacks it.
    let report = rialto(
        ["verify", run]
            .iter()
            .copied()
            .chain([text(&reference), "--json"]),
    );
    assert_eq!(report.code, 1, "{report:?}");
    for name in expected {
        assert!(report.stdout.contains(name.as_str()), "{name}: {report:?}");
    }
    assert!(!target.exists() && contents(Path::new(run)) == before);
}

#[test]
fn fc_12_an_export_names_every_router_whose_correction_bias_is_not_there() {
    let scratch = scratch();
    let spoiled = Spoiled::new(scratch.path().join("run"), "glm52-tiny-mtp-tp2ep2etp2");
    let keys = spoiled.metadata.tensors.keys();
    let expected: BTreeSet<String> = keys
        .filter(|key| key.ends_with(".mlp.router.expert_bias"))
        .cloned()
        .collect();
    assert_eq!(expected.len(), 6);
    assert!(expected.iter().any(|key| key.starts_with("mtp.")));
    let run = spoiled.with(|metadata| metadata.tensors.retain(|key, _| !expected.contains(key)));
    refused_as_untotal(run, scratch.path(), &expected);
    // The other way about: from a source without them nothing is imported.
    let config = fixture("glm52-tiny");
    let mut values = tensors(&config);
    let is_bias = |name: &str| name.ends_with("e_score_correction_bias");
    let expected: BTreeSet<String> = values
        .keys()
        .filter(|name| is_bias(name))
        .cloned()
        .collect();
    assert_eq!(expected.len(), 6);
    values.retain(|name, _| !is_bias(name));
    let source = write(scratch.path().join("source"), &config, &values);
    let target = scratch.path().join("imported");
    let import = ["import", text(&source), text(&target), "--json"];
    let error = rialto(import).error(3, "weight-map/not-total");
    assert_eq!(names(&error), expected);
    assert!(!target.exists());
}

#[test]
fn fc_17_verify_names_the_key_norm_in_which_a_bit_differs() {
    let scratch = scratch();
    let config = fixture("glm53-tiny");
    let values = tensors(&config);
    let run = scratch.path().join("run");
    let import = [
        "import",
        text(&config),
        text(&run),
        "--pp",
        "2",
        "--ep",
        "5",
    ];
    assert_eq!(rialto(import).code, 0);
    let mut found = 0;
    for name in values
        .keys()
        .filter(|name| name.contains(".indexer.k_norm."))
    {
        let mut spoiled = values.clone();
        spoiled.get_mut(name).unwrap().2[0] ^= 1;
        let spoiled = write(scratch.path().join(name), &config, &spoiled);
        let compared = rialto(["verify", text(&spoiled), text(&run), "--json"]);
        let difference = only_difference(&compared);
        assert_eq!(difference["tensor"], **name);
        assert_eq!(difference["first"], json!([0]));
        found += 1;
    }
    // Weight and bias on two layers and in the prediction layer.
    assert_eq!(found, 6);
    let clean = rialto(["verify", text(&config), text(&run), "--json"]).result();
    assert_eq!(clean["is_equal"], true);
}

#[test]
fn fc_18_copies_in_the_prediction_layer_go_through_import_export_and_verify() {
    let scratch = scratch();
    let config = fixture("glm53-tiny");
    let plain = tensors(&config);
    let own = [
        ("model.layers.4.shared_head.head.weight", "lm_head.weight"),
        (
            "model.layers.4.embed_tokens.weight",
            "model.embed_tokens.weight",
        ),
    ];
    let copies = own.map(|(name, of)| (name.to_owned(), plain[of].clone()));
    let with: Tensors = plain.clone().into_iter().chain(copies).collect();
    let place = |name: &str| scratch.path().join(name);
    let converted = |name: &str, source: &Path| {
        let (run, back) = (
            place(&format!("{name}-run")),
            place(&format!("{name}-back")),
        );
        assert_eq!(rialto(["import", text(source), text(&run)]).code, 0);
        assert_eq!(rialto(["export", text(&run), text(&back)]).code, 0);
        (run, back)
    };
    let weights = |directory: &Path| -> BTreeSet<String> {
        let names = tensors(directory).into_keys();
        names.filter(|name| !name.ends_with("_scale_inv")).collect()
    };
    // Without them none are made up.
    let (_, back) = converted("plain", &config);
    assert_eq!(weights(&back), weights(&config));
    assert!(own.iter().all(|(name, _)| !weights(&back).contains(*name)));
    // With them they are kept, though they are the main model's.
    let source = write(place("source"), &config, &with);
    let (run, back) = converted("with", &source);
    assert_eq!(weights(&back).len(), weights(&config).len() + 2);
    let exported = tensors(&back);
    for (name, of) in own {
        assert!(exported[name] == plain[of], "{name}");
        let mut spoiled = with.clone();
        spoiled.get_mut(name).unwrap().2[3] ^= 4;
        let spoiled = write(place(name), &config, &spoiled);
        for other in [&run, &back] {
            let compared = rialto(["verify", text(other), text(&spoiled), "--json"]);
            let difference = only_difference(&compared);
            assert_eq!(difference["tensor"], name);
        }
    }
    for other in [&run, &back] {
        let report = rialto(["verify", text(&source), text(other), "--json"]).result();
        assert_eq!(report["is_equal"], true);
    }
}

/// Every command that opens a checkpoint refuses it alike, whichever tensor is cut wrongly.
#[test]
fn fc_21_every_command_names_tensor_shape_and_region_of_a_gap_or_an_overlap() {
    let scratch = scratch();
    let spoiled = Spoiled::new(scratch.path().join("run"), "glm52-tiny-mtp-tp2pp2ep2");
    let (reference, target) = (fixture("glm52-tiny"), scratch.path().join("out"));
    let run = text(&spoiled.directory);
    let given = ["--reference", text(&reference)];
    let commands = [
        vec!["inspect", run],
        [&["plan", run][..], &given].concat(),
        vec!["verify", text(&reference), run],
        [&["export", run, text(&target)][..], &given].concat(),
    ];
    let mut turns = [[0; 2]; 4];
    for (turn, (name, entry)) in spoiled.metadata.tensors.iter().enumerate() {
        let chunks = &entry.chunks;
        let at = turn % chunks.len();
        let region = &chunks[at].region;
        // Reaching into the chunk behind it, if there is one; else it is forgotten.
        let end = |axis: usize| region.offsets()[axis] + region.sizes()[axis];
        let mut axes = entry.shape.extents().iter().enumerate();
        let axis = axes.find(|&(axis, &extent)| end(axis) < extent);
        let (mut offsets, mut sizes) = (region.offsets().to_vec(), region.sizes().to_vec());
        spoiled.with(|metadata| {
            let chunks = &mut metadata.tensors.get_mut(name).unwrap().chunks;
            let Some((axis, _)) = axis else {
                chunks.remove(at);
                return;
            };
            sizes[axis] += 1;
            chunks[at].region = Region::new(offsets.clone(), sizes.clone()).into();
            (offsets[axis], sizes[axis]) = (end(axis), 1);
        });
        let is_doubled = axis.is_some();
        let fault = if is_doubled {
            "is covered twice"
        } else {
            "is not covered"
        };
        let expected = Region::new(offsets, sizes);
        let line = format!("{name} {}: {expected} {fault}", entry.shape);
        // Each command in turn, and all of them for experts.
        for (number, command) in commands.iter().enumerate() {
            if turn % 4 != number && !name.contains(".experts.experts.") {
                continue;
            }
            let error = rialto(command.iter().chain(&["--json"])).error(3, "torch_dist/tiling");
            assert!(
                error["message"].as_str().unwrap().contains(&line),
                "{command:?}, {line}: {error}"
            );
            turns[number][usize::from(is_doubled)] += 1;
        }
    }
    assert!(turns.iter().flatten().all(|&count| count > 5), "{turns:?}");
    assert!(!target.exists());
    spoiled.with(|_| ());
    assert_eq!(rialto(&commands[3]).code, 0, "as it was, it exports");
}
