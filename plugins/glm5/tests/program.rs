//! The forward pass: whether it is of all the tensors, and of the numbers that the family has.
//!
//! Expected values are those of the published models' description: counts of tensors and elements, widths, scales, which layer
//! reads whose selection.

use std::collections::{BTreeMap, BTreeSet};

use rialto_glm5::Glm5;
use rialto_plugin::prelude::program::{Call, Element, Phase, Stored};
use rialto_plugin::prelude::{
    ConfigMapping, Error, ForwardPass, MapOptions, ModelSpec, MtpPolicy, Program, ProgramOptions,
    RawConfig, Value as Json, WeightMapping, json,
};

/// Published configs, then the tiny ones.
const CONFIGS: [&str; 9] = [
    "configs/glm-5",
    "configs/glm-5.1",
    "configs/glm-5.2",
    "configs/glm-5.2-fp8",
    "configs/glm-5.3",
    "glm5-tiny",
    "glm52-tiny",
    "glm53-tiny",
    "mini-hf",
];

/// The layers of GLM-5.2 and 5.3 that have an indexer of their own.
fn full_layers() -> Vec<u64> {
    let mut layers = vec![0, 1, 2];
    layers.extend((6..78).step_by(4));
    layers
}

fn spec(config: &str, mtp: MtpPolicy) -> ModelSpec {
    let file = format!(
        "{}/../../tests/fixtures/{config}/config.json",
        env!("CARGO_MANIFEST_DIR")
    );
    let config = RawConfig::parse(&std::fs::read(file).expect("a config")).expect("an object");
    let options = MapOptions {
        mtp,
        ..MapOptions::default()
    };
    Glm5.map_config(&config, &options).expect("a model")
}

fn program_of(spec: &ModelSpec) -> Program {
    // What is made is sound, or it is not made.
    Glm5.program(spec, &ProgramOptions::default())
        .expect("a sound program")
}

fn program(config: &str) -> Program {
    program_of(&spec(config, MtpPolicy::Keep))
}

/// The call that makes a value.
fn maker<'a>(phase: &'a Phase, value: &str) -> &'a Call {
    let mut calls = phase.calls.iter();
    let maker = calls.find(|call| call.outputs.iter().any(|output| output == value));
    maker.unwrap_or_else(|| panic!("{value} is made"))
}

/// Operation, attributes and inputs of the call that makes a value.
fn assert_made(phase: &Phase, value: &str, op: &str, with: Json, inputs: &[&str]) {
    let call = maker(phase, value);
    assert_eq!(call.op, format!("rialto.{op}/1"), "{value}");
    assert_eq!(json!(call.with), with, "{value}");
    assert_eq!(call.inputs, inputs, "{value}");
}

/// Names and shapes of the tensors that params come from.
fn sources(program: &Program) -> BTreeMap<String, Vec<u64>> {
    let mut sources = BTreeMap::new();
    for param in &program.params {
        let shape = match param.stored {
            Stored::Whole(_) => &param.shape[..],
            Stored::Each(_) => &param.shape[1..],
        };
        for source in param.sources() {
            let other = sources.insert(source.clone(), shape.to_vec());
            assert_eq!(other, None, "{source} is two params");
        }
    }
    sources
}

/// Both ways: no param without its tensor, no tensor that the forward pass leaves out.
#[test]
fn params_are_the_tensors_of_the_weight_map_all_of_them_and_no_others() {
    for config in CONFIGS {
        for mtp in [MtpPolicy::Keep, MtpPolicy::Drop, MtpPolicy::Absent] {
            let spec = spec(config, mtp);
            let mapping = Glm5.weight_map(&spec).unwrap().resolve().unwrap();
            // A prediction layer's copies of embedding and head are the main model's.
            let own = mapping
                .tensors()
                .iter()
                .filter(|tensor| mapping.rule(tensor.rule).beside.is_none());
            let tensors: BTreeMap<String, Vec<u64>> = own
                .map(|tensor| (tensor.name.clone(), tensor.shape.extents().to_vec()))
                .collect();
            let sources = sources(&program_of(&spec));
            assert!(sources == tensors, "{config} {mtp:?}: {:?}", {
                let pairs = |map: &BTreeMap<String, Vec<u64>>| -> BTreeSet<_> {
                    map.clone().into_iter().collect()
                };
                let differ = &pairs(&sources) ^ &pairs(&tensors);
                differ.into_iter().take(8).collect::<Vec<_>>()
            });
        }
    }
}

