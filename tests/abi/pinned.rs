//! Plugins that were built at version 1.0.0 of the contract load in this host, and say what they said then.
//!
//! Their sources and their libraries lie in `tests/fixtures/abi-1.0/` and are never built again: what is expected of them is written
//! here by hand, and stays.

use std::sync::Arc;

use rialto_abi::TARGET;
use rialto_bridge::{
    Bridge, Claim, ConfigEdit, EncodedTensor, Error, Forms, LayerAxis, MapOptions, Mesh,
    PipelineRequest, ProgramOptions, RawConfig, StageChoice,
};
use rialto_checkpoint::store::{MemoryStore, Store};
use rialto_engine::{
    ExportOptions, ExportPlan, ImportPlan, MegatronSource, Options, RunOptions, Silent,
};
use rialto_host::{LoadedPlugin, Step, check, load};
use rialto_tensor::{Dtype, Shape, TensorView};
use safetensors::tensor;
use serde_json::json;

/// What the libraries were built for; elsewhere there is nothing to load.
const BUILT_FOR: &str = "x86_64-unknown-linux-gnu";

/// The two, loaded; none on a machine that they were not built for, which is said.
fn pinned() -> Option<[LoadedPlugin; 2]> {
    if TARGET != BUILT_FOR {
        // Where it must not be skipped, a skip is a failure.
        let required = std::env::var("RIALTO_REQUIRE").unwrap_or_default();
        assert!(
            !required.split(',').any(|what| what == "pinned"),
            "the pinned plugins were built for {BUILT_FOR}"
        );
        eprintln!("SKIP: the pinned plugins were built for {BUILT_FOR}, this is {TARGET}");
        return None;
    }
    let file = |name: &str| rialto_tests::fixture(&format!("abi-1.0/libpinned_{name}.so"));
    Some(["rust", "c"].map(|name| {
        let report = check(&file(name));
        assert!(report.error.is_none(), "{:?}", report.error);
        load(&file(name)).unwrap()
    }))
}

fn rust() -> Option<LoadedPlugin> {
    pinned().map(|[rust, _]| rust)
}

fn config(extra: &str) -> RawConfig {
    let text = format!(
        r#"{{"architectures": ["PinnedForCausalLM"], "num_hidden_layers": 2, "hidden_size": 4,
            "intermediate_size": 2, "vocab_size": 5, "surprise": 1{extra}}}"#
    );
    RawConfig::parse(text.as_bytes()).unwrap()
}

#[test]
fn both_pass_every_step_of_the_handshake() {
    let Some([rust, c]) = pinned() else { return };
    assert_eq!(rust.package(), "rialto-pinned-plugin 1.0.0");
    assert_eq!(rust.extensions(), ["dequantize/1"]);
    assert_eq!((c.package(), c.extensions().len()), ("pinned-c 1.0.0", 0));
    // The layout report of the one that has it agrees with this build's tables.
    let steps = |plugin: &LoadedPlugin| check(plugin.file()).steps;
    let step = |plugin: &LoadedPlugin, name: Step| {
        let mut steps = steps(plugin).into_iter();
        steps.find(|step| step.step == name).unwrap().detail
    };
    assert!(step(&rust, Step::Layout).starts_with("equal, by abi_stable"));
    assert_eq!(step(&c, Step::Layout), "no report that this host can read");
    for plugin in [&rust, &c] {
        assert_eq!(step(plugin, Step::Magic), "\"RIALTOV1\"");
    }
}

