//! The plugin in C of `examples/plugin-c`, held against the same family written in Rust's words.

use std::path::{Path, PathBuf};
use std::process::Command;

use rialto_bridge::{
    ConfigEdit, Cut, Dims, DtypeRule, MapOptions, MapRule, Mesh, MeshAxis, ModelSpec, Part,
    PipelineRequest, Placement, PlacementRule, RawConfig, Scope, Stage, WeightMap,
};
use rialto_host::{LoadedPlugin, load};
use rialto_tensor::Dtype;
use rialto_tests::built_library;
use rialto_tests::compiler::{library, plugin_c, program};
use serde_json::{Map, Value, json};

use crate::library::written;

fn built(folder: &Path) -> LoadedPlugin {
    let made = folder.join("librialto_toy_dense.so");
    library(&plugin_c().join("plugin.c"), "c11", &made);
    load(&made).unwrap()
}

fn config() -> RawConfig {
    RawConfig::parse(&std::fs::read(plugin_c().join("toy-dense/config.json")).unwrap()).unwrap()
}

/// The spec of `toy-dense/config.json`.
fn spec() -> ModelSpec {
    let object = |value: Value| -> Map<String, Value> { serde_json::from_value(value).unwrap() };
    ModelSpec {
        release: "toy-dense-1".to_owned(),
        architecture: "ToyDenseForCausalLM".to_owned(),
        dims: Dims {
            layers: 4,
            hidden: 8,
            vocab: 32,
            mtp_layers: 0,
            mtp_layers_dropped: 0,
        },
        provider_target: "toy_dense.ToyDenseProvider".to_owned(),
        provider: object(
            json!({"num_layers": 4, "hidden_size": 8, "ffn_hidden_size": 16, "vocab_size": 32}),
        ),
        extra: json!({"num_hidden_layers": 4, "hidden_size": 8, "intermediate_size": 16, "vocab_size": 32}),
        unread_keys: vec!["model_type".to_owned(), "rms_norm_eps".to_owned()],
        notices: Vec::new(),
    }
}

#[test]
fn the_checkpoint_of_the_plugin_in_c_is_what_its_page_says() {
    let file = std::fs::read(plugin_c().join("toy-dense/model.safetensors")).unwrap();
    let (length, rest) = file.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(usize::try_from(u64::from_le_bytes(*length)).unwrap());
    let header: Map<String, Value> = serde_json::from_slice(header).unwrap();
    let names = header.keys().skip(1);
    assert!(names.clone().is_sorted() && names.count() == 14);
    let elements = data.chunks_exact(2).map(|bytes| bytes.try_into().unwrap());
    let elements = elements.map(u16::from_le_bytes);
    assert!(elements.eq(0x3C00..0x3C00 + 1800));
}

/// That up lies below gate, not above it, a conversion and its way back would not show.
#[test]
fn a_plugin_in_c_says_what_one_in_rust_would() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = built(folder.path());
    let (bridge, spec) = (plugin.bridge(), spec());
    let mapped = bridge.map_config(&config(), &MapOptions::default());
    assert_eq!(mapped.unwrap(), spec);
    let float = || DtypeRule::any_of([Dtype::Bf16, Dtype::F32]);
    let rule = |name: &str, param: &str, shape: &[u64]| {
        MapRule::new(name, "dense", param, shape).dtype(float())
    };
    let layers = || Scope::new().index("i", 0..4);
    let part = |name: &str, shape: [u64; 2]| {
        Part::new(&format!("model.layers.{{i}}.mlp.{name}_proj.weight"), shape)
    };
    let expected = WeightMap::new([
        rule("embedding", "embedding.word_embeddings.weight", &[32, 8])
            .part(Part::new("model.embed_tokens.weight", [32, 8])),
        rule(
            "gate and up",
            "decoder.layers.{i}.mlp.linear_fc1.weight",
            &[32, 8],
        )
        .over(layers())
        .stacked("i")
        .part(part("gate", [16, 8]))
        .part(part("up", [16, 8]).at(["16", "0"])),
        rule("down", "decoder.layers.{i}.mlp.linear_fc2.weight", &[8, 16])
            .over(layers())
            .stacked("i")
            .part(part("down", [8, 16])),
        rule("final norm", "decoder.final_layernorm.weight", &[8])
            .part(Part::new("model.norm.weight", [8])),
    ]);
    assert_eq!(bridge.weight_map(&spec).unwrap(), expected);
    let cut = |param: &str, axis, of: &str, blocks| PlacementRule {
        param: param.to_owned(),
        cuts: vec![Cut::new(axis, MeshAxis::Tp, of).blocks(blocks)],
    };
    let expected = Placement {
        rules: vec![
            cut("embedding.*", 0, "rows of the vocabulary", 1),
            cut("*.linear_fc1.weight", 0, "channels", 2),
            cut("*.linear_fc2.weight", 1, "channels", 1),
            PlacementRule {
                param: "decoder.final_layernorm.weight".to_owned(),
                cuts: Vec::new(),
            },
        ],
    };
    assert_eq!(bridge.placement(&spec).unwrap(), expected);
    let mesh = Mesh {
        pp: 2,
        ..Mesh::SINGLE
    };
    let layout = bridge.pipeline_layout(&spec, &PipelineRequest::new(mesh));
    let stage = |first_layer, params: [&str; 3]| Stage {
        first_layer,
        layers: 2,
        physical_layers: 2,
        mtp_layers: 0,
        params: params.map(str::to_owned).to_vec(),
    };
    let expected = [
        stage(
            0,
            ["embedding.*", "decoder.layers.0.*", "decoder.layers.1.*"],
        ),
        stage(
            2,
            [
                "decoder.layers.2.*",
                "decoder.layers.3.*",
                "decoder.final_layernorm.*",
            ],
        ),
    ];
    assert_eq!(layout.unwrap().stages, expected);
    assert_eq!(bridge.codecs(&spec).unwrap(), []);
    // What the reference has already is no edit.
    assert_eq!(bridge.unmap_config(&spec, &config()).unwrap(), []);
    let reference = RawConfig::parse(br#"{"hidden_size": 9, "vocab_size": 32}"#).unwrap();
    let set = ConfigEdit::set;
    let expected = [
        set("num_hidden_layers", 4),
        set("hidden_size", 8),
        set("intermediate_size", 16),
    ];
    assert_eq!(bridge.unmap_config(&spec, &reference).unwrap(), expected);
}

