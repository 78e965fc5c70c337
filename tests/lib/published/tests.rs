//! The second path against witnesses from outside: a program of another hand, the published totals, and real headers.

use std::collections::BTreeMap;

use super::*;
use crate::{fixture, sha256};

fn of(name: &str) -> Vec<Tensor> {
    let config = std::fs::read(fixture(name).join("config.json")).unwrap();
    tensors(&serde_json::from_slice(&config).unwrap())
}

/// The digests are of what a Python program prints that makes the same list from a config and was written apart from this
/// repository: a line `NAME DTYPE [ROWS, COLUMNS]` for each tensor and each grid of scales, sorted by bytes, every line with
/// its end.
#[test]
fn every_name_dtype_and_shape_is_the_one_that_another_program_derives() {
    for (name, digest) in [
        ("configs/glm-5", GLM_5),
        ("configs/glm-5.1", GLM_5),
        ("configs/glm-5.2", GLM_52),
        ("configs/glm-5.2-fp8", GLM_53),
        ("configs/glm-5.3", GLM_53),
        (
            "glm5-tiny",
            "a076cb2b4f97d2582d524f7d5c6764d6d68a83122054f59ed2cfe1e67fb9d7c1",
        ),
        (
            "glm52-tiny",
            "907a0467f6bbc8f08f5087b63bbaff6a6639c1f7dc6a5741e94759eaf10a1610",
        ),
        (
            "glm53-tiny",
            "433d89cf13243d868855d9c121f45a0611ad6ad8fa8fa6100c2bed25d5f145de",
        ),
    ] {
        let line = |tensor: &Tensor| {
            let (name, dtype, shape) = (&tensor.name, tensor.dtype.name(), &tensor.shape);
            format!("{name} {dtype} {shape:?}\n")
        };
        let mut lines: Vec<String> = of(name).iter().map(line).collect();
        lines.sort();
        assert_eq!(sha256(lines.concat().as_bytes()), digest, "{name}");
    }
}

const GLM_5: &str = "91721a4fc237645ea7b186ab071be0e3dd3fd1ea4ba3acc34b9665dd21e5756f";
const GLM_52: &str = "d4f06cee73407c78015f4bc381b4de25f2fe0ba14acb06b949d47d5b5da1ebce";
const GLM_53: &str = "e560c4e160af356f363017a79c08b379affdfc4db655c7822655aa7dc00059f1";

/// Tensors, elements and bytes of those for which a claim holds.
fn sums(tensors: &[Tensor], holds: impl Fn(&Tensor) -> bool) -> (usize, u64, u64) {
    let chosen: Vec<&Tensor> = tensors.iter().filter(|tensor| holds(tensor)).collect();
    let elements = chosen.iter().map(|tensor| tensor.elements()).sum();
    let bytes = chosen.iter().map(|tensor| tensor.size_bytes()).sum();
    (chosen.len(), elements, bytes)
}

#[test]
fn the_totals_are_the_published_ones() {
    for (name, count, elements, bytes) in [
        ("glm-5", 59_870, 753_864_139_008, 1_507_728_316_928),
        ("glm-5.1", 59_870, 753_864_139_008, 1_507_728_316_928),
        ("glm-5.2", 59_585, 753_329_940_480, 1_506_659_919_872),
    ] {
        let all = of(&format!("configs/{name}"));
        assert_eq!(sums(&all, |_| true), (count, elements, bytes), "{name}");
        let is_plain = |tensor: &Tensor| tensor.dtype != Dtype::F8E4m3 && !tensor.is_scale;
        assert!(all.iter().all(is_plain), "{name}");
    }
    for name in ["glm-5.2-fp8", "glm-5.3"] {
        let all = of(&format!("configs/{name}"));
        let weights = sums(&all, |tensor| !tensor.is_scale);
        assert_eq!((weights.0, weights.1), (59_585, 753_329_940_480), "{name}");
        let encoded = sums(&all, |tensor| tensor.dtype == Dtype::F8E4m3);
        assert_eq!((encoded.0, encoded.1), (59_044, 751_226_191_872), "{name}");
        let plain = |tensor: &Tensor| tensor.dtype != Dtype::F8E4m3 && !tensor.is_scale;
        let plain = sums(&all, plain);
        assert_eq!((plain.0, plain.1), (541, 2_103_748_608), "{name}");
        let scales = sums(&all, |tensor| tensor.is_scale);
        assert_eq!((scales.0, scales.1), (59_044, 45_853_104), "{name}");
        // As many names as the index of the FP8 release has.
        let (names, _, bytes) = sums(&all, |_| true);
        assert_eq!((names, bytes), (118_629, 755_617_140_416), "{name}");
    }
}