#[test]
fn the_one_in_rust_answers_as_it_did() {
    let Some(plugin) = rust() else { return };
    let bridge = plugin.bridge();
    assert_eq!(plugin.description().name, "pinned-rust");
    assert_eq!(plugin.description().architectures, ["PinnedForCausalLM"]);
    let other = RawConfig::parse(br#"{"architectures": ["Other"]}"#).unwrap();
    let reason = "another architecture".to_owned();
    assert_eq!(bridge.claim(&other).unwrap(), Claim::No { reason });
    let spec = bridge
        .map_config(&config(""), &MapOptions::default())
        .unwrap();
    assert_eq!((spec.dims.layers, spec.dims.vocab), (2, 5));
    assert_eq!(spec.provider["should_pad_vocab"], json!(false));
    assert_eq!(spec.extra, json!({"ffn": 2, "panic": null}));
    assert_eq!((spec.unread_keys.len(), spec.notices.len()), (1, 1));
    assert_eq!(bridge.unmap_config(&spec, &config("")).unwrap(), []);
    let reference = config(r#", "quantization": {}"#);
    let edits = bridge.unmap_config(&spec, &reference).unwrap();
    assert_eq!(edits, [ConfigEdit::remove("quantization")]);
    let codecs = bridge.codecs(&spec).unwrap();
    assert_eq!(
        (codecs[0].name.as_str(), codecs[0].decoded),
        ("pinned_int8/1", Dtype::F32)
    );
    let mesh = Mesh {
        pp: 2,
        ..Mesh::SINGLE
    };
    for stages in [StageChoice::Family, StageChoice::Layers(vec![1, 1])] {
        let layout = bridge.pipeline_layout(&spec, &PipelineRequest { mesh, stages });
        let stages = layout.unwrap().stages;
        assert_eq!(stages[1].params, ["decoder.layers.1.*"]);
    }
}

/// They know nothing of forward passes, and are never asked.
#[test]
fn neither_has_a_forward_pass() {
    let Some([rust, c]) = pinned() else { return };
    let in_c = br#"{"architectures": ["PinnedCForCausalLM"]}"#;
    let in_c = RawConfig::parse(in_c).unwrap();
    for (plugin, config) in [(rust, config("")), (c, in_c)] {
        assert!(!plugin.extensions().contains(&"program/1".to_owned()));
        let bridge = plugin.bridge();
        let spec = bridge.map_config(&config, &MapOptions::default()).unwrap();
        let error = bridge.program(&spec, &ProgramOptions::default());
        let release = spec.release;
        assert_eq!(error.unwrap_err(), Error::NoForwardPass { release });
    }
}

#[test]
fn its_rules_give_the_same_pieces_keys_and_chunks() {
    let Some(plugin) = rust() else { return };
    let bridge = plugin.bridge();
    let spec = bridge
        .map_config(&config(""), &MapOptions::default())
        .unwrap();
    let map = bridge.weight_map(&spec).unwrap();
    let mapping = map.resolve().unwrap();
    let keys = mapping.keys().iter();
    let keys: Vec<_> = keys
        .map(|key| (key.name.as_str(), key.shape.extents(), key.slot))
        .collect();
    let fc1 = ("decoder.layers.fc1.weight", &[2, 4, 4][..]);
    let fc2 = ("decoder.layers.fc2.weight", &[2, 4, 2][..]);
    assert_eq!(
        keys,
        [
            ("embedding.weight", &[5, 4][..], None),
            (fc1.0, fc1.1, Some(0)),
            (fc1.0, fc1.1, Some(1)),
            (fc2.0, fc2.1, Some(0)),
            (fc2.0, fc2.1, Some(1)),
        ]
    );
    let objects = mapping.objects().iter().map(|object| object.key.as_str());
    assert_eq!(
        objects.collect::<Vec<_>>(),
        ["fc1", "fc2"]
            .map(|module| [0, 1]
                .map(|i| format!("decoder.layers.{module}._extra_state/shard_{i}_2")))
            .concat()
    );
    assert_eq!((mapping.pieces().len(), mapping.copies().len()), (7, 1));
    let per_layer = Forms::own(&map).with_layer_axis(&map, LayerAxis::PerLayer);
    let mapping = map.resolve_as(&per_layer).unwrap();
    assert_eq!(mapping.keys()[2].name, "decoder.layers.1.fc1.weight");
    let placement = bridge.placement(&spec).unwrap();
    let mesh = Mesh {
        tp: 2,
        ..Mesh::SINGLE
    };
    let chunks = |param: &str, shape: [u64; 2]| {
        let chunks = placement.chunks(param, &Shape::new(shape), &mesh).unwrap();
        chunks
            .map(|region| region.offsets().to_vec())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        chunks("decoder.layers.0.fc1.weight", [4, 4]),
        [[0, 0], [1, 0], [2, 0], [3, 0]]
    );
    assert_eq!(
        chunks("decoder.layers.0.fc2.weight", [4, 2]),
        [[0, 0], [0, 1]]
    );
}

#[test]
fn its_errors_have_the_codes_slugs_and_words_that_they_had() {
    let Some(plugin) = rust() else { return };
    let bridge = plugin.bridge();
    let wrong =
        RawConfig::parse(br#"{"architectures": ["PinnedForCausalLM"], "num_hidden_layers": 0}"#);
    let error = bridge
        .map_config(&wrong.unwrap(), &MapOptions::default())
        .unwrap_err();
    assert_eq!((error.code(), error.slug()), (4, "config/value"));
    assert!(error.to_string().contains("num_hidden_layers"), "{error}");
    let options = MapOptions {
        settings: [("hidden_size".to_owned(), json!(8))].into_iter().collect(),
        ..MapOptions::default()
    };
    let error = bridge.map_config(&config(""), &options).unwrap_err();
    assert_eq!(error.slug(), "bridge/settings");
    assert_eq!(
        error.findings(),
        ["--set hidden_size=8 is refused: the config decides it; supported: 4"]
    );
    let spec = bridge
        .map_config(&config(""), &MapOptions::default())
        .unwrap();
    let mesh = Mesh {
        pp: 3,
        ..Mesh::SINGLE
    };
    let error = bridge
        .pipeline_layout(&spec, &PipelineRequest::new(mesh))
        .unwrap_err();
    assert_eq!((error.code(), error.slug()), (3, "bridge/pipeline"));
    assert_eq!(error.findings().len(), 2);
    // A panic poisons its instance, and no other.
    let error = bridge.claim(&config(r#", "panic": "claim""#)).unwrap_err();
    assert_eq!((error.code(), error.slug()), (12, "plugin/panic"));
    assert!(
        error
            .to_string()
            .contains("the config asked for a panic in claim"),
        "{error}"
    );
    assert_eq!(bridge.claim(&config("")).unwrap_err().code(), 12);
    assert!(rust().unwrap().bridge().claim(&config("")).is_ok());
}

#[test]
fn its_dequantizer_decodes_as_it_did() {
    let Some(plugin) = rust() else { return };
    let (shape, scalar) = (Shape::new([1, 3]), Shape::new([1, 1]));
    let scale = 0.5f32.to_le_bytes();
    let encoded = |codec| EncodedTensor {
        codec,
        tensor: TensorView::new(Dtype::U8, &shape, &[128, 0, 130]).unwrap(),
        companions: vec![TensorView::new(Dtype::F32, &scalar, &scale).unwrap()],
    };
    let mut out = [0; 12];
    plugin
        .bridge()
        .dequantize(&encoded("pinned_int8/1"), &mut out)
        .unwrap();
    let expected = [0f32, -64.0, 1.0].map(f32::to_le_bytes);
    assert_eq!(out, expected.as_flattened());
    let error = plugin
        .bridge()
        .dequantize(&encoded("other/1"), &mut out)
        .unwrap_err();
    assert_eq!(error.slug(), "codec/unknown");
    let error = plugin
        .bridge()
        .dequantize(&encoded("pinned_int8/1"), &mut [0; 4])
        .unwrap_err();
    assert_eq!(error.slug(), "codec/refused");
}

/// Bytes that are never zero, other ones for each tensor.
fn bytes(seed: usize, elements: usize) -> Vec<u8> {
    (0..2 * elements)
        .map(|at| ((seed * 37 + at * 11) % 251 + 1) as u8)
        .collect()
}

/// A directory with every tensor of the model: one that is there once more, one kept beside Megatron's own, one left out.
fn directory() -> MemoryStore {
    let mut tensors = vec![("embed.weight".to_owned(), vec![5, 4])];
    for i in 0..2 {
        tensors.push((format!("layers.{i}.gate"), vec![2, 4]));
        tensors.push((format!("layers.{i}.up"), vec![2, 4]));
        tensors.push((format!("layers.{i}.down"), vec![4, 2]));
    }
    tensors.push(("extra.weight".to_owned(), vec![4]));
    tensors.push(("old.weight".to_owned(), vec![4]));
    let count = |shape: &[usize]| shape.iter().product();
    let mut data: Vec<_> = tensors
        .into_iter()
        .enumerate()
        .map(|(seed, (name, shape))| (name, bytes(seed, count(&shape)), shape))
        .collect();
    let copy = (
        "head.weight".to_owned(),
        data[0].1.clone(),
        data[0].2.clone(),
    );
    data.push(copy);
    let views = data.iter().map(|(name, bytes, shape)| {
        let view = tensor::TensorView::new(safetensors::Dtype::BF16, shape.clone(), bytes);
        (name, view.unwrap())
    });
    let store = MemoryStore::new("directory");
    let shard = safetensors::serialize(views, None).unwrap();
    store.insert("model.safetensors", shard).unwrap();
    store
        .insert("config.json", config("").text().as_bytes().to_vec())
        .unwrap();
    store
}

#[test]
fn it_converts_a_checkpoint_both_ways() {
    let Some(plugin) = rust() else { return };
    let bridge = plugin.bridge();
    for layer_axis in [LayerAxis::Stacked, LayerAxis::PerLayer] {
        for pads_vocabulary in [false, true] {
            let options = Options {
                mesh: Mesh {
                    tp: if pads_vocabulary { 2 } else { 1 },
                    pp: 2,
                    ..Mesh::SINGLE
                },
                layer_axis,
                pads_vocabulary,
                ..Options::default()
            };
            let plan = ImportPlan::new(bridge.as_ref(), Arc::new(directory()), &options).unwrap();
            assert_eq!(plan.summary().skipped.len(), 2, "the past, and the copy");
            let run = MemoryStore::written_by("run", |target| {
                plan.run(bridge.as_ref(), target, &RunOptions::default(), &Silent)
                    .map(drop)
            });
            let run: Arc<dyn Store> = Arc::new(run.unwrap());
            let source = MegatronSource::open(run, None).unwrap();
            let plan = ExportPlan::new(bridge.as_ref(), source, &ExportOptions::default()).unwrap();
            let exported = MemoryStore::written_by("exported", |target| {
                plan.run(target, &RunOptions::default(), &Silent).map(drop)
            })
            .unwrap();
            let read = |store: &dyn Store| {
                rialto_checkpoint::store::read_whole(store, "model.safetensors", 1 << 20).unwrap()
            };
            let (source, exported) = (read(&directory()), read(&exported));
            let source = safetensors::SafeTensors::deserialize(&source).unwrap();
            let exported = safetensors::SafeTensors::deserialize(&exported).unwrap();
            assert_eq!(exported.len(), 8);
            for (name, found) in exported.iter() {
                let expected = source.tensor(name).unwrap();
                assert_eq!(
                    (found.shape(), found.data()),
                    (expected.shape(), expected.data()),
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn the_one_in_c_answers_as_it_did() {
    let Some([_, plugin]) = pinned() else { return };
    let bridge: Arc<dyn Bridge> = plugin.bridge();
    let config = |extra: &str| {
        let text = format!(r#"{{"architectures": ["PinnedCForCausalLM"]{extra}}}"#);
        RawConfig::parse(text.as_bytes()).unwrap()
    };
    assert!(matches!(
        bridge.claim(&config("")).unwrap(),
        Claim::Yes { .. }
    ));
    let spec = bridge
        .map_config(&config(""), &MapOptions::default())
        .unwrap();
    assert_eq!(spec.provider["hidden_size"], json!(2));
    let wrong = config(r#", "wrong": 1"#);
    let error = bridge
        .map_config(&wrong, &MapOptions::default())
        .unwrap_err();
    assert_eq!((error.code(), error.slug()), (4, "config/value"));
    assert_eq!(error.help().as_deref(), Some("mend it"));
    let mapping = bridge.weight_map(&spec).unwrap().resolve().unwrap();
    assert_eq!(mapping.params()[0].name, "decoder.weight");
    assert_eq!(bridge.placement(&spec).unwrap().rules.len(), 1);
    assert!(bridge.codecs(&spec).unwrap().is_empty());
    let request = |pp| PipelineRequest::new(Mesh { pp, ..Mesh::SINGLE });
    assert_eq!(
        bridge
            .pipeline_layout(&spec, &request(1))
            .unwrap()
            .stages
            .len(),
        1
    );
    let error = bridge.pipeline_layout(&spec, &request(2)).unwrap_err();
    assert_eq!(
        (error.code(), error.to_string().as_str()),
        (3, "one layer, one stage")
    );
}
