//! What does not come back from a conversion, and damage that passes.

use std::sync::atomic::{AtomicU64, Ordering};

use rialto_plugin::prelude::*;
use rialto_plugin_test::Check;

use crate::small;
use crate::spoiled::then;
use crate::{assert_found, rule, spoiled};

/// What no round trip can see, and the crate says so.
#[test]
fn gate_and_up_swapped_on_import_pass_every_check() {
    spoiled(|family| {
        family.map = then(|map: &mut WeightMap| {
            let parts = &mut rule(map, "fc1").parts;
            let names = [parts[1].tensor.clone(), parts[0].tensor.clone()];
            for (part, name) in parts.iter_mut().zip(names) {
                part.tensor = name;
            }
        });
    })
    .check_all();
}

#[test]
fn a_mesh_that_is_suggested_and_does_not_run_is_found() {
    let test = spoiled(|family| {
        family.layout = Box::new(|request, answer| {
            assert!(request.mesh.tp == 1, "ranks are not counted yet");
            answer
        });
    });
    assert_found(
        Check::Meshes,
        &test.check_meshes(),
        "import (small on tp 2 pp 1 ep 1 etp 1): expected no error, found ",
    );
    // Together they do not fit, alone they do: a family may say so.
    let test = spoiled(|family| {
        family.layout = Box::new(|request, answer| match request.mesh {
            Mesh { tp: 2, pp: 3, .. } => Err(Error::Pipeline {
                faults: vec!["too many ranks".to_owned()],
                valid: "1".to_owned(),
            }),
            _ => answer,
        });
    });
    assert!(test.check_meshes().is_empty());
}

#[test]
fn a_vocabulary_that_cannot_be_padded_is_found() {
    let test = spoiled(|family| {
        family.spec = Box::new(|answer| match answer {
            Ok(spec) if spec.provider["should_pad_vocab"] == true => Err(Error::Unsupported {
                what: "--pad-vocab".to_owned(),
                found: "it".to_owned(),
                supported: "nothing else".to_owned(),
            }),
            other => other,
        });
    });
    assert_found(
        Check::Meshes,
        &test.check_meshes(),
        "import (small on tp 1 pp 1 ep 1 etp 1 with a padded vocabulary): expected no error, found --pad-vocab",
    );
}

#[test]
fn what_does_not_come_back_is_found() {
    // Left out on the way there.
    let test = spoiled(|family| {
        family.map =
            then(|map: &mut WeightMap| rule(map, "norm").skip = Some("not needed".to_owned()));
    });
    assert_found(
        Check::Meshes,
        &test.check_meshes(),
        "tensor model.layers.1.norm.weight (small on tp 1 pp 1 ep 1 etp 1): expected BF16 [8], found nothing",
    );
    // Decoded otherwise each time.
    let calls = AtomicU64::new(0);
    let test = spoiled(|family| {
        family.codecs = then(move |codecs: &mut Vec<Codec>| {
            if calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                codecs[0].decoded = Dtype::Bf16;
            }
        });
    });
    assert_found(
        Check::Meshes,
        &test.check_meshes(),
        "tensor model.layers.0.down.weight",
    );
    // Listed and not decoded.
    let test = spoiled(|family| {
        family.decoded = Box::new(|_| {
            Err(Error::UnknownCodec {
                codec: small::CODEC.to_owned(),
            })
        });
    });
    assert_found(
        Check::Meshes,
        &test.check_meshes(),
        "the fixture decoded (small): expected no error, found codec",
    );
    // Two spellings of the same keys: which one it is cannot be read off them.
    let test = spoiled(|family| {
        family.map = then(|map: &mut WeightMap| {
            let rule = rule(map, "fc1");
            let [w, v] = [0, 1].map(|half| rule.param_forms[0].parts[half].clone());
            let (at_w, at_v) = (w.at.clone(), v.at.clone());
            let parts = [Part { at: at_v, ..w }, Part { at: at_w, ..v }];
            rule.param_forms.push(Form::new("swapped", parts));
        });
    });
    assert_found(
        Check::Meshes,
        &test.check_meshes(),
        "tensor model.layers.0.gate.weight (small with params spelled swapped): expected byte ",
    );
    // Two tensors of one form trade places under the names of the rule's own.
    let test = spoiled(|family| {
        family.map = then(|map: &mut WeightMap| {
            let rule = rule(map, "fc1");
            let [gate, up] = [0, 1].map(|half| rule.parts[half].clone());
            let parts = [
                Part {
                    at: up.at.clone(),
                    ..gate.clone()
                },
                Part { at: gate.at, ..up },
            ];
            rule.tensor_forms.push(Form::new("swapped", parts));
        });
    });
    assert_found(
        Check::Meshes,
        &test.check_meshes(),
        "param decoder.layers.fc1.weight imported again (small with tensors spelled swapped): expected byte ",
    );
}

#[test]
fn an_exported_config_that_is_another_is_found() {
    let test = spoiled(|family| {
        family.edits =
            Box::new(|_, _| Ok(vec![ConfigEdit::set("architectures", json!(["Other"]))]));
    });
    assert_found(
        Check::Meshes,
        &test.check_meshes(),
        "claim of the exported config (small on tp 1 pp 1 ep 1 etp 1): expected yes",
    );
    // Edits without an end.
    let test = spoiled(|family| {
        family.edits = Box::new(|config, _| {
            let saves = config.optional_integer("saves")?.unwrap_or(0);
            Ok(vec![ConfigEdit::set("saves", saves + 1)])
        });
    });
    assert_found(
        Check::Meshes,
        &test.check_meshes(),
        "edits of the exported config (small on tp 1 pp 1 ep 1 etp 1): expected none, found saves",
    );
    // What is left out still stands in the config.
    let test = spoiled(|family| family.edits = Box::new(|_, _| Ok(Vec::new())));
    assert_found(
        Check::Meshes,
        &test.check_meshes(),
        "a plan of the export (small --mtp drop): expected no error, found model.layers.3.norm.weight is missing",
    );
}

#[test]
fn damage_that_is_not_refused_by_name_is_found() {
    let test = spoiled(|family| {
        family.map = then(|map: &mut WeightMap| {
            let norm = rule(map, "norm");
            norm.copies
                .push("model.layers.{i}.norm.weight.copy".to_owned());
        });
    });
    let findings = test.check_damage();
    assert_eq!(findings.len(), 3, "{findings:#?}");
    assert_found(
        Check::Damage,
        &findings,
        "model.layers.1.norm.weight doubled under another name (small): expected a refusal that names \
         model.layers.1.norm.weight.copy, found a plan",
    );
    // Whatever is wrong with the checkpoint, another thing is told.
    let test = spoiled(|family| {
        family.codecs = then(|codecs: &mut Vec<Codec>| {
            codecs[0].companions[0]
                .suffixes
                .push("_scale_old".to_owned())
        });
    });
    assert_found(
        Check::Damage,
        &test.check_damage(),
        "model.layers.0.down.weight_scale renamed (small): expected a refusal that names model.layers.0.down.weight_scale and \
         model.layers.0.down.weight_scale_old, found a plan",
    );
}
