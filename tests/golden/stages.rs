//! Stages and ranks: against the published tables, the ranks of the real Megatron, and layouts that a user gives.

use std::io::Read;
use std::sync::Arc;

use rialto_bridge::{
    Bridge, Error, MapOptions, Mesh, ModelSpec, MtpPolicy, PipelineLayout, PipelineRequest,
    StageChoice,
};
use rialto_checkpoint::store::{MemoryStore, Store};
use rialto_engine::{ChunkChoice, ImportPlan, Options, source_config};
use serde_json::{Value, json};

use crate::world::{
    GOLDENS, both_ways, families, fixture, import, iteration, megatron, on_disk, options,
};

fn spec(family: &dyn Bridge, name: &str) -> ModelSpec {
    let config = source_config(on_disk(name).as_ref()).unwrap();
    family.map_config(&config, &MapOptions::default()).unwrap()
}

fn layout(
    family: &dyn Bridge,
    spec: &ModelSpec,
    pp: u64,
    stages: &str,
) -> Result<PipelineLayout, Error> {
    let stages = match stages {
        "" => StageChoice::Family,
        text => text.parse().unwrap(),
    };
    let mesh = Mesh { pp, ..Mesh::SINGLE };
    family.pipeline_layout(spec, &PipelineRequest { mesh, stages })
}

fn layers(layout: &PipelineLayout) -> Vec<u64> {
    layout.stages.iter().map(|stage| stage.layers).collect()
}

/// The tables that are published for the model whose layers share indexers, and for the one whose layers share none.
#[test]
fn fc_20_the_stages_of_every_pipeline_are_the_published_ones() {
    let shared: [(u64, &[(u64, usize)]); 12] = [
        (2, &[(38, 1), (40, 1)]),
        (3, &[(26, 1), (28, 1), (24, 1)]),
        (4, &[(18, 1), (20, 3)]),
        (6, &[(14, 1), (16, 3), (12, 1), (4, 1)]),
        (8, &[(10, 1), (12, 5), (4, 2)]),
        (10, &[(6, 1), (8, 9)]),
        (12, &[(6, 1), (8, 7), (4, 4)]),
        (13, &[(6, 1), (8, 6), (4, 6)]),
        (16, &[(6, 1), (8, 3), (4, 12)]),
        (19, &[(6, 1), (4, 18)]),
        (21, &[(1, 2), (4, 19)]),
        (1, &[(78, 1)]),
    ];
    let single: [(u64, &[(u64, usize)]); 5] = [
        (2, &[(39, 2)]),
        (4, &[(20, 3), (18, 1)]),
        (8, &[(10, 7), (8, 1)]),
        (13, &[(6, 13)]),
        (78, &[(1, 78)]),
    ];
    both_ways(|family| {
        for (names, tables, most) in [
            (["configs/glm-5.2", "configs/glm-5.3"], &shared[..], 21),
            (["configs/glm-5", "configs/glm-5.1"], &single[..], 78),
        ] {
            for name in names {
                let spec = spec(family, name);
                for (pp, runs) in tables {
                    let expected: Vec<u64> = runs
                        .iter()
                        .flat_map(|&(size, times)| vec![size; times])
                        .collect();
                    let found = layout(family, &spec, *pp, "").unwrap();
                    assert_eq!(layers(&found), expected, "{name}, pp {pp}");
                }
                for pp in 1..=most {
                    let found = layout(family, &spec, pp, "").unwrap();
                    assert_eq!(
                        (
                            found.stages.len() as u64,
                            layers(&found).iter().sum::<u64>()
                        ),
                        (pp, 78)
                    );
                }
                let error = layout(family, &spec, most + 1, "").unwrap_err();
                assert_eq!(
                    error.to_string(),
                    format!(
                        "--pp {} does not fit {most} groups of layers that share an indexer; valid for this model: 1 to {most}",
                        most + 1
                    )
                );
                assert_eq!(error.slug(), "bridge/pipeline");
            }
        }
    });
}

