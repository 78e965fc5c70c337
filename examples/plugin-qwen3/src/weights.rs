//! Which tensor is which param, in the order of the forward pass, and how params are cut over a mesh.
//!
//! Values are bit copies. Matrices are `[out, in]` on both sides; Megatron fuses queries, keys and values into one, and gate and
//! up into another. All layers are alike, so Megatron stores each param of them once, with a leading layer axis.

use rialto_plugin::prelude::*;

use crate::Qwen3;
use crate::config::Model;

/// Prefix of a layer's tensors, and of its params.
const LAYER: (&str, &str) = ("model.layers.{i}", "decoder.layers.{i}");

impl WeightMapping for Qwen3 {
    fn weight_map(&self, spec: &ModelSpec) -> Result<WeightMap, Error> {
        let model: Model = spec.own()?;
        let (v, h, f, d) = (
            model.vocab_size,
            model.hidden_size,
            model.intermediate_size,
            model.head_dim,
        );
        let embedding = whole(
            "embedding",
            "embedding.word_embeddings",
            "model.embed_tokens",
            &[v, h],
        );
        let final_norm = whole("head", "decoder.final_layernorm", "model.norm", &[h]).state(
            ModuleState::new("decoder.final_layernorm", StateValue::EmptyTensor),
        );
        let multiple = model.vocabulary_multiple();
        // A tied model has no head of its own: Megatron's last stage uses the embedding, under the embedding's key. Some
        // published checkpoints hold it twice all the same.
        let embedding = match model.is_tied {
            true => embedding.copied_as("lm_head.weight"),
            false => embedding,
        };
        let mut rules = vec![
            embedding.padded(0, multiple),
            layer(
                &model,
                "attention",
                "self_attention.linear_qkv",
                "layer_norm_weight",
                &[h],
            )
            .part(tensor("input_layernorm", &[h])),
            qkv(&model),
            plain(
                &model,
                "attention",
                "self_attention.q_layernorm",
                "self_attn.q_norm",
                &[d],
            ),
            plain(
                &model,
                "attention",
                "self_attention.k_layernorm",
                "self_attn.k_norm",
                &[d],
            ),
            plain(
                &model,
                "attention",
                "self_attention.linear_proj",
                "self_attn.o_proj",
                &[h, model.num_attention_heads * d],
            ),
            layer(&model, "mlp", "mlp.linear_fc1", "layer_norm_weight", &[h])
                .part(tensor("post_attention_layernorm", &[h])),
            gate_and_up(&model),
            plain(&model, "mlp", "mlp.linear_fc2", "mlp.down_proj", &[h, f]),
            final_norm,
        ];
        if !model.is_tied {
            rules.push(whole("head", "output_layer", "lm_head", &[v, h]).padded(0, multiple));
        }
        Ok(WeightMap::new(rules))
    }

    fn placement(&self, spec: &ModelSpec) -> Result<Placement, Error> {
        let model: Model = spec.own()?;
        let (heads, d) = (model.heads_of_group(), model.head_dim);
        let rule = |param: &str, cuts: Vec<Cut>| PlacementRule {
            param: param.to_owned(),
            cuts,
        };
        let tp = |axis, of: &str| Cut::new(axis, MeshAxis::Tp, of);
        let (groups, channels, rows) = ("query groups", "channels of the MLP", "vocabulary rows");
        Ok(Placement {
            rules: vec![
                rule(
                    "*.linear_qkv.weight",
                    vec![tp(0, groups).granule((heads + 2) * d)],
                ),
                rule(
                    "*.linear_proj.weight",
                    vec![tp(1, groups).granule(heads * d)],
                ),
                // Megatron writes the gate half and the up half as chunks of their own.
                rule("*.linear_fc1.weight", vec![tp(0, channels).blocks(2)]),
                rule("*.linear_fc2.weight", vec![tp(1, channels)]),
                rule("embedding.word_embeddings.weight", vec![tp(0, rows)]),
                rule("output_layer.weight", vec![tp(0, rows)]),
                // Norms are whole on every rank. They are named, so that a param that is forgotten here is refused and not taken for one.
                rule("*.layer_norm_weight", Vec::new()),
                rule("*layernorm.weight", Vec::new()),
            ],
        })
    }
}

/// A weight of the whole model, one tensor and one param.
fn whole(group: &str, module: &str, name: &str, shape: &[u64]) -> MapRule {
    MapRule::new(module, group, &format!("{module}.weight"), shape)
        .dtype(stored())
        .part(Part::new(&format!("{name}.weight"), shape))
}

/// A param of every layer, without its tensors. Each module has one object; its norm has none.
fn layer(model: &Model, group: &str, module: &str, weight: &str, shape: &[u64]) -> MapRule {
    let key = format!("{}.{module}", LAYER.1);
    let rule = MapRule::new(
        &format!("{module}.{weight}"),
        group,
        &format!("{key}.{weight}"),
        shape,
    );
    let rule = rule
        .over(Scope::new().index("i", 0..model.num_hidden_layers))
        .stacked("i")
        .dtype(stored());
    match weight {
        "weight" => rule.state(ModuleState::new(&key, StateValue::EmptyTensor)),
        _ => rule,
    }
}

/// A tensor of every layer.
fn tensor(name: &str, shape: &[u64]) -> Part {
    Part::new(&format!("{}.{name}.weight", LAYER.0), shape)
}

/// A param of every layer that is one tensor.
fn plain(model: &Model, group: &str, module: &str, name: &str, shape: &[u64]) -> MapRule {
    layer(model, group, module, "weight", shape).part(tensor(name, shape))
}

/// Queries, keys and values in one matrix, group by group: the group's query heads, its key head, its value head. So a tensor
/// parallel rank that holds whole groups holds consecutive rows.
fn qkv(model: &Model) -> MapRule {
    let (h, d) = (model.hidden_size, model.head_dim);
    let (heads, groups) = (model.heads_of_group(), model.num_key_value_heads);
    let each = (heads + 2) * d;
    let part = |name: &str, heads_of_group: u64, before: u64| {
        let rows = heads_of_group * d;
        tensor(&format!("self_attn.{name}"), &[groups * rows, h])
            .over(Scope::new().index("g", 0..groups))
            .slice([&format!("{rows}*g"), "0"], [rows, h])
            .at([&format!("{each}*g+{before}"), "0"])
    };
    layer(
        model,
        "attention",
        "self_attention.linear_qkv",
        "weight",
        &[groups * each, h],
    )
    .part(part("q_proj", heads, 0))
    .part(part("k_proj", 1, heads * d))
    .part(part("v_proj", 1, (heads + 1) * d))
}

/// Gate and up in one matrix, one above the other. Megatron can also be told to store each as a param of its own.
fn gate_and_up(model: &Model) -> MapRule {
    let (h, f) = (model.hidden_size, model.intermediate_size);
    let below = f.to_string();
    let key = format!("{}.mlp.linear_fc1", LAYER.1);
    let half = |name: &str| Part::new(&format!("{key}.{name}"), [f, h]);
    layer(model, "mlp", "mlp.linear_fc1", "weight", &[2 * f, h])
        .part(tensor("mlp.gate_proj", &[f, h]))
        .part(tensor("mlp.up_proj", &[f, h]).at([&below, "0"]))
        .params_also(Form::new(
            "singleton",
            [half("weight_w"), half("weight_v").at([&below, "0"])],
        ))
}

/// The dtypes in which a weight may be stored: BF16 as published, F32 and F16 as training leaves them.
fn stored() -> DtypeRule {
    DtypeRule::any_of([Dtype::Bf16, Dtype::F32, Dtype::F16])
}
