//! BF16 layer by layer: each layer on the input that transformers had, with the selections and experts that it chose. End to end the two
//! are far apart, and rightly: one expert that flips changes everything after it.

use std::sync::Arc;

use rialto_program::Program;
use rialto_runtime::{Rows, Tensor, Work};

use crate::goldens::worst_absolute;
use crate::records::{Golden, rows};
use crate::world::{Load, session};

/// Largest relative error of a rounding to BF16, whose significand has 8 bits.
const UNIT: f64 = 1.0 / 256.0;

/// Roundings on the longest way through a layer: 10 in attention (norm twice, query latent, its norm twice, queries, rotation, absorbed
/// queries or keys, attended latents or values, output) and 8 in the MLP (norm twice, gate, up, their product, down, weighted, summed), in
/// each of the two programs, which round in different places.
const ROUNDINGS: f64 = 2.0 * (10.0 + 8.0);

/// How much softmax makes of an error in its logits: they are sums of products of numbers near one, scaled to a few units, and a
/// relative error of a logit is one of its probability that many times over.
const SOFTMAX: f64 = 4.0;

/// Largest difference of an element of a row of the residual stream, of which a layer added the change.
///
/// An error of a rounding is even in +-UNIT, with a standard deviation of UNIT / sqrt(3); errors of different roundings and elements are
/// independent, and a matrix product leaves their relative size as it is, so that they add as squares. Five standard deviations for the
/// largest of a few thousand elements. The residual itself is rounded once on either side.
fn tolerance(before: &[f32], after: &[f32]) -> f64 {
    let changes = before
        .iter()
        .zip(after)
        .map(|(a, b)| f64::from(b - a).powi(2));
    let change_rms = (changes.sum::<f64>() / before.len() as f64).sqrt();
    let largest = after
        .iter()
        .fold(0.0f64, |largest, value| largest.max(f64::from(value.abs())));
    let deviation = UNIT / 3f64.sqrt() * ROUNDINGS.sqrt();
    5.0 * deviation * SOFTMAX.sqrt() * change_rms + 2.0 * UNIT * largest
}

/// The layer's output, its input and choices given. `edit` spoils the layer.
fn layer(
    load: &Load,
    golden: &Golden,
    name: &str,
    layer: usize,
    edit: fn(Program) -> Program,
) -> Vec<f32> {
    let full = golden.numbers("bf16.index_topk.");
    let selects = full.iter().rev().find(|&&full| full <= layer).unwrap();
    let mut given = vec![
        (
            format!("hidden.{layer}"),
            golden.tensor(&format!("bf16.hidden.{layer}")),
        ),
        (
            format!("layers.{selects}.selection"),
            golden.tensor(&format!("bf16.index_topk.{selects}")),
        ),
    ];
    if golden.has(&format!("bf16.router_ids.{layer}")) {
        for (ours, theirs) in [("ids", "router_ids"), ("weights", "router_weights")] {
            let tensor = golden.tensor(&format!("bf16.{theirs}.{layer}"));
            given.push((format!("layers.{layer}.router.{ours}"), tensor));
        }
    }
    let output = format!("hidden.{}", layer + 1);
    let names: Vec<String> = given.iter().map(|(name, _)| name.clone()).collect();
    let wanted = output.clone();
    let load = Load {
        edit: Arc::new(move |program| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            edit(program)
                .excerpt("forward", &names, &[&wanted])
                .unwrap()
        }),
        ..load.clone()
    };
    let model = load.hugging_face(name);
    let mut session = session(&model, "forward");
    let sequence = session.begin();
    let inputs: Vec<(&str, &Tensor)> = given
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor))
        .collect();
    let work = Work {
        sequence,
        tokens: &golden.tokens("input_ids"),
        rows: Rows::None,
    };
    session
        .step(&[work], &inputs, &[&output])
        .unwrap()
        .take(&output)
        .unwrap()
        .to_f32()
}

/// The largest difference of any row by what is allowed for the row.
fn worst(golden: &Golden, number: usize, found: &[f32]) -> f64 {
    let count = golden.tokens("input_ids").len();
    let before = golden.f32s(&format!("bf16.hidden.{number}"));
    let expected = golden.f32s(&format!("bf16.hidden.{}", number + 1));
    let all = rows(&before, count)
        .zip(rows(&expected, count))
        .zip(rows(found, count));
    let shares = all.map(|((before, expected), found)| {
        f64::from(worst_absolute(expected, found)) / tolerance(before, expected)
    });
    // What is no number is outside of every tolerance.
    shares.fold(0.0, |worst, share| {
        if share.is_nan() {
            f64::INFINITY
        } else {
            share.max(worst)
        }
    })
}

const MODELS: [(&str, usize); 3] = [("glm5-tiny", 6), ("glm52-tiny", 8), ("glm53-tiny", 4)];

#[test]
fn what_is_no_number_is_outside_of_the_tolerance() {
    let golden = Golden::open("glm5-tiny");
    let mut found = golden.f32s("bf16.hidden.1");
    assert_eq!(worst(&golden, 0, &found), 0.0);
    found[77] = f32::NAN;
    assert_eq!(worst(&golden, 0, &found), f64::INFINITY);
}

#[test]
fn each_layer_is_that_of_transformers_within_what_roundings_explain() {
    each_layer(&Load::bf16());
}

/// Asserts it for the device of a load.
pub(crate) fn each_layer(load: &Load) {
    for (name, layers) in MODELS {
        let golden = Golden::open(name);
        for number in 0..layers {
            let found = layer(load, &golden, name, number, |program| program);
            let share = worst(&golden, number, &found);
            println!("{name} layer {number}: {share:.2} of the tolerance");
            assert!(share <= 1.0, "{name} layer {number}: {share}");
        }
    }
}

/// The tolerance is no barn door: a factor of attention that is off by a tenth, another base of the angles, or an eps that counts is outside.
#[test]
fn a_layer_that_is_spoiled_a_little_is_outside_of_the_tolerance() {
    let golden = Golden::open("glm52-tiny");
    let spoiled: [fn(Program) -> Program; 3] = [
        |program| {
            each(program, "rialto.sparse_mla/1", "scale", |value| {
                (value * 1.1).into()
            })
        },
        |program| {
            each(program, "rialto.rope/1", "theta", |value| {
                (value * 0.01).into()
            })
        },
        |program| each(program, "rialto.rms_norm/1", "eps", |_| 0.3.into()),
    ];
    for (number, edit) in spoiled.into_iter().enumerate() {
        let found = layer(&Load::bf16(), &golden, "glm52-tiny", 3, edit);
        let share = worst(&golden, 3, &found);
        println!("fault {number}: {share:.2} of the tolerance");
        assert!(share > 1.0, "fault {number}: {share}");
    }
}

fn each(
    mut program: Program,
    op: &str,
    attribute: &str,
    edit: fn(f64) -> serde_json::Value,
) -> Program {
    for call in program.phases.iter_mut().flat_map(|phase| &mut phase.calls) {
        if call.op == op {
            let value = call.with[attribute].as_f64().unwrap();
            call.with.insert(attribute.to_owned(), edit(value));
        }
    }
    program
}
