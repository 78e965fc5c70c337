//! Checkpoints whose parts do not agree with each other: in dtype, or in the file that holds them.

use std::sync::Arc;

use rialto_bridge::{Bridge, MtpPolicy};
use rialto_checkpoint::store::{MemoryStore, Store};
use rialto_engine::verify::Report;
use rialto_engine::{
    Contents, ExportOptions, ImportPlan, Options, Silent, VerifyOptions, VerifySource, verify,
};
use rialto_tensor::Dtype;

use crate::world::{
    Values, both_ways, export, hugging_face, import, in_memory, iteration, megatron, on_disk,
    options,
};
use crate::written::{self, Cut};

fn compared(family: &dyn Bridge, ours: &MemoryStore, theirs: &MemoryStore) -> Report {
    let opened = |store: &MemoryStore| VerifySource::open(Arc::new(store.clone())).unwrap();
    let (a, b) = (opened(ours), opened(theirs));
    let contents = |side| Contents::new(side, a.config().unwrap(), family).unwrap();
    verify(
        &contents(&a),
        &contents(&b),
        &VerifyOptions::default(),
        &Silent,
    )
    .unwrap()
}

/// glm52-tiny with one tensor in F32, the lower halves of its elements set to `low`.
fn with_wide(name: &str, low: u8) -> MemoryStore {
    let mut values = hugging_face(on_disk("glm52-tiny").as_ref());
    let (dtype, _, bytes) = values.get_mut(name).unwrap();
    *bytes = bytes
        .chunks(2)
        .flat_map(|half| [low, 0, half[0], half[1]])
        .collect();
    *dtype = Dtype::F32;
    written::hugging_face("glm52-tiny", &values)
}

/// Names of one matrix of its own, of halves of a fused one, and of an expert first, last and in the middle of its stack.
const NAMES: [&str; 7] = [
    "model.layers.3.mlp.experts.0.down_proj.weight",
    "model.layers.3.mlp.experts.7.down_proj.weight",
    "model.layers.3.mlp.experts.0.gate_proj.weight",
    "model.layers.3.mlp.experts.3.up_proj.weight",
    "model.layers.0.mlp.gate_proj.weight",
    "model.layers.4.mlp.shared_experts.up_proj.weight",
    "model.layers.2.self_attn.o_proj.weight",
];

#[test]
fn fc_16_one_tensor_of_another_dtype_among_those_of_its_param_is_compared_as_what_it_is() {
    both_ways(|family| {
        let narrow = in_memory("glm52-tiny");
        for name in NAMES {
            let elements = hugging_face(&narrow)[name].2.len() as u64 / 2;
            // The same values, wider: one tensor's dtype differs, and nothing else.
            let report = compared(family, &with_wide(name, 0), &narrow);
            assert!(report.is_equal, "{report:?}");
            let found: Vec<_> = report
                .dtypes
                .iter()
                .map(|d| (d.first.as_str(), d.tensors, d.rounded))
                .collect();
            assert_eq!(found, [(name, 1, 0)]);
            // What narrowing drops is counted, and no difference against the narrow side.
            let report = compared(family, &with_wide(name, 77), &narrow);
            assert!(report.is_equal, "{report:?}");
            assert_eq!(
                (report.dtypes[0].tensors, report.dtypes[0].rounded),
                (1, elements)
            );
            // Against each other the wide ones differ in every element of this tensor alone.
            let report = compared(family, &with_wide(name, 77), &with_wide(name, 99));
            let found: Vec<_> = report
                .differences
                .iter()
                .map(|d| (d.tensor.as_str(), d.elements))
                .collect();
            assert_eq!(found, [(name, elements)]);
            assert_eq!(report.differences[0].largest_ulps, Some(22));
        }
    });
}

#[test]
fn a_param_of_two_dtypes_is_refused_by_import_and_named_when_compared() {
    both_ways(|family| {
        let wide = with_wide("model.layers.0.mlp.gate_proj.weight", 0);
        let error = ImportPlan::new(family, Arc::new(wide), &Options::default()).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("the tensors of decoder.layers.1.mlp.linear_fc1.weight have dtypes"),
            "{text}"
        );
        // Gate and up under keys of their own, and of two dtypes: no fused tensor of either.
        let run = import(family, on_disk("glm52-tiny"), &options(MtpPolicy::Keep)).unwrap();
        let mut values: Values = megatron(&iteration(Arc::new(run.clone())));
        for layer in [1, 3, 5] {
            let name = format!("decoder.layers.{layer}.mlp.linear_fc1.weight");
            let (dtype, shape, bytes) = values.remove(&name).unwrap();
            let (up, half) = (
                bytes[bytes.len() / 2..].to_vec(),
                vec![shape[0] / 2, shape[1]],
            );
            let gate = bytes[..bytes.len() / 2]
                .chunks(2)
                .flat_map(|half| [0, 0, half[0], half[1]]);
            values.insert(
                format!("{name}_w"),
                (Dtype::F32, half.clone(), gate.collect()),
            );
            values.insert(format!("{name}_v"), (dtype, half, up));
        }
        for name in values
            .keys()
            .filter(|name| name.contains("shared_experts.linear_fc1"))
            .cloned()
            .collect::<Vec<_>>()
        {
            let (dtype, shape, bytes) = values.remove(&name).unwrap();
            let (up, half) = (
                bytes[bytes.len() / 2..].to_vec(),
                vec![shape[0] / 2, shape[1]],
            );
            values.insert(
                format!("{name}_w"),
                (dtype, half.clone(), bytes[..bytes.len() / 2].to_vec()),
            );
            values.insert(format!("{name}_v"), (dtype, half, up));
        }
        let halves = written::megatron(&values, Cut::Whole);
        let report = compared(family, &in_memory("glm52-tiny"), &halves);
        assert_eq!(report.differences, []);
        assert_eq!(report.findings.len(), 3, "{:?}", report.findings);
        assert!(
            report
                .findings
                .iter()
                .all(|line| line.contains("linear_fc1.weight have dtypes"))
        );
        let dtypes: Vec<_> = report
            .dtypes
            .iter()
            .map(|d| (d.first.as_str(), d.tensors))
            .collect();
        assert_eq!(dtypes, [("model.layers.0.mlp.gate_proj.weight", 3)]);
    });
}

