//! The rules of a run of layers, and every spelling in which Megatron has stored them.

use rialto_plugin::prelude::*;

use super::stored;
use crate::codec::BLOCK_FP8;
use crate::spec::{Indexer, Mlp, Model, Release};

/// The spelling of a Megatron GPT model, in which a layer holds attention and feed-forward part together.
pub(super) const GPT: &str = "gpt";

/// Where the params of a layer stand.
struct Prefix {
    /// Name of the spelling; empty for the one that is written.
    name: &'static str,
    attention: String,
    feed_forward: String,
}

/// The half of a layer.
#[derive(Clone, Copy)]
enum Half {
    Attention,
    FeedForward,
}

/// A param below its layer: its module, its field, and other spellings as a name and the parts that make it.
struct Field<'a> {
    half: Half,
    module: &'a str,
    field: &'a str,
    shape: Vec<u64>,
    also: Vec<Form>,
}

/// A run of layers that are named alike: the decoder's, or those inside multi-token prediction.
pub(super) struct Stack<'a> {
    release: Release,
    model: &'a Model,
    /// Group of the rules, if it is one for all.
    group: Option<&'static str>,
    /// The index in the templates below.
    index: &'static str,
    /// Prefix of the tensors.
    source: String,
    /// Prefixes of the params, the one that is written first.
    prefixes: Vec<Prefix>,
    all: Vec<u64>,
    with_indexer: Vec<u64>,
    dense: Vec<u64>,
    sparse: Vec<u64>,
}

