//! Checkpoints that hold something else than they should, or hold it otherwise.

use std::sync::Arc;

use rialto_bridge::LayerAxis;
use rialto_checkpoint::store::{MemoryStore, Store};
use rialto_engine::{DtypeChoice, Error, ExportOptions, ImportPlan, Options};

use super::{REAL, TIED, UNTIED, family, refused, tensors, widen};
use crate::import::assert_tensors;
use crate::world::{
    Values, delete, double, export, hugging_face, import, in_memory, iteration, megatron, on_disk,
    rename,
};
use crate::written::{self, Cut};

/// Every tensor deleted, renamed or reshaped, and every key of a stacked checkpoint.
#[test]
fn what_is_missing_is_named() {
    let all = tensors(on_disk(TIED).as_ref());
    let names: Vec<String> = all.keys().cloned().collect();
    let said = |values: &Values| refused(written::hugging_face(TIED, values), &Options::default());
    for name in &names {
        let missing = format!("{name} is missing");
        let mut values = all.clone();
        delete(&mut values, name);
        assert!(said(&values).contains(&missing), "{name}");
        let mut values = all.clone();
        rename(&mut values, name);
        let message = said(&values);
        assert!(
            message.contains(&missing) && message.contains(&format!("{name}_old")),
            "{message}"
        );
        let mut values = all.clone();
        double(&mut values, name);
        assert!(said(&values).contains(&format!("{name}.copy")), "{name}");
    }
    assert_eq!(names.len(), 35);
}

/// Exports tensors that lie as `cut` says, in a checkpoint without a config.
fn exported(values: &Values, cut: Cut, source: &'static str) -> Result<MemoryStore, Error> {
    let run = Arc::new(written::megatron(values, cut));
    let options = ExportOptions::default();
    export(family().as_ref(), run, Some(on_disk(source)), &options)
}

/// Programs other than Megatron write a stack as one chunk, or in chunks of several layers.
#[test]
fn a_stack_is_read_however_it_is_cut() {
    for golden in [&REAL[0], &REAL[2]] {
        let values = megatron(&iteration(golden.run()));
        for cut in [Cut::Whole, Cut::Two] {
            let exported = exported(&values, cut, golden.source).unwrap();
            let source = tensors(on_disk(golden.source).as_ref());
            assert_eq!(hugging_face(&exported), source, "{cut:?}");
        }
    }
}

/// `singleton_local_shards`: gate and up have a key each.
#[test]
fn gate_and_up_may_have_a_key_each() {
    let golden = &REAL[4];
    let mut values = megatron(&iteration(golden.run()));
    for layer in 0..3 {
        let key = format!("decoder.layers.{layer}.mlp.linear_fc1.weight");
        let (dtype, shape, bytes) = values.remove(&key).unwrap();
        assert_eq!(shape, [192, 64]);
        for (half, bytes) in ["w", "v"].into_iter().zip(bytes.chunks(96 * 64 * 2)) {
            let half = format!("{key}_{half}");
            values.insert(half, (dtype, vec![96, 64], bytes.to_vec()));
        }
    }
    let exported = exported(&values, Cut::Whole, golden.source).unwrap();
    let source = tensors(on_disk(golden.source).as_ref());
    assert_eq!(hugging_face(&exported), source);
}

/// Every key of a checkpoint in either form.
#[test]
fn a_key_that_is_not_as_it_should_be_is_named() {
    for golden in [&REAL[0], &REAL[4]] {
        let all = megatron(&iteration(golden.run()));
        let said = |values: &Values| {
            let exported = exported(values, Cut::Whole, golden.source);
            exported.map(|_| ()).unwrap_err().to_string()
        };
        for (name, (_, shape, bytes)) in &all {
            let mut values = all.clone();
            delete(&mut values, name);
            assert!(
                said(&values).contains(&format!("{name} is missing")),
                "{name}"
            );
            let mut values = all.clone();
            rename(&mut values, name);
            assert!(said(&values).contains(&format!("{name}_old")), "{name}");
            let mut values = all.clone();
            // One layer, or one row, less. More rows of a vocabulary are padding, fewer are none.
            let less = [&[shape[0] - 1], &shape[1..]].concat();
            let row = bytes.len() / shape[0] as usize;
            let value = values.get_mut(name).unwrap();
            (value.1, value.2) = (less, bytes[row..].to_vec());
            let message = said(&values);
            assert!(message.contains(&format!("{name} has shape")), "{message}");
        }
    }
}

