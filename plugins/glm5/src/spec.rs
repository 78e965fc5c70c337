//! The releases, the model's numbers, and the same numbers in Megatron's words.

use std::ops::Range;

use rialto_plugin::prelude::*;
use serde::{Deserialize, Serialize};

/// What tells one release of the family from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// Its name.
    pub name: &'static str,
    /// Whether layers share the indexer of an earlier layer (IndexShare).
    pub shares_indexers: bool,
    /// Whether matrices are stored as block-scaled FP8.
    pub is_fp8: bool,
}

/// The family's differences, all of them, in one table. A config says which row it is by what it holds, not by a name;
/// releases that no config tells apart share a row. What else tells 5.2 and 5.3 from 5 and 5.1, the base of the rotary
/// embedding, the length of the context, a `head_dim` that is no width, are values of the config and no code.
pub const RELEASES: &[Release] = &[
    Release {
        name: "glm-5 or glm-5.1",
        shares_indexers: false,
        is_fp8: false,
    },
    Release {
        name: "glm-5-fp8 or glm-5.1-fp8",
        shares_indexers: false,
        is_fp8: true,
    },
    Release {
        name: "glm-5.2",
        shares_indexers: true,
        is_fp8: false,
    },
    Release {
        name: "glm-5.2-fp8 or glm-5.3",
        shares_indexers: true,
        is_fp8: true,
    },
];

impl Release {
    /// The row for what a config holds.
    #[must_use]
    pub fn find(shares_indexers: bool, is_fp8: bool) -> Release {
        let row = RELEASES
            .iter()
            .find(|row| row.shares_indexers == shares_indexers && row.is_fp8 == is_fp8);
        *row.expect("the table has a row for both values of both columns")
    }

    /// The row of a spec that this family made. Errors: [`Error::Document`] for somebody else's.
    pub fn of(spec: &ModelSpec) -> Result<Release, Error> {
        let row = RELEASES.iter().find(|row| row.name == spec.release);
        row.copied().ok_or_else(|| Error::Document {
            document: "glm5 model".to_owned(),
            reason: format!("{:?} is no release of the family", spec.release),
        })
    }
}

/// How a layer finds the positions that its sparse attention reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Indexer {
    /// It has an indexer of its own.
    Full,
    /// It uses the selection of the nearest full layer before it, and stores no indexer.
    Shared,
}

/// The feed-forward part of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mlp {
    /// One gated MLP.
    Dense,
    /// Routed experts and a shared one.
    Sparse,
}

impl Mlp {
    /// The two physical layers of a layer in Megatron's pattern: `D` sparse attention, then `-` dense MLP or `E` experts.
    #[must_use]
    pub fn symbols(self) -> &'static str {
        match self {
            Mlp::Dense => "D-",
            Mlp::Sparse => "DE",
        }
    }
}

/// One layer of the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Its indexer.
    pub indexer: Indexer,
    /// Its feed-forward part.
    pub mlp: Mlp,
}

/// The model's numbers; the config key of each is its name unless said otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "each field is the config key of its name")]
pub struct Model {
    pub vocab_size: u64,
    pub hidden_size: u64,
    pub intermediate_size: u64,
    pub num_attention_heads: u64,
    pub q_lora_rank: u64,
    pub kv_lora_rank: u64,
    pub qk_nope_head_dim: u64,
    pub qk_rope_head_dim: u64,
    pub v_head_dim: u64,
    pub index_n_heads: u64,
    pub index_head_dim: u64,
    pub n_routed_experts: u64,
    pub n_shared_experts: u64,
    pub moe_intermediate_size: u64,
    /// `indexer_types` and `mlp_layer_types`, or what stands for them.
    pub layers: Vec<Layer>,
    /// `num_nextn_predict_layers`, 0 if the user asked for none or the checkpoint holds none.
    pub mtp_layers: u64,
    /// Those of `num_nextn_predict_layers` that the source may hold and that are left out.
    pub mtp_layers_dropped: u64,
    /// What only the forward pass reads.
    pub forward: Forward,
}

