//! The forward pass: whether it is of all the tensors, and of the numbers that Qwen3 has.

use std::collections::BTreeMap;
use std::path::Path;

use rialto_plugin::prelude::program::{Call, Phase};
use rialto_plugin::prelude::{
    ConfigMapping, Error, ForwardPass, Map, MapOptions, ModelSpec, Program, ProgramOptions,
    RawConfig, Value, WeightMapping, json,
};
use rialto_qwen3::Qwen3;

fn spec(fixture: &str, edit: impl Fn(&mut Map<String, Value>)) -> ModelSpec {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3");
    let text = std::fs::read(fixtures.join(fixture).join("config.json")).unwrap();
    let mut values = RawConfig::parse(&text).unwrap().values().clone();
    edit(&mut values);
    let config = RawConfig::parse(json!(values).to_string().as_bytes()).unwrap();
    Qwen3.map_config(&config, &MapOptions::default()).unwrap()
}

/// What is made is sound, or it is not made.
fn program(spec: &ModelSpec) -> Program {
    Qwen3.program(spec, &ProgramOptions::default()).unwrap()
}

/// The call that makes a value.
fn maker<'a>(phase: &'a Phase, value: &str) -> &'a Call {
    let mut calls = phase.calls.iter();
    let maker = calls.find(|call| call.outputs.iter().any(|output| output == value));
    maker.unwrap_or_else(|| panic!("{value} is made"))
}

/// Both ways: no param without its tensor, no tensor that the forward pass leaves out.
#[test]
fn params_are_the_tensors_of_the_weight_map_all_of_them_and_no_others() {
    // 11 for each layer, the embedding, the last norm, and the head of a model that has one.
    for (fixture, count) in [("tiny-tied", 35), ("tiny-untied", 36)] {
        let spec = spec(fixture, |_| ());
        let mapping = Qwen3.weight_map(&spec).unwrap().resolve().unwrap();
        let tensors = mapping.tensors().iter();
        let tensors: BTreeMap<String, Vec<u64>> = tensors
            .map(|tensor| (tensor.name.clone(), tensor.shape.extents().to_vec()))
            .collect();
        let params = program(&spec).params.into_iter();
        let params: BTreeMap<String, Vec<u64>> = params
            .map(|param| (param.sources().concat(), param.shape))
            .collect();
        assert_eq!(params, tensors, "{fixture}");
        assert_eq!(params.len(), count, "{fixture}");
    }
}

#[test]
fn a_layer_has_the_numbers_of_its_config() {
    let program = program(&spec("tiny-tied", |_| ()));
    let forward = program.phase("forward").unwrap();
    let attributes = |value: &str| json!(maker(forward, value).with);
    let inputs = |value: &str| maker(forward, value).inputs.join(" ");
    let rope = json!({"theta": 1e6, "dims": 16, "first": 0, "pairing": "half_split"});
    for (name, rotated, heads) in [("q", "q_rotated", 8), ("k", "k_rotated", 2)] {
        let name = |suffix: &str| format!("layers.1.{name}{suffix}");
        let shape = json!({"shape": [heads, 16]});
        assert_eq!(attributes(&name("_heads")), shape);
        // Normed before it is rotated, each head for itself.
        let weight = format!("model.layers.1.self_attn.{}_norm.weight", &name("")[9..]);
        assert_eq!(
            inputs(&name("_normed")),
            format!("{} {weight}", name("_heads"))
        );
        assert_eq!(attributes(&name("_normed")), json!({"eps": 1e-6}));
        let rotated = format!("layers.1.{rotated}");
        assert_eq!(inputs(&rotated), format!("{} row_pos", name("_normed")));
        assert_eq!(attributes(&rotated), rope);
    }
    let attended = "layers.1.attended";
    assert_eq!(attributes(attended), json!({"groups": 2, "scale": 0.25}));
    assert_eq!(
        inputs(attended),
        "layers.1.q_rotated keys.1 values.1 row_seq row_pos page_table"
    );
    let appended = |cache: &str| {
        let mut calls = forward.calls.iter();
        let append = calls.find(|call| call.op == "rialto.append/1" && call.inputs[1] == cache);
        append.unwrap().inputs[0].clone()
    };
    assert_eq!(appended("keys.1"), "layers.1.k_rotated");
    assert_eq!(appended("values.1"), "layers.1.v");
    assert_eq!(
        inputs("layers.1.mlp_inner"),
        "layers.1.mlp_gate layers.1.mlp_up"
    );
    assert_eq!(program.stop_tokens, [2]);
    let caches: Vec<String> = program
        .caches
        .iter()
        .map(|cache| format!("{} {}", cache.name, cache.width))
        .collect();
    let expected = [
        "keys.0 32",
        "values.0 32",
        "keys.1 32",
        "values.1 32",
        "keys.2 32",
        "values.2 32",
    ];
    assert_eq!(caches, expected);
    let stream = [
        "hidden.0",
        "hidden.1",
        "hidden.2",
        "hidden.3",
        "hidden.final",
    ];
    assert_eq!(forward.stream, stream);
    assert_eq!(forward.outputs, ["logits", "hidden.final"]);
}

#[test]
fn the_head_of_a_tied_model_is_the_embedding() {
    for (fixture, head) in [
        ("tiny-tied", "model.embed_tokens.weight"),
        ("tiny-untied", "lm_head.weight"),
    ] {
        let program = program(&spec(fixture, |_| ()));
        let logits = maker(program.phase("forward").unwrap(), "logits");
        assert_eq!(logits.inputs, ["head.rows", head]);
        assert_eq!(json!(logits.with), json!({"out": "f32"}));
    }
}

#[test]
fn numbers_come_from_the_config_in_the_spellings_of_both_ages() {
    let program = program(&spec("tiny-untied", |config| {
        config.remove("rope_parameters");
        config.insert("rope_theta".to_owned(), json!(5_000_000));
        config.insert("rms_norm_eps".to_owned(), json!(0.25));
        config.insert("eos_token_id".to_owned(), json!([7, 3]));
    }));
    let forward = program.phase("forward").unwrap();
    assert_eq!(
        maker(forward, "layers.2.q_rotated").with["theta"],
        json!(5e6)
    );
    for norm in ["layers.0.attn_in", "layers.1.k_normed", "hidden.final"] {
        assert_eq!(maker(forward, norm).with["eps"], json!(0.25), "{norm}");
    }
    assert_eq!(program.stop_tokens, [7, 3]);
}

#[test]
fn there_are_no_settings() {
    let settings = Map::from_iter([("latent_eps".to_owned(), json!(1e-6))]);
    let options = ProgramOptions { settings };
    let error = Qwen3.program(&spec("tiny-tied", |_| ()), &options);
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Settings { .. }));
    assert!(error.to_string().ends_with("supported: none"), "{error}");
}