/// A header is eight bytes of length and that much JSON.
fn header(bytes: &[u8]) -> BTreeMap<String, Value> {
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap();
    let mut header: BTreeMap<String, Value> = serde_json::from_slice(&rest[..length]).unwrap();
    header.remove("__metadata__");
    header
}

#[test]
fn the_tensors_of_an_fp8_config_are_those_of_the_headers_beside_it() {
    let mut stored = BTreeMap::new();
    for shard in 1..=2 {
        let file = format!("glm53-tiny/model-{shard:05}-of-00002.safetensors");
        for (name, entry) in header(&std::fs::read(fixture(&file)).unwrap()) {
            stored.insert(name, (entry["dtype"].clone(), entry["shape"].clone()));
        }
    }
    let derived = of("glm53-tiny").into_iter().map(|tensor| {
        let shape = tensor.shape.into();
        (tensor.name, (tensor.dtype.name().into(), shape))
    });
    assert_eq!(derived.collect::<BTreeMap<_, _>>(), stored);
}

/// A copy of a small config with one value changed; null takes it away.
fn with(name: &str, key: &str, value: Value) -> Value {
    let config = std::fs::read(fixture(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config[key] = value;
    config
}

#[test]
fn a_config_that_lacks_any_number_that_is_read_is_refused_by_its_key() {
    for key in [
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "index_n_heads",
        "index_head_dim",
        "intermediate_size",
        "n_routed_experts",
        "n_shared_experts",
        "moe_intermediate_size",
    ] {
        for value in [Value::Null, json!("8"), json!(-1), json!(0.5)] {
            let error = read(&with("glm52-tiny", key, value)).unwrap_err();
            assert!(error.starts_with(&format!("{key} is ")), "{error}");
        }
    }
    let error = read(&with("glm52-tiny", "q_lora_rank", Value::Null)).unwrap_err();
    assert_eq!(error, "q_lora_rank is absent, expected a whole number");
}

#[test]
fn a_config_that_says_in_another_way_which_layer_has_what_is_refused() {
    // Without its list the config counts: four layers an indexer.
    let error = read(&with("glm52-tiny", "indexer_types", Value::Null)).unwrap_err();
    assert_eq!(
        error,
        "index_topk_freq is 4, expected at most 1 without indexer_types"
    );
    let without = |list: &str, key: &str, value: Value| {
        let mut config = with("glm5-tiny", list, Value::Null);
        config[key] = value;
        read(&config)
    };
    for (list, key, values) in [
        ("indexer_types", "index_topk_freq", [json!(2), json!("2")]),
        (
            "indexer_types",
            "index_topk_pattern",
            [json!("F"), json!([])],
        ),
        ("mlp_layer_types", "moe_layer_freq", [json!(2), json!([1])]),
        (
            "mlp_layer_types",
            "first_k_dense_replace",
            [json!("1"), json!(-1)],
        ),
    ] {
        for value in values {
            let error = without(list, key, value).unwrap_err();
            assert!(error.starts_with(key), "{error}");
        }
    }
    // What says nothing else is read.
    for frequency in [json!(0), json!(1), Value::Null] {
        let read = without("indexer_types", "index_topk_freq", frequency);
        assert_eq!(read.unwrap(), of("glm5-tiny"));
    }
    for list in ["indexer_types", "mlp_layer_types"] {
        for value in [
            json!([]),
            json!("full"),
            json!(vec!["full"; 9]),
            json!(vec!["dens"; 8]),
        ] {
            let error = read(&with("glm52-tiny", list, value)).unwrap_err();
            assert!(error.starts_with(list), "{error}");
        }
    }
    for (key, value) in [
        ("quant_method", json!("awq")),
        ("weight_block_size", json!([64, 64])),
    ] {
        let mut config = with("glm53-tiny", "index_topk_freq", json!(3));
        config["quantization_config"][key] = value;
        let error = read(&config).unwrap_err();
        assert!(
            error.starts_with(&format!("quantization_config.{key}")),
            "{error}"
        );
    }
}
