//! A plugin that panics fails the call and itself, never its host or anybody else.

use rialto_bridge::{
    Bridge, EncodedTensor, Error, MapOptions, Mesh, ModelSpec, PipelineRequest, ProgramOptions,
    RawConfig,
};
use rialto_host::{Registry, SearchPath, load};
use rialto_tensor::{Dtype, Shape, TensorView};

use crate::library::{
    assert_answers, faulty_in, refused, toy, toy_config, toy_config_that_panics_in,
};

/// Asks one entry for its error.
fn ask(bridge: &dyn Bridge, entry: &str, config: &RawConfig, spec: &ModelSpec) -> Option<Error> {
    let shape = Shape::new([1]);
    let encoded = EncodedTensor {
        codec: "any/1",
        tensor: TensorView::new(Dtype::U8, &shape, &[0]).unwrap(),
        companions: Vec::new(),
    };
    match entry {
        "claim" => bridge.claim(config).err(),
        "map_config" => bridge.map_config(config, &MapOptions::default()).err(),
        "unmap_config" => bridge.unmap_config(spec, config).err(),
        "weight_map" => bridge.weight_map(spec).err(),
        "placement" => bridge.placement(spec).err(),
        "pipeline_layout" => bridge
            .pipeline_layout(spec, &PipelineRequest::new(Mesh::SINGLE))
            .err(),
        "codecs" => bridge.codecs(spec).err(),
        "dequantize" => bridge.dequantize(&encoded, &mut [0; 4]).err(),
        "program" => bridge.program(spec, &ProgramOptions::default()).err(),
        other => panic!("{other} is no entry"),
    }
}

const ENTRIES: [&str; 9] = [
    "claim",
    "map_config",
    "unmap_config",
    "weight_map",
    "placement",
    "pipeline_layout",
    "codecs",
    "dequantize",
    "program",
];

#[test]
fn a_panic_at_each_entry_poisons_its_instance_alone() {
    let folder = tempfile::tempdir().unwrap();
    let config = RawConfig::parse(b"{}").unwrap();
    let spec = load(&toy())
        .unwrap()
        .bridge()
        .map_config(&toy_config(), &MapOptions::default())
        .unwrap();
    for entry in ENTRIES {
        let file = faulty_in(folder.path(), entry);
        let (sick, well) = (load(&file).unwrap(), load(&file).unwrap());
        let error = ask(&*sick.bridge(), entry, &config, &spec).unwrap();
        assert_eq!((error.code(), error.slug()), (12, "plugin/panic"));
        let message = error.to_string();
        let expected = format!("plugin panicked in {entry}: told to panic in {entry} (");
        assert!(
            message.starts_with(&expected) && message.contains("lib.rs:"),
            "{message}"
        );
        for other in ENTRIES {
            let again = ask(&*sick.bridge(), other, &config, &spec);
            assert_eq!(again.as_ref(), Some(&error), "{other} after {entry}");
        }
        for other in ENTRIES.into_iter().filter(|other| *other != entry) {
            assert_eq!(ask(&*well.bridge(), other, &config, &spec), None, "{other}");
        }
        assert_answers(&load(&toy()).unwrap());
    }
}

#[test]
fn a_panic_while_opening_or_describing_refuses_the_plugin() {
    let folder = tempfile::tempdir().unwrap();
    let file = faulty_in(folder.path(), "open");
    refused(
        &file,
        "plugin/refused",
        12,
        &["panicked in open: told to panic in open"],
    );
    let file = faulty_in(folder.path(), "describe");
    refused(
        &file,
        "plugin/describe",
        12,
        &["panicked in describe: told to panic in describe"],
    );
}

#[test]
fn a_panic_while_releasing_leaves_the_host_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = faulty_in(folder.path(), "release");
    drop(load(&file).unwrap());
    drop(load(&file).unwrap());
    assert_answers(&load(&toy()).unwrap());
}

#[test]
fn a_config_can_ask_the_toy_to_panic() {
    let config = toy_config_that_panics_in("weight_map");
    let sick = load(&toy()).unwrap();
    let spec = sick
        .bridge()
        .map_config(&config, &MapOptions::default())
        .unwrap();
    let error = sick.bridge().weight_map(&spec).unwrap_err();
    assert!(
        matches!(&error, Error::Panic { entry, .. } if entry == "weight_map"),
        "{error}"
    );
    assert_eq!(sick.bridge().claim(&config), Err(error));
    assert_answers(&load(&toy()).unwrap());
}

#[test]
fn nor_does_an_extension_s_panic_reach_the_host() {
    let config = toy_config_that_panics_in("program");
    let sick = load(&toy()).unwrap().bridge();
    let spec = sick.map_config(&config, &MapOptions::default()).unwrap();
    assert!(sick.weight_map(&spec).is_ok());
    let options = ProgramOptions::default();
    let error = sick.program(&spec, &options).unwrap_err();
    assert!(
        matches!(&error, Error::Panic { entry, .. } if entry == "program"),
        "{error}"
    );
    assert_eq!(sick.weight_map(&spec), Err(error));
    assert_answers(&load(&toy()).unwrap());
}

#[test]
fn a_plugin_that_panics_when_asked_does_not_stop_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let faulty = faulty_in(folder.path(), "claim");
    let path = SearchPath::new().plugin(&faulty).plugin(toy());
    let registry = Registry::search(&path).unwrap();
    let config = toy_config();
    let claimed = registry.claim(&config).unwrap();
    assert_eq!(claimed.plugin.description().name, "toy");
    assert_eq!(claimed.failed[0].1.code(), 12);
    let registry = Registry::search(&SearchPath::new().plugin(faulty)).unwrap();
    let error = registry.claim(&config).unwrap_err();
    assert_eq!((error.code(), error.slug()), (12, "plugin/claim"));
}
