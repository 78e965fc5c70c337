//! Which tensor is which param, in the order of the forward pass, and how params are cut over a mesh.
//!
//! Values are bit copies: nothing is transposed or reordered. A layer `i` of the source becomes the physical layers `2i`
//! (attention) and `2i+1` (feed-forward) of a Megatron hybrid model. Matrices are `[out, in]` on both sides.

use rialto_plugin::prelude::*;

use crate::Glm5;
use crate::spec::{Indexer, Mlp, Model};

impl WeightMapping for Glm5 {
    fn weight_map(&self, spec: &ModelSpec) -> Result<WeightMap, Error> {
        let model = Model::of(spec)?;
        let (v, h) = (model.vocab_size, model.hidden_size);
        let mut rules = vec![single(
            "embedding",
            "embedding.word_embeddings",
            "model.embed_tokens",
            &[v, h],
            None,
        )];
        rules.extend(Stack::decoder(&model).rules());
        rules.push(single(
            "head",
            "decoder.final_norm",
            "model.norm",
            &[h],
            Some(StateValue::EmptyTensor),
        ));
        rules.push(single(
            "head",
            "output_layer",
            "lm_head",
            &[v, h],
            Some(StateValue::None),
        ));
        if model.mtp_layers + model.mtp_layers_dropped > 0 {
            rules.extend(mtp_rules(&model));
        }
        Ok(WeightMap::new(rules))
    }