impl<'a> Stack<'a> {
    pub(super) fn decoder(release: Release, model: &'a Model) -> Stack<'a> {
        Stack {
            release,
            model,
            group: None,
            index: "i",
            source: "model.layers.{i}".to_owned(),
            prefixes: vec![
                Prefix {
                    name: "",
                    attention: "decoder.layers.{2*i}".to_owned(),
                    feed_forward: "decoder.layers.{2*i+1}".to_owned(),
                },
                Prefix::joined(GPT, "decoder.layers.{i}"),
            ],
            all: model.layers_where(|_| true),
            with_indexer: model.layers_where(|layer| layer.indexer == Indexer::Full),
            dense: model.layers_where(|layer| layer.mlp == Mlp::Dense),
            sparse: model.layers_where(|layer| layer.mlp == Mlp::Sparse),
        }
    }

    /// A prediction layer has an indexer of its own and experts; its inner layers count from 0 again.
    pub(super) fn mtp(release: Release, model: &'a Model) -> Stack<'a> {
        let depths: Vec<u64> = (0..model.mtp_layers + model.mtp_layers_dropped).collect();
        Stack {
            release,
            model,
            group: Some("mtp"),
            index: "d",
            source: format!("model.layers.{{d+{}}}", model.layers.len()),
            prefixes: vec![
                Prefix {
                    name: "",
                    attention: "mtp.layers.{d}.mtp_model_layer.layers.0".to_owned(),
                    feed_forward: "mtp.layers.{d}.mtp_model_layer.layers.1".to_owned(),
                },
                // The GPT model's checkpoints say `transformer_layer`, its modules say the other.
                Prefix::joined(GPT, "mtp.layers.{d}.transformer_layer"),
                Prefix::joined("gpt+module", "mtp.layers.{d}.mtp_model_layer"),
            ],
            all: depths.clone(),
            with_indexer: depths.clone(),
            dense: Vec::new(),
            sparse: depths,
        }
    }

    pub(super) fn rules(&self) -> Vec<MapRule> {
        let mut rules = self.attention_rules();
        rules.extend(self.indexer_rules());
        rules.extend(self.dense_rules());
        rules.extend(self.sparse_rules());
        let has_layers = |rule: &MapRule| {
            let mut indices = rule.scope.indices().iter();
            indices.all(|index| !index.values.is_empty())
        };
        rules.retain(has_layers);
        rules
    }

    fn attention_rules(&self) -> Vec<MapRule> {
        let Model {
            hidden_size: h,
            num_attention_heads: a,
            q_lora_rank: rq,
            kv_lora_rank: rk,
            qk_nope_head_dim: dn,
            qk_rope_head_dim: dr,
            v_head_dim: dv,
            ..
        } = *self.model;
        let rule = |module: &str, tensor: &str, shape: &[u64], also: &[&str]| {
            let field = Field::new(Half::Attention, module, "weight", shape);
            let field = also
                .iter()
                .fold(field, |field, key| field.or("fused-norm", key));
            self.whole("attention", &self.all, &field, tensor)
                .state(self.state(Half::Attention, module))
        };
        let matrix = |module: &str, tensor: &str, shape: &[u64]| {
            self.encoded(rule(module, tensor, shape, &[]))
        };
        // A norm before a projection may be fused into its module.
        let (q_norm, kv_norm) = (
            "self_attention.linear_q_up_proj.layer_norm_weight",
            "self_attention.linear_kv_up_proj.layer_norm_weight",
        );
        vec![
            rule("input_layernorm", "input_layernorm", &[h], &[]),
            matrix(
                "self_attention.linear_q_down_proj",
                "self_attn.q_a_proj",
                &[rq, h],
            ),
            rule(
                "self_attention.q_layernorm",
                "self_attn.q_a_layernorm",
                &[rq],
                &[q_norm],
            ),
            matrix(
                "self_attention.linear_q_up_proj",
                "self_attn.q_b_proj",
                &[a * (dn + dr), rq],
            ),
            matrix(
                "self_attention.linear_kv_down_proj",
                "self_attn.kv_a_proj_with_mqa",
                &[rk + dr, h],
            ),
            rule(
                "self_attention.kv_layernorm",
                "self_attn.kv_a_layernorm",
                &[rk],
                &[kv_norm],
            ),
            matrix(
                "self_attention.linear_kv_up_proj",
                "self_attn.kv_b_proj",
                &[a * (dn + dv), rk],
            ),
            matrix(
                "self_attention.linear_proj",
                "self_attn.o_proj",
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
        let module = |name: &str| format!("self_attention.core_attention.indexer.{name}");
        let rule = |name: &str, field: &str, tensor: &str, shape: &[u64]| {
            let (module, tensor) = (module(name), format!("self_attn.indexer.{tensor}"));
            let field = Field::new(Half::Attention, &module, field, shape);
            self.whole("indexer", &self.with_indexer, &field, &tensor)
        };
        let state = |name: &str| self.state(Half::Attention, &module(name));
        vec![
            self.encoded(rule("linear_wq_b", "weight", "wq_b", &[hi * di, rq]))
                .state(state("linear_wq_b")),
            self.encoded(rule("linear_wk", "weight", "wk", &[di, h]))
                .state(state("linear_wk")),
            // A LayerNorm: weight and bias are one module and share its state.
            rule("k_norm", "weight", "k_norm", &[di]).state(state("k_norm")),
            rule("k_norm", "bias", "k_norm", &[di]),
            rule("linear_weights_proj", "weight", "weights_proj", &[hi, h])
                .state(state("linear_weights_proj")),
        ]
    }

    fn dense_rules(&self) -> Vec<MapRule> {
        let Model {
            hidden_size: h,
            intermediate_size: f,
            ..
        } = *self.model;
        let (fc1, fc2) = ("mlp.linear_fc1", "mlp.linear_fc2");
        // The norm before a dense MLP is fused into its first matrix and shares that module's state.
        let norm = Field::new(Half::FeedForward, fc1, "layer_norm_weight", &[h]);
        let norm = norm.or("own-norm", "pre_mlp_layernorm.weight");
        let down = Field::new(Half::FeedForward, fc2, "weight", &[h, f]);
        vec![
            self.whole("dense mlp", &self.dense, &norm, "post_attention_layernorm"),
            self.gate_and_up("dense mlp", &self.dense, fc1, "mlp", f),
            self.encoded(self.whole("dense mlp", &self.dense, &down, "mlp.down_proj"))
                .state(self.state(Half::FeedForward, fc2)),
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
        let (norm, router) = ("pre_mlp_layernorm", "mlp.router");
        let (shared_fc1, shared_fc2) = (
            "mlp.shared_experts.linear_fc1",
            "mlp.shared_experts.linear_fc2",
        );
        let rule = |module: &str, field: &str, tensor: &str, shape: &[u64]| {
            let field = Field::new(Half::FeedForward, module, field, shape);
            self.whole("moe", &self.sparse, &field, tensor)
        };
        let state = |module: &str| self.state(Half::FeedForward, module);
        let bias = Field::new(Half::FeedForward, router, "expert_bias", &[e]);
        let bias = self.empty("moe", &self.sparse, &bias).part(Part::new(
            &format!("{}.mlp.gate.e_score_correction_bias", self.source),
            [e],
        ));
        vec![
            rule(norm, "weight", "post_attention_layernorm", &[h]).state(state(norm)),
            rule(router, "weight", "mlp.gate", &[e, h]),
            bias.dtype(DtypeRule::pinned(Dtype::F32)),
            self.gate_and_up(
                "moe",
                &self.sparse,
                shared_fc1,
                "mlp.shared_experts",
                shared,
            ),
            self.encoded(rule(
                shared_fc2,
                "weight",
                "mlp.shared_experts.down_proj",
                &[h, shared],
            ))
            .state(state(shared_fc2)),
            self.experts_in(e, f, h),
            self.experts_out(e, f, h),
        ]
    }

    /// Gate and up rows of every expert, stacked: `[e, 2f, h]`.
    fn experts_in(&self, e: u64, f: u64, h: u64) -> MapRule {
        let up = f.to_string();
        let half = |key: &str, row: &str| {
            Part::new(key, [f, h])
                .over(Scope::new().index("e", 0..e))
                .at(["e", row, "0"])
        };
        let key = |key: &str| format!("mlp.experts.{key}");
        let field = Field {
            also: vec![
                Form::new(
                    "expert-halves",
                    [
                        half(&key("experts.{e}.linear_fc1.weight_w"), "0"),
                        half(&key("experts.{e}.linear_fc1.weight_v"), &up),
                    ],
                ),
                Form::new(
                    "local-experts",
                    [
                        Part::new(&key("local_experts.{e}.linear_fc1.weight"), [2 * f, h])
                            .over(Scope::new().index("e", 0..e))
                            .at(["e", "0", "0"]),
                    ],
                ),
            ],
            ..Field::new(Half::FeedForward, FC1, "weight", &[e, 2 * f, h])
        };
        let tensor = |name: &str| format!("{}.mlp.experts.{{e}}.{name}.weight", self.source);
        let fused = Part::new(
            &format!("{}.mlp.experts.gate_up_proj", self.source),
            [e, 2 * f, h],
        );
        self.encoded(self.empty("moe", &self.sparse, &field))
            .state(self.state_of_each(FC1))
            .part(half(&tensor("gate_proj"), "0"))
            .part(half(&tensor("up_proj"), &up))
            .tensors_also(Form::new(FUSED, [fused]))
    }

    /// The way back of every expert, stacked: `[e, h, f]`.
    fn experts_out(&self, e: u64, f: u64, h: u64) -> MapRule {
        let each = |key: &str| {
            Part::new(key, [h, f])
                .over(Scope::new().index("e", 0..e))
                .at(["e", "0", "0"])
        };
        let one = |form: &str, key: &str| Form::new(form, [each(&format!("mlp.experts.{key}"))]);
        let field = Field {
            also: vec![
                one("expert-halves", "experts.{e}.linear_fc2.weight"),
                one("local-experts", "local_experts.{e}.linear_fc2.weight"),
            ],
            ..Field::new(Half::FeedForward, FC2, "weight", &[e, h, f])
        };
        let tensor = format!("{}.mlp.experts.{{e}}.down_proj.weight", self.source);
        let fused = Part::new(&format!("{}.mlp.experts.down_proj", self.source), [e, h, f]);
        self.encoded(self.empty("moe", &self.sparse, &field))
            .state(self.state_of_each(FC2))
            .part(each(&tensor))
            .tensors_also(Form::new(FUSED, [fused]))
    }

    /// A param without parts yet, in every spelling.
    fn empty(&self, group: &str, layers: &[u64], field: &Field<'_>) -> MapRule {
        let suffix = format!("{}.{}", field.module, field.field);
        let key = |prefix: &Prefix| format!("{}.{suffix}", prefix.of(field.half));
        let mut rule = MapRule::new(
            &suffix,
            self.group.unwrap_or(group),
            &key(&self.prefixes[0]),
            field.shape.clone(),
        )
        .over(Scope::new().index(self.index, layers.iter().copied()))
        .dtype(stored());
        for prefix in &self.prefixes {
            if !prefix.name.is_empty() {
                let whole = Part::new(&key(prefix), field.shape.clone());
                rule = rule.params_also(Form::new(prefix.name, [whole]));
            }
            for form in &field.also {
                let name = match prefix.name {
                    "" => form.name.clone(),
                    name => format!("{name}+{}", form.name),
                };
                let below = |part: &Part| Part {
                    tensor: format!("{}.{}", prefix.of(field.half), part.tensor),
                    ..part.clone()
                };
                rule = rule.params_also(Form::new(&name, form.parts.iter().map(below)));
            }
        }
        rule
    }

    /// One tensor is one param; the tensor's field is the param's, whatever that calls it.
    fn whole(&self, group: &str, layers: &[u64], field: &Field<'_>, tensor: &str) -> MapRule {
        let ending = if field.field == "bias" {
            "bias"
        } else {
            "weight"
        };
        let tensor = format!("{}.{tensor}.{ending}", self.source);
        self.empty(group, layers, field)
            .part(Part::new(&tensor, field.shape.clone()))
    }

    /// Gate rows, then up rows, of a gated MLP of width `f`.
    fn gate_and_up(&self, group: &str, layers: &[u64], module: &str, mlp: &str, f: u64) -> MapRule {
        let (h, up) = (self.model.hidden_size, f.to_string());
        let half = |key: &str| Part::new(key, [f, h]);
        let key = |half: &str| format!("{module}.weight_{half}");
        let field = Field {
            also: vec![Form::new(
                "halves",
                [half(&key("w")), half(&key("v")).at([&up, "0"])],
            )],
            ..Field::new(Half::FeedForward, module, "weight", &[2 * f, h])
        };
        let tensor = |name: &str| format!("{}.{mlp}.{name}.weight", self.source);
        self.encoded(self.empty(group, layers, &field))
            .state(self.state(Half::FeedForward, module))
            .part(half(&tensor("gate_proj")))
            .part(half(&tensor("up_proj")).at([&up, "0"]))
    }

    /// A matrix that FP8 releases store in FP8: those of attention, MLP and experts, and of the indexer all but
    /// `weights_proj`. Norms, routers, embedding, head and `eh_proj` are BF16 in every release.
    fn encoded(&self, rule: MapRule) -> MapRule {
        rule.encoded(self.release.is_fp8.then_some(BLOCK_FP8))
    }

    /// The state of a Transformer Engine module.
    fn state(&self, half: Half, module: &str) -> ModuleState {
        let module = format!("{}.{module}", self.prefixes[0].of(half));
        ModuleState::new(&module, StateValue::EmptyTensor)
    }

    /// The same, one for each index of the first axis.
    fn state_of_each(&self, module: &str) -> ModuleState {
        self.state(Half::FeedForward, module).along(0)
    }
}

/// The doubled word is Megatron's own.
const FC1: &str = "mlp.experts.experts.linear_fc1";
const FC2: &str = "mlp.experts.experts.linear_fc2";

/// The spelling that transformers has for experts in memory: one tensor for all of a layer.
const FUSED: &str = "fused";

impl Prefix {
    fn joined(name: &'static str, layer: &str) -> Prefix {
        Prefix {
            name,
            attention: layer.to_owned(),
            feed_forward: layer.to_owned(),
        }
    }

    fn of(&self, half: Half) -> &str {
        match half {
            Half::Attention => &self.attention,
            Half::FeedForward => &self.feed_forward,
        }
    }
}

impl<'a> Field<'a> {
    fn new(half: Half, module: &'a str, field: &'a str, shape: &[u64]) -> Field<'a> {
        Field {
            half,
            module,
            field,
            shape: shape.to_vec(),
            also: Vec::new(),
        }
    }

    /// With another key for the whole of it.
    fn or(mut self, name: &str, key: &str) -> Field<'a> {
        self.also
            .push(Form::new(name, [Part::new(key, self.shape.clone())]));
        self
    }
}