#[test]
fn a_published_model_is_all_of_its_tensors_and_elements() {
    let with = |config, tensors, elements| (config, MtpPolicy::Keep, tensors, elements);
    let without = |config, tensors, elements| (config, MtpPolicy::Drop, tensors, elements);
    for (config, mtp, tensors, elements) in [
        with("configs/glm-5", 59_870, 753_864_139_008),
        with("configs/glm-5.1", 59_870, 753_864_139_008),
        with("configs/glm-5.2", 59_585, 753_329_940_480),
        with("configs/glm-5.2-fp8", 59_585, 753_329_940_480),
        with("configs/glm-5.3", 59_585, 753_329_940_480),
        without("configs/glm-5.2", 58_794, 743_377_019_904),
        without("configs/glm-5.3", 58_794, 743_377_019_904),
    ] {
        let program = program_of(&spec(config, mtp));
        assert_eq!(sources(&program).len(), tensors, "{config}");
        let sizes = program.params.iter();
        let sizes = sizes.map(|param| param.shape.iter().product::<u64>());
        assert_eq!(sizes.sum::<u64>(), elements, "{config}");
    }
}

/// One row of a latent and a rotated key for each layer, one of an indexer's key for each layer that has an indexer.
#[test]
fn only_layers_with_an_indexer_of_their_own_keep_its_keys() {
    for (config, indexers) in [
        ("configs/glm-5", 78),
        ("configs/glm-5.1", 78),
        ("configs/glm-5.2", 21),
        ("configs/glm-5.2-fp8", 21),
        ("configs/glm-5.3", 21),
    ] {
        let count = |program: &Program, name: &str, width: u64| {
            let caches = program.caches.iter();
            let named = caches.filter(|cache| cache.name.ends_with(name));
            named
                .inspect(|cache| assert_eq!(cache.width, width))
                .count()
        };
        let kept = program(config);
        assert_eq!(count(&kept, ".latent", 576), 78 + 1, "{config}");
        assert_eq!(count(&kept, ".index_key", 128), indexers + 1, "{config}");
        assert_eq!(kept.caches.len(), 78 + 1 + indexers + 1, "{config}");
        let own: Vec<&str> = kept.caches.iter().rev().take(2).map(|c| &*c.name).collect();
        assert_eq!(own, ["mtp.index_key", "mtp.latent"], "{config}");
        let dropped = program_of(&spec(config, MtpPolicy::Drop));
        assert_eq!(dropped.caches.len(), 78 + indexers, "{config}");
        assert_eq!(dropped.phases.len(), 1, "{config}");
    }
    // 95,232 bytes of a token in BF16.
    let program = program_of(&spec("configs/glm-5.2", MtpPolicy::Drop));
    let widths: u64 = program.caches.iter().map(|cache| cache.width).sum();
    assert_eq!(2 * widths, 95_232);
    let keeping: BTreeSet<&str> = program
        .caches
        .iter()
        .filter_map(|cache| cache.name.strip_suffix(".index_key"))
        .collect();
    let full = full_layers();
    let full: Vec<String> = full.iter().map(|i| format!("layers.{i}")).collect();
    assert_eq!(keeping, full.iter().map(String::as_str).collect());
}

