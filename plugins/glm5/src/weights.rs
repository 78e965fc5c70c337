//! Which tensor is which param, in the order of the forward pass, and how params are cut over a mesh.
//!
//! Values are bit copies: nothing is transposed or reordered. A layer `i` of the source becomes the physical layers `2i`
//! (attention) and `2i+1` (feed-forward) of a Megatron hybrid model. Matrices are `[out, in]` on both sides.
//!
//! What is written is what a Megatron hybrid model itself writes. Checkpoints are also read in the spellings of its past:
//! the keys of the GPT model that the family was before, and experts that have a key each.

mod stack;

use rialto_plugin::prelude::*;

use crate::Glm5;
use crate::spec::{Model, Release, VOCABULARY_MULTIPLE};
use stack::Stack;

impl WeightMapping for Glm5 {
    fn weight_map(&self, spec: &ModelSpec) -> Result<WeightMap, Error> {
        let (release, model) = (Release::of(spec)?, Model::of(spec)?);
        let (v, h) = (model.vocab_size, model.hidden_size);
        let embedding = single(
            "embedding",
            "embedding.word_embeddings",
            "model.embed_tokens",
            &[v, h],
            None,
        );
        let mut rules = vec![embedding.padded(0, VOCABULARY_MULTIPLE)];
        rules.extend(Stack::decoder(release, &model).rules());
        let norm = single(
            "head",
            "decoder.final_norm",
            "model.norm",
            &[h],
            Some(StateValue::EmptyTensor),
        );
        // The name that a Megatron GPT model has for it.
        let of_gpt = Part::new("decoder.final_layernorm.weight", [h]);
        rules.push(norm.params_also(Form::new(stack::GPT, [of_gpt])));
        let head = single(
            "head",
            "output_layer",
            "lm_head",
            &[v, h],
            Some(StateValue::None),
        );
        rules.push(head.padded(0, VOCABULARY_MULTIPLE));
        if model.mtp_layers + model.mtp_layers_dropped > 0 {
            rules.extend(mtp_rules(release, &model));
        }
        Ok(WeightMap::new(rules))
    }

    fn placement(&self, spec: &ModelSpec) -> Result<Placement, Error> {
        let model = Model::of(spec)?;
        let (nope, rope) = (model.qk_nope_head_dim, model.qk_rope_head_dim);
        let rule = |param: &str, cuts: Vec<Cut>| PlacementRule {
            param: param.to_owned(),
            cuts,
        };
        let tp = |axis, of: &str| Cut::new(axis, MeshAxis::Tp, of);
        let heads = |axis, each| vec![tp(axis, "attention heads").granule(each)];
        let vocabulary = || vec![tp(0, "vocabulary rows")];
        // Megatron writes the gate half and the up half of a fused matrix as chunks of their own.
        let gate_and_up = |of: &str| vec![tp(0, of).blocks(2)];
        let experts = |axis, blocks| {
            vec![
                Cut::new(0, MeshAxis::Ep, "experts").stacked(),
                Cut::new(axis, MeshAxis::Etp, "channels of an expert").blocks(blocks),
            ]
        };
        let (dense, shared) = ("channels of a dense MLP", "channels of the shared experts");
        Ok(Placement {
            rules: vec![
                rule("*.mlp.experts.experts.linear_fc1.weight", experts(1, 2)),
                rule("*.mlp.experts.experts.linear_fc2.weight", experts(2, 1)),
                rule("*.shared_experts.linear_fc1.weight", gate_and_up(shared)),
                rule("*.shared_experts.linear_fc2.weight", vec![tp(1, shared)]),
                rule("*.linear_fc1.weight", gate_and_up(dense)),
                rule("*.linear_fc2.weight", vec![tp(1, dense)]),
                rule(
                    "*.self_attention.linear_proj.weight",
                    heads(1, model.v_head_dim),
                ),
                rule(
                    "*.self_attention.linear_q_up_proj.weight",
                    heads(0, nope + rope),
                ),
                rule(
                    "*.self_attention.linear_kv_up_proj.weight",
                    heads(0, nope + model.v_head_dim),
                ),
                rule("*.eh_proj.weight", vec![tp(0, "hidden channels")]),
                rule("embedding.word_embeddings.weight", vocabulary()),
                rule("output_layer.weight", vocabulary()),
                // Norms, latent projections, indexers and routers are whole on every rank.
                rule("*", Vec::new()),
            ],
        })
    }
}

/// A weight of the whole model, one tensor and one param.
fn single(
    group: &str,
    module: &str,
    tensor: &str,
    shape: &[u64],
    state: Option<StateValue>,
) -> MapRule {
    let rule = MapRule::new(module, group, &format!("{module}.weight"), shape).dtype(stored());
    let rule = rule.part(Part::new(&format!("{tensor}.weight"), shape));
    match state {
        Some(value) => rule.state(ModuleState::new(module, value)),
        None => rule,
    }
}

/// The dtypes in which a weight may be stored: BF16 as published, F32 as transformers re-saves router weights.
fn stored() -> DtypeRule {
    DtypeRule::any_of([Dtype::Bf16, Dtype::F32])
}

fn mtp_rules(release: Release, model: &Model) -> Vec<MapRule> {
    let (h, first) = (model.hidden_size, model.layers.len());
    let depths = || Scope::new().index("d", 0..model.mtp_layers + model.mtp_layers_dropped);
    let own = |name: &str, tensor: &str, shape: &[u64]| {
        let module = format!("mtp.layers.{{d}}.{name}");
        MapRule::new(name, "mtp", &format!("{module}.weight"), shape)
            .over(depths())
            .dtype(stored())
            .state(ModuleState::new(&module, StateValue::EmptyTensor))
            .part(Part::new(
                &format!("model.layers.{{d+{first}}}.{tensor}.weight"),
                shape,
            ))
    };
    // Megatron's prediction layers use the main model's embedding and head, and the published ones bring none. Some converters
    // write copies.
    let shared = |name: &str, rows: u64| {
        let tensor = format!("model.layers.{{d+{first}}}.{name}.weight");
        MapRule::new(name, "mtp", &tensor, [rows, h])
            .over(depths())
            .dtype(stored())
            .part(Part::new(&tensor, [rows, h]))
            .kept_beside("its prediction layers share the main model's embedding and head")
    };
    // eh_proj reads the embedding of the next token first, then the hidden state: the same order on both sides.
    let mut rules = vec![
        own("enorm", "enorm", &[h]),
        own("hnorm", "hnorm", &[h]),
        own("eh_proj", "eh_proj", &[h, 2 * h]),
    ];
    rules.extend(Stack::mtp(release, model).rules());
    rules.push(own("final_layernorm", "shared_head.norm", &[h]));
    rules.push(shared("embed_tokens", model.vocab_size));
    rules.push(shared("shared_head.head", model.vocab_size));
    let reason = (model.mtp_layers_dropped > 0).then_some("MTP dropped");
    rules.into_iter().map(|rule| rule.skipped(reason)).collect()
}
