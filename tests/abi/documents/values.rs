//! What the kept documents say: every field has another value than its default, and every kind of enum comes up.
//!
//! The structs are written out field by field. So a new field does not compile here until somebody has decided that it is
//! one of the next contract's, which says what its default is and what a document with another value requires.

use rialto_bridge::request::{
    ClaimRequest, ErrorDetail, MapConfigRequest, PipelineLayoutRequest, ProgramRequest,
    SpecRequest, UnmapConfigRequest,
};
use rialto_bridge::{
    Claim, Codec, Companion, ConfigEdit, Cut, Description, Dims, DtypeRule, Form, MapOptions,
    MapRule, Mesh, MeshAxis, ModelSpec, ModuleState, MtpPolicy, Padding, Part, PipelineLayout,
    PipelineRequest, Placement, PlacementRule, ProgramOptions, RawConfig, Rule, Scope, Stage,
    StageChoice, StateValue, WeightMap,
};
use rialto_program::{
    CacheDecl, Call, Carried, Dim, Element, ParamDecl, Phase, Program, Stored, ValueDecl, ValueType,
};
use rialto_tensor::Dtype;
use serde_json::{Map, Value, json};

/// Text of a config, with all that JSON escapes in a string.
const CONFIG: &str = "{\n\t\"architectures\": [\"KeptForCausalLM\"], \"b\\\\c\": \"\u{e9}\u{1f309}\\u0007/\", \"eps\": 1.50e-5\r\n}";
const OTHER: &str = "{\"architectures\": []}";

fn texts<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