#[test]
fn a_layer_without_an_indexer_reads_the_selection_of_the_nearest_one_before_it() {
    let full = full_layers();
    assert_eq!(full.len(), 21);
    for config in ["configs/glm-5.2", "configs/glm-5.3"] {
        let program = program(config);
        let forward = program.phase("forward").unwrap();
        let reads = |i: u64| &maker(forward, &format!("layers.{i}.attended")).inputs[2];
        for i in 0..78 {
            let of = full.iter().rev().find(|full| **full <= i).unwrap();
            assert_eq!(*reads(i), format!("layers.{of}.selection"), "{config}");
        }
        for i in 3..=5 {
            assert_eq!(reads(i), "layers.2.selection");
        }
        for i in 75..=77 {
            assert_eq!(reads(i), "layers.74.selection");
        }
        // The prediction layer does not read it: it selects for itself.
        let mtp = program.phase("mtp").unwrap();
        assert_eq!(maker(mtp, "mtp.attended").inputs[2], "mtp.selection");
    }
    // F S S F, and all of their own.
    for (config, of) in [
        ("glm53-tiny", &[0, 0, 0, 3][..]),
        ("glm52-tiny", &[0, 1, 2, 2, 2, 2, 6, 6][..]),
        ("glm5-tiny", &[0, 1, 2, 3, 4, 5][..]),
    ] {
        let program = program(config);
        let forward = program.phase("forward").unwrap();
        for (i, of) in of.iter().enumerate() {
            let attended = maker(forward, &format!("layers.{i}.attended"));
            assert_eq!(attended.inputs[2], format!("layers.{of}.selection"));
        }
    }
}

/// Widths, scales, epsilons, pairings and the order of operands, of the largest numbers there are: no two of them are alike.
#[test]
fn the_attention_of_the_published_model_has_its_numbers() {
    let program = program("configs/glm-5.2");
    let forward = program.phase("forward").unwrap();
    let made = |value: &str, op: &str, with: Json, inputs: &[&str]| {
        let full = |name: &&str| match name.split_once(' ') {
            Some((_, step)) => step.to_owned(),
            None if name.starts_with("hidden") => (*name).to_owned(),
            None if name.ends_with(".weight") || name.ends_with(".bias") => {
                format!("model.layers.6.{name}")
            }
            None => format!("layers.6.{name}"),
        };
        let inputs: Vec<String> = inputs.iter().map(full).collect();
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        assert_made(forward, &full(&value), op, with, &inputs);
    };
    let none = || json!({});
    let (seq, pos, pages) = ("step row_seq", "step row_pos", "step page_table");
    let rope = || json!({"theta": 8e6, "dims": 64, "first": 0, "pairing": "interleaved"});

    made(
        "attn_in",
        "rms_norm",
        json!({"eps": 1e-5}),
        &["hidden.6", "input_layernorm.weight"],
    );
    made(
        "q_a",
        "linear",
        json!({"out": "activation"}),
        &["attn_in", "self_attn.q_a_proj.weight"],
    );
    made(
        "q_latent",
        "rms_norm",
        json!({"eps": 1e-6}),
        &["q_a", "self_attn.q_a_layernorm.weight"],
    );
    made(
        "q",
        "linear",
        json!({"out": "activation"}),
        &["q_latent", "self_attn.q_b_proj.weight"],
    );
    made("q_heads", "reshape", json!({"shape": [64, 256]}), &["q"]);
    made(
        "q_nope",
        "slice",
        json!({"start": 0, "length": 192}),
        &["q_heads"],
    );
    made(
        "q_rope",
        "slice",
        json!({"start": 192, "length": 64}),
        &["q_heads"],
    );
    made("q_rotated", "rope", rope(), &["q_rope", pos]);

    made(
        "kv_a",
        "linear",
        json!({"out": "activation"}),
        &["attn_in", "self_attn.kv_a_proj_with_mqa.weight"],
    );
    made(
        "kv_a_latent",
        "slice",
        json!({"start": 0, "length": 512}),
        &["kv_a"],
    );
    made(
        "kv_latent",
        "rms_norm",
        json!({"eps": 1e-6}),
        &["kv_a_latent", "self_attn.kv_a_layernorm.weight"],
    );
    made(
        "k_rope",
        "slice",
        json!({"start": 512, "length": 64}),
        &["kv_a"],
    );
    made("k_rotated", "rope", rope(), &["k_rope", pos]);
    made("kv_kept", "concat", none(), &["kv_latent", "k_rotated"]);

    made(
        "index_q",
        "linear",
        json!({"out": "activation"}),
        &["q_latent", "self_attn.indexer.wq_b.weight"],
    );
    made(
        "index_q_heads",
        "reshape",
        json!({"shape": [32, 128]}),
        &["index_q"],
    );
    made("index_q_rotated", "rope", rope(), &["index_q_heads", pos]);
    made(
        "index_k",
        "linear",
        json!({"out": "activation"}),
        &["attn_in", "self_attn.indexer.wk.weight"],
    );
    made(
        "index_k_normed",
        "layer_norm",
        json!({"eps": 1e-6}),
        &[
            "index_k",
            "self_attn.indexer.k_norm.weight",
            "self_attn.indexer.k_norm.bias",
        ],
    );
    made("index_k_rotated", "rope", rope(), &["index_k_normed", pos]);
    made(
        "index_weights",
        "linear",
        json!({"out": "f32"}),
        &["attn_in", "self_attn.indexer.weights_proj.weight"],
    );
    made(
        "index_scores",
        "indexer_scores",
        json!({"scale": 128f64.powf(-0.5), "head_scale": 32f64.powf(-0.5)}),
        &[
            "index_q_rotated",
            "index_weights",
            "index_key",
            seq,
            pos,
            pages,
        ],
    );
    made("selection", "topk", json!({"k": 2048}), &["index_scores"]);

    made(
        "q_absorbed",
        "mla_absorb",
        json!({"value": 256}),
        &["q_nope", "self_attn.kv_b_proj.weight"],
    );
    // 256^-0.5, which is no rounding.
    made(
        "attended",
        "sparse_mla",
        json!({"scale": 0.0625}),
        &[
            "q_absorbed",
            "q_rotated",
            "selection",
            "latent",
            seq,
            pos,
            pages,
        ],
    );
    made(
        "v_heads",
        "mla_expand",
        json!({"value": 256}),
        &["attended", "self_attn.kv_b_proj.weight"],
    );
    made("v", "reshape", json!({"shape": [64 * 256]}), &["v_heads"]);
    made(
        "attn_out",
        "linear",
        json!({"out": "activation"}),
        &["v", "self_attn.o_proj.weight"],
    );
    made(
        "attn_residual",
        "binary",
        json!({"function": "add"}),
        &["hidden.6", "attn_out"],
    );
    made(
        "hidden.7",
        "binary",
        json!({"function": "add"}),
        &["attn_residual", "mlp_out"],
    );

    // What is written of a position, before anything reads it.
    let at = |value: &str| {
        let mut calls = forward.calls.iter();
        let is_it = |call: &Call| {
            call.inputs
                .iter()
                .chain(&call.outputs)
                .any(|name| name == value)
        };
        calls.position(is_it).unwrap()
    };
    for (cache, rows) in [("latent", "kv_kept"), ("index_key", "index_k_rotated")] {
        let first = &forward.calls[at(&format!("layers.6.{cache}"))];
        assert_eq!(first.op, "rialto.append/1");
        assert_eq!(first.inputs[0], format!("layers.6.{rows}"));
    }
}

