//! The second family, loaded from the library that a third party would ship, beside the first one in one process.
//!
//! Qwen3 shares nothing with GLM-5: dense layers that are all alike and so stacked, grouped queries in one fused matrix, a head
//! that may be the embedding.

mod configs;
mod stored;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rialto_bridge::{Bridge, LayerAxis, Mesh, MtpPolicy, StageChoice};
use rialto_checkpoint::store::{LocalStore, MemoryStore, Store, read_whole};
use rialto_engine::verify::Report;
use rialto_engine::{
    Contents, ExportOptions, ExportPlan, ImportPlan, MegatronSource, Options, Silent,
    VerifyOptions, VerifySource, verify,
};
use rialto_host::{LoadedPlugin, Registry, SearchPath};
use rialto_tensor::Dtype;

use crate::import::{assert_chunks, assert_objects, assert_provider, assert_tensors};
use crate::world::{
    GOLDENS, Golden, Values, assert_same_files, export, fixture, golden, hugging_face, import,
    in_memory, iteration, megatron, on_disk, safetensors,
};
use crate::written;

const TIED: &str = "qwen3/tiny-tied";
const UNTIED: &str = "qwen3/tiny-untied";

const fn of(name: &'static str, source: &'static str, tp: u64, pp: u64) -> Golden {
    golden(name, source, [tp, pp, 1, 1], MtpPolicy::Keep)
}

/// What the real GPTModel saved of the two.
const REAL: [Golden; 5] = [
    of("qwen3-tied-tp1", TIED, 1, 1),
    of("qwen3-tied-tp2pp3", TIED, 2, 3),
    of("qwen3-untied-tp1", UNTIED, 1, 1),
    of("qwen3-untied-tp2", UNTIED, 2, 1),
    Golden {
        layer_axis: LayerAxis::PerLayer,
        ..of("qwen3-untied-perlayer-tp1", UNTIED, 1, 1)
    },
];

fn plugin() -> LoadedPlugin {
    let library = rialto_tests::built_library("rialto_qwen3");
    rialto_host::load(&library).expect("the library loads")
}

fn family() -> Arc<dyn Bridge> {
    plugin().bridge()
}

fn on(tp: u64, pp: u64, layer_axis: LayerAxis) -> Options {
    Options {
        mesh: Mesh {
            tp,
            pp,
            ..Mesh::SINGLE
        },
        layer_axis,
        ..Options::default()
    }
}

/// The tensors of a directory of one shard.
fn tensors(directory: &dyn Store) -> Values {
    safetensors(&read_whole(directory, "model.safetensors", 1 << 20).unwrap())
}

fn refused(source: MemoryStore, options: &Options) -> String {
    let plan = ImportPlan::new(family().as_ref(), Arc::new(source), options);
    plan.map(|_| ()).unwrap_err().to_string()
}

#[test]
fn an_import_is_what_the_real_megatron_saved() {
    for golden in &REAL {
        let run = golden.imported(family().as_ref());
        assert_tensors(golden, run.clone());
        assert_chunks(golden, run.clone());
        assert_objects(golden, run.clone());
        // Without a user's word Megatron trains as its defaults say.
        let compared = assert_provider(golden, &run, &[]);
        assert!(compared >= 30, "only {compared} fields were compared");
    }
}

#[test]
fn an_export_of_what_the_real_megatron_saved_is_its_source() {
    for golden in &REAL {
        let options = ExportOptions::default();
        let reference = Some(on_disk(golden.source));
        let exported = export(family().as_ref(), golden.run(), reference, &options).unwrap();
        let source = on_disk(golden.source);
        assert_eq!(
            hugging_face(&exported),
            tensors(source.as_ref()),
            "{}",
            golden.name
        );
        for file in ["config.json", "generation_config.json"] {
            assert_eq!(
                exported.bytes(file).unwrap(),
                read_whole(source.as_ref(), file, 1 << 20).unwrap()
            );
        }
    }
}

