//! Siblings of the field cases of mapping and sharding: the FP8 release where the other is of the BF16 one, the prediction
//! layer, other meshes, and a model whose cuts fall inside the blocks of its scales.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rialto_bridge::{Bridge, Mesh, MtpPolicy, Rule};
use rialto_checkpoint::store::{MemoryStore, Store, read_whole};
use rialto_checkpoint::torch_dist::Chunk;
use rialto_engine::verify::Report;
use rialto_engine::{
    ChunkChoice, Contents, ExportOptions, ImportPlan, MegatronSource, Options, Silent,
    VerifyOptions, VerifySource, source_config, verify,
};
use rialto_tensor::{Dtype, Region};
use rialto_tests::published;
use serde_json::{Value, json};

use crate::damage::Spoiled;
use crate::export::expected;
use crate::field_cases::{export_plan_of, golden, refusal};
use crate::world::{
    Values, both_ways, export, families, hugging_face, import, iteration, megatron, on_disk,
    options,
};
use crate::written;

/// GLM-5.3 in small: FP8, indexers `F S S F` and one in the prediction layer, which is layer 4.
const RELEASE: &str = "glm53-tiny";
const FULL: [u64; 3] = [0, 3, 4];
const SHARED: [u64; 2] = [1, 2];
/// Its layers with experts.
const SPARSE: [u64; 4] = [1, 2, 3, 4];

fn release() -> Values {
    hugging_face(on_disk(RELEASE).as_ref())
}

/// What the real Megatron made of it.
fn params() -> Values {
    megatron(&iteration(golden("glm53-tiny-mtp-ep5").run()))
}

/// The key of a module of attention or of the feed-forward part.
fn key(layer: u64, is_attention: bool, module: &str) -> String {
    let half = u64::from(!is_attention);
    match layer {
        4 => format!("mtp.layers.0.mtp_model_layer.layers.{half}.{module}"),
        layer => format!("decoder.layers.{}.{module}", 2 * layer + half),
    }
}

/// What the plan of an export of these params says, which it must not make.
fn export_refusal(family: &dyn Bridge, values: &Values) -> Vec<String> {
    let plan = export_plan_of(family, RELEASE, values, &ExportOptions::default());
    let error = plan.expect_err("a plan that must fail");
    assert_eq!(error.slug(), "weight-map/not-total", "{error}");
    error.findings()
}

/// The names that findings begin with.
fn names(findings: &[String]) -> BTreeSet<&str> {
    let first = |finding| str::split(finding, ' ').next().unwrap();
    findings.iter().map(|finding| first(finding)).collect()
}

/// Holds two checkpoints against each other, under the config of a Hugging Face directory.
fn compared(
    family: &dyn Bridge,
    config: &dyn Store,
    ours: &MemoryStore,
    theirs: &MemoryStore,
) -> Report {
    let config = source_config(config).unwrap();
    let [ours, theirs] =
        [ours, theirs].map(|side| VerifySource::open(Arc::new(side.clone())).unwrap());
    let [ours, theirs] = [&ours, &theirs].map(|side| Contents::new(side, &config, family).unwrap());
    verify(&ours, &theirs, &VerifyOptions::default(), &Silent).unwrap()
}

fn differing(report: &Report) -> Vec<&str> {
    assert!(!report.is_equal && report.findings.is_empty(), "{report:?}");
    let found = report.differences.iter();
    found.map(|found| found.tensor.as_str()).collect()
}