/// What a user may write instead: layers or a pattern, which say the same.
#[test]
fn fc_20_layers_and_a_pattern_give_one_layout() {
    both_ways(|family| {
        let spec = spec(family, "glm52-tiny");
        // Three dense layers and five sparse ones; layers 0, 1, 2 and 6 have indexers.
        for (text, pattern, expected) in [
            ("6,2", "D-D-D-DEDEDE|DEDE/DE", vec![6, 2]),
            ("6,2", "D-D-D-DEDEDE|DEDE", vec![6, 2]),
            ("1x2,4,2", "D-|D-|D-DEDEDE|DEDE/DE", vec![1, 1, 4, 2]),
            ("2,6", "D-D-|D-DEDEDEDEDE", vec![2, 6]),
            ("8", "D-D-D-DEDEDEDEDE", vec![8]),
        ] {
            let pp = expected.len() as u64;
            let by_layers = layout(family, &spec, pp, text).unwrap();
            assert_eq!(layers(&by_layers), expected);
            assert_eq!(
                layout(family, &spec, pp, pattern).unwrap(),
                by_layers,
                "{pattern}"
            );
            let whole = by_layers.provider["hybrid_layer_pattern"].as_str().unwrap();
            let ending = |pattern: &str| pattern.trim_end_matches("/DE").to_owned() + "/DE";
            assert_eq!(whole, ending(pattern));
        }
    });
}

#[test]
fn fc_20_stages_that_do_not_add_up_are_refused() {
    both_ways(|family| {
        let spec = spec(family, "glm52-tiny");
        for (pp, stages, faults) in [
            (2, "6,1", &["deals 7 layers, the model has 8"][..]),
            (2, "6,3", &["deals 9 layers, the model has 8"]),
            (3, "6,2", &["names 2 stages, --pp is 3"]),
            (2, "18446744073709551615,9", &["the model has 8"]),
            (
                3,
                "2,2,2",
                &[
                    "deals 6 layers",
                    "stage 2 begins at layer 4, which uses the indexer of layer 2",
                ],
            ),
            (2, "D-D-D-DEDEDE|DED", &["half of one is left over"]),
            (
                2,
                "D-D-D-DEDEDEDED|E",
                &[
                    "stage 0 of the pattern has 15 physical layers, half",
                    "stage 1 of the pattern has 1 physical layer, half",
                ],
            ),
            (2, "1", &["names 1 stage, --pp is 2", "deals 1 layer, the"]),
            (
                2,
                "D-D-D-DEDED|EDEDE",
                &[
                    "stage 0 of the pattern has 11 physical layers",
                    "stage 1 of the pattern has 5",
                ],
            ),
            (
                2,
                "D-D-D-DEDEDE|DE-E",
                &["physical layer 14 of the pattern is '-', the model has 'D'"],
            ),
            (
                2,
                "D-D-DEDEDEDE|DEDE",
                &["physical layer 5 of the pattern is 'E', the model has '-'"],
            ),
            (2, "M-D-D-DEDEDE|DEDE", &["is 'M', the model has 'D'"]),
            (2, "D-D-D-DEDEDE|DEDEDE", &["deals 9 layers"]),
            (3, "D-D-D-DEDEDE||DEDE", &["stage 1 holds no layer"]),
            (
                2,
                "D-D-D-DEDEDE|DEDE/DE/DE",
                &["ends in \"/DE/DE\" for 1 prediction layer;"],
            ),
            (2, "D-D-D-DEDEDE|DEDE/D-", &["ends in \"/D-\""]),
        ] {
            let error = layout(family, &spec, pp, stages).unwrap_err();
            assert_eq!(error.slug(), "bridge/pipeline", "{stages}");
            let message = error.to_string();
            for fault in faults {
                assert!(message.contains(fault), "{stages}: {message}");
            }
            assert!(message.contains("valid for this model: "), "{message}");
        }
    });
}

