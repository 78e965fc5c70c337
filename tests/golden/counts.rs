//! Counts of the full model, against numbers derived from its config by a second path.
//!
//! The second path walks the layers of `config.json` and adds up sizes by hand; it shares no code with the family. The
//! published totals stand beside it, so that neither can drift with the other.

use std::sync::Arc;

use rialto_bridge::MtpPolicy;
use rialto_engine::{ImportPlan, Summary};
use serde_json::Value;

use crate::world::{both_ways, families, fixture, on_disk, options};

/// Tensors, params and elements of one or more layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    tensors: u64,
    params: u64,
    elements: u64,
}

impl Count {
    fn add(&mut self, tensors: u64, params: u64, elements: u64) {
        self.tensors += tensors;
        self.params += params;
        self.elements += elements;
    }
}

/// The decoder with embedding and head, and the prediction layers.
fn derive(config: &Value) -> (Count, Count) {
    let n = |key: &str| match &config[key] {
        // FC-09: no count of prediction layers is a count of none.
        Value::Null if key == "num_nextn_predict_layers" => 0,
        value => value.as_u64().unwrap_or_else(|| panic!("{key}")),
    };
    let (v, h, a) = (n("vocab_size"), n("hidden_size"), n("num_attention_heads"));
    let (dn, dr, dv) = (
        n("qk_nope_head_dim"),
        n("qk_rope_head_dim"),
        n("v_head_dim"),
    );
    let (rq, rk) = (n("q_lora_rank"), n("kv_lora_rank"));
    let (hi, di) = (n("index_n_heads"), n("index_head_dim"));
    let (e, f, shared) = (
        n("n_routed_experts"),
        n("moe_intermediate_size"),
        n("n_shared_experts"),
    );
    let attention = |count: &mut Count| {
        let matrices =
            rq * h + a * (dn + dr) * rq + (rk + dr) * h + a * (dn + dv) * rk + h * a * dv;
        // Input norm, two latent norms, five matrices; the norm after attention is counted here too.
        count.add(9, 9, matrices + rq + rk + 2 * h);
    };
    let indexer = |count: &mut Count| count.add(5, 5, hi * di * rq + di * h + 2 * di + hi * h);
    let dense = |count: &mut Count| count.add(3, 2, 3 * n("intermediate_size") * h);
    let experts = |count: &mut Count| {
        // Router weight and bias; three matrices an expert, fused and stacked into two; the same for the shared one.
        count.add(
            2 + 3 * e + 3,
            2 + 2 + 2,
            e * h + e + 3 * e * f * h + 3 * shared * f * h,
        );
    };
    let mut main = Count::default();
    main.add(3, 3, 2 * v * h + h);
    // GLM-5 and 5.1 say neither: every layer has an indexer, and the first few are dense.
    for layer in 0..n("num_hidden_layers") as usize {
        let indexer_kind = config["indexer_types"]
            .get(layer)
            .map_or("full", |kind| kind.as_str().unwrap());
        let is_dense =
            (layer as u64) < config["first_k_dense_replace"].as_u64().unwrap_or_default();
        let mlp_kind = config["mlp_layer_types"]
            .get(layer)
            .map_or(if is_dense { "dense" } else { "sparse" }, |kind| {
                kind.as_str().unwrap()
            });
        attention(&mut main);
        if indexer_kind == "full" {
            indexer(&mut main);
        }
        if mlp_kind == "dense" {
            dense(&mut main)
        } else {
            experts(&mut main)
        }
    }
    let mut mtp = Count::default();
    for _ in 0..n("num_nextn_predict_layers") {
        mtp.add(4, 4, 3 * h + 2 * h * h);
        attention(&mut mtp);
        indexer(&mut mtp);
        experts(&mut mtp);
    }
    (main, mtp)
}

fn config(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(name).join("config.json")).unwrap()).unwrap()
}

fn of(summary: &Summary) -> Count {
    assert_eq!(summary.source.elements, summary.target.elements);
    Count {
        tensors: summary.source.tensors,
        params: summary.target.tensors,
        elements: summary.source.elements,
    }
}

#[test]
fn the_second_path_gives_the_published_totals() {
    let (main, mtp) = derive(&config("configs/glm-5.2"));
    assert_eq!(
        main,
        Count {
            tensors: 58_794,
            params: 1_266,
            elements: 743_377_019_904
        }
    );
    assert_eq!(
        mtp,
        Count {
            tensors: 791,
            params: 24,
            elements: 9_952_920_576
        }
    );
    assert_eq!(main.tensors + mtp.tensors, 59_585);
    assert_eq!(main.elements + mtp.elements, 753_329_940_480);
}

