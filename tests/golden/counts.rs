//! Counts of the full model, against numbers derived from its config by a second path.
//!
//! The second path ([`rialto_tests::published`]) walks the layers of `config.json` and shares no code with the family. The
//! published totals stand beside it, so that neither can drift with the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use rialto_bridge::MtpPolicy;
use rialto_checkpoint::store::{MemoryStore, Store};
use rialto_engine::{ImportPlan, Summary};
use rialto_tests::published::{self, Part};
use serde_json::{Value, json};

use crate::world::{both_ways, families, fixture, in_memory, on_disk, options};

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
///
/// Tensors and elements are those of the list that the second path makes; params it does not know, so they are counted here:
/// a param is made of one tensor, but for gate and up, which are fused, and for experts, which are stacked.
fn derive(config: &Value) -> (Count, Count) {
    let (mut main, mut mtp) = (Count::default(), Count::default());
    for tensor in published::tensors(config) {
        if tensor.is_scale {
            continue;
        }
        let is_expert = tensor.name.contains(".mlp.experts.");
        let is_first = tensor.name.contains(".mlp.experts.0.");
        let makes_param = !tensor.name.contains(".up_proj.") && (is_first || !is_expert);
        let count = match tensor.part {
            Part::Main => &mut main,
            Part::Mtp => &mut mtp,
        };
        count.add(1, u64::from(makes_param), tensor.elements());
    }
    (main, mtp)
}

fn config(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(name).join("config.json")).unwrap()).unwrap()
}

/// A full model takes seconds; that a loaded family says what a linked one does is known from the first four.
const CONFIGS: [&str; 8] = [
    "configs/glm-5.2",
    "glm52-tiny",
    "glm5-tiny",
    "glm53-tiny",
    "configs/glm-5",
    "configs/glm-5.1",
    "configs/glm-5.2-fp8",
    "configs/glm-5.3",
];

/// A fixture without its weights.
fn config_only(name: &str) -> Arc<dyn Store> {
    let store = MemoryStore::new(name);
    let config = std::fs::read(fixture(name).join("config.json")).unwrap();
    store.insert("config.json", config).unwrap();
    Arc::new(store)
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
        let names = match way {
            "linked" => &CONFIGS[..],
            _ => &CONFIGS[..4],
        };
        for name in names {
            let (main, mtp) = derive(&config(name));
            let store = config_only(name);
            let plan = |mtp| ImportPlan::new(family, Arc::clone(&store), &options(mtp)).unwrap();
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

/// Names, dtypes and shapes.
type Inventory = BTreeMap<String, (String, Vec<u64>)>;

fn published_inventory(config: &Value) -> Inventory {
    let tensors = published::tensors(config).into_iter();
    let tensors =
        tensors.map(|tensor| (tensor.name, (tensor.dtype.name().to_owned(), tensor.shape)));
    tensors.collect()
}

#[test]
fn the_inventory_of_a_config_is_the_published_one_encoded_tensors_and_scales_included() {
    for (way, family) in families() {
        let names = match way {
            "linked" => &CONFIGS[..],
            _ => &CONFIGS[..4],
        };
        for name in names {
            let plan = ImportPlan::new(
                family.as_ref(),
                config_only(name),
                &options(MtpPolicy::Keep),
            )
            .unwrap();
            let codecs = family.codecs(plan.spec()).unwrap();
            let nominal = plan.mapping().nominal_tensors("config.json", &codecs);
            let nominal = nominal.unwrap().into_iter().map(|tensor| {
                let dtype = tensor.dtype.safetensors_name().to_owned();
                (tensor.name, (dtype, tensor.shape.extents().to_vec()))
            });
            let nominal: Vec<_> = nominal.collect();
            let expected = published_inventory(&config(name));
            assert_eq!(nominal.len(), expected.len(), "{name}");
            let nominal = Inventory::from_iter(nominal);
            let differs = |(name, tensor): &(&String, _)| expected.get(*name) != Some(*tensor);
            let first = nominal.iter().find(differs);
            assert_eq!(first, None, "{name}");
        }
    }
}

/// Read from the config or from headers, what is encoded is counted as what it is, and its scales among the bytes.
#[test]
fn encoded_tensors_are_counted_with_their_scales_and_the_bytes_are_those_of_the_shards() {
    both_ways(|family| {
        let planned = |store| ImportPlan::new(family, store, &options(MtpPolicy::Keep)).unwrap();
        let count = |plan: &ImportPlan| {
            let summary = plan.summary();
            let encoded = summary.encoded.iter();
            let encoded = encoded.map(|e| (e.tensors, e.companions, e.companion_bytes));
            assert!(
                summary
                    .encoded
                    .iter()
                    .all(|e| e.codec == "block_fp8/128x128")
            );
            (encoded.collect::<Vec<_>>(), summary.source.bytes)
        };
        let full = count(&planned(config_only("configs/glm-5.3")));
        let scales = 4 * 45_853_104;
        assert_eq!(full, (vec![(59_044, 59_044, scales)], 755_617_140_416));
        let plain = count(&planned(config_only("configs/glm-5.2")));
        assert_eq!(plain, (Vec::new(), 1_506_659_919_872));
        let tiny = count(&planned(config_only("glm53-tiny")));
        assert_eq!(tiny, (vec![(106, 106, 4 * 233)], 800_068));
        assert_eq!(count(&planned(on_disk("glm53-tiny"))), tiny);
    });
}

/// A config that says FP8 says nothing of a checkpoint that is not: there the stored dtypes decide.
#[test]
fn weights_stored_in_bf16_beside_an_fp8_config_are_not_taken_for_encoded() {
    both_ways(|family| {
        let source = in_memory("glm52-tiny");
        let bytes = source.bytes("config.json").unwrap();
        let mut config: Value = serde_json::from_slice(&bytes).unwrap();
        config["quantization_config"] =
            json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]});
        source
            .insert("config.json", config.to_string().into_bytes())
            .unwrap();
        let options = options(MtpPolicy::Keep);
        let plan = ImportPlan::new(family, Arc::new(source), &options).unwrap();
        assert_eq!(plan.summary().release, "glm-5.2-fp8 or glm-5.3");
        assert_eq!(plan.summary().encoded, []);
        let plain = ImportPlan::new(family, on_disk("glm52-tiny"), &options).unwrap();
        assert_eq!(plan.summary().source, plain.summary().source);
    });
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