/// Every boundary that there can be: between the first layer and the last, it is taken or refused by what the layer is.
#[test]
fn fc_25_a_boundary_before_any_shared_layer_is_refused_by_the_layers_it_parts() {
    for (way, family) in families() {
        for name in ["glm52-tiny", "glm53-tiny", "configs/glm-5.2"] {
            let text = std::fs::read(fixture(name).join("config.json")).unwrap();
            let config: Value = serde_json::from_slice(&text).unwrap();
            let kinds: Vec<&str> = config["indexer_types"]
                .as_array()
                .unwrap()
                .iter()
                .map(|kind| kind.as_str().unwrap())
                .collect();
            let spec = spec(family.as_ref(), name);
            for boundary in 1..kinds.len() {
                let found = layout(
                    family.as_ref(),
                    &spec,
                    2,
                    &format!("{boundary},{}", kinds.len() - boundary),
                );
                if kinds[boundary] == "full" {
                    assert_eq!(layers(&found.unwrap())[0], boundary as u64, "{way} {name}");
                    continue;
                }
                let source = kinds[..boundary]
                    .iter()
                    .rposition(|kind| *kind == "full")
                    .unwrap();
                let message = found.unwrap_err().to_string();
                let expected = format!(
                    "stage 1 begins at layer {boundary}, which uses the indexer of layer {source}; valid for this model"
                );
                assert!(message.contains(&expected), "{message}");
            }
        }
    }
}

/// A layout changes where layers are computed and no value: also one that no even cut would give.
#[test]
fn fc_25_an_import_on_any_layout_holds_the_same_values() {
    both_ways(|family| {
        let whole = import(family, on_disk("glm52-tiny"), &options(MtpPolicy::Keep)).unwrap();
        let whole = megatron(&iteration(Arc::new(whole)));
        for stages in ["2,4,2", "1,7", "1,1,4,2"] {
            let stages: StageChoice = stages.parse().unwrap();
            let pp = stages.count().unwrap();
            let options = Options {
                mesh: Mesh { pp, ..Mesh::SINGLE },
                stages,
                ..options(MtpPolicy::Keep)
            };
            let run = import(family, on_disk("glm52-tiny"), &options).unwrap();
            assert_eq!(megatron(&iteration(Arc::new(run))), whole);
        }
    });
}

/// What each rank of the real HybridModel asked for when it loaded: as many params, and as many bytes.
#[test]
fn every_rank_of_the_real_megatron_holds_what_the_plan_says() {
    let family = rialto_glm5::Glm5;
    for golden in GOLDENS {
        let path = fixture(&format!("megatron/ranks/{}.json.gz", golden.name));
        let mut text = String::new();
        let file = std::fs::File::open(path).unwrap();
        flate2::read::GzDecoder::new(file)
            .read_to_string(&mut text)
            .unwrap();
        let real: Value = serde_json::from_str(&text).unwrap();
        let real = real.as_array().unwrap();
        let plan = ImportPlan::new(&family, on_disk(golden.source), &golden.options()).unwrap();
        let summary = plan.summary();
        let ours: Vec<_> = golden.mesh.ranks().collect();
        assert_eq!(ours.len(), real.len(), "{}", golden.name);
        for (rank, real) in ours.iter().zip(real) {
            let place = |key: &str| real[key].as_u64().unwrap();
            assert_eq!(
                [rank.rank, rank.tp, rank.pp, rank.ep, rank.etp],
                ["rank", "tp_rank", "pp_rank", "ep_rank", "etp_rank"].map(place)
            );
            let requests = real["sharded_state_dict"].as_array().unwrap().iter();
            let tensors: Vec<&Value> = requests
                .filter(|request| request["kind"] == "tensor")
                .collect();
            let mut names: Vec<&str> = tensors
                .iter()
                .map(|request| request["name"].as_str().unwrap())
                .collect();
            names.sort_unstable();
            names.dedup();
            let size = |request: &&Value| {
                let extents = request["local_shape"].as_array().unwrap().iter();
                let elements: u64 = extents.map(|extent| extent.as_u64().unwrap()).product();
                let width = match request["dtype"].as_str().unwrap() {
                    "bfloat16" => 2,
                    "float32" => 4,
                    other => panic!("{other}"),
                };
                elements * width
            };
            let stage = &summary.stages[rank.pp as usize];
            assert!((stage.first_rank..stage.first_rank + stage.ranks).contains(&rank.rank));
            assert_eq!(
                (stage.params, stage.rank_bytes),
                (names.len() as u64, tensors.iter().map(size).sum::<u64>()),
                "{} rank {}",
                golden.name,
                rank.rank
            );
        }
    }
}