    fn placement(&self, _spec: &ModelSpec) -> Result<Placement, Error> {
        let cut = |axis, over, blocks, is_stacked| Cut {
            axis,
            over,
            blocks,
            is_stacked,
        };
        let rule = |param: &str, cuts: Vec<Cut>| PlacementRule {
            param: param.to_owned(),
            cuts,
        };
        let rows = || vec![cut(0, MeshAxis::Tp, 1, false)];
        let columns = || vec![cut(1, MeshAxis::Tp, 1, false)];
        // Megatron writes the gate half and the up half of a fused matrix as chunks of their own.
        let gate_and_up = || vec![cut(0, MeshAxis::Tp, 2, false)];
        let experts = |axis, blocks| {
            vec![
                cut(0, MeshAxis::Ep, 1, true),
                cut(axis, MeshAxis::Etp, blocks, false),
            ]
        };
        Ok(Placement {
            rules: vec![
                rule("*.mlp.experts.experts.linear_fc1.weight", experts(1, 2)),
                rule("*.mlp.experts.experts.linear_fc2.weight", experts(2, 1)),
                rule("*.linear_fc1.weight", gate_and_up()),
                rule("*.linear_fc2.weight", columns()),
                rule("*.self_attention.linear_proj.weight", columns()),
                rule("*.self_attention.linear_q_up_proj.weight", rows()),
                rule("*.self_attention.linear_kv_up_proj.weight", rows()),
                rule("*.eh_proj.weight", rows()),
                rule("embedding.word_embeddings.weight", rows()),
                rule("output_layer.weight", rows()),
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
        Some(value) => rule.state(ModuleState {
            module: module.to_owned(),
            value,
            axis: None,
        }),
        None => rule,
    }
}

/// The dtypes in which a weight may be stored: BF16 as published, F32 as transformers re-saves router weights.
fn stored() -> DtypeRule {
    DtypeRule::any_of([Dtype::Bf16, Dtype::F32])
}

fn mtp_rules(model: &Model) -> Vec<MapRule> {
    let (h, first) = (model.hidden_size, model.layers.len());
    let depths = || Scope::new().index("d", 0..model.mtp_layers + model.mtp_layers_dropped);
    let own = |name: &str, tensor: &str, shape: &[u64]| {
        let module = format!("mtp.layers.{{d}}.{name}");
        MapRule::new(name, "mtp", &format!("{module}.weight"), shape)
            .over(depths())
            .dtype(stored())
            .state(ModuleState {
                module,
                value: StateValue::EmptyTensor,
                axis: None,
            })
            .part(Part::new(
                &format!("model.layers.{{d+{first}}}.{tensor}.weight"),
                shape,
            ))
    };
    // eh_proj reads the embedding of the next token first, then the hidden state: the same order on both sides.
    let mut rules = vec![
        own("enorm", "enorm", &[h]),
        own("hnorm", "hnorm", &[h]),
        own("eh_proj", "eh_proj", &[h, 2 * h]),
    ];
    rules.extend(Stack::mtp(model).rules());
    rules.push(own("final_layernorm", "shared_head.norm", &[h]));
    let reason = (model.mtp_layers_dropped > 0).then_some("MTP dropped");
    rules.into_iter().map(|rule| rule.skipped(reason)).collect()
}

/// A run of layers that are named alike: the decoder's, or those inside multi-token prediction.
struct Stack<'a> {
    model: &'a Model,
    /// Group of the rules, if it is one for all.
    group: Option<&'static str>,
    /// The index in the templates below.
    index: &'static str,
    /// Prefix of the tensors.
    source: String,
    /// Prefix of the attention params.
    attention: String,
    /// Prefix of the feed-forward params.
    feed_forward: String,
    all: Vec<u64>,
    with_indexer: Vec<u64>,
    dense: Vec<u64>,
    sparse: Vec<u64>,
}

impl<'a> Stack<'a> {
    fn decoder(model: &'a Model) -> Stack<'a> {
        Stack {
            model,
            group: None,
            index: "i",
            source: "model.layers.{i}".to_owned(),
            attention: "decoder.layers.{2*i}".to_owned(),
            feed_forward: "decoder.layers.{2*i+1}".to_owned(),
            all: model.layers_where(|_| true),
            with_indexer: model.layers_where(|layer| layer.indexer == Indexer::Full),
            dense: model.layers_where(|layer| layer.mlp == Mlp::Dense),
            sparse: model.layers_where(|layer| layer.mlp == Mlp::Sparse),
        }
    }

    /// A prediction layer has an indexer of its own and experts; its inner layers count from 0 again.
    fn mtp(model: &'a Model) -> Stack<'a> {
        let depths: Vec<u64> = (0..model.mtp_layers + model.mtp_layers_dropped).collect();
        Stack {
            model,
            group: Some("mtp"),
            index: "d",
            source: format!("model.layers.{{d+{}}}", model.layers.len()),
            attention: "mtp.layers.{d}.mtp_model_layer.layers.0".to_owned(),
            feed_forward: "mtp.layers.{d}.mtp_model_layer.layers.1".to_owned(),
            all: depths.clone(),
            with_indexer: depths.clone(),
            dense: Vec::new(),
            sparse: depths,
        }
    }

    fn rules(&self) -> Vec<MapRule> {
        let mut rules = self.attention_rules();
        rules.extend(self.indexer_rules());
        rules.extend(self.dense_rules());
        rules.extend(self.sparse_rules());
        rules.retain(|rule| {
            rule.scope
                .indices()
                .iter()
                .all(|index| !index.values.is_empty())
        });
        rules
    }

    fn attention_rules(&self) -> Vec<MapRule> {
        let Model {
            hidden_size: h,
            num_attention_heads: a,
            q_lora_rank: rq,
            kv_lora_rank: rk,
            ..
        } = *self.model;
        let Model {
            qk_nope_head_dim: dn,
            qk_rope_head_dim: dr,
            v_head_dim: dv,
            ..
        } = *self.model;
        let rule = |param: &str, tensor: &str, shape: &[u64]| {
            let module = format!("{}.{param}", self.attention);
            self.whole("attention", &self.all, &module, "weight", tensor, shape)
                .state(te(&module))
        };
        vec![
            rule("input_layernorm", "input_layernorm.weight", &[h]),
            rule(
                "self_attention.linear_q_down_proj",
                "self_attn.q_a_proj.weight",
                &[rq, h],
            ),
            rule(
                "self_attention.q_layernorm",
                "self_attn.q_a_layernorm.weight",
                &[rq],
            ),
            rule(
                "self_attention.linear_q_up_proj",
                "self_attn.q_b_proj.weight",
                &[a * (dn + dr), rq],
            ),
            rule(
                "self_attention.linear_kv_down_proj",
                "self_attn.kv_a_proj_with_mqa.weight",
                &[rk + dr, h],
            ),
            rule(
                "self_attention.kv_layernorm",
                "self_attn.kv_a_layernorm.weight",
                &[rk],
            ),
            rule(
                "self_attention.linear_kv_up_proj",
                "self_attn.kv_b_proj.weight",
                &[a * (dn + dv), rk],
            ),
            rule(
                "self_attention.linear_proj",
                "self_attn.o_proj.weight",
                &[h, a * dv],
            ),
        ]
    }

    fn indexer_rules(&self) -> Vec<MapRule> {
        let Model {
            hidden_size: h,
            q_lora_rank: rq,
            index_n_heads: hi,
            index_head_dim: di,
            ..
        } = *self.model;
        let module = |name: &str| {
            format!(
                "{}.self_attention.core_attention.indexer.{name}",
                self.attention
            )
        };
        let rule = |name: &str, field: &str, tensor: &str, shape: &[u64]| {
            let tensor = format!("self_attn.indexer.{tensor}");
            self.whole(
                "indexer",
                &self.with_indexer,
                &module(name),
                field,
                &tensor,
                shape,
            )
        };
        vec![
            rule("linear_wq_b", "weight", "wq_b.weight", &[hi * di, rq])
                .state(te(&module("linear_wq_b"))),
            rule("linear_wk", "weight", "wk.weight", &[di, h]).state(te(&module("linear_wk"))),
            // A LayerNorm: weight and bias are one module and share its state.
            rule("k_norm", "weight", "k_norm.weight", &[di]).state(te(&module("k_norm"))),
            rule("k_norm", "bias", "k_norm.bias", &[di]),
            rule(
                "linear_weights_proj",
                "weight",
                "weights_proj.weight",
                &[hi, h],
            )
            .state(te(&module("linear_weights_proj"))),
        ]
    }

    fn dense_rules(&self) -> Vec<MapRule> {
        let Model {
            hidden_size: h,
            intermediate_size: f,
            ..
        } = *self.model;
        let fc1 = format!("{}.mlp.linear_fc1", self.feed_forward);
        let fc2 = format!("{}.mlp.linear_fc2", self.feed_forward);
        let (norm, down) = ("post_attention_layernorm.weight", "mlp.down_proj.weight");
        vec![
            // The norm before a dense MLP is fused into its first matrix and shares that module's state.
            self.whole(
                "dense mlp",
                &self.dense,
                &fc1,
                "layer_norm_weight",
                norm,
                &[h],
            ),
            self.gate_and_up("dense mlp", &self.dense, &fc1, "mlp", f),
            self.whole("dense mlp", &self.dense, &fc2, "weight", down, &[h, f])
                .state(te(&fc2)),
        ]
    }

    fn sparse_rules(&self) -> Vec<MapRule> {
        let Model {
            hidden_size: h,
            n_routed_experts: e,
            moe_intermediate_size: f,
            ..
        } = *self.model;
        let shared = self.model.n_shared_experts * f;
        let module = |name: &str| format!("{}.{name}", self.feed_forward);
        let rule = |module: &str, field: &str, tensor: &str, shape: &[u64]| {
            self.whole("moe", &self.sparse, module, field, tensor, shape)
        };
        let norm = module("pre_mlp_layernorm");
        let (router, bias) = (module("mlp.router"), "mlp.gate.e_score_correction_bias");
        let (shared_fc1, shared_fc2) = (
            module("mlp.shared_experts.linear_fc1"),
            module("mlp.shared_experts.linear_fc2"),
        );
        // The doubled word is Megatron's own.
        let (fc1, fc2) = (
            module("mlp.experts.experts.linear_fc1"),
            module("mlp.experts.experts.linear_fc2"),
        );
        let each = |module: &str| ModuleState {
            axis: Some(0),
            ..te(module)
        };
        let expert = |name: &str, shape: [u64; 2]| {
            let tensor = format!("{}.mlp.experts.{{e}}.{name}.weight", self.source);
            Part::new(&tensor, shape).over(Scope::new().index("e", 0..e))
        };
        let stacked = |module: &str, shape: [u64; 3]| {
            self.empty("moe", &self.sparse, module, "weight", &shape)
                .state(each(module))
        };
        vec![
            rule(&norm, "weight", "post_attention_layernorm.weight", &[h]).state(te(&norm)),
            rule(&router, "weight", "mlp.gate.weight", &[e, h]),
            rule(&router, "expert_bias", bias, &[e]).dtype(DtypeRule::pinned(Dtype::F32)),
            self.gate_and_up(
                "moe",
                &self.sparse,
                &shared_fc1,
                "mlp.shared_experts",
                shared,
            ),
            rule(
                &shared_fc2,
                "weight",
                "mlp.shared_experts.down_proj.weight",
                &[h, shared],
            )
            .state(te(&shared_fc2)),
            stacked(&fc1, [e, 2 * f, h])
                .part(expert("gate_proj", [f, h]).at(["e", "0", "0"]))
                .part(expert("up_proj", [f, h]).at(["e", &f.to_string(), "0"])),
            stacked(&fc2, [e, h, f]).part(expert("down_proj", [h, f]).at(["e", "0", "0"])),
        ]
    }

    /// A param without parts yet.
    fn empty(
        &self,
        group: &str,
        layers: &[u64],
        module: &str,
        field: &str,
        shape: &[u64],
    ) -> MapRule {
        // What a person calls it: the param without its layer.
        let name = format!("{module}.{field}");
        let name = name
            .rsplit_once("}.")
            .map_or(name.as_str(), |(_, name)| name);
        MapRule::new(
            name,
            self.group.unwrap_or(group),
            &format!("{module}.{field}"),
            shape,
        )
        .over(Scope::new().index(self.index, layers.iter().copied()))
        .dtype(stored())
    }

    /// One tensor is one param.
    fn whole(
        &self,
        group: &str,
        layers: &[u64],
        module: &str,
        field: &str,
        tensor: &str,
        shape: &[u64],
    ) -> MapRule {
        let tensor = format!("{}.{tensor}", self.source);
        self.empty(group, layers, module, field, shape)
            .part(Part::new(&tensor, shape))
    }

    /// Gate rows, then up rows, of a gated MLP of width `f`.
    fn gate_and_up(&self, group: &str, layers: &[u64], module: &str, mlp: &str, f: u64) -> MapRule {
        let h = self.model.hidden_size;
        let half = |name: &str| Part::new(&format!("{}.{mlp}.{name}.weight", self.source), [f, h]);
        self.empty(group, layers, module, "weight", &[2 * f, h])
            .state(te(module))
            .part(half("gate_proj"))
            .part(half("up_proj").at([&f.to_string(), "0"]))
    }
}

/// The state of a Transformer Engine module.
fn te(module: &str) -> ModuleState {
    ModuleState {
        module: module.to_owned(),
        value: StateValue::EmptyTensor,
        axis: None,
    }
}