#[test]
fn the_experts_of_the_published_model_are_chosen_in_f32() {
    let program = program("configs/glm-5.2");
    let forward = program.phase("forward").unwrap();
    let layer = |name: &str| format!("layers.3.{name}");
    let router = maker(forward, &layer("router.ids"));
    assert_eq!(
        router.outputs,
        [layer("router.ids"), layer("router.weights")]
    );
    assert_eq!(
        router.inputs,
        [
            layer("router_logits"),
            "model.layers.3.mlp.gate.e_score_correction_bias".to_owned()
        ]
    );
    assert_eq!(
        json!(router.with),
        json!({
            "scoring": "sigmoid", "top_k": 8, "groups": 1, "top_groups": 1, "normalize": true, "epsilon": 1e-20,
            "scale": 2.5,
        })
    );
    let logits = maker(forward, &layer("router_logits"));
    assert_eq!(json!(logits.with), json!({"out": "f32"}));
    assert_eq!(
        logits.inputs,
        [layer("mlp_in"), "model.layers.3.mlp.gate.weight".to_owned()]
    );

    // 75 layers and the prediction layer: nothing else is kept from rounding.
    let unrounded = program.params.iter();
    let unrounded: Vec<&str> = unrounded
        .filter(|param| param.element == Element::F32)
        .map(|param| &*param.name)
        .collect();
    assert_eq!(unrounded.len(), 2 * 76);
    assert!(unrounded.iter().all(|name| name.contains(".mlp.gate.")));

    let experts = maker(forward, &layer("experts_out"));
    let stack = |matrix: &str| format!("model.layers.3.mlp.experts.{{}}.{matrix}.weight");
    let expected = [
        layer("mlp_in"),
        layer("router.ids"),
        layer("router.weights"),
        stack("gate_proj"),
        stack("up_proj"),
        stack("down_proj"),
    ];
    assert_eq!(experts.inputs, expected);
    let shape = |matrix: &str| {
        let mut params = program.params.iter();
        &params
            .find(|param| param.name == stack(matrix))
            .unwrap()
            .shape
    };
    assert_eq!(shape("gate_proj"), &[256, 2048, 6144]);
    assert_eq!(shape("down_proj"), &[256, 6144, 2048]);
    let sum = maker(forward, &layer("mlp_out"));
    assert_eq!(sum.inputs, [layer("experts_out"), layer("shared_out")]);
    // Gate and up are not each other.
    for (i, name, module) in [(3, "shared", "mlp.shared_experts"), (2, "mlp", "mlp")] {
        let inner = maker(forward, &format!("layers.{i}.{name}_inner"));
        for (input, half) in inner.inputs.iter().zip(["gate", "up"]) {
            assert_eq!(*input, format!("layers.{i}.{name}_{half}"));
            let weight = format!("model.layers.{i}.{module}.{half}_proj.weight");
            assert_eq!(maker(forward, input).inputs[1], weight);
        }
    }
}

