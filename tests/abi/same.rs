//! A loaded plugin says what its linked twin says, errors included.

use std::fmt::Debug;

use rialto_bridge::{
    Bridge, EncodedTensor, Error, MapOptions, Mesh, PipelineRequest, ProgramOptions, RawConfig,
};
use rialto_host::load;
use rialto_tensor::{Dtype, Shape, TensorView};
use serde_json::json;

use crate::library::{faulty, toy, toy_config};
use crate::toy::Toy;

fn assert_same<T: PartialEq + Debug>(linked: Result<T, Error>, loaded: Result<T, Error>) {
    match (linked, loaded) {
        (Err(linked), Err(loaded)) => {
            assert_eq!(loaded.code(), linked.code());
            assert_eq!(loaded.slug(), linked.slug());
            assert_eq!(loaded.to_string(), linked.to_string());
            assert_eq!(loaded.help(), linked.help());
            assert_eq!(loaded.findings(), linked.findings());
        }
        (linked, loaded) => assert_eq!(loaded, linked),
    }
}

#[test]
fn every_answer_is_the_same() {
    let loaded = load(&toy()).unwrap();
    let (linked, loaded): (&dyn Bridge, _) = (&Toy, loaded.bridge());
    assert_eq!(loaded.describe(), linked.describe());
    let options = MapOptions::default();
    let config = toy_config();
    let other = RawConfig::parse(br#"{"architectures": ["Other"]}"#).unwrap();
    for config in [&config, &other] {
        assert_same(linked.claim(config), loaded.claim(config));
        assert_same(
            linked.map_config(config, &options),
            loaded.map_config(config, &options),
        );
    }
    let spec = linked.map_config(&config, &options).unwrap();
    assert_same(
        linked.unmap_config(&spec, &config),
        loaded.unmap_config(&spec, &config),
    );
    assert_same(linked.weight_map(&spec), loaded.weight_map(&spec));
    assert_same(linked.placement(&spec), loaded.placement(&spec));
    assert_same(linked.codecs(&spec), loaded.codecs(&spec));
    for pp in 0..4 {
        let request = PipelineRequest::new(Mesh { pp, ..Mesh::SINGLE });
        assert_same(
            linked.pipeline_layout(&spec, &request),
            loaded.pipeline_layout(&spec, &request),
        );
    }
}

#[test]
fn the_program_is_the_same_and_refused_with_the_same_words() {
    let plugin = load(&toy()).unwrap();
    assert_eq!(plugin.extensions(), ["dequantize/1", "program/1"]);
    let (linked, loaded): (&dyn Bridge, _) = (&Toy, plugin.bridge());
    let options = MapOptions::default();
    let spec = linked.map_config(&toy_config(), &options).unwrap();
    let options = ProgramOptions::default();
    let program = loaded.program(&spec, &options).unwrap();
    assert_eq!(program, linked.program(&spec, &options).unwrap());
    assert_eq!((program.params.len(), program.phases.len()), (7, 1));
    let forward = program.phase("forward").unwrap();
    assert_eq!((forward.calls.len(), forward.stream.len()), (13, 3));
    assert_eq!(
        program.requirements(),
        ["binary", "embed", "gather", "linear", "swiglu"].map(|op| format!("op/rialto.{op}/1"))
    );
    let asked = ProgramOptions {
        settings: [("rope", json!(2)), ("eps", json!("x"))]
            .map(|(name, value)| (name.to_owned(), value))
            .into_iter()
            .collect(),
    };
    let error = loaded.program(&spec, &asked).unwrap_err();
    assert_eq!(
        (error.slug(), error.findings().len()),
        ("bridge/settings", 2)
    );
    assert_same(linked.program(&spec, &asked), Err(error));
    // Sizes of nothing: whatever the toy makes of them, it is the same.
    let mut other = spec;
    other.dims.hidden = 0;
    other.extra = json!(null);
    assert_same(
        linked.program(&other, &options),
        loaded.program(&other, &options),
    );
}

#[test]
fn a_config_crosses_as_it_was_written() {
    let loaded = load(&toy()).unwrap();
    let spec = loaded
        .bridge()
        .map_config(&toy_config(), &MapOptions::default())
        .unwrap();
    assert_eq!(
        spec.provider["layernorm_epsilon"].as_f64(),
        Some(0.9856906946328695)
    );
    assert_eq!(spec.unread_keys, ["surprise"]);
}

#[test]
fn the_dequant_hook_decodes_the_same_bytes_and_refuses_with_the_same_words() {
    let loaded = load(&toy()).unwrap();
    let (linked, loaded): (&dyn Bridge, _) = (&Toy, loaded.bridge());
    let (shape, scalar) = (Shape::new([2, 3]), Shape::new([1]));
    let scale = 0.5f32.to_le_bytes();
    let scale = TensorView::new(Dtype::F32, &scalar, &scale).unwrap();
    let tensor = TensorView::new(Dtype::U8, &shape, &[128, 129, 127, 0, 255, 130]).unwrap();
    let encoded = |codec| EncodedTensor {
        codec,
        tensor,
        companions: vec![scale],
    };
    let mut out = [0; 24];
    loaded.dequantize(&encoded("toy_int8/1"), &mut out).unwrap();
    let values: Vec<f32> = out
        .chunks(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    assert_eq!(values, [0.0, 0.5, -0.5, -64.0, 63.5, 1.0]);
    for (codec, len) in [
        ("toy_int8/1", 24),
        ("toy_int8/1", 20),
        ("toy_int8/1", 0),
        ("other/1", 24),
    ] {
        let (mut linked_out, mut loaded_out) = (vec![7; len], vec![7; len]);
        let encoded = encoded(codec);
        assert_same(
            linked.dequantize(&encoded, &mut linked_out),
            loaded.dequantize(&encoded, &mut loaded_out),
        );
        assert_eq!(loaded_out, linked_out);
    }
    let bare = EncodedTensor {
        codec: "toy_int8/1",
        tensor,
        companions: Vec::new(),
    };
    assert_same(
        linked.dequantize(&bare, &mut out.clone()),
        loaded.dequantize(&bare, &mut out),
    );
}

#[test]
fn two_plugins_at_once_do_not_mix() {
    let (toy, faulty) = (load(&toy()).unwrap(), load(&faulty()).unwrap());
    assert_eq!(toy.description().name, "toy");
    assert_eq!(faulty.description().name, "faulty");
    let spec = toy
        .bridge()
        .map_config(&toy_config(), &MapOptions::default())
        .unwrap();
    let spec_of_other = faulty
        .bridge()
        .map_config(&toy_config(), &MapOptions::default())
        .unwrap();
    assert_eq!(
        (spec.release.as_str(), spec_of_other.release.as_str()),
        ("toy-1", "faulty-1")
    );
    assert!(faulty.bridge().weight_map(&spec).unwrap().rules.is_empty());
    assert_eq!(toy.bridge().weight_map(&spec).unwrap().rules.len(), 3);
}