/// The conversion tasks of one rank, counted by hand from the config: three at the top, eight for attention and its norms, five
/// an indexer, three a dense layer, and for a sparse one five and two for each expert on the rank.
#[test]
fn a_rank_has_as_many_params_as_the_reference_system_has_tasks() {
    let family = rialto_glm5::Glm5;
    for (name, ep, mtp, published) in [
        ("configs/glm-5.2", 8, MtpPolicy::Drop, 5_916),
        ("configs/glm-5.2", 8, MtpPolicy::Keep, 6_002),
        ("configs/glm-5.2", 1, MtpPolicy::Drop, 39_516),
        ("configs/glm-5.2", 32, MtpPolicy::Drop, 2_316),
        ("configs/glm-5", 8, MtpPolicy::Drop, 6_201),
    ] {
        let text = std::fs::read(fixture(name).join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&text).unwrap();
        let n = |key: &str| config[key].as_u64().unwrap();
        let layers = n("num_hidden_layers");
        let indexers = match config["indexer_types"].as_array() {
            Some(kinds) => kinds.iter().filter(|kind| *kind == "full").count() as u64,
            None => layers,
        };
        let sparse = 5 + 2 * n("n_routed_experts") / ep;
        let dense = n("first_k_dense_replace");
        let mut tasks = 3 + 8 * layers + 5 * indexers + 3 * dense + (layers - dense) * sparse;
        if mtp == MtpPolicy::Keep {
            tasks += n("num_nextn_predict_layers") * (4 + 8 + 5 + sparse);
        }
        assert_eq!(tasks, published, "{name} ep {ep}");
        let options = Options {
            mesh: Mesh { ep, ..Mesh::SINGLE },
            ..options(mtp)
        };
        let plan = ImportPlan::new(&family, on_disk(name), &options).unwrap();
        assert_eq!(plan.summary().stages[0].params, tasks, "{name} ep {ep}");
    }
}

/// The sizes offered are those that a plan takes, and no others; a vocabulary that no size divides hinders until it is padded.
#[test]
fn fc_23_every_size_suggested_fits_and_none_that_fits_is_left_out() {
    both_ways(|family| {
        // Three ranks divide all of it but the vocabulary, padded for one rank or not.
        let thirds = json!({"vocab_size": 251, "num_attention_heads": 12, "num_key_value_heads": 12,
            "intermediate_size": 96, "moe_intermediate_size": 24});
        for (name, edits, pads_vocabulary, tp) in [
            ("glm52-tiny", None, false, &[1, 2, 4][..]),
            ("glm53-tiny", None, false, &[1]),
            ("glm52-tiny", Some(&thirds), false, &[1]),
            ("glm52-tiny", Some(&thirds), true, &[1, 2, 3, 4, 6, 12]),
        ] {
            let source = || -> Arc<dyn Store> {
                match edits {
                    None => on_disk(name),
                    Some(edits) => {
                        let text = std::fs::read(fixture(name).join("config.json")).unwrap();
                        let mut config: Value = serde_json::from_slice(&text).unwrap();
                        for (key, value) in edits.as_object().unwrap() {
                            config[key] = value.clone();
                        }
                        let store = MemoryStore::new(name);
                        store.insert("config.json", config.to_string()).unwrap();
                        Arc::new(store)
                    }
                }
            };
            let on = |mesh: Mesh| Options {
                mesh,
                pads_vocabulary,
                ..options(MtpPolicy::Keep)
            };
            let plan = |mesh: Mesh| ImportPlan::new(family, source(), &on(mesh));
            let single = plan(Mesh::SINGLE).unwrap();
            let found = single.suggest(family, &on(Mesh::SINGLE)).unwrap();
            let fits = |of: &dyn Fn(u64) -> Mesh| -> Vec<u64> {
                (1..=64).filter(|&size| plan(of(size)).is_ok()).collect()
            };
            let one = Mesh::SINGLE;
            assert_eq!(found.tp, tp, "{name}");
            assert_eq!(found.tp, fits(&|tp| Mesh { tp, ..one }), "{name}");
            assert_eq!(found.ep, fits(&|ep| Mesh { ep, ..one }), "{name}");
            assert_eq!(found.etp, fits(&|etp| Mesh { etp, ..one }), "{name}");
            let stages: Vec<u64> = found.pipelines.iter().map(|each| each.pp).collect();
            assert_eq!(stages, fits(&|pp| Mesh { pp, ..one }), "{name}");
            // The bytes are those of the plan itself, on the mesh that was asked for.
            let mesh = Mesh {
                tp: *tp.last().unwrap(),
                ..one
            };
            for pipeline in single.suggest(family, &on(mesh)).unwrap().pipelines {
                let same = plan(Mesh {
                    pp: pipeline.pp,
                    ..mesh
                })
                .unwrap();
                let shares = same.summary().stages.iter();
                let largest = shares.map(|stage| stage.rank_bytes).max();
                assert_eq!(Some(pipeline.largest_rank_bytes), largest, "{name} {mesh}");
            }
        }
    });
}