#[test]
fn the_prediction_layer_joins_the_next_token_and_the_final_hidden_state() {
    let program = program("configs/glm-5.2");
    let names: Vec<&str> = program.phases.iter().map(|phase| &*phase.name).collect();
    assert_eq!(names, ["forward", "mtp"]);
    let mtp = program.phase("mtp").unwrap();
    let inputs: Vec<String> = mtp
        .inputs
        .iter()
        .map(|input| format!("{} {}", input.name, input.value))
        .collect();
    assert_eq!(inputs, ["mtp.hidden activation [tokens, 6144]"]);
    let tensor = |name: &str| format!("model.layers.78.{name}.weight");
    let norm = |value: &str, x: &str, weight: &str| {
        let inputs = [x, &tensor(weight)];
        assert_made(mtp, value, "rms_norm", json!({"eps": 1e-5}), &inputs);
    };
    let embed = ["tokens", "model.embed_tokens.weight"];
    assert_made(mtp, "mtp.embedding", "embed", json!({}), &embed);
    norm("mtp.embedding_normed", "mtp.embedding", "enorm");
    norm("mtp.hidden_normed", "mtp.hidden", "hnorm");
    // The embedding first.
    let halves = ["mtp.embedding_normed", "mtp.hidden_normed"];
    assert_made(mtp, "mtp.both", "concat", json!({}), &halves);
    assert_eq!(
        maker(mtp, "mtp.proj").inputs,
        ["mtp.both".to_owned(), tensor("eh_proj")]
    );
    norm("mtp.attn_in", "mtp.proj", "input_layernorm");
    norm("mtp.normed", "mtp.layer_out", "shared_head.norm");
    assert_made(
        mtp,
        "mtp.rows",
        "gather",
        json!({}),
        &["mtp.normed", "rows"],
    );
    let head = ["mtp.rows", "lm_head.weight"];
    assert_made(mtp, "mtp.logits", "linear", json!({"out": "f32"}), &head);
    assert_eq!(mtp.outputs, ["mtp.logits", "mtp.normed", "mtp.selection"]);
}

#[test]
fn the_stream_goes_from_the_embedding_to_what_the_head_reads() {
    for (config, layers) in [("configs/glm-5.3", 78), ("glm5-tiny", 6), ("glm53-tiny", 4)] {
        let program = program(config);
        let forward = program.phase("forward").unwrap();
        let stream = (0..=layers).map(|i| format!("hidden.{i}"));
        let stream: Vec<String> = stream.chain(["hidden.final".to_owned()]).collect();
        assert_eq!(forward.stream, stream, "{config}");
        assert_eq!(forward.outputs, ["logits", "hidden.final"], "{config}");
        assert!(forward.inputs.is_empty(), "{config}");
        let last = format!("hidden.{layers}");
        let norm = [&*last, "model.norm.weight"];
        assert_made(
            forward,
            "hidden.final",
            "rms_norm",
            json!({"eps": 1e-5}),
            &norm,
        );
        assert_made(
            forward,
            "head.rows",
            "gather",
            json!({}),
            &["hidden.final", "rows"],
        );
        let head = ["head.rows", "lm_head.weight"];
        assert_made(forward, "logits", "linear", json!({"out": "f32"}), &head);
    }
}

