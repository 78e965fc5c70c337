//! Rules, placements and stages that leave something out.

use rialto_plugin::prelude::*;
use rialto_plugin_test::Check;

use crate::spoiled::{stages, then};
use crate::{assert_found, rule, spoiled};

#[test]
fn a_map_that_is_not_total_is_found() {
    type Spoil = fn(&mut WeightMap);
    let cases: [(Spoil, &str); 7] = [
        (
            |map| drop(rule(map, "fc1").parts.pop()),
            "decoder.layers.0.fc1.weight [24, 8]",
        ),
        (
            |map| drop(map.rules.remove(1)),
            "model.layers.2.norm.weight (BF16 [8] in the fixture) is claimed by no rule",
        ),
        (
            |map| map.rules.push(map.rules[1].clone()),
            "param decoder.layers.0.norm.weight is made by rule norm and by rule norm",
        ),
        (
            |map| rule(map, "norm").dtype = DtypeRule::any_of([Dtype::F32]),
            "model.layers.0.norm.weight has dtype BF16 in the fixture, expected F32",
        ),
        (
            |map| rule(map, "fc2").encoded = Some("other/1".to_owned()),
            "codec \"other/1\"",
        ),
        (
            |map| rule(map, "fc1").param_forms[0].parts.truncate(1),
            "param form halves of rule fc1 (small): expected no error",
        ),
        (
            |map| rule(map, "fc1").tensor_forms[0].parts[0].shape[0] = 23,
            "tensor form fused of rule fc1 (small): expected no error",
        ),
    ];
    for (spoil, said) in cases {
        let test = spoiled(|family| family.map = then(spoil));
        assert_found(Check::Totality, &test.check_totality(), said);
    }
    // A codec that rules name and nobody lists.
    let test = spoiled(|family| family.codecs = then(Vec::clear));
    assert_found(
        Check::Totality,
        &test.check_totality(),
        "the codecs of the rules (small): expected no error, found codec",
    );
}

#[test]
fn a_param_without_a_placement_is_found() {
    let test = spoiled(|family| {
        family.placement = then(|placement: &mut Placement| drop(placement.rules.pop()));
    });
    let findings = test.check_totality();
    assert_found(
        Check::Totality,
        &findings,
        "placement of decoder.layers.2.norm.weight (small): expected a rule, found none",
    );
    assert_found(
        Check::Totality,
        &findings,
        "placement of mtp.layers.0.norm.weight (small): expected a rule, found none",
    );
    let test = spoiled(|family| {
        family.placement = then(|placement: &mut Placement| placement.rules[2].cuts[0].axis = 7);
    });
    assert_found(
        Check::Totality,
        &test.check_totality(),
        "a cut of decoder.layers.0.fc2.weight",
    );
}

#[test]
fn stages_that_hold_nothing_or_too_little_are_found() {
    type Spoil = fn(&mut Vec<Stage>);
    let cases: [(Spoil, &str); 7] = [
        (
            |stages| stages[0].params.push("output_layer.*".to_owned()),
            "params output_layer.* of stage 0 of 3 (small): expected at least one param, found none",
        ),
        (
            |stages| stages[0].params.clear(),
            "stage 0 of 1 (small): expected params, found none",
        ),
        (
            |stages| drop(stages[0].params.pop()),
            "param embedding.weight on 3 stages (small): expected a stage that holds it, found none",
        ),
        (
            |stages| stages[0].layers += 1,
            "layers of 3 stages (small): expected layers 0..3 once, in order, found 0..2, 1..2, 2..3",
        ),
        (
            |stages| drop(stages.pop()),
            "stages (small): expected 3, found 2",
        ),
        (
            |stages| stages[0].mtp_layers = 1,
            "prediction layers of stage 0 of 3 (small): expected 0, found 1",
        ),
        (
            |stages| stages.iter_mut().for_each(|stage| stage.mtp_layers = 0),
            "prediction layers of stage 2 of 3 (small): expected 1, found 0",
        ),
    ];
    for (spoil, said) in cases {
        let test = spoiled(|family| family.layout = stages(spoil));
        assert_found(Check::Totality, &test.check_totality(), said);
    }
}

#[test]
fn a_refusal_of_stages_that_does_not_name_the_valid_ones_is_found() {
    let refuse = |valid: &'static str| {
        spoiled(|family| {
            family.layout = Box::new(move |_, answer| {
                answer.map_err(|_| Error::Pipeline {
                    faults: vec!["it does not fit".to_owned()],
                    valid: valid.to_owned(),
                })
            });
        })
    };
    for (valid, named) in [
        ("1, 2, 3", "1, 2, 3"),
        ("1", "1"),
        ("1 to 3", "1, 2, 3"),
        ("divisors of 3", "no number"),
    ] {
        let said = format!(
            "refusal of 2 stages (small): expected 1, 3 named as valid, found {named}, in: it does not fit"
        );
        assert_found(Check::Totality, &refuse(valid).check_totality(), &said);
    }
    assert!(refuse("1 or 3").check_totality().is_empty());
    let test = spoiled(|family| {
        family.layout = Box::new(|_, answer| {
            answer.map_err(|error| Error::Document {
                document: "layout".to_owned(),
                reason: error.to_string(),
            })
        });
    });
    assert_found(
        Check::Totality,
        &test.check_totality(),
        "refusal of 4 stages (small): expected code 3, found error ",
    );
    // One more than there are layers: the last stage would be empty.
    let test = spoiled(|family| {
        family.layout = Box::new(|request, answer| match request.mesh.pp {
            4 => Ok(PipelineLayout {
                stages: Vec::new(),
                provider: Map::new(),
            }),
            _ => answer,
        });
    });
    assert_found(
        Check::Totality,
        &test.check_totality(),
        "4 stages (small): expected a refusal, for a model of 3 layers, found stages",
    );
}
