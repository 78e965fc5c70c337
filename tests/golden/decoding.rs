//! The dequant hook, from a stored tensor to a param: the toy family, loaded, decodes what it alone understands.

use std::collections::HashMap;
use std::sync::Arc;

use rialto_bridge::{Bridge, MtpPolicy};
use rialto_checkpoint::store::MemoryStore;
use rialto_engine::{DtypeChoice, ExportOptions, ImportPlan, Options};
use rialto_tensor::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;

use crate::world::{export, hugging_face, import, iteration, megatron, options};

const LAYERS: usize = 2;
const HIDDEN: usize = 6;
const FFN: usize = 10;
const VOCAB: usize = 12;

pub(crate) fn toy() -> Arc<dyn Bridge> {
    rialto_host::load(&rialto_tests::built_library("toy_plugin"))
        .expect("the toy loads")
        .bridge()
}

/// Codes of a layer's down projection, and its scale.
fn codes(layer: usize) -> (Vec<u8>, f32) {
    let codes = (0..HIDDEN * FFN).map(|at| (at * 37 + layer * 11) as u8);
    (codes.collect(), 0.5 + layer as f32)
}

/// A checkpoint whose down projections are stored as codes, without the tensors named.
pub(crate) fn checkpoint(without: &[&str]) -> MemoryStore {
    let mut tensors: Vec<(String, safetensors::Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    let bf16 = |rows: usize, columns: usize| {
        (0..rows * columns * 2)
            .map(|at| (at % 120) as u8)
            .collect::<Vec<u8>>()
    };
    let mut add =
        |name: String, dtype, shape: Vec<usize>, bytes| tensors.push((name, dtype, shape, bytes));
    add(
        "model.embed_tokens.weight".to_owned(),
        safetensors::Dtype::BF16,
        vec![VOCAB, HIDDEN],
        bf16(VOCAB, HIDDEN),
    );
    for layer in 0..LAYERS {
        let name = |name: &str| format!("model.layers.{layer}.mlp.{name}");
        for half in ["gate_proj.weight", "up_proj.weight"] {
            add(
                name(half),
                safetensors::Dtype::BF16,
                vec![FFN, HIDDEN],
                bf16(FFN, HIDDEN),
            );
        }
        let (codes, scale) = codes(layer);
        add(
            name("down_proj.weight"),
            safetensors::Dtype::U8,
            vec![HIDDEN, FFN],
            codes,
        );
        add(
            name("down_proj.weight_scale"),
            safetensors::Dtype::F32,
            vec![1],
            scale.to_le_bytes().to_vec(),
        );
    }
    tensors.retain(|(name, ..)| !without.contains(&name.as_str()));
    let views: HashMap<&str, TensorView<'_>> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            (
                name.as_str(),
                TensorView::new(*dtype, shape.clone(), bytes).unwrap(),
            )
        })
        .collect();
    let config = json!({
        "architectures": ["ToyForCausalLM"], "num_hidden_layers": LAYERS, "hidden_size": HIDDEN,
        "intermediate_size": FFN, "vocab_size": VOCAB,
    });
    let store = MemoryStore::new("toy");
    store
        .insert("config.json", config.to_string().into_bytes())
        .unwrap();
    store
        .insert(
            "model.safetensors",
            safetensors::serialize(views, None).unwrap(),
        )
        .unwrap();
    store
}

/// The decoded values, computed here.
fn decoded(layer: usize) -> Vec<u8> {
    let (codes, scale) = codes(layer);
    codes
        .iter()
        .flat_map(|&code| ((f32::from(code) - 128.0) * scale).to_le_bytes())
        .collect()
}

#[test]
fn an_encoded_tensor_becomes_the_values_it_stands_for() {
    let family = toy();
    let run = import(
        family.as_ref(),
        Arc::new(checkpoint(&[])),
        &options(MtpPolicy::Keep),
    )
    .unwrap();
    let params = megatron(&iteration(Arc::new(run.clone())));
    assert_eq!(params.len(), 1 + 2 * LAYERS);
    for layer in 0..LAYERS {
        let (dtype, shape, bytes) =
            &params[&format!("decoder.layers.{layer}.mlp.linear_fc2.weight")];
        assert_eq!(
            (*dtype, shape.as_slice()),
            (Dtype::F32, &[HIDDEN as u64, FFN as u64][..])
        );
        assert_eq!(bytes, &decoded(layer), "layer {layer}");
    }
    // Nothing encodes on the way back: the export holds the values, and no companion.
    let exported = hugging_face(
        &export(
            family.as_ref(),
            Arc::new(run),
            None,
            &ExportOptions::default(),
        )
        .unwrap(),
    );
    assert_eq!(exported.len(), 1 + 3 * LAYERS);
    assert_eq!(
        exported["model.layers.1.mlp.down_proj.weight"].2,
        decoded(1)
    );
}

#[test]
fn decoded_values_can_be_narrowed_like_stored_ones() {
    let family = toy();
    let narrow = Options {
        dtype: DtypeChoice::Bf16,
        ..Options::default()
    };
    let run = import(family.as_ref(), Arc::new(checkpoint(&[])), &narrow).unwrap();
    let params = megatron(&iteration(Arc::new(run)));
    let (dtype, _, bytes) = &params["decoder.layers.0.mlp.linear_fc2.weight"];
    assert_eq!(*dtype, Dtype::Bf16);
    // Codes around 128 at half steps have at most 8 significant bits: BF16 holds them exactly.
    let upper_halves: Vec<u8> = decoded(0)
        .chunks(4)
        .flat_map(|value| [value[2], value[3]])
        .collect();
    assert_eq!(bytes, &upper_halves);
}

#[test]
fn an_encoded_tensor_without_its_companion_is_named_with_it() {
    let scale = "model.layers.1.mlp.down_proj.weight_scale";
    let error = ImportPlan::new(
        toy().as_ref(),
        Arc::new(checkpoint(&[scale])),
        &Options::default(),
    )
    .unwrap_err();
    let expected = format!(
        "model.layers.1.mlp.down_proj.weight is stored as U8 in model.safetensors and needs {scale}, which is missing"
    );
    assert_eq!(error.findings(), [expected]);
}

#[test]
fn a_companion_without_its_tensor_is_claimed_by_nobody() {
    let tensor = "model.layers.0.mlp.down_proj.weight";
    let error = ImportPlan::new(
        toy().as_ref(),
        Arc::new(checkpoint(&[tensor])),
        &Options::default(),
    )
    .unwrap_err();
    let findings = error.findings().join("\n");
    assert!(
        findings.contains(&format!("{tensor} is missing")),
        "{findings}"
    );
    assert!(
        findings.contains(&format!("{tensor}_scale (F32 [1]")),
        "{findings}"
    );
}