/// A size that cuts the model into more chunks than are written is refused and not offered, unless params are written whole.
#[test]
fn no_size_is_suggested_that_makes_too_many_chunks() {
    both_ways(|family| {
        let on = |mesh, chunks| Options {
            mesh,
            chunks,
            ..options(MtpPolicy::Keep)
        };
        let plan = |options: &Options| ImportPlan::new(family, on_disk("configs/glm-5.2"), options);
        let single = plan(&on(Mesh::SINGLE, ChunkChoice::Whole)).unwrap();
        let over = |etp| Mesh {
            etp,
            ..Mesh::SINGLE
        };
        let powers = |end: u32| (0..=end).map(|power| 1 << power).collect::<Vec<u64>>();
        let suggest = |mesh, chunks| single.suggest(family, &on(mesh, chunks));
        let found = suggest(Mesh::SINGLE, ChunkChoice::Megatron).unwrap();
        assert_eq!(found.etp, powers(4));
        assert_eq!((found.tp, found.ep), (powers(6), powers(8)));
        let found = suggest(over(2048), ChunkChoice::Whole).unwrap();
        assert_eq!(found.etp, powers(11));
        let is_refused = |error| {
            let rialto_engine::Error::Bridge(error) = error else {
                panic!("{error}");
            };
            assert_eq!(error.slug(), "bridge/chunks");
            assert_eq!(
                error.to_string(),
                "mesh tp 1 pp 1 ep 1 etp 32 makes 1868993 chunks, at most 1048576 are written"
            );
            assert!(error.help().unwrap().contains("--chunks whole"));
        };
        is_refused(plan(&on(over(32), ChunkChoice::Megatron)).unwrap_err());
        is_refused(suggest(over(32), ChunkChoice::Megatron).unwrap_err());
        plan(&on(over(2048), ChunkChoice::Whole)).unwrap();

        // With 286 experts in sixteen parts 5,000 chunks are left for what the tensor ranks cut: 477 params and blocks.
        let text = std::fs::read(fixture("configs/glm-5.2/config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&text).unwrap();
        config["n_routed_experts"] = json!(286);
        let store = MemoryStore::new("286 experts");
        store.insert("config.json", config.to_string()).unwrap();
        let at = |tp| {
            let mesh = Mesh { tp, ..over(16) };
            on(mesh, ChunkChoice::Megatron)
        };
        let store: Arc<dyn Store> = Arc::new(store);
        let plan = |options: &Options| ImportPlan::new(family, Arc::clone(&store), options);
        let single = plan(&on(Mesh::SINGLE, ChunkChoice::Whole)).unwrap();
        assert_eq!(single.suggest(family, &at(1)).unwrap().tp, powers(3));
        plan(&at(8)).unwrap();
        let error = plan(&at(16)).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("tp 16 pp 1 ep 1 etp 16 makes 10"),
            "{error}"
        );
    });
}

#[test]
fn a_setting_stands_in_the_run_config_and_what_is_decided_elsewhere_is_refused() {
    both_ways(|family| {
        let with = |settings: Value| Options {
            settings: settings.as_object().unwrap().clone(),
            ..options(MtpPolicy::Keep)
        };
        let set = with(json!({"seq_length": 8192, "recompute_granularity": "full"}));
        let plan = ImportPlan::new(family, on_disk("glm52-tiny"), &set).unwrap();
        let notices = plan.summary().notices.join("\n");
        assert!(
            notices.contains("run_config.yaml: seq_length is set to 8192, it was 512"),
            "{notices}"
        );
        assert!(
            notices.contains("recompute_granularity is set to \"full\", it was absent"),
            "{notices}"
        );
        let run = import(family, on_disk("glm52-tiny"), &set).unwrap();
        let yaml = String::from_utf8(run.bytes("iter_0000000/run_config.yaml").unwrap()).unwrap();
        let model: Value = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(model["model"]["seq_length"], json!(8192));
        assert_eq!(model["model"]["recompute_granularity"], json!("full"));
        for (settings, slug) in [
            (json!({"fp8": "hybrid"}), "bridge/settings"),
            (
                json!({"virtual_pipeline_model_parallel_size": 2}),
                "bridge/settings",
            ),
            (
                json!({"recompute_granularity": "selective"}),
                "bridge/settings",
            ),
            (json!({"vocab_size": 1}), "bridge/settings"),
            (json!({"hybrid_layer_pattern": "D-"}), "bridge/settings"),
            (json!({"sequence_parallel": true}), "bridge/settings"),
            (json!({"seq_length": "abc"}), "bridge/settings"),
            (json!({"_target_": "os.system"}), "bridge/settings"),
            (json!({"_call_": false}), "bridge/settings"),
            (json!({"model.seq_length": 8}), "bridge/settings"),
            (json!({"": 8}), "bridge/settings"),
        ] {
            let error = ImportPlan::new(family, on_disk("glm52-tiny"), &with(settings.clone()));
            assert_eq!(error.unwrap_err().slug(), slug, "{settings}");
        }
    });
}

/// Every field at its own value, whole numbers spelled as floats: Megatron gets the spelling that it expects.
#[test]
fn a_setting_equal_to_what_is_decided_changes_nothing() {
    both_ways(|family| {
        let run_config = |settings: Value, pads_vocabulary: bool| {
            let asked = Options {
                settings: settings.as_object().unwrap().clone(),
                pads_vocabulary,
                ..options(MtpPolicy::Keep)
            };
            let plan = ImportPlan::new(family, on_disk("glm52-tiny"), &asked)
                .unwrap_or_else(|error| panic!("{settings}: {error}"));
            let notices = plan.summary().notices.join("\n");
            assert!(!notices.contains("is set to"), "{settings}: {notices}");
            let run = import(family, on_disk("glm52-tiny"), &asked).unwrap();
            String::from_utf8(run.bytes("iter_0000000/run_config.yaml").unwrap()).unwrap()
        };
        for pads_vocabulary in [false, true] {
            let own = run_config(json!({}), pads_vocabulary);
            let document: Value = serde_saphyr::from_str(&own).unwrap();
            let fields = document["model"].as_object().unwrap().clone();
            assert_eq!(fields["should_pad_vocab"], json!(pads_vocabulary));
            let settings = fields.into_iter().filter(|(field, _)| field != "_target_");
            // All at once, those of the mesh and the layer pattern among them.
            let settings: serde_json::Map<String, Value> = settings
                .map(|(field, value)| match value.as_u64() {
                    Some(whole) => (field, json!(whole as f64)),
                    None => (field, value),
                })
                .collect();
            assert!(settings.len() >= 80, "{}", settings.len());
            assert_eq!(run_config(Value::Object(settings), pads_vocabulary), own);
        }
    });
}