const BESIDE: &str = "iter_0000000/rialto/source/beside.safetensors";

/// What stands in Megatron's data and what beside it is decided by the checkpoint, whatever the names are.
#[test]
fn a_param_is_read_from_the_file_that_it_stands_in() {
    both_ways(|family| {
        let source = on_disk("glm52-tiny");
        let run = import(family, Arc::clone(&source), &options(MtpPolicy::Keep)).unwrap();
        let values: Values = megatron(&iteration(Arc::new(run)));
        let with_config = |values: &Values| {
            let store = written::megatron(values, Cut::Whole);
            let config = in_memory("glm52-tiny").bytes("config.json").unwrap();
            store
                .insert("iter_0000000/rialto/source/config.json", config)
                .unwrap();
            store
        };
        // An embedding of the prediction layer in Megatron's own data.
        let mut surplus = values.clone();
        let own = "model.layers.8.embed_tokens.weight";
        surplus.insert(
            own.to_owned(),
            values["embedding.word_embeddings.weight"].clone(),
        );
        let exported = export(
            family,
            Arc::new(with_config(&surplus)),
            None,
            &ExportOptions::default(),
        );
        assert_eq!(
            hugging_face(&exported.unwrap())[own],
            values["embedding.word_embeddings.weight"]
        );
        // A norm of the model in the file beside.
        let mut moved = values.clone();
        let name = "decoder.final_norm.weight";
        let norm = moved.remove(name).unwrap();
        let store = with_config(&moved);
        let shard = Values::from([(name.to_owned(), norm)]);
        let shard = written::hugging_face("glm52-tiny", &shard)
            .bytes("model.safetensors")
            .unwrap();
        store.insert(BESIDE, shard.clone()).unwrap();
        let exported = export(family, Arc::new(store), None, &ExportOptions::default()).unwrap();
        assert_eq!(hugging_face(&exported), hugging_face(source.as_ref()));
        // In both, it is there twice.
        let store = with_config(&values);
        store.insert(BESIDE, shard.clone()).unwrap();
        let error = export(family, Arc::new(store), None, &ExportOptions::default()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("{name} is there twice")),
            "{error}"
        );
        // A file beside that is none is an error that names it.
        for length in [0, 7, shard.len() / 2, shard.len() - 1] {
            let store = with_config(&moved);
            store.insert(BESIDE, shard[..length].to_vec()).unwrap();
            let error =
                export(family, Arc::new(store), None, &ExportOptions::default()).unwrap_err();
            assert!(error.to_string().contains("beside.safetensors"), "{error}");
        }
    });
}

#[test]
fn fc_11_one_of_two_tensors_kept_beside_that_is_lost_is_no_part_wholly_absent() {
    both_ways(|family| {
        let mut values = hugging_face(on_disk("glm52-tiny").as_ref());
        let head = values["lm_head.weight"].clone();
        let own = [
            "model.layers.8.shared_head.head.weight",
            "model.layers.8.embed_tokens.weight",
        ];
        for name in own {
            values.insert(name.to_owned(), head.clone());
        }
        let both = written::hugging_face("glm52-tiny", &values);
        for lost in own {
            let mut values = values.clone();
            values.remove(lost);
            let report = compared(family, &both, &written::hugging_face("glm52-tiny", &values));
            assert!(
                !report.is_equal && report.one_sided.is_empty(),
                "{report:?}"
            );
            assert_eq!(report.findings, [format!("{lost} is only in ours")]);
        }
    });
}

#[test]
fn fc_15_a_pattern_takes_neither_scales_nor_anything_else_that_is_needed() {
    both_ways(|family| {
        for name in ["glm53-tiny", "glm52-tiny"] {
            let plain = import(family, on_disk(name), &options(MtpPolicy::Keep)).unwrap();
            for pattern in ["*", "*_scale_inv", "*weight*", "nothing", ""] {
                let asked = Options {
                    allow_unmapped: vec![pattern.to_owned()],
                    ..options(MtpPolicy::Keep)
                };
                let plan = ImportPlan::new(family, on_disk(name), &asked).unwrap();
                let line =
                    format!("--allow-unmapped {pattern:?} matches nothing that is left over");
                assert!(
                    plan.summary().notices.contains(&line),
                    "{:?}",
                    plan.summary().notices
                );
                let run = import(family, on_disk(name), &asked).unwrap();
                for file in plain.files().unwrap() {
                    assert_eq!(
                        plain.bytes(&file.name),
                        run.bytes(&file.name),
                        "{}",
                        file.name
                    );
                }
            }
        }
    });
}