fn object(value: Value) -> Map<String, Value> {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn config() -> RawConfig {
    RawConfig::parse(CONFIG.as_bytes()).unwrap()
}

pub(crate) fn other_config() -> RawConfig {
    RawConfig::parse(OTHER.as_bytes()).unwrap()
}

pub(crate) fn description() -> Description {
    Description {
        name: "kept".to_owned(),
        version: "1.2.3-rc.4".to_owned(),
        summary: "Documents, kept.".to_owned(),
        architectures: texts(["KeptForCausalLM", "OtherForCausalLM"]),
        releases: texts(["kept-1", "kept-2"]),
    }
}

pub(crate) fn claims() -> [(RawConfig, Claim); 2] {
    let (release, reason) = ("kept-1".to_owned(), "it names it".to_owned());
    let yes = Claim::Yes { release, reason };
    let reason = "it names nobody".to_owned();
    [(config(), yes), (other_config(), Claim::No { reason })]
}

/// All options, and each policy.
pub(crate) fn options() -> [MapOptions; 3] {
    [
        MapOptions {
            mtp: MtpPolicy::Drop,
            settings: object(json!({"seq_length": 4096, "recompute": {"modules": ["mlp"]}})),
            pads_vocabulary: true,
        },
        MapOptions {
            mtp: MtpPolicy::Absent,
            settings: object(json!({"bf16": null})),
            pads_vocabulary: true,
        },
        // What is at its default in a request is sent all the same.
        MapOptions {
            mtp: MtpPolicy::Keep,
            settings: Map::new(),
            pads_vocabulary: false,
        },
    ]
}

pub(crate) fn spec() -> ModelSpec {
    ModelSpec {
        release: "kept-1".to_owned(),
        architecture: "KeptForCausalLM".to_owned(),
        dims: Dims {
            layers: 3,
            hidden: 8,
            vocab: 18_446_744_073_709_551_615,
            mtp_layers: 1,
            mtp_layers_dropped: 2,
        },
        provider_target: "kept.Provider".to_owned(),
        // Numbers whose last bit a careless reader loses.
        provider: object(
            json!({"z": 0.9856906946328695, "a": [0.25, -1, 9007199254740993_u64], "m": true}),
        ),
        extra: json!({"kinds": ["a", null], "deep": {"x": 1.0}}),
        unread_keys: texts(["b\\c", "eps"]),
        notices: texts(["one \"line\"", "another"]),
    }
}

pub(crate) fn edits() -> Vec<ConfigEdit> {
    vec![
        ConfigEdit::Set {
            key: "eps".to_owned(),
            value: json!({"value": 0.25}),
        },
        ConfigEdit::Remove {
            key: "b\\c".to_owned(),
        },
    ]
}

/// A rule with everything, with what cannot be in one rule for a model, too; and one with nothing that may be left out.
pub(crate) fn weight_map() -> WeightMap {
    let part = |tensor: &str| Part {
        scope: Scope::new().index("e", [0, 2]),
        tensor: tensor.to_owned(),
        shape: vec![4, 6],
        from: texts(["2*e+1", "0"]),
        take: Some(vec![2, 6]),
        at: texts(["i", "3"]),
    };
    let form = |name: &str| Form {
        name: name.to_owned(),
        parts: vec![part("{i}.{e}.fused")],
    };
    let state = |value, axis| ModuleState {
        module: "decoder.layers.{i}.mlp".to_owned(),
        value,
        axis,
    };
    let full = MapRule {
        name: "everything".to_owned(),
        group: "moe".to_owned(),
        scope: Scope::new().index("i", [1, 3]).index("j", 0..2),
        param: "decoder.layers.{i}.mlp.weight{j}".to_owned(),
        shape: vec![8, 6],
        dtype: DtypeRule {
            accepts: vec![Dtype::Bf16, Dtype::F8E4m3],
            is_pinned: true,
        },
        state: Some(state(StateValue::EmptyTensor, Some(1))),
        parts: vec![part("model.layers.{i}.{e}.{j}")],
        copies: vec!["lm_head.{i}".to_owned()],
        stack: Some("j".to_owned()),
        padding: Some(Padding {
            axis: 1,
            multiple: 128,
        }),
        tensor_forms: vec![form("fused")],
        param_forms: vec![form("gpt+old")],
        encoded: Some("block_fp8/128x128".to_owned()),
        beside: Some("no place for it".to_owned()),
        skip: Some("not asked for".to_owned()),
    };
    let least = MapRule {
        state: Some(state(StateValue::None, None)),
        ..least_rule()
    };
    let rules = [full, least, least_rule()].map(Rule::Map).to_vec();
    WeightMap { rules }
}

pub(crate) fn least_rule() -> MapRule {
    MapRule {
        name: "least".to_owned(),
        group: "mlp".to_owned(),
        scope: Scope::new(),
        param: "p".to_owned(),
        shape: vec![2],
        dtype: DtypeRule {
            accepts: vec![Dtype::F32],
            is_pinned: false,
        },
        state: None,
        parts: vec![Part {
            scope: Scope::new(),
            tensor: "t".to_owned(),
            shape: vec![2],
            from: Vec::new(),
            take: None,
            at: Vec::new(),
        }],
        copies: Vec::new(),
        stack: None,
        padding: None,
        tensor_forms: Vec::new(),
        param_forms: Vec::new(),
        encoded: None,
        beside: None,
        skip: None,
    }
}

pub(crate) fn placement() -> Placement {
    let cut = |axis, over| Cut {
        axis,
        over,
        blocks: 2,
        is_stacked: true,
        granule: 4,
        of: "attention heads".to_owned(),
    };
    Placement {
        rules: vec![PlacementRule {
            param: "*.experts.*".to_owned(),
            cuts: vec![
                cut(0, MeshAxis::Ep),
                cut(1, MeshAxis::Etp),
                cut(2, MeshAxis::Tp),
            ],
        }],
    }
}

/// One of each way to deal the stages.
pub(crate) fn pipeline_requests() -> [PipelineRequest; 3] {
    let stages = [
        StageChoice::Layers(vec![2, 1]),
        StageChoice::Pattern("DE|D".to_owned()),
        StageChoice::Family,
    ];
    stages.map(|stages| PipelineRequest {
        mesh: Mesh {
            tp: 2,
            pp: 3,
            ep: 4,
            etp: 5,
        },
        stages,
    })
}

pub(crate) fn pipeline_layout() -> PipelineLayout {
    PipelineLayout {
        stages: vec![Stage {
            first_layer: 1,
            layers: 2,
            physical_layers: 4,
            mtp_layers: 3,
            params: texts(["decoder.layers.1.*", "output.weight"]),
        }],
        provider: object(json!({"hybrid_layer_pattern": "DE|D"})),
    }
}

pub(crate) fn codecs() -> Vec<Codec> {
    vec![Codec {
        name: "kept_fp8/1".to_owned(),
        stored: vec![Dtype::F8E4m3, Dtype::U8],
        decoded: Dtype::Bf16,
        block: vec![128, 64],
        companions: vec![Companion {
            suffixes: texts(["_scale_inv", "_scale"]),
            dtype: Dtype::F32,
            block: vec![0, 64],
        }],
    }]
}

/// With settings, and without.
pub(crate) fn program_options() -> [ProgramOptions; 2] {
    let settings = object(json!({"rope_layout": "half", "eps": 0.9856906946328695}));
    let none = Map::new();
    [settings, none].map(|settings| ProgramOptions { settings })
}

/// A program with everything, and one with nothing that may be left out. Both are sound, since a host lets no other pass; so a type
/// has no blocks, in which no value of a program is.
pub(crate) fn programs() -> [Program; 2] {
    let param = |name: &str, shape: &[u64], element, stored| ParamDecl {
        name: name.to_owned(),
        shape: shape.to_vec(),
        element,
        stored,
    };
    let call = |op: &str, with: Value, inputs: &[&str], outputs: &[&str]| Call {
        op: op.to_owned(),
        with: object(with),
        inputs: inputs.iter().map(|&name| name.to_owned()).collect(),
        outputs: outputs.iter().map(|&name| name.to_owned()).collect(),
    };
    let none = || json!({});
    let embed = || call("rialto.embed/1", none(), &["tokens", "table"], &["x"]);
    let whole = |name: &str| Stored::Whole(name.to_owned());
    let table = || param("table", &[9, 4], Element::Activation, whole("embed.weight"));
    let dims = [
        Dim::Tokens,
        Dim::Rows,
        Dim::Sequences,
        Dim::Pages,
        Dim::Context,
        Dim::Pool,
        Dim::Page,
        Dim::Size(18_446_744_073_709_551_615),
    ];
    let input = |name: &str, element, shape: Vec<Dim>| ValueDecl {
        name: name.to_owned(),
        value: ValueType {
            element,
            shape,
            block: None,
        },
        carried: None,
    };
    let hidden = ValueDecl {
        carried: Some(Carried {
            phase: "forward".to_owned(),
            value: "x".to_owned(),
        }),
        ..input(
            "hidden",
            Element::Activation,
            vec![Dim::Tokens, Dim::Size(4)],
        )
    };
    let full = Program {
        params: vec![
            table(),
            param("gain", &[4], Element::F32, whole("norm.\"weight\"")),
            param(
                "stack",
                &[3, 4],
                Element::Of(Dtype::Bf16),
                Stored::Each("layers.{}.norm".to_owned()),
            ),
        ],
        caches: vec![CacheDecl {
            name: "keys".to_owned(),
            width: 4,
        }],
        phases: vec![
            Phase {
                name: "forward".to_owned(),
                inputs: Vec::new(),
                calls: vec![
                    embed(),
                    call(
                        "rialto.append/1",
                        none(),
                        &["x", "keys", "row_seq", "row_pos", "page_table"],
                        &[],
                    ),
                    call(
                        "rialto.rms_norm/1",
                        // A number whose last bit a careless reader loses.
                        json!({"eps": 0.9856906946328695}),
                        &["x", "gain"],
                        &["normed"],
                    ),
                    call(
                        "rialto.linear/1",
                        json!({"out": "f32"}),
                        &["normed", "stack"],
                        &["logits"],
                    ),
                ],
                outputs: texts(["logits", "x"]),
                stream: texts(["x"]),
            },
            Phase {
                name: "mtp".to_owned(),
                inputs: vec![hidden, input("all", Element::Of(Dtype::U8), dims.to_vec())],
                calls: vec![call(
                    "rialto.scale/1",
                    json!({"factor": -0.5}),
                    &["hidden"],
                    &["y"],
                )],
                outputs: texts(["y"]),
                stream: texts(["y"]),
            },
        ],
        stop_tokens: vec![0, 4_294_967_295],
        block_codecs: texts(["block_fp8/128x128"]),
    };
    let least = Program {
        params: vec![table()],
        caches: Vec::new(),
        phases: vec![Phase {
            name: "forward".to_owned(),
            inputs: Vec::new(),
            calls: vec![embed()],
            outputs: texts(["x"]),
            stream: Vec::new(),
        }],
        stop_tokens: Vec::new(),
        block_codecs: Vec::new(),
    };
    [full, least]
}

pub(crate) fn details() -> [(&'static str, ErrorDetail); 2] {
    let detail = |slug: &str, entry: Option<&str>| ErrorDetail {
        slug: slug.to_owned(),
        message: "one line".to_owned(),
        help: Some("try another".to_owned()),
        findings: texts(["first", "second"]),
        entry: entry.map(str::to_owned),
    };
    [
        ("detail", detail("kept/error", None)),
        ("detail-panic", detail("plugin/panic", Some("claim"))),
    ]
}

pub(crate) fn claim_request(config: &RawConfig) -> ClaimRequest {
    ClaimRequest {
        config: config.text().to_owned(),
    }
}

pub(crate) fn map_config_request(options: &MapOptions) -> MapConfigRequest {
    MapConfigRequest {
        config: CONFIG.to_owned(),
        options: options.clone(),
    }
}

pub(crate) fn unmap_config_request() -> UnmapConfigRequest {
    UnmapConfigRequest {
        spec: spec(),
        reference: CONFIG.to_owned(),
    }
}

pub(crate) fn spec_request() -> SpecRequest {
    SpecRequest { spec: spec() }
}

pub(crate) fn program_request(options: &ProgramOptions) -> ProgramRequest {
    ProgramRequest {
        spec: spec(),
        options: options.clone(),
    }
}

pub(crate) fn pipeline_layout_request(request: &PipelineRequest) -> PipelineLayoutRequest {
    PipelineLayoutRequest {
        spec: spec(),
        request: request.clone(),
    }
}