/// Two matrices more are encoded in FP8 for each full indexer, and none of the norms, routers, embeddings and heads.
#[test]
fn the_published_totals_of_the_other_releases() {
    for name in ["glm-5", "glm-5.1"] {
        let (main, mtp) = derive(&config(&format!("configs/{name}")));
        assert_eq!(
            (main.tensors, main.params, mtp.tensors),
            (59_079, 1_551, 791),
            "{name}"
        );
        assert_eq!(main.elements + mtp.elements, 753_864_139_008, "{name}");
    }
    for name in ["glm-5.2-fp8", "glm-5.3"] {
        let glm_52 = derive(&config("configs/glm-5.2"));
        assert_eq!(
            derive(&config(&format!("configs/{name}"))),
            glm_52,
            "{name}"
        );
    }
}

#[test]
fn the_plan_of_a_config_counts_what_the_second_path_derives() {
    for (way, family) in families() {
        let family = family.as_ref();
        let all = [
            "configs/glm-5.2",
            "glm52-tiny",
            "glm5-tiny",
            "glm53-tiny",
            "configs/glm-5",
            "configs/glm-5.1",
            "configs/glm-5.2-fp8",
            "configs/glm-5.3",
        ];
        // A full model takes seconds; that a loaded family says what a linked one does is known from the first few.
        let names = if way == "linked" { &all[..] } else { &all[..4] };
        for &name in names {
            let (main, mtp) = derive(&config(name));
            let config_only = rialto_checkpoint::store::MemoryStore::new(name);
            config_only
                .insert(
                    "config.json",
                    std::fs::read(fixture(name).join("config.json")).unwrap(),
                )
                .unwrap();
            let config_only = Arc::new(config_only);
            let plan = |mtp| {
                ImportPlan::new(family, Arc::clone(&config_only) as _, &options(mtp)).unwrap()
            };
            let mut all = main;
            all.add(mtp.tensors, mtp.params, mtp.elements);
            let kept = plan(MtpPolicy::Keep);
            assert_eq!(of(kept.summary()), all);
            assert!(kept.summary().skipped.is_empty());
            let dropped = plan(MtpPolicy::Drop);
            assert_eq!(of(dropped.summary()), main);
            let skipped = &dropped.summary().skipped;
            let found: Vec<_> = skipped
                .iter()
                .map(|part| (part.tensors, part.elements))
                .collect();
            let expected = (mtp.tensors > 0).then_some((mtp.tensors, mtp.elements));
            assert_eq!(found, Vec::from_iter(expected));
            assert_eq!(of(plan(MtpPolicy::Absent).summary()), main);
        }
    }
}

#[test]
fn a_plan_from_headers_equals_the_plan_from_the_config() {
    both_ways(|family| {
        let from_headers =
            ImportPlan::new(family, on_disk("glm52-tiny"), &options(MtpPolicy::Keep)).unwrap();
        let (main, mtp) = derive(&config("glm52-tiny"));
        assert_eq!(
            from_headers.summary().source.tensors,
            main.tensors + mtp.tensors
        );
        assert_eq!(
            from_headers.summary().source.elements,
            main.elements + mtp.elements
        );
    });
}

/// Objects of the extra state: one a module of Transformer Engine, one an expert and matrix, one for the head.
#[test]
fn every_module_has_its_object() {
    both_ways(|family| {
        let config = config("configs/glm-5.2");
        let plan = ImportPlan::new(
            family,
            on_disk("configs/glm-5.2"),
            &options(MtpPolicy::Keep),
        )
        .unwrap();
        let count = |key: &str, kind: &str| {
            config[key]
                .as_array()
                .unwrap()
                .iter()
                .filter(|found| *found == kind)
                .count() as u64
        };
        let (full, dense, sparse) = (
            count("indexer_types", "full"),
            count("mlp_layer_types", "dense"),
            count("mlp_layer_types", "sparse"),
        );
        let experts = config["n_routed_experts"].as_u64().unwrap();
        let layers = full + count("indexer_types", "shared");
        let moe = 3 + 2 * experts;
        // The prediction layer: four modules of its own, an attention with indexer, experts.
        let expected = 8 * layers + 4 * full + 2 * dense + moe * sparse + 2 + (4 + 8 + 4 + moe);
        assert_eq!(plan.mapping().objects().len() as u64, expected);
        assert_eq!(plan.summary().target.objects, expected);
    });
}