#[test]
fn fc_10_in_the_encoded_release_an_indexer_with_its_scales_belongs_to_full_layers_only() {
    let (source, keys) = (release(), params());
    let encoded = ["wq_b.weight", "wk.weight"];
    let plain = ["weights_proj.weight", "k_norm.weight", "k_norm.bias"];
    let tensor =
        |layer: u64, suffix: &str| format!("model.layers.{layer}.self_attn.indexer.{suffix}");
    both_ways(|family| {
        for suffix in encoded.iter().chain(&plain) {
            for layer in FULL {
                let name = tensor(layer, suffix);
                let mut values = source.clone();
                values.remove(&name).unwrap();
                // With the scale that stands for it, or leaving that behind.
                if encoded.contains(suffix) {
                    let findings = refusal(family, RELEASE, &values);
                    let scale = format!("{name}_scale_inv");
                    assert_eq!(names(&findings), [&*name, &*scale].into(), "{findings:?}");
                    values.remove(&scale).unwrap();
                }
                let findings = refusal(family, RELEASE, &values);
                let line = format!("{name} is missing, expected with shape [");
                assert!(
                    findings.len() == 1 && findings[0].starts_with(&line),
                    "{findings:?}"
                );
            }
            for layer in SHARED {
                let name = tensor(layer, suffix);
                let mut added = vec![(name.clone(), tensor(0, suffix))];
                if encoded.contains(suffix) {
                    let scale = |name: &str| format!("{name}_scale_inv");
                    added.push((scale(&name), scale(&tensor(0, suffix))));
                    // The scale alone is surplus, too.
                    let (scale, of) = &added[1];
                    let mut values = source.clone();
                    values.insert(scale.clone(), source[of].clone());
                    let findings = refusal(family, RELEASE, &values);
                    assert_eq!(names(&findings), [&**scale].into(), "{findings:?}");
                }
                let mut values = source.clone();
                let copies = added
                    .iter()
                    .map(|(to, of)| (to.clone(), source[of].clone()));
                values.extend(copies);
                let findings = refusal(family, RELEASE, &values);
                let expected = added.iter().map(|(name, _)| name.as_str()).collect();
                assert_eq!(names(&findings), expected, "{findings:?}");
            }
            let module = match suffix.strip_prefix("k_norm") {
                Some(_) => (*suffix).to_owned(),
                None => format!("linear_{suffix}"),
            };
            let module = format!("self_attention.core_attention.indexer.{module}");
            for layer in 0..=4 {
                let name = key(layer, true, &module);
                let mut values = keys.clone();
                let line = if FULL.contains(&layer) {
                    values.remove(&name).unwrap();
                    format!("{name} is missing")
                } else {
                    let copy = keys[&key(0, true, &module)].clone();
                    assert!(values.insert(name.clone(), copy).is_none());
                    format!("{name} (")
                };
                let findings = export_refusal(family, &values);
                assert!(
                    findings.len() == 1 && findings[0].starts_with(&line),
                    "{findings:?}"
                );
            }
        }
    });
}

#[test]
fn fc_12_in_the_encoded_release_every_correction_bias_is_needed_both_ways() {
    let (source, keys) = (release(), params());
    let biases = keys.keys().filter(|name| name.ends_with("expert_bias"));
    assert_eq!(biases.count(), SPARSE.len());
    both_ways(|family| {
        let run = import(family, on_disk(RELEASE), &options(MtpPolicy::Keep)).unwrap();
        let ours = megatron(&iteration(Arc::new(run)));
        for layer in SPARSE {
            let tensor = format!("model.layers.{layer}.mlp.gate.e_score_correction_bias");
            let key = key(layer, false, "mlp.router.expert_bias");
            assert_eq!(ours[&key], source[&tensor]);
            assert!(ours[&key].2.iter().any(|&byte| byte != 0), "{key}");
            // Missing, under the name of another router's parts, or as long as another model's.
            let mut values = source.clone();
            let bias = values.remove(&tensor).unwrap();
            let findings = refusal(family, RELEASE, &values);
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(
                findings[0].starts_with(&format!("{tensor} is missing")),
                "{findings:?}"
            );
            values.insert(format!("model.layers.{layer}.mlp.gate.bias"), bias);
            let findings = refusal(family, RELEASE, &values);
            let other = format!("model.layers.{layer}.mlp.gate.bias");
            assert_eq!(names(&findings), [&*tensor, &*other].into(), "{findings:?}");
            let short = (Dtype::F32, vec![4], vec![0; 16]);
            for (side, name, line) in [
                (&source, &tensor, "has shape [4]"),
                (&keys, &key, "has shape [4]"),
                (&keys, &key, "is missing"),
            ] {
                let mut values = side.clone();
                values.remove(name).unwrap();
                if line != "is missing" {
                    values.insert(name.clone(), short.clone());
                }
                let findings = if std::ptr::eq(side, &source) {
                    refusal(family, RELEASE, &values)
                } else {
                    export_refusal(family, &values)
                };
                assert!(
                    findings.len() == 1 && findings[0].starts_with(&format!("{name} {line}")),
                    "{findings:?}"
                );
            }
        }
    });
}