/// Both forms of one param, and one layer in the form of the others' past.
#[test]
fn a_mixture_of_the_two_forms_is_refused() {
    let stacked = megatron(&iteration(REAL[2].run()));
    let single = megatron(&iteration(REAL[4].run()));
    for (checkpoint, other, key, shape) in [
        (
            &stacked,
            &single,
            "decoder.layers.1.mlp.linear_fc2.weight",
            "64, 96",
        ),
        (
            &single,
            &stacked,
            "decoder.layers.mlp.linear_fc2.weight",
            "3, 64, 96",
        ),
    ] {
        let mut values = checkpoint.clone();
        values.insert(key.to_owned(), other[key].clone());
        let error = exported(&values, Cut::Whole, UNTIED).map(|_| ());
        let message = error.unwrap_err().to_string();
        assert!(
            message.contains(&format!("{key} (BF16 [{shape}]")),
            "{message}"
        );
    }
}

/// A stack has one dtype, and what cannot be one is refused with what can.
#[test]
fn layers_of_unlike_dtypes_are_no_stack() {
    let mut values = tensors(on_disk(TIED).as_ref());
    let name = "model.layers.1.mlp.down_proj.weight";
    widen(&mut values, name);
    let source = written::hugging_face(TIED, &values);
    let family = family();
    let run = |options: &Options| import(family.as_ref(), Arc::new(source.clone()), options);
    let error = run(&Options::default()).map(|_| ()).unwrap_err();
    assert_eq!(error.slug(), "weight-map/not-total");
    let message = error.to_string();
    assert!(
        message.contains("decoder.layers.mlp.linear_fc2.weight have dtypes BF16 and F32"),
        "{message}"
    );
    let narrowed = Options {
        dtype: DtypeChoice::Bf16,
        ..Options::default()
    };
    assert_tensors(&REAL[0], run(&narrowed).unwrap());
    let per_layer = Options {
        layer_axis: LayerAxis::PerLayer,
        ..Options::default()
    };
    let run: Arc<dyn Store> = Arc::new(run(&per_layer).unwrap());
    let exported = export(family.as_ref(), run, None, &ExportOptions::default()).unwrap();
    assert_eq!(hugging_face(&exported), values);
}

/// The config says what Megatron computes in, whatever the weights are.
#[test]
fn weights_of_another_dtype_than_the_config_names_are_said() {
    let said = |config: &str, dtype: DtypeChoice| {
        let source = in_memory(TIED);
        let text = String::from_utf8(source.bytes("config.json").unwrap()).unwrap();
        let text = text.replace("\"bfloat16\"", config);
        source.insert("config.json", text.into_bytes()).unwrap();
        let options = Options {
            dtype,
            ..Options::default()
        };
        let plan = ImportPlan::new(family().as_ref(), Arc::new(source), &options).unwrap();
        let notices = plan.summary().notices.clone().into_iter();
        notices
            .filter(|notice| notice.contains("params_dtype"))
            .collect::<Vec<_>>()
    };
    assert_eq!(said("\"bfloat16\"", DtypeChoice::Keep), [""; 0]);
    for dtype in [DtypeChoice::Keep, DtypeChoice::Bf16] {
        assert_eq!(
            said("\"float32\"", dtype),
            [
                "run_config.yaml: params_dtype is torch.float32, as the config says; most weights are written as BF16"
            ]
        );
    }
}