/// Numbers that decide no tensor: the same weights may be run with others. The config key of each is its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "each field is the config key of its name")]
pub struct Forward {
    pub rms_norm_eps: f64,
    /// The base of the rotary embedding, in whichever spelling the config has it.
    pub rope_theta: f64,
    pub index_topk: u64,
    pub num_experts_per_tok: u64,
    pub n_group: u64,
    pub topk_group: u64,
    pub routed_scaling_factor: f64,
    /// The token ids that end a text.
    pub eos_token_id: Vec<u32>,
}

impl Model {
    /// The numbers of a spec that this family made. Errors: [`Error::Document`] for somebody else's.
    pub fn of(spec: &ModelSpec) -> Result<Model, Error> {
        let model: Model = spec.own()?;
        let first = model.layers.first();
        if first.is_none_or(|layer| layer.indexer == Indexer::Shared) {
            return Err(Error::Document {
                document: "glm5 model".to_owned(),
                reason: "its first layer has no indexer, and shares none".to_owned(),
            });
        }
        Ok(model)
    }

    /// Numbers of the decoder layers for which `matches` holds.
    pub fn layers_where(&self, matches: impl Fn(&Layer) -> bool) -> Vec<u64> {
        (0..)
            .zip(&self.layers)
            .filter(|(_, layer)| matches(layer))
            .map(|(number, _)| number)
            .collect()
    }

    /// The hybrid pattern of some layers.
    #[must_use]
    pub fn pattern(&self, layers: Range<u64>) -> String {
        let numbered = (0..).zip(&self.layers);
        let inside = numbered.filter(|(number, _)| layers.contains(number));
        inside.map(|(_, layer)| layer.mlp.symbols()).collect()
    }

    /// What Megatron appends to the pattern for multi-token prediction.
    #[must_use]
    pub fn mtp_pattern(&self) -> String {
        "/DE".repeat(usize::try_from(self.mtp_layers).unwrap_or_default())
    }
}

/// The Megatron-Bridge provider class that a checkpoint of this family names.
pub const PROVIDER: &str = "megatron.bridge.models.glm_moe_dsa.glm5_provider.GLM5ModelProvider";

/// What the vocabulary is padded to a multiple of for each rank.
pub const VOCABULARY_MULTIPLE: u64 = 1280;

/// Provider fields that are the same for every model of the family, whatever its config says.
#[must_use]
pub fn fixed_provider_fields() -> Map<String, Value> {
    fields(json!({
        "activation_func": torch("nn.functional.silu"),
        "add_bias_linear": false,
        "apply_rope_fusion": false,
        "attention_softmax_in_fp32": false,
        "cp_comm_type": "allgather",
        "dsa_indexer_k_norm_epsilon": 1e-6,
        "dsa_indexer_loss_coeff": 0.001,
        "dsa_indexer_rotate_activation": false,
        "dsa_indexer_use_sparse_loss": true,
        "experimental_attention_variant": "dsa",
        "gated_linear_unit": true,
        "hidden_dropout": 0.0,
        "is_hybrid_model": true,
        "make_vocab_size_divisible_by": VOCABULARY_MULTIPLE,
        "moe_flex_dispatcher_backend": "hybridep",
        "moe_flex_dispatcher_num_sms": 16,
        "moe_grouped_gemm": true,
        "moe_permute_fusion": true,
        "moe_permute_fusion_into_hybridep": false,
        "moe_router_bias_update_rate": 0.0,
        "moe_router_dtype": "fp32",
        "moe_router_enable_expert_bias": true,
        "moe_router_load_balancing_type": "seq_aux_loss",
        "moe_router_pre_softmax": true,
        "moe_router_score_function": "sigmoid",
        "moe_shared_expert_overlap": true,
        "moe_token_dispatcher_type": "flex",
        // Plain rotary embedding: with both factors at 1 Megatron's `yarn` is it. Its own defaults are not.
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "multi_latent_attention": true,
        "normalization": "RMSNorm",
        "position_embedding_type": "rope",
        "qk_layernorm": true,
        "rope_type": "yarn",
        "rotary_percent": 1.0,
        "rotary_scaling_factor": 1.0,
        "share_embeddings_and_output_weights": false,
    }))
}