/// A family that forgot where some elements of a param come from: they are named, and not left at zero.
#[test]
fn fc_12_a_param_that_nothing_fills_is_refused_whichever_it_is() {
    both_ways(|family| {
        let plan = ImportPlan::new(family, on_disk(RELEASE), &options(MtpPolicy::Keep)).unwrap();
        let map = family.weight_map(plan.spec()).unwrap();
        let mut routers = 0;
        for (rule, mapped) in map.rules.iter().enumerate() {
            let Rule::Map(mapped) = mapped else {
                panic!("a map rule")
            };
            let params = plan.mapping().params().iter();
            let of_rule = params.filter(|param| param.rule == rule);
            let expected: BTreeSet<&str> = of_rule.map(|param| param.name.as_str()).collect();
            // Nothing of it is in this checkpoint.
            if mapped.beside.is_some() {
                continue;
            }
            for part in 0..mapped.parts.len() {
                let forgetful = Spoiled {
                    family,
                    spoil: Box::new(move |map| match &mut map.rules[rule] {
                        Rule::Map(mapped) => drop(mapped.parts.remove(part)),
                        _ => panic!("a map rule"),
                    }),
                };
                let refused =
                    ImportPlan::new(&forgetful, on_disk(RELEASE), &options(MtpPolicy::Keep));
                let findings = refused.expect_err(&mapped.name).findings();
                assert_eq!(names(&findings), expected, "{findings:?}");
                assert!(
                    findings.iter().all(|line| line.ends_with("is not covered")),
                    "{findings:?}"
                );
                routers += usize::from(mapped.name == "mlp.router.expert_bias");
            }
        }
        assert_eq!(routers, 2, "the decoder's and the prediction layer's");
    });
}

#[test]
fn fc_17_the_key_norm_of_the_encoded_release_and_of_prediction_keeps_weight_and_bias() {
    let source = release();
    let real = params();
    let tensor =
        |layer: u64, field: &str| format!("model.layers.{layer}.self_attn.indexer.k_norm.{field}");
    let module = |field: &str| format!("self_attention.core_attention.indexer.k_norm.{field}");
    both_ways(|family| {
        let config = on_disk(RELEASE);
        let run = import(family, Arc::clone(&config), &options(MtpPolicy::Keep)).unwrap();
        let ours = megatron(&iteration(Arc::new(run.clone())));
        let back = export(
            family,
            Arc::new(run.clone()),
            None,
            &ExportOptions::default(),
        );
        let back = hugging_face(&back.unwrap());
        for layer in FULL {
            assert_ne!(
                source[&tensor(layer, "weight")],
                source[&tensor(layer, "bias")]
            );
            for field in ["weight", "bias"] {
                let (name, key) = (tensor(layer, field), key(layer, true, &module(field)));
                assert_eq!(ours[&key], source[&name], "{name}");
                assert_eq!(real[&key], source[&name], "{name}");
                assert_eq!(back[&name], source[&name], "{name}");
                // Of another shape or dtype it is refused by name, on either side.
                for (value, said) in [
                    ((Dtype::Bf16, vec![33], vec![0; 66]), "has shape [33]"),
                    ((Dtype::Bf16, vec![1, 32], vec![0; 64]), "has shape [1, 32]"),
                    ((Dtype::F8E4m3, vec![32], vec![0; 32]), "F8_E4M3"),
                ] {
                    let mut values = source.clone();
                    values.insert(name.clone(), value.clone());
                    let findings = refusal(family, RELEASE, &values);
                    assert_eq!(names(&findings), [&*name].into(), "{findings:?}");
                    assert!(findings[0].contains(said), "{findings:?}");
                    if value.0 == Dtype::Bf16 {
                        let mut values = real.clone();
                        values.insert(key.clone(), value);
                        let findings = export_refusal(family, &values);
                        assert_eq!(names(&findings), [&*key].into(), "{findings:?}");
                        assert!(findings[0].contains(said), "{findings:?}");
                    }
                }
                // One bit of it is a difference, and no other tensor is.
                let mut values = source.clone();
                let bytes = &mut values.get_mut(&name).unwrap().2;
                *bytes.last_mut().unwrap() ^= 0x80;
                let spoiled = written::hugging_face(RELEASE, &values);
                let report = compared(family, config.as_ref(), &spoiled, &run);
                assert_eq!(differing(&report), [&name]);
                assert_eq!(report.differences[0].layer, Some(layer));
                assert_eq!(report.differences[0].first, [31]);
            }
        }
    });
}