#[test]
fn a_text_ends_where_the_config_says_and_codes_may_stay_as_they_are() {
    for (config, stop) in [
        ("configs/glm-5", [154_820, 154_827, 154_829]),
        ("configs/glm-5.3", [154_820, 154_827, 154_829]),
        ("glm53-tiny", [150, 151, 152]),
    ] {
        let program = program(config);
        assert_eq!(program.stop_tokens, stop, "{config}");
        assert_eq!(program.block_codecs, ["block_fp8/128x128"], "{config}");
    }
}

#[test]
fn the_epsilon_of_the_latents_is_a_setting_and_there_is_no_other() {
    let spec = spec("glm52-tiny", MtpPolicy::Keep);
    let with = |settings: Json| {
        let settings = settings.as_object().unwrap().clone();
        Glm5.program(&spec, &ProgramOptions { settings })
    };
    let program = with(json!({"latent_eps": 1e-5})).unwrap();
    let plain = program_of(&spec);
    let mut changed = 0;
    for (phase, plain) in program.phases.iter().zip(&plain.phases) {
        for (call, plain) in phase.calls.iter().zip(&plain.calls) {
            if call != plain {
                assert_eq!(
                    (&call.inputs, &call.outputs),
                    (&plain.inputs, &plain.outputs)
                );
                assert!(call.inputs[1].ends_with("_a_layernorm.weight"), "{call:?}");
                assert_eq!(
                    json!([call.with, plain.with]),
                    json!([{"eps": 1e-5}, {"eps": 1e-6}])
                );
                changed += 1;
            }
        }
    }
    // Two in each of eight layers, and in the prediction layer.
    assert_eq!(changed, 2 * 9);
    for value in [
        json!(0),
        json!(-1e-6),
        json!("1e-6"),
        json!(null),
        json!([1e-6]),
    ] {
        let error = with(json!({"latent_eps": value})).unwrap_err();
        assert!(matches!(error, Error::Settings { .. }), "{value}");
        assert!(
            error.to_string().ends_with("supported: a number above 0"),
            "{error}"
        );
    }
    let error = with(json!({"latent_epsilon": 1e-6, "rope_theta": 7, "latent_eps": 0}));
    let Error::Settings { faults } = error.unwrap_err() else {
        panic!("settings are refused as such");
    };
    assert_eq!(faults.len(), 3);
    assert_eq!(
        faults[0].to_string(),
        "--set latent_epsilon=1e-6 is refused: the forward pass has no such setting; supported: latent_eps"
    );
}

/// Groups are not published, and read all the same.
#[test]
fn the_choice_of_experts_is_the_config_s() {
    let file = "/../../tests/fixtures/glm52-tiny/config.json";
    let text = std::fs::read_to_string(format!("{}{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let text = text.replace("\"n_group\": 1", "\"n_group\": 4");
    let text = text.replace("\"topk_group\": 1", "\"topk_group\": 2");
    let text = text.replace(
        "\"routed_scaling_factor\": 2.5",
        "\"routed_scaling_factor\": 3",
    );
    let config = RawConfig::parse(text.as_bytes()).unwrap();
    let spec = Glm5.map_config(&config, &MapOptions::default()).unwrap();
    let program = program_of(&spec);
    let router = maker(program.phase("forward").unwrap(), "layers.3.router.ids");
    let numbers = ["groups", "top_groups", "top_k", "scale"].map(|name| router.with[name].clone());
    assert_eq!(json!(numbers), json!([4, 2, 3, 3.0]));
}

#[test]
fn a_spec_whose_first_layer_shares_is_somebody_else_s() {
    let mut spec = spec("glm52-tiny", MtpPolicy::Keep);
    spec.extra["layers"][0]["indexer"] = json!("shared");
    let error = Glm5.program(&spec, &ProgramOptions::default()).unwrap_err();
    assert_eq!(error.slug(), "document/unreadable");
}