/// Stacked and per layer, at every size that fits.
#[test]
fn one_model_exports_to_the_same_bytes_whatever_form_it_was_imported_in() {
    for (source, sizes) in [(TIED, &[1, 2][..]), (UNTIED, &[1, 2, 4])] {
        let mut first: Option<MemoryStore> = None;
        for &tp in sizes {
            for pp in [1, 3] {
                for axis in [LayerAxis::Stacked, LayerAxis::PerLayer] {
                    let options = on(tp, pp, axis);
                    let run = import(family().as_ref(), on_disk(source), &options).unwrap();
                    let run: Arc<dyn Store> = Arc::new(run);
                    let options = ExportOptions::default();
                    let exported = export(family().as_ref(), run, None, &options).unwrap();
                    assert_eq!(hugging_face(&exported), tensors(on_disk(source).as_ref()));
                    let first = first.get_or_insert_with(|| exported.clone());
                    assert_same_files(first, &exported);
                    assert_same_files(&exported, first);
                }
            }
        }
    }
}

/// One tensor for all layers is counted once, on either side and in either direction.
#[test]
fn a_stack_is_one_tensor_in_every_count() {
    for golden in &REAL {
        let manifest = golden.manifest();
        let tensors = manifest["tensors"].as_object().unwrap().len() as u64;
        let objects = manifest["objects"].as_object().unwrap().len() as u64;
        let family = family();
        let source = on_disk(golden.source);
        let import = ImportPlan::new(family.as_ref(), source, &golden.options()).unwrap();
        let reference = Some(on_disk(golden.source));
        let source = MegatronSource::open(golden.run(), reference).unwrap();
        let export = ExportPlan::new(family.as_ref(), source, &ExportOptions::default()).unwrap();
        let (target, stored) = (&import.summary().target, &export.summary().source);
        assert_eq!(
            (target.tensors, stored.tensors),
            (tensors, tensors),
            "{}",
            golden.name
        );
        // The common state is an object of theirs and a file of ours.
        assert_eq!((target.objects, stored.objects), (objects - 1, objects));
        let both = [import.summary(), export.summary()];
        let bytes = both.map(|summary| [summary.source.bytes, summary.target.bytes]);
        let expected = if golden.source == TIED {
            255_040
        } else {
            250_944
        };
        assert_eq!(bytes, [[expected; 2]; 2], "{}", golden.name);
    }
}

/// Counted here, element by element, and not by pieces.
#[test]
fn the_rows_of_the_fused_matrix_go_group_by_group() {
    for (source, heads, groups) in [(TIED, 8, 2), (UNTIED, 4, 4)] {
        let directory = tensors(on_disk(source).as_ref());
        let run = import(family().as_ref(), on_disk(source), &Options::default()).unwrap();
        let (dtype, shape, fused) =
            &megatron(&iteration(Arc::new(run)))["decoder.layers.self_attention.linear_qkv.weight"];
        let (head, row) = (16, 64 * 2);
        assert_eq!((*dtype, shape[0]), (Dtype::Bf16, 3));
        let mut expected = Vec::new();
        for layer in 0..3 {
            let rows = |name: &str, number: usize| -> Vec<u8> {
                let name = format!("model.layers.{layer}.self_attn.{name}_proj.weight");
                directory[&name].2[number * head * row..][..head * row].to_vec()
            };
            for group in 0..groups {
                for query in 0..heads / groups {
                    expected.extend(rows("q", group * (heads / groups) + query));
                }
                expected.extend(rows("k", group));
                expected.extend(rows("v", group));
            }
        }
        assert_eq!(*fused, expected, "{source}");
    }
}

