//! Multi-latent attention to the positions that an indexer selects.

use rialto_plugin::prelude::program::builder::Value;
use rialto_plugin::prelude::program::op::{IndexerScores, Pairing, Rope};

use super::{Block, inverse_root};
use crate::spec::{Indexer, Model};

/// Epsilon of the norm of the indexer's keys. Source: `k_norm` of transformers' indexer, whatever `rms_norm_eps` is.
const INDEX_KEY_EPS: f64 = 1e-6;

impl Block<'_, '_> {
    /// What attention makes of the normed stream: `[t, h]` to `[t, h]`, called `attn_out`.
    ///
    /// Keys and values are never expanded: `kv_b` goes to the queries before the sum over positions, and to its result after it.
    pub(super) fn attention(
        &mut self,
        indexer: Indexer,
        x: &Value,
        selection: &mut Option<Value>,
    ) -> Value {
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

        // Queries: down to a latent, normed, up to heads. A head is its part without position, then its part with.
        let q_latent = self.linear("q_a", x, "self_attn.q_a_proj", [rq, h]);
        let q_latent = self.latent_norm("q_latent", &q_latent, "self_attn.q_a_layernorm", rq);
        let q = self.linear("q", &q_latent, "self_attn.q_b_proj", [a * (dn + dr), rq]);
        let q = self.reshape("q_heads", &q, [a, dn + dr]);
        let q_nope = self.slice("q_nope", &q, 0, dn);
        let q_rope = self.slice("q_rope", &q, dn, dr);
        let q_rope = self.rope("q_rotated", &q_rope);

        // What is kept of a position: the normed latent, then the rotated key, which is not normed. Both serve all heads.
        let kv = self.linear("kv_a", x, "self_attn.kv_a_proj_with_mqa", [rk + dr, h]);
        let kv_latent = self.slice("kv_a_latent", &kv, 0, rk);
        let kv_latent = self.latent_norm("kv_latent", &kv_latent, "self_attn.kv_a_layernorm", rk);
        let k_rope = self.slice("k_rope", &kv, rk, dr);
        let k_rope = self.rope("k_rotated", &k_rope);
        let kept = self
            .phase
            .concat(&self.name("kv_kept"), &kv_latent, &k_rope);
        let latents = self.name("latent");
        let latents = self.phase.program().cache(&latents, rk + dr);
        self.phase.append(&kept, &latents);

        if indexer == Indexer::Full {
            *selection = Some(self.select(x, &q_latent));
        }
        let selected = selection
            .as_ref()
            .expect("the first layer of a model has an indexer");

        let kv_b = self.weight("self_attn.kv_b_proj", [a * (dn + dv), rk]);
        let q = self
            .phase
            .mla_absorb(&self.name("q_absorbed"), &q_nope, &kv_b, dv);
        let attended = self.phase.sparse_mla(
            &self.name("attended"),
            (&q, &q_rope),
            selected,
            &latents,
            // That of a head as it is trained, not of the absorbed one.
            inverse_root(dn + dr),
        );
        let heads = self
            .phase
            .mla_expand(&self.name("v_heads"), &attended, &kv_b, dv);
        let heads = self.reshape("v", &heads, [a * dv]);
        self.linear("attn_out", &heads, "self_attn.o_proj", [h, a * dv])
    }

    /// The lightning indexer: the positions that this layer reads, and those after it that share them. `[t, h]` and
    /// `[t, rq]` to `[t, index_topk]`, called `selection`.
    fn select(&mut self, x: &Value, q_latent: &Value) -> Value {
        let Model {
            hidden_size: h,
            q_lora_rank: rq,
            index_n_heads: hi,
            index_head_dim: di,
            ..
        } = *self.model;
        let module = |name: &str| format!("self_attn.indexer.{name}");

        let q = self.linear("index_q", q_latent, &module("wq_b"), [hi * di, rq]);
        let q = self.reshape("index_q_heads", &q, [hi, di]);
        // Here the rotated part comes first: the other way round than in the heads of attention.
        let q = self.rope("index_q_rotated", &q);

        let k = self.linear("index_k", x, &module("wk"), [di, h]);
        let gain = self.weight(&module("k_norm"), [di]);
        let bias = self.tensor(&module("k_norm.bias"));
        let bias = self.phase.program().param(&bias, [di]);
        let normed = self.name("index_k_normed");
        let k = self
            .phase
            .layer_norm(&normed, &k, (&gain, &bias), INDEX_KEY_EPS);
        let k = self.rope("index_k_rotated", &k);
        let keys = self.name("index_key");
        let keys = self.phase.program().cache(&keys, di);
        self.phase.append(&k, &keys);

        let weights = self.weight(&module("weights_proj"), [hi, h]);
        let weights = self
            .phase
            .linear_f32(&self.name("index_weights"), x, &weights);
        let scores = self.phase.indexer_scores(
            &self.name("index_scores"),
            (&q, &weights),
            &keys,
            IndexerScores {
                scale: inverse_root(di),
                head_scale: inverse_root(hi),
            },
        );
        self.phase.topk(
            &self.name("selection"),
            &scores,
            self.model.forward.index_topk,
        )
    }

    /// Rotates the first `qk_rope_head_dim` elements of each head, which for attention are all that it is given. Pairs are
    /// neighbors everywhere: `rope_interleave` and `indexer_rope_interleave`.
    fn rope(&mut self, name: &str, x: &Value) -> Value {
        let rope = Rope {
            theta: self.model.forward.rope_theta,
            dims: self.model.qk_rope_head_dim,
            first: 0,
            pairing: Pairing::Interleaved,
        };
        self.phase.rope(&self.name(name), x, rope)
    }

    fn latent_norm(&mut self, name: &str, x: &Value, module: &str, width: u64) -> Value {
        let weight = self.weight(module, [width]);
        let eps = self.latent_eps;
        self.phase.rms_norm(&self.name(name), x, &weight, eps)
    }
}
