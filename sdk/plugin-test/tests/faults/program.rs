//! Forward passes that do not fit together, or not with the weights.

use rialto_plugin::prelude::*;
use rialto_plugin_test::{Check, Finding, PluginTest};
use serde_json::from_value;

use crate::spoiled::then;
use crate::{assert_found, small, spoiled, test};

/// Small with another program.
fn changed(change: impl Fn(&mut Program) + Send + Sync + 'static) -> PluginTest {
    spoiled(|family| family.program = then(change))
}

fn found(change: impl Fn(&mut Program) + Send + Sync + 'static) -> Vec<Finding> {
    changed(change).check_program()
}

fn param<'a>(program: &'a mut Program, name: &str) -> &'a mut program::ParamDecl {
    let mut params = program.params.iter_mut();
    params.find(|param| param.name == name).unwrap()
}

/// One that looks rows up in the norms of the layers, one above the other.
fn with_norms(program: &mut Program, tensors: &str, shape: &[u64]) {
    program.params.push(program::ParamDecl {
        name: "norms".to_owned(),
        shape: shape.to_vec(),
        element: program::Element::Activation,
        stored: program::Stored::Each(tensors.to_owned()),
    });
    let call = json!({"op": "rialto.embed/1", "in": ["tokens", "norms"], "out": ["looked up"]});
    program.phases[0].calls.push(from_value(call).unwrap());
    program.phases[0].outputs.push("looked up".to_owned());
}

#[test]
fn a_param_that_comes_from_nowhere_is_found() {
    let renamed = |name: &'static str| {
        found(move |program| {
            let stored = program::Stored::Whole(name.to_owned());
            param(program, "model.layers.1.down.weight").stored = stored;
        })
    };
    for name in [
        "model.layers.1.up_proj.weight",
        // A second name may be absent.
        "lm_head.weight",
        // What a checkpoint might have in another spelling is not what the map has in its own.
        "model.layers.1.gate_up.weight",
        "",
    ] {
        let said = format!(
            "program: param model.layers.1.down.weight of the program, from {name} (small): \
             expected a tensor or a param of the weight map, found none"
        );
        let findings = renamed(name);
        assert_found(Check::Program, &findings, &said);
        // A finding for each way to read the fixture.
        assert_eq!(findings.len(), 4, "{findings:#?}");
    }
    // Left out with the layers that predict: whoever names their weights lacks them then.
    let findings = found(|program| {
        let stored = program::Stored::Whole("model.layers.3.norm.weight".to_owned());
        param(program, "model.layers.1.norm.weight").stored = stored;
    });
    assert_found(
        Check::Program,
        &findings,
        "(small --mtp drop): expected a tensor or a param",
    );
    assert_eq!(findings.len(), 2, "{findings:#?}");
}

#[test]
fn a_param_of_another_shape_is_found() {
    let findings = found(|program| {
        let stored = program::Stored::Whole("model.layers.1.gate.weight".to_owned());
        param(program, "model.layers.1.down.weight").stored = stored;
    });
    assert_found(
        Check::Program,
        &findings,
        "param model.layers.1.down.weight of the program, from model.layers.1.gate.weight (small): expected [8, 12], found [12, 8]",
    );
    let findings = found(|program| {
        let stored = program::Stored::Whole("decoder.layers.1.fc2.weight".to_owned());
        param(program, "model.layers.1.norm.weight").stored = stored;
    });
    assert_found(
        Check::Program,
        &findings,
        "from decoder.layers.1.fc2.weight (small): expected [8], found [8, 12]",
    );
}

#[test]
fn each_tensor_of_a_stack_is_looked_for() {
    let norms = "model.layers.{}.norm.weight";
    let of = |tensors: &'static str, shape: &'static [u64]| {
        found(move |program| with_norms(program, tensors, shape))
    };
    assert!(of(norms, &[3, 8]).is_empty());
    assert_found(
        Check::Program,
        &of(norms, &[3, 9]),
        "param norms of the program, from model.layers.2.norm.weight (small): expected [9], found [8]",
    );
    assert_found(
        Check::Program,
        &of(norms, &[5, 8]),
        "from model.layers.4.norm.weight (small): expected a tensor or a param of the weight map, found none",
    );
    assert_found(
        Check::Program,
        &of(norms, &[1000, 8]),
        "param norms of the program (small): expected at most ",
    );
    assert_found(
        Check::Program,
        &of(norms, &[u64::MAX, 8]),
        "params come from 18446744073709551615 tensors",
    );
    assert_found(
        Check::Program,
        &of("model.norm.weight", &[3, 8]),
        "\"model.norm.weight\" has no single place for a number",
    );
    assert_found(
        Check::Program,
        &of(norms, &[]),
        "param \"norms\" has no leading axis",
    );
}

#[test]
fn a_codec_that_the_family_does_not_have_is_found() {
    assert_found(
        Check::Program,
        &found(|program| program.block_codecs.push("other/1".to_owned())),
        "block codec other/1 of the program (small): expected one of small_int8/1, found no codec",
    );
    assert!(found(|program| program.block_codecs.push(small::CODEC.to_owned())).is_empty());
}

#[test]
fn a_program_that_is_not_sound_is_found_with_all_that_is_wrong() {
    let findings = found(|program| {
        program.phases[0].outputs.push("nothing".to_owned());
        program.phases[0].calls.remove(0);
    });
    assert_found(
        Check::Program,
        &findings,
        "program (small): expected no error, found phase forward, output \"nothing\" is made by no call",
    );
    assert_found(
        Check::Program,
        &findings,
        "\"hidden.0\" is no param, no cache, and no value made before",
    );
    let later = || changed(|program| program.phases[0].calls[0].op = "them.spiral/2".to_owned());
    let (findings, crossed) = (later().check_program(), later().check_documents());
    assert_found(
        Check::Program,
        &findings,
        "operation them.spiral/2 is not known",
    );
    assert_found(
        Check::Documents,
        &crossed,
        "program across the ABI (small): expected no error, found ",
    );
    assert_found(Check::Documents, &crossed, "requires op/them.spiral/2");
}

#[test]
fn a_forward_pass_that_fails_or_takes_any_setting_is_found() {
    let test_of =
        |fail: fn() -> Error| spoiled(|family| family.program = Box::new(move |_| Err(fail())));
    let failing = test_of(|| Error::ConfigSyntax {
        reason: "no rope".to_owned(),
    });
    assert_found(
        Check::Program,
        &failing.check_program(),
        "program (small): expected no error, found config.json",
    );
    let panicking = test_of(|| panic!("no rope"));
    assert_found(
        Check::Program,
        &panicking.check_program(),
        "plugin panicked in program: no rope",
    );
    // None is none, and no fault.
    let none = test_of(|| Error::NoForwardPass {
        release: small::RELEASE.to_owned(),
    });
    assert!(none.check_program().is_empty() && none.check_documents().is_empty());
    let whole = std::sync::Mutex::new(None);
    let any = spoiled(|family| {
        family.program = Box::new(move |answer| {
            let mut whole = whole.lock().unwrap();
            let kept = answer.ok().or_else(|| whole.take()).unwrap();
            *whole = Some(kept.clone());
            Ok(kept)
        });
    });
    assert_found(
        Check::Program,
        &any.check_program(),
        "program --set rialto_nobodys_setting (small): expected a refusal that names it, found a program",
    );
    assert!(test(small::Small).check_program().is_empty());
}