#[test]
fn a_mesh_that_parts_a_group_is_refused_with_those_that_do_not() {
    for (source, tp, said) in [
        (
            TIED,
            4,
            "--tp 4 does not divide 2 query groups; valid for this model: 1, 2",
        ),
        (
            TIED,
            8,
            "--tp 8 does not divide 2 query groups; valid for this model: 1, 2",
        ),
        (
            UNTIED,
            3,
            "--tp 3 does not divide 160 vocabulary rows, 4 query groups; valid for this model: 1, 2, 4",
        ),
    ] {
        let message = refused(in_memory(source), &on(tp, 1, LayerAxis::Stacked));
        assert_eq!(message, said);
    }
    let dense = Options {
        mesh: Mesh {
            ep: 2,
            ..Mesh::SINGLE
        },
        ..Options::default()
    };
    let message = refused(in_memory(TIED), &dense);
    assert_eq!(
        message,
        "--ep 2 finds nothing to divide; valid for this model: 1"
    );
}

#[test]
fn stages_are_equal_or_as_the_user_deals_them() {
    let message = refused(in_memory(TIED), &on(1, 2, LayerAxis::Stacked));
    assert_eq!(
        message,
        "--pp 2 does not divide 3 layers; valid for this model: 1, 3, or any other with --pipeline"
    );
    let dealt = Options {
        stages: StageChoice::Layers(vec![2, 1]),
        ..on(1, 2, LayerAxis::Stacked)
    };
    let plan = ImportPlan::new(family().as_ref(), on_disk(TIED), &dealt).unwrap();
    let layers: Vec<u64> = plan
        .summary()
        .stages
        .iter()
        .map(|stage| stage.layers)
        .collect();
    assert_eq!(layers, [2, 1]);
    let run = import(family().as_ref(), on_disk(TIED), &dealt).unwrap();
    let config = String::from_utf8(run.bytes("iter_0000000/run_config.yaml").unwrap()).unwrap();
    assert!(
        config.contains("pipeline_model_parallel_layout: Et*2|t*1L\n"),
        "{config}"
    );
}

/// A rank of each stage holds what the real model's ranks registered, the copy of a tied embedding on the last one included.
#[test]
fn a_rank_holds_the_params_that_a_rank_of_the_real_model_has() {
    for golden in &REAL {
        let plan = ImportPlan::new(family().as_ref(), on_disk(golden.source), &golden.options());
        let stages = plan.unwrap().summary().stages.clone();
        let manifest = golden.manifest();
        let ranks = manifest["ranks"].as_array().unwrap();
        assert_eq!(ranks.len() as u64, golden.mesh.tp * golden.mesh.pp);
        for (number, rank) in ranks.iter().enumerate() {
            let stage = &stages[number / golden.mesh.tp as usize];
            let params = rank["parameters"].as_object().unwrap();
            assert_eq!(
                stage.params,
                params.len() as u64,
                "rank {number} of {}",
                golden.name
            );
            let bytes = params.values().map(|param| {
                let shape: Vec<u64> = serde_json::from_value(param["shape"].clone()).unwrap();
                2 * shape.iter().product::<u64>()
            });
            assert_eq!(
                stage.rank_bytes,
                bytes.sum::<u64>(),
                "rank {number} of {}",
                golden.name
            );
        }
    }
}

#[test]
fn a_tied_head_that_is_stored_all_the_same_is_compared_and_not_carried() {
    let with_head = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut values = tensors(on_disk(TIED).as_ref());
        let mut head = values["model.embed_tokens.weight"].clone();
        edit(&mut head.2);
        values.insert("lm_head.weight".to_owned(), head);
        written::hugging_face(TIED, &values)
    };
    let copied = with_head(&|_| {});
    let plan = ImportPlan::new(
        family().as_ref(),
        Arc::new(copied.clone()),
        &Options::default(),
    );
    let skipped = &plan.unwrap().summary().skipped.clone()[0];
    assert_eq!(
        (skipped.reason.as_str(), skipped.tensors),
        (
            "lm_head.weight repeats model.embed_tokens.weight: an import compares them and carries one",
            1
        )
    );
    let run = import(
        family().as_ref(),
        Arc::new(copied.clone()),
        &Options::default(),
    )
    .unwrap();
    assert_tensors(&REAL[0], run.clone());
    assert!(compare(&copied, &run).is_empty());

    let other = with_head(&|bytes| bytes[2 * (64 * 3 + 5)] ^= 1);
    let error = import(
        family().as_ref(),
        Arc::new(other.clone()),
        &Options::default(),
    )
    .unwrap_err();
    assert_eq!(error.slug(), "engine/copy");
    assert_eq!(
        error.to_string(),
        "lm_head.weight differs from model.embed_tokens.weight, which the config says it repeats, from element [3, 5] on \
         (model.safetensors)"
    );
    let findings = compare(&other, &run);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(
        findings[0].starts_with("ours: lm_head.weight differs"),
        "{findings:?}"
    );
    let ignoring = Options {
        allow_unmapped: vec!["lm_head.*".to_owned()],
        ..Options::default()
    };
    let run = import(family().as_ref(), Arc::new(other), &ignoring).unwrap();
    assert_tensors(&REAL[0], run);
    // A copy that is not there is nothing to ignore.
    let plan = ImportPlan::new(family().as_ref(), on_disk(TIED), &ignoring).unwrap();
    let notices = &plan.summary().notices;
    let said = "--allow-unmapped \"lm_head.*\" matches nothing";
    assert!(
        notices.iter().any(|notice| notice.starts_with(said)),
        "{notices:?}"
    );
}