#[test]
fn a_plugin_in_c_and_the_family_in_rust_answer_in_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, family) = (
        built(folder.path()),
        load(&built_library("rialto_glm5")).unwrap(),
    );
    let other = rialto_tests::fixture("glm52-tiny/config.json");
    let other = RawConfig::parse(&std::fs::read(other).unwrap()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let options = MapOptions::default();
                    let spec = ours.bridge().map_config(&config(), &options).unwrap();
                    assert_eq!(spec.dims.layers, 4);
                    let spec = family.bridge().map_config(&other, &options).unwrap();
                    let map = family.bridge().weight_map(&spec).unwrap();
                    assert!(!map.rules.is_empty());
                }
            });
        }
    });
}

/// Requests that no host of today writes: the plugin's source in a program that asks one entry.
#[test]
fn a_plugin_in_c_refuses_a_request_that_it_cannot_read() {
    let folder = tempfile::tempdir().unwrap();
    let harness = r#"
#include "plugin.c"
int main(int count, char **arguments) {
    rialto_bridge_handle handle;
    if (count != 2 || rialto_plugin_v1.open(NULL, &handle).code != RIALTO_OK) return 1;
    const rialto_bytes request = {(const uint8_t *)arguments[1], strlen(arguments[1])};
    rialto_owned reply = {NULL, 0, NULL, NULL};
    const rialto_status status = handle.table->weight_map(handle.instance, request, &reply);
    printf("%u %.*s", (unsigned)status.code, (int)status.detail.len, (const char *)status.detail.data);
    if (status.detail.release != NULL) status.detail.release(status.detail.data, status.detail.len, status.detail.context);
    if (reply.release != NULL) reply.release(reply.data, reply.len, reply.context);
    handle.table->release(handle.instance);
    return 0;
}
"#;
    let source = written(folder.path(), "ask.c", harness.as_bytes());
    let asks: PathBuf = folder.path().join("ask");
    program(&source, "c11", &asks);
    let ask = |request: &str| {
        let output = Command::new(&asks).arg(request).output().unwrap();
        assert!(output.status.success(), "{request}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let extra = r#""body": {"spec": {"extra": {"num_hidden_layers": 1, "hidden_size": 2, "intermediate_size": 3, "vocab_size": 4}}}"#;
    let good = format!(r#"{{"schema": 1, "requires": [], {extra}}}"#);
    assert_eq!(ask(&good), "0 ");
    let later = good.replace("[]", r#"["spec/spiral/1", "x"]"#);
    let refused = ask(&later);
    assert!(
        refused.starts_with("3 ") && refused.contains("spec/spiral/1"),
        "{refused}"
    );
    assert!(refused.contains(r#""slug": "document/requirement""#));
    let other = ask(&good.replace("\"schema\": 1", "\"schema\": 2"));
    assert!(
        other.starts_with("4 ") && other.contains("document/unreadable"),
        "{other}"
    );
    // Torn anywhere: an error, never a crash.
    for end in 0..good.len() - 4 {
        let torn = ask(&good[..end]);
        assert!(!torn.starts_with("0 "), "{}: {torn}", &good[..end]);
    }
}
