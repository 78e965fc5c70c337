//! A library that is not the family that is linked.

use rialto_checkpoint::store::MemoryStore;
use rialto_plugin::prelude::*;
use rialto_plugin_test::{Check, Finding, PluginTest, built_library};

use crate::small::{Small, written};
use crate::spoiled::{Spoiled, then};
use crate::{assert_found, toy};

fn toy_checkpoint() -> MemoryStore {
    let config = json!({
        "architectures": ["ToyForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 4,
        "intermediate_size": 6,
        "vocab_size": 8,
        "rms_norm_eps": 0.9856906946328695,
    });
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), "BF16", vec![8, 4])];
    for layer in 0..2 {
        let mut add = |name: &str, dtype, shape: &[u64]| {
            tensors.push((
                format!("model.layers.{layer}.mlp.{name}"),
                dtype,
                shape.to_vec(),
            ));
        };
        add("gate_proj.weight", "BF16", &[6, 4]);
        add("up_proj.weight", "BF16", &[6, 4]);
        add("down_proj.weight", "U8", &[4, 6]);
        add("down_proj.weight_scale", "F32", &[1]);
    }
    written(&config, &tensors)
}

fn beside_its_library(spoil: impl FnOnce(&mut Spoiled<toy::Toy>)) -> Vec<Finding> {
    let mut family = Spoiled::of(toy::Toy);
    spoil(&mut family);
    let test = PluginTest::new(family).fixture_in("toy", &toy_checkpoint());
    test.library(built_library("toy_plugin")).check_library()
}

#[test]
fn a_library_that_says_the_same_passes() {
    let findings = beside_its_library(|_| {});
    assert!(findings.is_empty(), "{findings:#?}");
}

#[test]
fn a_library_that_says_anything_else_is_found() {
    let findings = beside_its_library(|family| {
        family.describe = then(|of: &mut Description| of.version = "9".to_owned());
    });
    assert_found(Check::Library, &findings, "describe, version (");
    assert_found(
        Check::Library,
        &findings,
        " beside itself): expected \"9\", found ",
    );
    let findings = beside_its_library(|family| {
        family.spec =
            then(|spec: &mut ModelSpec| drop(spec.provider.insert("new".to_owned(), json!(1))));
    });
    assert_found(
        Check::Library,
        &findings,
        "map_config, provider.new (toy): expected 1, found nothing",
    );
    // Only an error is another, and only in a config without the key.
    let findings = beside_its_library(|family| {
        family.spec = Box::new(|answer| {
            answer.map_err(|error| Error::ConfigSyntax {
                reason: error.to_string(),
            })
        });
    });
    assert_found(
        Check::Library,
        &findings,
        "map_config (toy without hidden_size): expected error ",
    );
    let findings = beside_its_library(|family| {
        family.program = then(|program: &mut Program| program.stop_tokens.push(7));
    });
    assert_found(
        Check::Library,
        &findings,
        "program, stop_tokens (toy): expected [7], found nothing",
    );
    let findings = beside_its_library(|family| {
        family.decoded = Box::new(|answer| {
            answer.map_err(|_| Error::Codec {
                codec: "toy".to_owned(),
                reason: "it is broken".to_owned(),
            })
        });
    });
    assert_found(
        Check::Library,
        &findings,
        "dequantize of model.layers.0.mlp.down_proj.weight (toy): expected error ",
    );
}

#[test]
fn a_library_that_is_none_is_found() {
    let test = PluginTest::new(Small).library(std::env::current_exe().unwrap());
    assert_found(Check::Library, &test.check_library(), "load (");
    assert!(PluginTest::new(Small).check_library().is_empty());
}