/// What a checkpoint holds once more is a part that the other one lacks.
#[test]
fn a_copy_that_the_other_side_lacks_is_named_and_a_difference_if_the_user_says_so() {
    let mut values = tensors(on_disk(TIED).as_ref());
    let head = values["model.embed_tokens.weight"].clone();
    values.insert("lm_head.weight".to_owned(), head);
    let ours = written::hugging_face(TIED, &values);
    for is_strict_keys in [false, true] {
        let options = VerifyOptions {
            is_strict_keys,
            ..VerifyOptions::default()
        };
        let report = report(&ours, on_disk(TIED), &options);
        assert_eq!(report.is_equal, !is_strict_keys);
        let part = &report.one_sided[0];
        assert_eq!(
            (part.name.as_str(), part.params),
            ("tensors that are there once more", 1)
        );
    }
}

/// What a verification says by the config of the first, whose config may be the other's, too.
fn report(ours: &MemoryStore, theirs: Arc<dyn Store>, options: &VerifyOptions) -> Report {
    let family = family();
    let open = |store| VerifySource::open(store).unwrap();
    let (ours, theirs) = (open(Arc::new(ours.clone())), open(theirs));
    let config = ours.config().unwrap();
    let contents = |source| Contents::new(source, config, family.as_ref()).unwrap();
    verify(&contents(&ours), &contents(&theirs), options, &Silent).unwrap()
}

/// The findings of a verification, which says equal if there are none.
fn compare(ours: &MemoryStore, theirs: &MemoryStore) -> Vec<String> {
    let theirs = Arc::new(theirs.clone());
    let report = report(ours, theirs, &VerifyOptions::default());
    assert_eq!(
        report.is_equal,
        report.findings.is_empty() && report.differences.is_empty()
    );
    report.findings
}

/// Makes a BF16 tensor F32, of which BF16 is the upper half, and gives its bytes.
fn widen<'a>(values: &'a mut Values, name: &str) -> &'a mut Vec<u8> {
    let (dtype, _, bytes) = values.get_mut(name).unwrap();
    *dtype = Dtype::F32;
    let wide = bytes.chunks(2).flat_map(|half| [0, 0, half[0], half[1]]);
    *bytes = wide.collect();
    bytes
}

/// A value that differs in two groups of one tensor is one tensor that differs.
#[test]
fn a_tensor_that_is_taken_apart_is_counted_once() {
    let mut values = tensors(on_disk(TIED).as_ref());
    let name = "model.layers.1.self_attn.q_proj.weight";
    let bytes = &mut values.get_mut(name).unwrap().2;
    for row in [3, 100] {
        bytes[row * 128 + 7] ^= 0x40;
    }
    let source = written::hugging_face(TIED, &values);
    let run = import(family().as_ref(), on_disk(TIED), &Options::default()).unwrap();
    let report = report(&source, Arc::new(run), &VerifyOptions::default());
    assert_eq!((report.tensors, report.differences.len()), (35, 1));
    let difference = &report.differences[0];
    assert_eq!(
        (
            difference.tensor.as_str(),
            difference.elements,
            difference.of
        ),
        (name, 2, 128 * 64)
    );
    assert_eq!(difference.first, [3, 3]);
}