/// Either of them, both or none, equal to the main model's or not, beside encoded weights and on several meshes.
#[test]
fn fc_18_of_the_encoded_release_either_copy_alone_is_kept_and_the_other_is_not_made() {
    let main = ["lm_head.weight", "model.embed_tokens.weight"];
    let own = [
        "model.layers.4.shared_head.head.weight",
        "model.layers.4.embed_tokens.weight",
    ];
    let (source, decoded) = (release(), expected(RELEASE, true));
    let families = families();
    for turn in 0..8usize {
        let (present, is_equal) = (turn % 4, turn / 4 == 0);
        let family = families[turn % 2].1.as_ref();
        let mut added = Values::new();
        for (at, (name, of)) in own.iter().zip(main).enumerate() {
            if present >> at & 1 == 1 {
                let mut value = source[of].clone();
                value.2[5] ^= u8::from(!is_equal);
                added.insert((*name).to_owned(), value);
            }
        }
        let with = |values: &Values| -> Values {
            values.clone().into_iter().chain(added.clone()).collect()
        };
        let (values, expected) = (with(&source), with(&decoded));
        let store = written::hugging_face(RELEASE, &values);
        let asked = Options {
            mesh: Mesh {
                pp: 1 + turn as u64 % 2,
                ep: 5,
                ..Mesh::SINGLE
            },
            ..options(MtpPolicy::Keep)
        };
        let run = import(family, Arc::new(store.clone()), &asked).unwrap();
        let keys = megatron(&iteration(Arc::new(run.clone())));
        assert!(own.iter().all(|name| !keys.contains_key(*name)));
        let exported = export(
            family,
            Arc::new(run.clone()),
            None,
            &ExportOptions::default(),
        );
        let exported = exported.unwrap();
        assert!(hugging_face(&exported) == expected, "{present} {is_equal}");
        for other in [&run, &exported] {
            let report = compared(family, &store, &store, other);
            assert!(report.is_equal, "{report:?}");
            assert_eq!(report.tensors, expected.len() as u64);
        }
        for name in added.keys() {
            let mut spoiled = values.clone();
            let bytes = &mut spoiled.get_mut(name).unwrap().2;
            *bytes.last_mut().unwrap() ^= 1;
            let spoiled = written::hugging_face(RELEASE, &spoiled);
            for other in [&run, &exported] {
                let report = compared(family, &store, &spoiled, other);
                assert_eq!(differing(&report), [name]);
            }
        }
    }
}

/// The files of a store, to be spoiled.
fn copied(store: &dyn Store) -> MemoryStore {
    let copy = MemoryStore::new("copied");
    for file in store.files().unwrap() {
        let bytes = read_whole(store, &file.name, 64 << 20).unwrap();
        copy.insert(&file.name, bytes).unwrap();
    }
    copy
}

/// Any chunk of any stack of experts, on three meshes: forgotten, stored a second time, or reaching into its neighbour.
#[test]
fn fc_21_any_chunk_of_a_stack_of_experts_that_is_lost_or_doubled_is_named_with_its_region() {
    for name in [
        "glm52-tiny-mtp-tp2pp2ep2",
        "glm52-tiny-mtp-tp2ep2etp2",
        "glm53-tiny-mtp-ep5",
    ] {
        let golden = golden(name);
        let run = copied(golden.run().as_ref());
        let metadata = iteration(Arc::new(run.clone())).metadata().clone();
        let stacks = metadata
            .tensors
            .iter()
            .filter(|(name, _)| name.contains(".experts.experts."));
        let (mut lost, mut grown) = (0, 0);
        for (name, entry) in stacks {
            let shape = &entry.shape;
            let refused = |slug: &str, said: &str, spoil: &dyn Fn(&mut Vec<Chunk>)| {
                let mut spoiled = metadata.clone();
                spoil(&mut spoiled.tensors.get_mut(name).unwrap().chunks);
                run.insert("iter_0000000/.metadata", spoiled.encode())
                    .unwrap();
                let error = MegatronSource::open(Arc::new(run.clone()), None).expect_err(name);
                let text = error.to_string();
                assert_eq!(error.slug(), slug, "{text}");
                assert!(text.contains(name) && text.contains(said), "{said}: {text}");
            };
            let untiled = |said: &str, spoil: &dyn Fn(&mut Vec<Chunk>)| {
                refused(
                    "torch_dist/tiling",
                    &format!("{name} {shape}: {said}"),
                    spoil,
                );
            };
            for (at, chunk) in entry.chunks.iter().enumerate() {
                let region = &chunk.region;
                untiled(&format!("{region} is not covered"), &|chunks| {
                    chunks.remove(at);
                });
                let begin = format!("{:?}", region.offsets());
                refused("torch_dist/storage-places", &begin, &|chunks| {
                    chunks.push(chunks[at].clone());
                });
                lost += 1;
                for (axis, &extent) in shape.extents().iter().enumerate() {
                    let end = region.offsets()[axis] + region.sizes()[axis];
                    if end == extent {
                        continue;
                    }
                    let (mut offsets, mut sizes) =
                        (region.offsets().to_vec(), region.sizes().to_vec());
                    sizes[axis] += 1;
                    let onto = Region::new(offsets.clone(), sizes.clone());
                    (offsets[axis], sizes[axis]) = (end, 1);
                    let doubled = Region::new(offsets, sizes);
                    untiled(&format!("{doubled} is covered twice"), &|chunks| {
                        chunks[at].region = onto.clone().into();
                    });
                    grown += 1;
                }
            }
        }
        assert!(lost >= 16 && grown >= 8, "{}: {lost}, {grown}", golden.name);
    }
}

/// The release with other extents and what every weight of it stands for: 144 channels for an expert, so that the up half
/// begins inside a block of the fused matrix, and 4 heads, so that tensor parallelism cuts 136 rows and columns of 128 and 8
/// anywhere.
fn ragged() -> (MemoryStore, Values) {
    let config = read_whole(on_disk(RELEASE).as_ref(), "config.json", 1 << 20).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    for (field, value) in [
        ("num_attention_heads", 4),
        ("num_key_value_heads", 4),
        ("moe_intermediate_size", 144),
        ("n_routed_experts", 4),
    ] {
        config[field] = json!(value);
    }
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as u32
    };
    let mut stored = Values::new();
    for tensor in published::tensors(&config) {
        let count = tensor.elements();
        let (dtype, bytes): (Dtype, Vec<u8>) = match tensor.dtype {
            // No code for NaN.
            published::Dtype::F8E4m3 => {
                let codes = (0..count).map(|_| (next() % 0x7f) as u8 | ((next() & 1) << 7) as u8);
                (Dtype::F8E4m3, codes.collect())
            }
            published::Dtype::Bf16 => {
                let values =
                    (0..count).flat_map(|_| (0x3c00 | next() as u16 & 0x83ff).to_le_bytes());
                (Dtype::Bf16, values.collect())
            }
            // No two blocks have scales alike.
            published::Dtype::F32 => {
                let values = (0..count).flat_map(|_| {
                    let value = 0.001 + next() as f32 / 16_777_216.0;
                    value.to_le_bytes()
                });
                (Dtype::F32, values.collect())
            }
        };
        stored.insert(tensor.name, (dtype, tensor.shape, bytes));
    }
    let store = written::hugging_face(RELEASE, &stored);
    store
        .insert("config.json", config.to_string().into_bytes())
        .unwrap();
    let is_weight = |name: &String| !name.ends_with("_scale_inv");
    let weights = stored.iter().filter(|(name, _)| is_weight(name));
    let decoded = weights.map(|(name, value)| {
        let scales = stored.get(&format!("{name}_scale_inv"));
        (
            name.clone(),
            scales.map_or_else(|| value.clone(), |scales| decode(value, scales)),
        )
    });
    let decoded = decoded.collect();
    (store, decoded)
}