/// Of two dtypes it is one tensor, too, whatever number of parts it comes in.
#[test]
fn a_tensor_of_another_dtype_is_counted_once() {
    let mut values = tensors(on_disk(TIED).as_ref());
    let name = "model.layers.1.self_attn.q_proj.weight";
    // The lower half of one element is rounded away.
    widen(&mut values, name)[4 * 64 * 100] = 1;
    let ours = written::hugging_face(TIED, &values);
    let report = report(&ours, on_disk(TIED), &VerifyOptions::default());
    assert_eq!((report.tensors, report.dtypes.len()), (35, 1));
    let dtypes = &report.dtypes[0];
    assert_eq!(
        (dtypes.tensors, dtypes.rounded, dtypes.first.as_str()),
        (1, 1, name)
    );
}

/// Both families, loaded, asked for both models.
#[test]
fn each_family_takes_its_own_beside_the_other() {
    let libraries = ["rialto_qwen3", "rialto_glm5"].map(rialto_tests::built_library);
    let path = libraries
        .into_iter()
        .fold(SearchPath::new(), SearchPath::plugin);
    let registry = Registry::search(&path).unwrap();
    for (source, name) in [
        (TIED, "qwen3"),
        (UNTIED, "qwen3"),
        ("glm52-tiny", "glm5"),
        ("glm53-tiny", "glm5"),
    ] {
        let config = rialto_engine::source_config(on_disk(source).as_ref()).unwrap();
        let claimed = registry.claim(&config).unwrap();
        assert_eq!(claimed.plugin.description().name, name, "{source}");
        assert!(claimed.others.is_empty());
    }
}

/// What a third party does: the example's files somewhere else, two lines of its manifest changed.
#[test]
fn a_copy_outside_the_tree_builds_and_loads_beside_the_first_family() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let example = tree.join("examples/plugin-qwen3");
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("src")).unwrap();
    for file in ["Cargo.toml", "Cargo.lock"] {
        std::fs::copy(example.join(file), folder.path().join(file)).unwrap();
    }
    for file in std::fs::read_dir(example.join("src")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(
            file.path(),
            folder.path().join("src").join(file.file_name()),
        )
        .unwrap();
    }
    let mut manifest = std::fs::read_to_string(folder.path().join("Cargo.toml")).unwrap();
    assert_eq!(manifest.matches("path =").count(), 2, "two lines to change");
    for package in ["sdk/plugin", "sdk/plugin-test"] {
        let sdk = tree.join(package).canonicalize().unwrap();
        let (here, there) = (format!("\"../../{package}\""), format!("{sdk:?}"));
        assert_eq!(manifest.matches(&here).count(), 1, "{package}");
        manifest = manifest.replace(&here, &there);
    }
    std::fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
    // Kept between runs: what it depends on is built once.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside");
    let output = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--quiet", "--target-dir"])
        .arg(&target)
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let outside = rialto_host::load(&target.join("debug/librialto_qwen3.so")).unwrap();
    let glm5 = rialto_host::load(&rialto_tests::built_library("rialto_glm5")).unwrap();
    for golden in [&REAL[1], &REAL[4]] {
        assert_tensors(golden, golden.imported(outside.bridge().as_ref()));
    }
    assert_tensors(&GOLDENS[0], GOLDENS[0].imported(glm5.bridge().as_ref()));
}

/// A directory on disk is as good as one in memory.
#[test]
fn the_fixture_directories_hold_what_transformers_saved() {
    for (source, count) in [(TIED, 35), (UNTIED, 36)] {
        let store = LocalStore::open(fixture(source)).unwrap();
        assert_eq!(tensors(&store).len(), count);
    }
}