/// Codes times the scale of their block, rounded to the nearest BF16, ties to even.
fn decode(
    (_, shape, codes): &(Dtype, Vec<u64>, Vec<u8>),
    (_, grid, scales): &(Dtype, Vec<u64>, Vec<u8>),
) -> (Dtype, Vec<u64>, Vec<u8>) {
    let [columns, across] = [shape[1], grid[1]].map(|extent| extent as usize);
    let mut bytes = Vec::with_capacity(2 * codes.len());
    for (at, &code) in codes.iter().enumerate() {
        let (row, column) = (at / columns, at % columns);
        let scale = 4 * (row / 128 * across + column / 128);
        let scale = f32::from_le_bytes(scales[scale..scale + 4].try_into().unwrap());
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
        let magnitude = match exponent {
            0 => mantissa * 2f32.powi(-9),
            _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
        };
        let value = if code & 0x80 == 0 {
            magnitude
        } else {
            -magnitude
        } * scale;
        let bits = value.to_bits();
        let rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        bytes.extend((rounded as u16).to_le_bytes());
    }
    (Dtype::Bf16, shape.clone(), bytes)
}

#[test]
fn fc_24_values_are_those_of_whole_blocks_on_every_mesh_and_in_every_chunking() {
    let (store, decoded) = ragged();
    let source: Arc<dyn Store> = Arc::new(store.clone());
    let families = families();
    let mut first: Option<(Values, String)> = None;
    let mut turn = 0usize;
    let mut chunkings = BTreeMap::new();
    for tp in [1, 2, 4] {
        for (pp, ep) in [(1, 1), (2, 2), (1, 4)] {
            for etp in [1, 3, 16] {
                for chunks in [ChunkChoice::Megatron, ChunkChoice::Whole] {
                    let asked = Options {
                        mesh: Mesh { tp, pp, ep, etp },
                        chunks,
                        ..options(MtpPolicy::Keep)
                    };
                    // What is not cut is alike on every mesh.
                    if chunks == ChunkChoice::Whole && (tp, etp) != (2, 3) {
                        continue;
                    }
                    turn += 1;
                    let family = families[turn % 2].1.as_ref();
                    let run = import(family, Arc::clone(&source), &asked).unwrap();
                    let opened = iteration(Arc::new(run.clone()));
                    let tensors = opened.metadata().tensors.values();
                    let pieces: usize = tensors.map(|entry| entry.chunks.len()).sum();
                    *chunkings.entry(pieces).or_insert(0) += 1;
                    let params = megatron(&opened);
                    let report = compared(family, source.as_ref(), &store, &run);
                    assert!(report.is_equal, "{}: {:?}", asked.mesh, report.differences);
                    let digest = report.digest.unwrap();
                    let Some((expected, of_all)) = &first else {
                        let back =
                            export(family, Arc::new(run), None, &ExportOptions::default()).unwrap();
                        assert!(hugging_face(&back) == decoded);
                        first = Some((params, digest));
                        continue;
                    };
                    assert!(params == *expected, "{}, {chunks:?}", asked.mesh);
                    assert_eq!(digest, *of_all, "{}", asked.mesh);
                }
            }
        }
    }
    // One for each pair of TP and ETP, and that of whole params.
    assert_eq!(chunkings.len(), 3 * 3 + 1, "{chunkings:?}");
}
